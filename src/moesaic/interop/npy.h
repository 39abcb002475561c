// npy.h: the header of NumPy's .npy files (format versions 1, 2 and 3).
//
// Local. Errors: CorruptData naming `source` for anything that NumPy would not write or that does not fit in
// the file; what the array holds is the caller's to judge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

struct NpyHeader {
  std::string descr;                // "<u2": byte order, kind, size in bytes
  bool fortran_order = false;       // no difference for one dimension
  std::vector<std::int64_t> shape;  // empty: a scalar
  std::int64_t data_offset = 0;     // of the first element, in bytes
};

// Whether a file that starts with `bytes` says it is one.
bool is_npy(std::span<const std::byte> bytes);

// Length of magic, version and length field together: the most that npy_data_offset() looks at.
inline constexpr std::size_t kNpyPreludeBytes = 12;

// Where the data begins, from the first bytes of the file (at most kNpyPreludeBytes, fewer where the file
// ends before).
std::int64_t npy_data_offset(std::span<const std::byte> prelude, std::string_view source);

// `bytes`: the file up to npy_data_offset().
NpyHeader parse_npy_header(std::span<const std::byte> bytes, std::string_view source);

}  // namespace moesaic
