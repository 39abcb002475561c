#include "moesaic/shard/reduce_choices.h"

#include <algorithm>
#include <utility>

#include "moesaic/shard/rank_facts.h"

namespace moesaic {
namespace {

// What one rank saw of one unit since the step began.
struct Seen {
  std::int64_t runs, words, live_words, coded_bytes;
  double encode_seconds, decode_seconds, seconds, exposed_seconds, window_seconds;
};
static_assert(sizeof(Seen) == 72);

Seen since(const ReduceCounts& now, const ReduceCounts& before, double exposed_seconds,
           double window_seconds) {
  return {.runs = now.runs - before.runs,
          .words = now.words - before.words,
          .live_words = now.live_words - before.live_words,
          .coded_bytes = now.coded_bytes - before.coded_bytes,
          .encode_seconds = now.encode_seconds - before.encode_seconds,
          .decode_seconds = now.decode_seconds - before.decode_seconds,
          .seconds = now.seconds - before.seconds,
          .exposed_seconds = exposed_seconds,
          .window_seconds = window_seconds};
}

void add(UnitReduces& total, const Seen& seen) {
  ReduceCounts& counts = total.counts;
  counts.runs = seen.runs;
  counts.words += seen.words;
  counts.live_words += seen.live_words;
  counts.coded_bytes += seen.coded_bytes;
  counts.encode_seconds = std::max(counts.encode_seconds, seen.encode_seconds);
  counts.decode_seconds = std::max(counts.decode_seconds, seen.decode_seconds);
  counts.seconds = std::max(counts.seconds, seen.seconds);
  total.exposed_seconds = std::max(total.exposed_seconds, seen.exposed_seconds);
}

}  // namespace

bool reduces_need_calibration(ShardedModel& model) {
  return std::ranges::any_of(model.units(), [](const auto& unit) { return unit->reduces_across_nodes(); });
}

ReduceChoices::ReduceChoices(ShardedModel& model, std::optional<codec::GradientWire> wire,
                             const Calibration& calibration, int reduces_per_step)
    : model_(&model) {
  for (auto& unit : model.units()) {
    // Of an expert unit one rank's group may cross nodes and another's not; all gather facts of the same
    // units.
    if (!unit->codable()) continue;
    units_.push_back({.unit = unit.get(), .gate = {}, .counts_before = {}});
    if (wire || !unit->reduces_across_nodes()) continue;
    units_.back().gate.emplace(unit->layout().spec().name, calibration,
                               ReduceShape{unit->reduce_group().topology(), unit->part_elements()},
                               reduces_per_step);
  }
}

void ReduceChoices::choose(std::int64_t step, bool plain) {
  plain_ = plain;
  for (Unit& unit : units_) {
    if (unit.gate) {
      unit.unit->set_gradient_wire(plain ? codec::GradientWire::kBf16 : unit.gate->choose(step));
    }
    unit.counts_before = unit.unit->reduce_counts();
    unit.blocked_before = unit.unit->reduce_blocked_seconds();
    unit.unit->reduce_window().take();
  }
}

std::vector<UnitReduces> ReduceChoices::observe() {
  std::vector<UnitReduces> result;
  if (units_.empty()) return result;
  std::vector<Seen> mine;
  for (const Unit& unit : units_) {
    mine.push_back(since(unit.unit->reduce_counts(), unit.counts_before,
                         unit.unit->reduce_blocked_seconds() - unit.blocked_before,
                         unit.unit->reduce_window().take()));
  }
  const RankFacts<Seen> facts(model_->world(), mine);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = units_[i];
    if (!unit.unit->reduces_across_nodes()) continue;
    UnitReduces total{.unit = unit.unit->layout().spec().name,
                      .wire = unit.unit->gradient_wire(),
                      .counts = {},
                      .decision = {}};
    double late = 0;
    facts.for_each_of(unit.unit->reduce_group(), i, [&](const Seen& seen) {
      add(total, seen);
      late = std::max(late, seen.seconds - seen.window_seconds);
    });
    if (unit.gate && !plain_) {
      unit.gate->observe(total.counts.seconds, total.counts.words, total.counts.coded_bytes,
                         total.counts.seconds - late);
      total.decision = unit.gate->decision();
    }
    result.push_back(std::move(total));
  }
  return result;
}

}  // namespace moesaic
