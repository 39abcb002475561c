#include "moesaic/codec/context_classes.h"

#include <bit>
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

// Bits that tell the values of a bin apart, beside the bin's own.
constexpr auto kBitsInside = [] {
  std::array<float, kBinEnds.size()> bits{};
  for (std::size_t b = 1; b < bits.size(); ++b) {
    const std::uint32_t first = kBinEnds[b - 1], values = (kBinEnds[b] - first) * (first < 128 ? 1 : 16);
    while (values >> (static_cast<int>(bits[b]) + 1) != 0) bits[b] += 1;
  }
  bits.back() = 16;
  return bits;
}();

struct Class {
  Bins bins;
  float bits;
  std::uint64_t members;     // bit c: context c
  std::uint64_t neighbours;  // bit c: the class that goes by the number c
};

template <typename Each>
void for_each_bit(std::uint64_t bits, const Each& each) {
  for (; bits != 0; bits &= bits - 1) each(static_cast<std::size_t>(std::countr_zero(bits)));
}

std::uint64_t bit(std::size_t i) { return std::uint64_t{1} << i; }

// Classes go by the number of their first context.
class Merger {
 public:
  Merger(std::span<const StepCounts> contexts, std::size_t row_length) : classes_(contexts.size()) {
    std::vector<std::size_t> number(contexts.size());
    for (std::size_t c = 0; c < contexts.size(); ++c) {
      const Bins bins = binned(contexts[c]);
      if (c > 0 && bins == Bins{}) {  // not seen
        number[c] = number[c - 1];
        classes_[number[c]].members |= bit(c);
        continue;
      }
      number[c] = c;
      classes_[c] = {bins, ideal_bits(bins, Bins{}), bit(c), 0};
      left_ |= bit(c);
    }
    const auto meet = [&](std::size_t a, std::size_t b) {
      if (b >= contexts.size() || number[a] == number[b]) return;
      classes_[number[a]].neighbours |= bit(number[b]);
      classes_[number[b]].neighbours |= bit(number[a]);
    };
    for (std::size_t c = 0; c < contexts.size(); ++c) {
      const bool first = c % row_length == 0, last = (c + 1) % row_length == 0;
      if (!last) meet(c, c + 1), meet(c, c + row_length + 1);
      if (!first) meet(c, c + row_length - 1);
      meet(c, c + row_length);
    }
    for_each_bit(left_, [&](std::size_t a) { price(a, classes_[a].neighbours & (bit(a) - 1)); });
  }

  std::size_t left() const { return static_cast<std::size_t>(std::popcount(left_)); }

  void merge_the_most_alike() {
    std::size_t kept = 0, gone = 0;
    float least = std::numeric_limits<float>::max();
    for_each_bit(left_, [&](std::size_t a) {
      for_each_bit(classes_[a].neighbours & (bit(a) - 1), [&](std::size_t b) {
        if (loss_[a][b] < least) least = loss_[a][b], gone = a, kept = b;
      });
    });
    Class &into = classes_[kept], &from = classes_[gone];
    for (std::size_t i = 0; i < into.bins.size(); ++i) into.bins[i] += from.bins[i];
    into.bits = ideal_bits(into.bins, Bins{});
    into.members |= from.members;
    for_each_bit(from.neighbours, [&](std::size_t other) {
      classes_[other].neighbours = (classes_[other].neighbours & ~bit(gone)) | bit(kept);
    });
    into.neighbours = (into.neighbours | from.neighbours) & ~bit(kept) & ~bit(gone);
    left_ &= ~bit(gone);
    price(kept, into.neighbours);
  }

  // The contexts of each class.
  std::vector<std::uint64_t> members() const {
    std::vector<std::uint64_t> all;
    for_each_bit(left_, [&](std::size_t c) { all.push_back(classes_[c].members); });
    return all;
  }

 private:
  // What it costs to merge `a` with each of `others`.
  void price(std::size_t a, std::uint64_t others) {
    for_each_bit(others, [&](std::size_t b) {
      loss_[std::max(a, b)][std::min(a, b)] =
          ideal_bits(classes_[a].bins, classes_[b].bins) - classes_[a].bits - classes_[b].bits;
    });
  }

  std::vector<Class> classes_;
  std::uint64_t left_ = 0;
  std::array<std::array<float, 64>, 64> loss_;  // [a][b], b < a, of neighbours
};

}  // namespace

std::vector<StepCounts> merge_contexts(std::span<const StepCounts> contexts, std::size_t row_length,
                                       std::size_t max_classes, std::uint8_t* class_of_context) {
  Merger merger(contexts, row_length);
  while (merger.left() > max_classes) merger.merge_the_most_alike();
  std::vector<StepCounts> counts;
  for (const std::uint64_t members : merger.members()) {
    StepCounts& sum = counts.emplace_back();
    for_each_bit(members, [&](std::size_t context) {
      class_of_context[context] = static_cast<std::uint8_t>(counts.size() - 1);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += contexts[context][i];
    });
  }
  return counts;
}

double estimated_bits(std::span<const StepCounts> contexts) {
  double bits = 0;
  for (const StepCounts& counts : contexts) {
    const Bins bins = binned(counts);
    bits += ideal_bits(bins, Bins{});
    for (std::size_t b = 0; b < bins.size(); ++b) bits += bins[b] * kBitsInside[b];
  }
  return bits;
}

}  // namespace moesaic::codec
