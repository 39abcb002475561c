#include "moesaic/cost/measure_codec.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "moesaic/codec/message.h"
#include "moesaic/core/buffer.h"
#include "moesaic/cost/stopwatch.h"
#include "moesaic/cost/training_weights.h"

namespace moesaic {
namespace {

// A part of a usual unit. What a coder reads and writes of it does not fit in a core's own cache.
constexpr std::size_t kWords = 256 << 10;
constexpr double kBytes = 2.0 * kWords;
constexpr double kTick = 1e-9;  // of the clock: no time is shorter
constexpr int kFirstSteps = 6;  // from a key until the tables have settled
// Several turns of ranks that share a core, and as many of them as fit.
constexpr double kWindowSeconds = 0.02;
constexpr int kMostWindows = 4;

struct Times {
  double encode = 0, decode = 0;
  std::size_t message_bytes = 0;
};

// Both ends of one method, and the steps that go between them.
class Ends {
 public:
  Ends(codec::Method method, const TrainingWeights& weights)
      : method_(method),
        weights_(weights),
        sender_(codec::needs(method), weights.size()),
        receiver_(codec::needs(method), weights.size()),
        room_(static_cast<std::int64_t>(codec::message_bound(weights.size(), {}))),
        lossy_(codec::lossless(method) ? 0 : weights.size()),
        decoded_(weights.size()) {
    for (int i = 0; i < kFirstSteps; ++i) (void)step();
  }

  // Seconds of the next step's message.
  Times step() {
    weights_.after(steps_++, current_);
    Times times;
    const Stopwatch encoding;
    codec::Encoder encoder(method_, sender_, current_, {}, room_.span(), lossy_);
    const std::span<const std::byte> message = encoder.all();
    sender_.commit(encoder.update(), lossy_.empty() ? current_ : lossy_);
    times.encode = encoding.seconds();
    times.message_bytes = message.size();
    const Stopwatch decoding;
    codec::Decoder decoder(receiver_, {}, decoded_);
    receiver_.commit(decoder.finish(message), decoded_);
    times.decode = decoding.seconds();
    return times;
  }

 private:
  codec::Method method_;
  const TrainingWeights& weights_;
  codec::Reference sender_, receiver_;
  Buffer room_;
  std::vector<std::uint16_t> current_, lossy_, decoded_;
  int steps_ = 0;
};

// Seconds of one `step` of a slowest rank, in the best of several windows: in each, ranks that share a core
// take their turns, and what else the machine does disturbs some windows more than others. Ranks that do not
// take part sleep.
template <typename Step>
Times best_window(Communicator& world, double seconds, bool takes_part, Step step) {
  Times best{std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  const int windows = std::clamp(static_cast<int>(seconds / kWindowSeconds), 1, kMostWindows);
  for (int window = 0; window < windows; ++window) {
    (void)slowest(world, 0);  // all begin together
    Times sum;
    int count = 0;
    for (const Stopwatch watch; takes_part && (count == 0 || watch.seconds() < seconds / windows); ++count) {
      const Times times = step();
      sum.encode += times.encode;
      sum.decode += times.decode;
      sum.message_bytes = times.message_bytes;
    }
    const double steps = std::max(count, 1);
    best.encode = std::min(best.encode, slowest(world, sum.encode / steps));
    best.decode = std::min(best.decode, slowest(world, sum.decode / steps));
    best.message_bytes = static_cast<std::size_t>(slowest(world, static_cast<double>(sum.message_bytes)));
  }
  return best;
}

template <typename Step>
CodecRates measure(Communicator& world, double seconds, Step step) {
  const auto rate = [](double spent) { return kBytes / std::max(spent, kTick); };
  const Times alone = best_window(world, seconds, world.rank() == 0, step);
  const Times together = world.size() == 1 ? alone : best_window(world, seconds, true, step);
  return {.encode = {rate(alone.encode), rate(together.encode)},
          .decode = {rate(alone.decode), rate(together.decode)},
          .bits_per_word = 8.0 * static_cast<double>(together.message_bytes) / static_cast<double>(kWords)};
}

}  // namespace

void measure_codec(Communicator& world, double budget_s, Calibration& result) {
  // Two runs (alone, together) of every method and of the copy.
  const double share = budget_s / (2.0 * static_cast<double>(std::size(codec::kMethods)));
  const TrainingWeights weights(kWords, static_cast<std::uint64_t>(world.rank()));
  for (const codec::Method method : codec::kMethods) {
    if (method == codec::Method::kRaw) continue;
    Ends ends(method, weights);
    result.rates_of(method) = measure(world, share, [&] { return ends.step(); });
  }
  std::vector<std::uint16_t> from, to(kWords);
  weights.after(0, from);
  result.copy = measure(world, share, [&] {
                  const Stopwatch watch;
                  std::memcpy(to.data(), from.data(), kWords * sizeof(std::uint16_t));
                  return Times{.encode = watch.seconds()};
                }).encode;
}

}  // namespace moesaic
