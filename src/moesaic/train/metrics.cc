#include "moesaic/train/metrics.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <string>

#include "moesaic/core/error.h"
#include "moesaic/core/file.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

bool is_of_step_up_to(const Json& line, std::int64_t steps_done) {
  if (!line.is_object()) return false;
  const auto step = line.find("step");
  return step != line.end() && step->is_number_integer() && step->get<std::int64_t>() <= steps_done;
}

// The lines that belong to a run which has made `steps_done` steps. A torn last line (killed while writing)
// goes too.
std::string lines_up_to(const std::filesystem::path& file, std::int64_t steps_done) {
  std::istringstream in(read_text(file));
  std::string kept, line;
  while (std::getline(in, line)) {
    if (is_of_step_up_to(Json::parse(line, nullptr, /*allow_exceptions=*/false), steps_done))
      kept += line + "\n";
  }
  return kept;
}

double fullest_expert(const std::vector<std::int64_t>& chosen) {
  const auto total = std::accumulate(chosen.begin(), chosen.end(), std::int64_t{0});
  if (total == 0) return 0.0;
  return static_cast<double>(*std::ranges::max_element(chosen)) * static_cast<double>(chosen.size()) /
         static_cast<double>(total);
}

// Steps count from 1; the first one is always due.
bool due(std::int64_t step, std::int64_t interval) { return (step - 1) % interval == 0; }

// To the microsecond: nothing finer means anything, and every digit is written for every rank.
double rounded(double seconds) { return std::round(seconds * 1e6) / 1e6; }

// {phase: [by rank]}
Json by_phase(const std::vector<RankTimes>& by_rank, std::array<double, kNumPhases> PhaseTimes::*column) {
  Json phases = Json::object();
  for (std::size_t p = 0; p < std::size_t{kNumPhases}; ++p) {
    Json seconds = Json::array();
    bool any = false;
    for (const RankTimes& times : by_rank) {
      seconds.push_back(rounded((times.phases.*column)[p]));
      any |= seconds.back() != 0.0;
    }
    if (any) phases[std::string(name_of(static_cast<Phase>(p)))] = std::move(seconds);
  }
  return phases;
}

Json times_of(const std::vector<RankTimes>& by_rank) {
  Json seconds = Json::array();
  for (const RankTimes& times : by_rank) seconds.push_back(rounded(times.seconds));
  return {{"seconds", std::move(seconds)},
          {"working", by_phase(by_rank, &PhaseTimes::working)},
          {"waiting", by_phase(by_rank, &PhaseTimes::waiting)},
          {"background", by_phase(by_rank, &PhaseTimes::background)}};
}

// The gathers of one unit in one step.
Json gathers_of(const UnitGathers& gathers) {
  const GatherCounts& counts = gathers.counts;
  Json json{{"unit", gathers.unit}, {"method", codec::name_of(gathers.method)}};
  if (!codec::lossless(gathers.method)) json["lossy"] = true;
  json["words"] = gathers.words;
  json["runs"] = counts.runs;
  json["unsent"] = counts.unsent;
  json["raw_bytes"] = gathers.raw_bytes;
  json["seconds"] = rounded(counts.seconds);
  json["exposed_seconds"] = rounded(gathers.exposed_seconds);
  if (gathers.method != codec::Method::kRaw) {
    json["message_bytes"] = counts.coded_bytes;
    if (counts.words > 0) {
      json["bits_per_weight"] =
          std::round(8e4 * static_cast<double>(counts.coded_bytes) / static_cast<double>(counts.words)) / 1e4;
    }
    json["encode_seconds"] = rounded(counts.encode_seconds);
    json["decode_seconds"] = rounded(counts.decode_seconds);
    json["reference_bytes"] = gathers.reference_bytes;
    json["keys"] = counts.keys;
    json["resyncs"] = counts.resyncs;
  }
  if (!gathers.resync_reason.empty()) json["resync_reason"] = gathers.resync_reason;
  if (gathers.decision) {
    json["predicted_raw_seconds"] = rounded(gathers.decision->predicted_raw_s);
    json["predicted_coded_seconds"] = rounded(gathers.decision->predicted_coded_s);
    json["window_seconds"] = rounded(gathers.decision->window_s);
    json["probe"] = gathers.decision->probe;
  }
  return json;
}

// The reduces of one unit's gradients in one step.
Json reduces_of(const UnitReduces& reduces) {
  const ReduceCounts& counts = reduces.counts;
  Json json{{"unit", reduces.unit}, {"wire", codec::name_of(reduces.wire)}};
  if (!codec::lossless(reduces.wire)) json["lossy"] = true;
  json["runs"] = counts.runs;
  json["raw_bytes"] = 2 * counts.words;
  json["message_bytes"] = counts.coded_bytes;
  json["encode_seconds"] = rounded(counts.encode_seconds);
  json["decode_seconds"] = rounded(counts.decode_seconds);
  json["seconds"] = rounded(counts.seconds);
  json["exposed_seconds"] = rounded(reduces.exposed_seconds);
  if (reduces.decision) {
    json["predicted_bf16_seconds"] = rounded(reduces.decision->predicted_bf16_s);
    json["predicted_entropy_seconds"] = rounded(reduces.decision->predicted_entropy_s);
    json["window_seconds"] = rounded(reduces.decision->window_s);
    json["probe"] = reduces.decision->probe;
  }
  return json;
}

}  // namespace

