#include "bench/moe_layer_peers.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "bench/layer_files.h"
#include "moesaic/core/error.h"

namespace moesaic::bench {
bool LayerPeer::has(const LayerCase& layer) const {
  if (variant_ == "deepspeed") return true;
  // The others have SwiGLU experts without capacity; torchtitan's compute in bf16 whatever they are given.
  return layer.shape.gated && (variant_ != "torchtitan" || layer.dtype == at::kBFloat16);
}

void LayerPeer::start() {
  if (!why_not_.empty()) throw Error(why_not_);
  std::vector<std::string> environment = kKeepFreedMemory;
  environment.push_back("DS_ACCELERATOR=cpu");
  try {
    auto process = std::make_unique<ChildProcess>(
        variant_,
        std::vector<std::string>{python_, MOESAIC_SOURCE_DIR "/bench/peers/moe_layers.py", variant_},
        environment);
    process->receive();
    process_ = std::move(process);
  } catch (const Error& error) {
    why_not_ = error.what();
    if (!variant_.starts_with("transformers")) {
      why_not_ += fmt::format("; bench/peers/setup.sh {} installs it", variant_);
    }
    throw Error(why_not_);
  }
}

nlohmann::json LayerPeer::ask(const nlohmann::json& request) {
  try {
    return process_->ask(request.dump());
  } catch (const Error&) {
    process_.reset();
    throw;
  }
}

std::string LayerPeer::load(const LayerCase& layer, const LayerInputs& inputs,
                            const std::filesystem::path& folder) {
  if (process_ == nullptr) start();
  return ask({{"action", "load"},
              {"folder", folder.string()},
              {"top_k", layer.shape.top_k},
              {"gated", layer.shape.gated},
              {"capacity_factor", layer.shape.capacity_factor},
              {"backward", layer.backward},
              {"threads", layer.threads},
              {"sets", inputs.num_sets}})
      .at("note");
}

LayerResults LayerPeer::results() {
  return read_results(ask({{"action", "results"}}).at("file").get<std::string>());
}

double LayerPeer::us_per_call(std::int64_t calls) {
  return ask({{"action", "run"}, {"calls", calls}}).at("us").get<double>() / static_cast<double>(calls);
}

void LayerPeer::unload() { ask({{"action", "unload"}}); }

std::vector<LayerPeer> layer_peers(const std::string& python, const std::string& peers_python) {
  std::vector<LayerPeer> peers;
  peers.emplace_back("deepspeed", peers_python);
  peers.emplace_back("transformers_eager", python);
  peers.emplace_back("transformers_grouped_mm", python);
  peers.emplace_back("torchtitan", peers_python);
  return peers;
}

}  // namespace moesaic::bench
