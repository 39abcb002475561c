// bits.h: rows from and to plain floats, and comparisons of bits that throw Mismatch.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "moesaic/core/bf16.h"
#include "moesaic/core/buffer.h"
#include "moesaic/core/dtype.h"

namespace moesaic::exchange_checks {

class Mismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <typename T>
void expect_equal(const std::string& what, const T& got, const T& expected) {
  if (!(got == expected)) throw Mismatch(fmt::format("{}: got {}, expected {}", what, got, expected));
}

// Bit equality: -0 is not 0, and NaN (poison) is never right.
inline void expect_same_bits(const std::string& what, const std::vector<float>& got,
                             const std::vector<float>& expected) {
  expect_equal(what + ": size", got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(got[i]) != std::bit_cast<std::uint32_t>(expected[i])) {
      throw Mismatch(fmt::format("{}: element {} is {}, expected {}", what, i, got[i], expected[i]));
    }
  }
}

// Rows in memory of a dtype, from and to plain floats.
inline Buffer packed(const std::vector<float>& values, DType dtype) {
  Buffer buffer(std::ssize(values) * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kBF16) {
      buffer.as<BF16>()[i] = to_bf16(values[i]);
    } else {
      buffer.as<float>()[i] = values[i];
    }
  }
  return buffer;
}
inline std::vector<float> unpacked(const Buffer& buffer, DType dtype) {
  std::vector<float> values(static_cast<std::size_t>(buffer.bytes() / size_of(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = dtype == DType::kBF16 ? to_float(buffer.as<BF16>()[i]) : buffer.as<float>()[i];
  }
  return values;
}
inline Buffer poisoned(std::int64_t elements, DType dtype) {
  return packed(
      std::vector<float>(static_cast<std::size_t>(elements), std::numeric_limits<float>::quiet_NaN()), dtype);
}

}  // namespace moesaic::exchange_checks
