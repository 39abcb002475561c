#include "moesaic/codec/trial.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <thread>

#include "moesaic/codec/int8.h"
#include "moesaic/core/bf16.h"

namespace moesaic::codec {
namespace {

std::span<std::uint16_t> words_of(Buffer& buffer) {
  return {buffer.as<std::uint16_t>(), static_cast<std::size_t>(buffer.bytes()) / 2};
}

std::int64_t bytes_of(std::span<const std::uint16_t> words) {
  return static_cast<std::int64_t>(words.size_bytes());
}

// What a receiver holds after the steps before. No tables: every message measures its own.
Reference held_after(Keeps keeps, const UnitStep& unit, const std::vector<std::uint8_t>& tables = {}) {
  Reference held(keeps, unit.reference.size());
  const bool first = unit.before.empty();
  if (!first) held.commit({.epoch = 0, .key = true, .hash = 0, .tables = {}}, unit.before);
  held.commit({.epoch = held.epoch(), .key = first, .hash = 0, .tables = tables}, unit.reference);
  return held;
}

// The first word that came back farther away than int8.h allows, or the number of words.
std::size_t first_out_of_bound(std::span<const std::uint16_t> sent, std::span<const std::uint16_t> got) {
  for (std::size_t begin = 0; begin < sent.size(); begin += kBlockWords) {
    const auto block = sent.subspan(begin, std::min(kBlockWords, sent.size() - begin));
    std::uint16_t magnitude = 0;
    for (const std::uint16_t word : block) magnitude = std::max<std::uint16_t>(magnitude, word & 0x7fff);
    const float scale = magnitude < 0x7f80 ? to_float(BF16{block_scale(magnitude)}) : 0.0f;
    for (std::size_t i = begin; i < begin + block.size(); ++i) {
      if (sent[i] == got[i]) continue;
      const float back = to_float(BF16{got[i]});
      const float rounding = std::ldexp(std::abs(back), -8);
      if (!(std::abs(back - to_float(BF16{sent[i]})) <= scale / 2 + rounding)) return i;
    }
  }
  return sent.size();
}

}  // namespace

void on_threads(int threads, std::size_t n, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto take = [&] {
    try {
      for (std::size_t i = next++; i < n; i = next++) work(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < std::min(n, static_cast<std::size_t>(threads)); ++i)
      others.emplace_back(take);
    take();
  }
  if (failure) std::rethrow_exception(failure);
}

Trial::Trial(Method method, std::span<const UnitStep> units, int threads)
    : method_(method), threads_(threads) {
  for (const UnitStep& unit : units) {
    Unit& made = units_.emplace_back(
        Unit{.step = unit,
             .held = held_after(needs(method), unit),
             .message = Buffer(static_cast<std::int64_t>(message_bound(unit.current.size(), {}))),
             .received = {},
             .decoded = Buffer(bytes_of(unit.current)),
             .tables = {}});
    if (!lossless(method)) made.received = Buffer(bytes_of(unit.current));
  }
}

void Trial::encode() {
  on_threads(threads_, units_.size(), [&](std::size_t i) {
    Unit& unit = units_[i];
    Encoder encoder(method_, unit.held, unit.step.current, {.unit = i}, unit.message.span(),
                    words_of(unit.received));
    unit.message_bytes = encoder.all().size();
    unit.tables = encoder.update().tables;
  });
}

void Trial::keep_tables() {
  for (Unit& unit : units_) unit.held = held_after(needs(method_), unit.step, unit.tables);
}

void Trial::decode() {
  on_threads(threads_, units_.size(), [&](std::size_t i) {
    Unit& unit = units_[i];
    Decoder decoder(unit.held, {.unit = i}, words_of(unit.decoded));
    decoder.finish(unit.message.span().first(unit.message_bytes));
  });
}

std::string Trial::check() {
  encode();
  for (Unit& unit : units_) std::ranges::fill(unit.decoded.span(), std::byte{0xab});
  decode();
  for (std::size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = units_[i];
    const std::span<const std::uint16_t> decoded = words_of(unit.decoded);
    const std::span<const std::uint16_t> expected =
        lossless(method_) ? unit.step.current : std::span<const std::uint16_t>(words_of(unit.received));
    const auto at = std::ranges::mismatch(expected, decoded).in1 - expected.begin();
    if (at < std::ssize(expected)) {
      return fmt::format("{}: word {} of unit {} is {:#06x}, expected {:#06x}", name_of(method_), at, i,
                         decoded[static_cast<std::size_t>(at)], expected[static_cast<std::size_t>(at)]);
    }
    if (lossless(method_)) continue;
    const std::size_t far = first_out_of_bound(unit.step.current, decoded);
    if (far < decoded.size()) {
      return fmt::format("{}: word {} of unit {} is {}, too far from {}", name_of(method_), far, i,
                         to_float(BF16{decoded[far]}), to_float(BF16{unit.step.current[far]}));
    }
  }
  return "";
}

double Trial::bits_per_word() const {
  double bytes = 0, words = 0;
  for (const Unit& unit : units_) {
    bytes += static_cast<double>(unit.message_bytes);
    words += static_cast<double>(unit.step.current.size());
  }
  return words == 0 ? 0.0 : 8 * bytes / words;
}

}  // namespace moesaic::codec
