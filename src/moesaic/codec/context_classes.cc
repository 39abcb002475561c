#include "moesaic/codec/context_classes.h"

#include <limits>

namespace moesaic::codec {
namespace {

// Small values one by one, larger ones by halves of powers of two: enough to see which contexts are alike.
constexpr std::array<std::uint32_t, 28> kBinEnds = {1,  2,  3,   4,   5,   6,   7,   8,  9,  10,
                                                    11, 12, 13,  14,  15,  16,  20,  24, 32, 48,
                                                    64, 96, 128, 136, 152, 184, 255, 256};
using Bins = std::array<float, kBinEnds.size()>;

Bins binned(const StepCounts& counts) {
  Bins bins{};
  std::uint32_t step = 0;
  for (std::size_t b = 0; b < bins.size(); ++b) {
    std::uint32_t sum = 0;
    for (; step < kBinEnds[b]; ++step) sum += counts[step];
    bins[b] = static_cast<float>(sum);
  }
  return bins;
}

// Bits that the ideal code takes for x + y.
float ideal_bits(const Bins& x, const Bins& y) {
  Bins parts;
  float total = 0;
  for (std::size_t b = 0; b < parts.size(); ++b) {
    const float count = x[b] + y[b];
    parts[b] = count * log2_of(std::max(count, 1.0f));
  }
  for (std::size_t b = 0; b < parts.size(); ++b) total += x[b] + y[b];
  float bits = total * log2_of(std::max(total, 1.0f));
  for (const float part : parts) bits -= part;
  return bits;
}

struct Class {
  Bins bins;
  float bits;
  StepCounts counts;
  std::vector<std::size_t> contexts;
};

}  // namespace

std::vector<StepCounts> merge_contexts(std::span<const StepCounts> contexts, std::size_t max_classes,
                                       std::uint8_t* class_of_context) {
  const Bins nothing{};
  std::vector<Class> classes;
  for (std::size_t c = 0; c < contexts.size(); ++c) {
    const Bins bins = binned(contexts[c]);
    if (c == 0 || bins != nothing) {
      classes.push_back({bins, ideal_bits(bins, nothing), contexts[c], {c}});
    } else {
      classes.back().contexts.push_back(c);
    }
  }
  // loss[a][b], b < a: what it costs to merge a and b.
  std::vector<std::vector<float>> loss(classes.size());
  const auto loss_of = [&](const Class& a, const Class& b) {
    return ideal_bits(a.bins, b.bins) - a.bits - b.bits;
  };
  for (std::size_t a = 0; a < classes.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) loss[a].push_back(loss_of(classes[a], classes[b]));
  }
  while (classes.size() > max_classes) {
    std::size_t best_a = 1, best_b = 0;
    float least = std::numeric_limits<float>::max();
    for (std::size_t a = 1; a < classes.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        if (loss[a][b] < least) least = loss[a][b], best_a = a, best_b = b;
      }
    }
    // The last class takes the place of the one that goes.
    Class& kept = classes[best_b];
    Class& merged = classes[best_a];
    for (std::size_t i = 0; i < kept.bins.size(); ++i) kept.bins[i] += merged.bins[i];
    for (std::size_t i = 0; i < kept.counts.size(); ++i) kept.counts[i] += merged.counts[i];
    kept.contexts.insert(kept.contexts.end(), merged.contexts.begin(), merged.contexts.end());
    kept.bits = ideal_bits(kept.bins, nothing);
    const std::size_t last = classes.size() - 1;
    if (best_a != last) {
      merged = std::move(classes[last]);
      for (std::size_t b = 0; b < last; ++b) {
        if (b < best_a) loss[best_a][b] = loss[last][b];
        if (b > best_a) loss[b][best_a] = loss[last][b];
      }
    }
    classes.pop_back();
    loss.pop_back();
    for (std::size_t other = 0; other < classes.size(); ++other) {
      if (other == best_b) continue;
      loss[std::max(other, best_b)][std::min(other, best_b)] = loss_of(kept, classes[other]);
    }
  }
  std::vector<StepCounts> counts;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    counts.push_back(classes[c].counts);
    for (const std::size_t context : classes[c].contexts)
      class_of_context[context] = static_cast<std::uint8_t>(c);
  }
  return counts;
}

}  // namespace moesaic::codec
