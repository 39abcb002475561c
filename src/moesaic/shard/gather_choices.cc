#include "moesaic/shard/gather_choices.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "moesaic/shard/rank_facts.h"

namespace moesaic {
namespace {

// What one rank saw of one unit since the step began.
struct Seen {
  std::int64_t runs, unsent, keys, resyncs, words, coded_bytes, reference_bytes;
  double encode_seconds, decode_seconds, seconds, exposed_seconds, window_seconds;
};
static_assert(sizeof(Seen) == 96);

Seen since(const GatherCounts& now, const GatherCounts& before, std::int64_t reference_bytes,
           double exposed_seconds, double window_seconds) {
  return {.runs = now.runs - before.runs,
          .unsent = now.unsent - before.unsent,
          .keys = now.keys - before.keys,
          .resyncs = now.resyncs - before.resyncs,
          .words = now.words - before.words,
          .coded_bytes = now.coded_bytes - before.coded_bytes,
          .reference_bytes = reference_bytes,
          .encode_seconds = now.encode_seconds - before.encode_seconds,
          .decode_seconds = now.decode_seconds - before.decode_seconds,
          .seconds = now.seconds - before.seconds,
          .exposed_seconds = exposed_seconds,
          .window_seconds = window_seconds};
}

void add(UnitGathers& total, const Seen& seen) {
  GatherCounts& counts = total.counts;
  counts.runs = seen.runs;
  counts.unsent = seen.unsent;
  counts.keys += seen.keys;
  counts.words += seen.words;
  counts.coded_bytes += seen.coded_bytes;
  counts.encode_seconds = std::max(counts.encode_seconds, seen.encode_seconds);
  counts.decode_seconds = std::max(counts.decode_seconds, seen.decode_seconds);
  counts.seconds = std::max(counts.seconds, seen.seconds);
  total.reference_bytes = std::max(total.reference_bytes, seen.reference_bytes);
  total.exposed_seconds = std::max(total.exposed_seconds, seen.exposed_seconds);
}

// A sentence of one rank, cut where it is longer; ends with a zero.
using Words = std::array<char, 256>;

Words words_of(const std::string& text) {
  Words words{};
  std::copy_n(text.begin(), std::min(text.size(), words.size() - 1), words.begin());
  return words;
}

}  // namespace

bool gathers_need_calibration(ShardedModel& model, ReferenceMode mode) {
  return std::ranges::any_of(model.units(), [&](const auto& unit) { return unit->codable_in(mode); });
}

GatherChoices::GatherChoices(ShardedModel& model, std::optional<codec::Method> method, ReferenceMode mode,
                             const Calibration& calibration, int gathers_per_step)
    : model_(&model), mode_(mode) {
  for (auto& unit : model.units()) {
    if (!unit->codable()) continue;
    units_.push_back({.unit = unit.get(), .gate = {}, .counts_before = {}});
    if (method || !unit->codable_in(mode)) continue;
    const GatherShape shape{
        .topology = unit->gather_group().topology(),
        .words_of_rank = unit->part_elements(),
        .mode = mode,
        .regathers = gathers_per_step - 1,
        .slices = static_cast<int>(CodedGather::slices_of(std::ranges::max(unit->part_elements())))};
    units_.back().gate.emplace(unit->layout().spec().name, calibration, shape);
  }
}

void GatherChoices::choose(std::int64_t step, bool plain) {
  step_ = step;
  plain_ = plain;
  for (Unit& unit : units_) {
    if (unit.gate) unit.unit->set_codec(plain ? codec::Method::kRaw : unit.gate->choose(step), mode_);
    unit.counts_before = unit.unit->gather_counts();
    unit.blocked_before = unit.unit->gather_blocked_seconds();
    unit.unit->gather_window().take();
  }
}

std::vector<UnitGathers> GatherChoices::observe() {
  std::vector<UnitGathers> result;
  if (units_.empty()) return result;
  std::vector<Seen> mine;
  for (const Unit& unit : units_) {
    CodedGather* const coded = unit.unit->coded();
    mine.push_back(
        since(unit.unit->gather_counts(), unit.counts_before, coded == nullptr ? 0 : coded->reference_bytes(),
              unit.unit->gather_blocked_seconds() - unit.blocked_before, unit.unit->gather_window().take()));
  }
  const RankFacts<Seen> facts(model_->world(), mine);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = units_[i];
    const Communicator& group = unit.unit->gather_group();
    UnitGathers total{
        .unit = unit.unit->layout().spec().name, .method = unit.unit->codec(), .counts = {}, .decision = {}};
    double late = 0;
    facts.for_each_of(group, i, [&](const Seen& seen) {
      add(total, seen);
      late = std::max(late, seen.seconds - seen.window_seconds);
    });
    facts.for_each(
        i, [&](const Seen& seen) { total.counts.resyncs = std::max(total.counts.resyncs, seen.resyncs); });
    for (const std::int64_t words : unit.unit->part_elements()) total.words += words;
    total.raw_bytes = total.words * 2 * (group.topology().num_nodes() - 1) * total.counts.runs;
    if (unit.gate && !plain_) {
      unit.gate->observe(step_, total.method, total.counts.seconds, total.counts.coded_bytes,
                         total.counts.seconds - late);
      total.decision = unit.gate->decision();
    }
    result.push_back(std::move(total));
  }
  tell_resyncs(result);
  return result;
}

void GatherChoices::tell_resyncs(std::vector<UnitGathers>& gathers) {
  // Every rank knows of every resync: all take part in this, or none does.
  if (std::ranges::all_of(gathers, [](const UnitGathers& unit) { return unit.counts.resyncs == 0; })) return;
  std::vector<Words> mine;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    CodedGather* const coded = units_[i].unit->coded();
    const bool here = units_[i].unit->gather_counts().resyncs > units_[i].counts_before.resyncs;
    mine.push_back(words_of(coded != nullptr && here ? coded->resync_reason() : ""));
  }
  const RankFacts<Words> reasons(model_->world(), mine);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    reasons.for_each(i, [&](const Words& words) {
      if (gathers[i].resync_reason.empty()) gathers[i].resync_reason = words.data();
    });
  }
}

}  // namespace moesaic
