// codec_runs.h: small bf16 runs between nodes, for tests of coded gathers and reduces.
#pragma once

#include <sstream>

#include "moesaic/train/metrics.h"
#include "tests/train/runs.h"

namespace moesaic::testing {

inline Config bf16_run(const TempFolder& folder) {
  Config config = small_config(write_text(folder.path()));
  config.train.dtype = DType::kBF16;
  config.parallel.ranks = 4;
  config.comm.ranks_per_node = 2;
  config.codec.method = codec::Method::kRaw;
  config.codec.gradients = codec::GradientWire::kBf16;
  return config;
}

// Written into the folder: ranks on those nodes, and what a byte takes between them and inside one.
inline std::string calibration_file(const TempFolder& folder, std::vector<int> node_of_rank,
                                    double seconds_per_byte, double seconds_per_byte_inside = 0) {
  Calibration calibration;
  calibration.node_of_rank = std::move(node_of_rank);
  calibration.between_measured = true;
  calibration.inside.seconds_per_byte = seconds_per_byte_inside;
  calibration.between.seconds_per_byte = seconds_per_byte;
  for (const codec::Method method : codec::kMethods) {
    calibration.rates_of(method) = {{1e9, 1e9}, {1e9, 1e9}, 8};
  }
  calibration.gradients = {{1e9, 1e9}, {1e9, 1e9}, 10};
  calibration.copy = {1e10, 1e10};
  const auto file = folder.path() / "calibration.json";
  std::ofstream(file) << to_json(calibration);
  return file.string();
}

// As on_ranks(), on nodes of any make.
inline void on_nodes(const Config& config, const std::vector<int>& node_of_rank,
                     const std::function<void(Trainer&)>& body,
                     std::chrono::milliseconds timeout = kTestTimeout) {
  run_world(
      Topology::from_nodes(node_of_rank),
      [&](Communicator& world) {
        limit_compute_threads(1);
        Trainer trainer(config, world);
        body(trainer);
      },
      timeout);
}

// The log of a run whose only step is `report`; written to `file`.
inline std::string logged(const StepReport& report, const std::filesystem::path& file) {
  MetricsLog(file, 0).write(report, 1);
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

}  // namespace moesaic::testing
