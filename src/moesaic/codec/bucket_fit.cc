#include "moesaic/codec/bucket_fit.h"

#include <algorithm>
#include <limits>

namespace moesaic::codec {
namespace {

constexpr int kNumBuckets = BucketClass::kNumBuckets;
constexpr int kWidths = BucketClass::kMaxWidthLog2 + 1;
constexpr float kLiteralBits = 16, kEscapePenalty = 2;
constexpr float kNever = std::numeric_limits<float>::max();

// Sums of counts below each step, with a little added where nothing was seen: a sample does not show all.
struct Cumulated {
  std::array<float, kLastStep + 1> below;  // of the steps before this one
  float total;

  explicit Cumulated(const StepCounts& counts) {
    float sum = 0;
    for (std::uint32_t step = 0; step < kLastStep; ++step) {
      below[step] = sum;
      const auto value = static_cast<float>(first_of_step(step));
      const float values = step < 128 ? 1 : 16;
      sum += static_cast<float>(counts[step]) + values * 0.02f / (1 + value * value * 0.05f);
    }
    below[kLastStep] = sum;
    total = sum + static_cast<float>(counts[kLastStep]) + 0.3f;
  }
};

// The step where a bucket of that width ends that begins at `step`; 0 if none does.
std::uint32_t end_of(std::uint32_t step, int width_log2) {
  const std::uint32_t end = first_of_step(step) + (1u << width_log2);
  return end <= first_of_step(kLastStep) && first_of_step(step_of(end)) == end ? step_of(end) : 0;
}

std::array<std::uint8_t, kNumBuckets> best_widths(const Cumulated& counts, std::uint32_t last_end) {
  const float log2_total = log2_of(counts.total);
  std::array<std::array<float, kLastStep + 1>, kNumBuckets + 1> cost;
  std::array<std::array<std::uint8_t, kLastStep + 1>, kNumBuckets + 1> width{};
  for (auto& row : cost) row.fill(kNever);
  cost[0][0] = 0;
  for (std::uint32_t step = 0; step < last_end; ++step) {
    // Few sums of up to three widths end at a given step.
    if (std::none_of(cost.begin(), cost.end() - 1, [&](const auto& row) { return row[step] < kNever; }))
      continue;
    for (int w = 0; w < kWidths; ++w) {
      const std::uint32_t end = end_of(step, w);
      if (end == 0 || end > last_end) continue;
      const float inside = counts.below[end] - counts.below[step];
      const bool too_thin = inside * 65536 < counts.total * 0.7f * static_cast<float>(1 << w);
      if (w > 0 && too_thin) continue;  // a frequency is at least 1
      const float bits = inside * (log2_total - log2_of(inside) + static_cast<float>(w));
      for (int b = 0; b < kNumBuckets; ++b) {
        if (cost[b][step] < kNever && cost[b][step] + bits < cost[b + 1][end]) {
          cost[b + 1][end] = cost[b][step] + bits;
          width[b + 1][end] = static_cast<std::uint8_t>(w);
        }
      }
    }
  }
  std::uint32_t best_end = 0;
  float best = kNever;
  for (std::uint32_t end = 1; end <= last_end; ++end) {
    if (cost[kNumBuckets][end] == kNever) continue;
    const float outside = std::max(counts.total - counts.below[end], counts.total / 65536);
    const float bits =
        cost[kNumBuckets][end] + outside * (log2_total - log2_of(outside) + kLiteralBits + kEscapePenalty);
    if (bits < best) best = bits, best_end = end;
  }
  std::array<std::uint8_t, kNumBuckets> result;
  for (int b = kNumBuckets; b > 0; --b) {
    result[b - 1] = width[b][best_end];
    best_end = step_of(first_of_step(best_end) - (1u << result[b - 1]));
  }
  return result;
}

// Shares of 65536 in proportion to the counts, each value at least one, so also the escape. What rounding
// leaves over goes to the largest bucket as far as its width divides it, then to the escape.
void share_slots(const Cumulated& counts, BucketClass& code) {
  float inside_all = 0;
  std::int64_t taken = 0, least = 0;
  int largest = 0;
  for (int b = 0; b < kNumBuckets; ++b) {
    const std::uint32_t step = step_of(code.base(b)), end = step_of(code.base(b + 1));
    const float inside = counts.below[end] - counts.below[step];
    const float share = inside / counts.total * 65536 / static_cast<float>(1 << code.width_log2[b]);
    code.frequency[b] = static_cast<std::uint16_t>(std::clamp(share + 0.5f, 1.0f, 65535.0f));
    inside_all += inside;
    taken += code.frequency[b] << code.width_log2[b];
    least += 1 << code.width_log2[b];
    if (code.frequency[b] << code.width_log2[b] > code.frequency[largest] << code.width_log2[largest])
      largest = b;
  }
  const float escapes = (counts.total - inside_all) / counts.total * 65536;
  const auto wanted =
      std::max(65536 - static_cast<std::int64_t>(std::clamp(escapes + 0.5f, 1.0f, 65535.0f)), least);
  for (int b = largest; taken > wanted; b = (b + 1) % kNumBuckets) {
    const std::int64_t width = std::int64_t{1} << code.width_log2[b];
    const std::int64_t fewer =
        std::min<std::int64_t>(code.frequency[b] - 1, (taken - wanted + width - 1) / width);
    code.frequency[b] = static_cast<std::uint16_t>(code.frequency[b] - fewer);
    taken -= fewer * width;
  }
  const std::int64_t more = (wanted - taken) >> code.width_log2[largest];
  code.frequency[largest] = static_cast<std::uint16_t>(code.frequency[largest] + more);
}

}  // namespace

BucketClass fit_buckets(const StepCounts& counts) {
  const Cumulated cumulated(counts);
  // Buckets past all that was seen are of no use; the search ends soon where all values are small.
  std::uint32_t last_seen = kLastStep - 1;
  while (last_seen > 0 && counts[last_seen] == 0) --last_seen;
  BucketClass code;
  code.width_log2 = best_widths(cumulated, std::min(kLastStep, last_seen + last_seen / 2 + 16));
  share_slots(cumulated, code);
  return code;
}

namespace {

// Of each bucket and, last, the escape.
std::array<std::uint64_t, kNumBuckets + 1> counts_in_buckets(const BucketClass& code,
                                                             const StepCounts& counts) {
  std::array<std::uint64_t, kNumBuckets + 1> inside{};
  for (int b = 0; b <= kNumBuckets; ++b) {
    const std::uint32_t end = b == BucketClass::kEscape ? kLastStep + 1 : step_of(code.base(b + 1));
    for (std::uint32_t s = step_of(code.base(b)); s < end; ++s) inside[b] += counts[s];
  }
  return inside;
}

}  // namespace

double cost_in_bits(const BucketClass& code, const StepCounts& counts) {
  const auto inside = counts_in_buckets(code, counts);
  double bits = 0;
  for (int b = 0; b <= kNumBuckets; ++b) {
    const double each = 16 - log2_of(static_cast<float>(code.slots(b).frequency)) +
                        (b == BucketClass::kEscape ? kLiteralBits : 0);
    bits += static_cast<double>(inside[b]) * each;
  }
  return bits;
}

double attainable_bits(const BucketClass& code, const StepCounts& counts) {
  const auto inside = counts_in_buckets(code, counts);
  std::uint64_t total = 0;
  for (const std::uint64_t count : inside) total += count;
  double bits = 0;
  for (int b = 0; b <= kNumBuckets; ++b) {
    if (inside[b] == 0) continue;
    const double share = log2_of(static_cast<float>(total)) - log2_of(static_cast<float>(inside[b]));
    bits += static_cast<double>(inside[b]) *
            (share + (b == BucketClass::kEscape ? kLiteralBits : code.width_log2[b]));
  }
  return bits;
}

}  // namespace moesaic::codec
