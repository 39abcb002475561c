// rng.h: random numbers as a pure function of (key, counter).
//
// A counter-based generator has no state to save, and any element can be drawn by any rank: the same
// (seed, name, index) gives the same value in every layout. Philox4x32-10 (Salmon et al., SC 2011).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace moesaic {

// Ten rounds of Philox 4x32.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

// A key for one purpose: 64-bit FNV-1a of `name` mixed with `seed`.
std::uint64_t random_key(std::uint64_t seed, std::string_view name);

// 64 random bits at position `index` of the sequence named by `key`; `lane` gives further sequences.
std::uint64_t random_bits(std::uint64_t key, std::uint64_t index, std::uint64_t lane = 0);

// Uniform in [0, 1), 24 bits of it (exact in fp32).
float random_uniform(std::uint64_t key, std::uint64_t index, std::uint64_t lane = 0);

// Standard normal (Box-Muller on two uniforms of the same counter), computed in fp64, rounded to fp32.
float random_normal(std::uint64_t key, std::uint64_t index, std::uint64_t lane = 0);

// Position `index` of a random permutation of 0..size-1, in O(1) memory: a Feistel network on the next
// power of four, walked until it lands inside. Expected steps < 4.
std::int64_t random_permutation(std::uint64_t key, std::int64_t size, std::int64_t index);

}  // namespace moesaic
