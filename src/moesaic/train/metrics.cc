#include "moesaic/train/metrics.h"

#include <algorithm>
#include <cerrno>
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

}  // namespace

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

void MetricsLog::write(const StepReport& report) {
  Json load = Json::array();
  for (const auto& chosen : report.chosen) load.push_back(fullest_expert(chosen));
  append(Json{
      {"step", report.step},
      {"loss", report.loss},
      {"gradient_norm", report.gradient_norm},
      {"learning_rate", report.learning_rate},
      {"tokens_per_s", report.tokens_per_s},
      {"seconds", report.seconds},
      {"blocked_seconds", report.blocked_seconds},
      {"skipped", report.skipped},
      {"balance_loss", report.balance_loss},
      {"z_loss", report.z_loss},
      {"dropped", report.dropped},
      {"dropped_non_finite", report.dropped_non_finite},
      {"gather_bytes", report.gather_bytes},
      {"reduce_bytes", report.reduce_bytes},
      {"exchange_bytes", report.exchange_bytes},
      {"inter_node_bytes", report.inter_node_bytes},
      {"expert_load",
       load}}.dump());
}

void MetricsLog::write(std::int64_t step, const std::vector<HeldOutLoss>& losses) {
  Json object{{"step", step}}, by_file = Json::object();
  for (const HeldOutLoss& held_out : losses) {
    if (held_out.name == "all") {
      object["heldout_loss"] = held_out.loss;
    } else {
      by_file[held_out.name] = held_out.loss;
    }
  }
  object["heldout_loss_by_file"] = by_file;
  append(object.dump());
}

}  // namespace moesaic
