#include "moesaic/core/rng.h"

#include <cmath>
#include <numbers>

#include "moesaic/core/error.h"

namespace moesaic {
namespace {

std::uint64_t mix(std::uint64_t z) {  // the finaliser of SplitMix64
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

std::array<std::uint32_t, 4> words_at(std::uint64_t key, std::uint64_t index, std::uint64_t lane) {
  const auto lo = [](std::uint64_t v) { return static_cast<std::uint32_t>(v); };
  const auto hi = [](std::uint64_t v) { return static_cast<std::uint32_t>(v >> 32); };
  return philox({lo(index), hi(index), lo(lane), hi(lane)}, {lo(key), hi(key)});
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> c, std::array<std::uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * c[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(a)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

std::uint64_t random_key(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char ch : name) hash = (hash ^ static_cast<unsigned char>(ch)) * 0x100000001b3ull;
  return mix(hash ^ mix(seed + 0x9e3779b97f4a7c15ull));
}

std::uint64_t random_bits(std::uint64_t key, std::uint64_t index, std::uint64_t lane) {
  const auto w = words_at(key, index, lane);
  return (std::uint64_t{w[1]} << 32) | w[0];
}

float random_uniform(std::uint64_t key, std::uint64_t index, std::uint64_t lane) {
  return static_cast<float>(words_at(key, index, lane)[0] >> 8) * 0x1p-24f;
}

float random_normal(std::uint64_t key, std::uint64_t index, std::uint64_t lane) {
  const auto w = words_at(key, index, lane);
  const double u = (static_cast<double>(w[0]) + 1.0) * 0x1p-32;  // (0, 1]: the logarithm stays finite
  const double v = static_cast<double>(w[1]) * 0x1p-32;
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v));
}

std::int64_t random_permutation(std::uint64_t key, std::int64_t size, std::int64_t index) {
  require(index >= 0 && index < size, "random_permutation: index {} is outside [0, {})", index, size);
  int half_bits = 1;
  while ((std::int64_t{1} << (2 * half_bits)) < size) ++half_bits;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half_bits, right = value & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t next = left ^ (random_bits(key, right, round) & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits) | right;
  } while (value >= static_cast<std::uint64_t>(size));
  return static_cast<std::int64_t>(value);
}

}  // namespace moesaic
