#include "moesaic/cost/measure_codec.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "moesaic/codec/gradient.h"
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

// Both ends of the gradients' entropy wire.
class GradientEnds {
 public:
  explicit GradientEnds(std::uint64_t seed)
      : words_(training_gradient(kRows, kWords / kRows, seed)),
        pieces_{{.words = kWords, .rows = kRows, .cols = kWords / kRows, .offset = 0}},
        room_(static_cast<std::int64_t>(codec::gradient_bound(pieces_, {}))),
        decoded_(kWords) {}

  Times step() {
    Times times;
    const Stopwatch encoding;
    times.message_bytes =
        codec::encode_gradient(codec::GradientWire::kEntropy, words_, pieces_, {}, room_.span()).bytes;
    times.encode = encoding.seconds();
    const Stopwatch decoding;
    codec::decode_gradient(room_.span().first(times.message_bytes), 0, decoded_);
    times.decode = decoding.seconds();
    return times;
  }

 private:
  static constexpr std::size_t kRows = 512;
  std::vector<std::uint16_t> words_;
  std::vector<codec::GradientPiece> pieces_;
  Buffer room_;
  std::vector<std::uint16_t> decoded_;
};

// What one step takes, the making of its weights included.
struct StepTimes {
  Times times;
  double whole = 0;
};

// On rank 0 while the others sleep: the best of several windows, for what else the machine does disturbs some
// of them more than others.
template <typename Step>
StepTimes alone(Communicator& world, double seconds, Step step) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  StepTimes best{.times = {.encode = kNever, .decode = kNever}, .whole = kNever};
  const int windows = std::clamp(static_cast<int>(seconds / kWindowSeconds), 1, kMostWindows);
  for (int window = 0; window < windows && world.rank() == 0; ++window) {
    Times sum;
    int count = 0;
    const Stopwatch watch;
    for (; count == 0 || watch.seconds() < seconds / windows; ++count) {
      const Times times = step();
      sum.encode += times.encode;
      sum.decode += times.decode;
      best.times.message_bytes = times.message_bytes;
    }
    best.times.encode = std::min(best.times.encode, sum.encode / count);
    best.times.decode = std::min(best.times.decode, sum.decode / count);
    best.whole = std::min(best.whole, watch.seconds() / count);
  }
  const auto of_rank_0 = [&](double value) { return slowest(world, world.rank() == 0 ? value : 0.0); };
  best.times.encode = of_rank_0(best.times.encode);
  best.times.decode = of_rank_0(best.times.decode);
  best.times.message_bytes =
      static_cast<std::size_t>(of_rank_0(static_cast<double>(best.times.message_bytes)));
  best.whole = of_rank_0(best.whole);
  return best;
}

// How many times as long as `whole` a step takes when all ranks make theirs at once, from the moment when the
// first begins until the last is done: ranks that share a core may run one after another.
template <typename Step>
double slowdown(Communicator& world, double seconds, double whole, Step step) {
  const int steps = std::max(1, static_cast<int>(seconds / kMostWindows / std::max(whole, kTick)));
  double least = std::numeric_limits<double>::infinity(), spent = 0;
  for (int window = 0; window < kMostWindows && spent < seconds; ++window) {
    (void)slowest(world, 0);  // all begin together
    const Stopwatch watch;
    for (int i = 0; i < steps; ++i) (void)step();
    (void)slowest(world, 0);
    const double taken = slowest(world, watch.seconds());
    least = std::min(least, taken / steps);
    spent += taken;
  }
  return std::max(1.0, least / std::max(whole, kTick));
}

template <typename Step>
CodecRates measure(Communicator& world, double seconds, Step step) {
  const StepTimes one = alone(world, seconds, step);
  const double times_as_long = world.size() == 1 ? 1.0 : slowdown(world, seconds, one.whole, step);
  const auto rate = [&](double spent) {
    const double bytes_per_s = kBytes / std::max(spent, kTick);
    return Rate{bytes_per_s, bytes_per_s / times_as_long};
  };
  return {.encode = rate(one.times.encode),
          .decode = rate(one.times.decode),
          .bits_per_word = 8.0 * static_cast<double>(one.times.message_bytes) / static_cast<double>(kWords)};
}

}  // namespace

void measure_codec(Communicator& world, double budget_s, Calibration& result) {
  // Two runs (alone, together) of every method but raw, of gradients and of the copy.
  const double share = budget_s / (2.0 * static_cast<double>(std::size(codec::kMethods) + 1));
  const TrainingWeights weights(kWords, static_cast<std::uint64_t>(world.rank()));
  for (const codec::Method method : codec::kMethods) {
    if (method == codec::Method::kRaw) continue;
    Ends ends(method, weights);
    result.rates_of(method) = measure(world, share, [&] { return ends.step(); });
  }
  GradientEnds gradients(static_cast<std::uint64_t>(world.rank()));
  result.gradients = measure(world, share, [&] { return gradients.step(); });
  std::vector<std::uint16_t> from, to(kWords);
  weights.after(0, from);
  result.copy = measure(world, share, [&] {
                  const Stopwatch watch;
                  std::memcpy(to.data(), from.data(), kWords * sizeof(std::uint16_t));
                  return Times{.encode = watch.seconds()};
                }).encode;
}

}  // namespace moesaic
