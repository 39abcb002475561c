#include "moesaic/cost/measure_codec.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <tuple>
#include <utility>
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
constexpr int kFirstSteps = 3;  // a key, a difference without a previous one, and one with

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

// Adds up `step` until `seconds` are over, twice at least.
template <typename Step>
std::pair<Times, int> repeat(double seconds, Step step) {
  Times sum;
  int count = 0;
  for (const Stopwatch watch; count < 2 || watch.seconds() < seconds; ++count) {
    const Times times = step();
    sum.encode += times.encode;
    sum.decode += times.decode;
    sum.message_bytes += times.message_bytes;
  }
  return {sum, count};
}

// The rates of `step`, run by rank 0 alone while the others sleep, and by all: then of the slowest.
template <typename Step>
CodecRates measure(Communicator& world, double seconds, Step step) {
  CodecRates rates;
  const auto run = [&](bool takes_part, double& encode, double& decode) {
    (void)slowest(world, 0);
    Times sum;
    int count = 1;
    if (takes_part) std::tie(sum, count) = repeat(seconds, step);
    encode = kBytes / std::max(slowest(world, sum.encode / count), kTick);
    decode = kBytes / std::max(slowest(world, sum.decode / count), kTick);
    const double bits = 8.0 * static_cast<double>(sum.message_bytes) / static_cast<double>(kWords) / count;
    rates.bits_per_word = slowest(world, bits);
  };
  run(world.rank() == 0, rates.encode.alone_bytes_per_s, rates.decode.alone_bytes_per_s);
  if (world.size() > 1) {
    run(true, rates.encode.together_bytes_per_s, rates.decode.together_bytes_per_s);
  } else {
    rates.encode.together_bytes_per_s = rates.encode.alone_bytes_per_s;
    rates.decode.together_bytes_per_s = rates.decode.alone_bytes_per_s;
  }
  return rates;
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