std::int64_t choices_interval(const Config& config) {
  constexpr std::int64_t kMostBytes = 32'000'000, kBytesPerNumber = 5;
  const std::int64_t layers = config.model.num_layers - config.model.num_dense_layers;
  const std::int64_t bytes =
      layers * config.model.moe.gate.num_experts * kBytesPerNumber * config.train.steps;
  return std::max<std::int64_t>(1, (bytes + kMostBytes - 1) / kMostBytes);
}

std::int64_t times_interval(std::int64_t num_ranks) {
  constexpr std::int64_t kRanksEveryStep = 16;
  return std::max<std::int64_t>(1, (num_ranks + kRanksEveryStep - 1) / kRanksEveryStep);
}

MetricsLog::MetricsLog(const std::filesystem::path& file, std::int64_t steps_done) : path_(file) {
  if (std::filesystem::exists(file)) {
    const std::filesystem::path renewed = file.string() + ".tmp";
    write_text_synced(renewed, lines_up_to(file, steps_done));
    rename_path(renewed, file);
  }
  out_.open(file, std::ios::binary | std::ios::app);
  if (!out_)
    throw IoError(fmt::format("cannot open {} for writing: {}", file.string(), std::strerror(errno)));
}

void MetricsLog::append(const std::string& line) {
  out_ << line << "\n";
  if (!out_.flush()) throw IoError(fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno)));
}

void MetricsLog::write(const StepReport& report, std::int64_t choices_interval) {
  Json load = Json::array();
  for (const auto& chosen : report.chosen) load.push_back(fullest_expert(chosen));
  double exposed = 0, hidden = 0;
  for (const RankTimes& times : report.by_rank) {
    exposed += times.phases.exposed() / static_cast<double>(report.by_rank.size());
    hidden += times.phases.hidden() / static_cast<double>(report.by_rank.size());
  }
  Json line{{"step", report.step},
            {"loss", report.loss},
            {"gradient_norm", report.gradient_norm},
            {"learning_rate", report.learning_rate},
            {"tokens_per_s", report.tokens_per_s},
            {"seconds", report.seconds},
            {"blocked_seconds", report.blocked_seconds},
            {"exposed_seconds", rounded(exposed)},
            {"hidden_seconds", rounded(hidden)},
            {"skipped", report.skipped},
            {"balance_loss", report.balance_loss},
            {"z_loss", report.z_loss},
            {"gate_loss", report.gate_loss},
            {"dropped", report.dropped},
            {"dropped_random", report.dropped_random},
            {"dropped_non_finite", report.dropped_non_finite},
            {"gather_bytes", report.gather.total},
            {"reduce_bytes", report.reduce.total},
            {"exchange_bytes", report.exchange.total},
            {"control_bytes", report.control.total},
            {"inter_node_bytes", report.inter_node_bytes()},
            {"inter_node_bytes_by_kind",
             {{"gather", report.gather.inter_node},
              {"reduce", report.reduce.inter_node},
              {"exchange", report.exchange.inter_node},
              {"control", report.control.inter_node}}},
            {"expert_load", load}};
  if (std::ranges::any_of(report.routes, [](const auto& route) { return route.has_value(); })) {
    Json routes = Json::array();
    for (const auto& route : report.routes) routes.push_back(route ? Json(name_of(*route)) : Json());
    line["exchange_routes"] = std::move(routes);
  }
  if (!report.gathers.empty()) {
    Json gathers = Json::array();
    for (const UnitGathers& unit : report.gathers) gathers.push_back(gathers_of(unit));
    line["gathers"] = std::move(gathers);
  }
  if (!report.reduces.empty()) {
    Json reduces = Json::array();
    for (const UnitReduces& unit : report.reduces) reduces.push_back(reduces_of(unit));
    line["reduces"] = std::move(reduces);
  }
  if (report.trial) {
    line["trial"] = {{"coded_seconds", rounded(report.trial->coded_s)},
                     {"plain_seconds", rounded(report.trial->plain_s)},
                     {"taken", report.trial->plain ? "plain" : "coded"}};
  }
  if (due(report.step, choices_interval)) line["expert_choices"] = report.chosen;
  if (due(report.step, times_interval(std::ssize(report.by_rank)))) line["times"] = times_of(report.by_rank);
  append(line.dump());
}

void MetricsLog::write(std::int64_t step, const std::vector<HeldOutLoss>& losses, double seconds) {
  Json object{{"step", step}}, by_file = Json::object();
  for (const HeldOutLoss& held_out : losses) {
    if (held_out.name == "all") {
      object["heldout_loss"] = held_out.loss;
    } else {
      by_file[held_out.name] = held_out.loss;
    }
  }
  object["heldout_loss_by_file"] = by_file;
  object["seconds"] = seconds;
  append(object.dump());
}

}  // namespace moesaic
