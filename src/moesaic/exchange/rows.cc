#include "moesaic/exchange/rows.h"

#include <cstring>
#include <limits>
#include <numeric>

#include "moesaic/core/error.h"

namespace moesaic {

void check_rows(std::string_view what, const void* data, DType dtype, std::int64_t num_rows,
                std::int64_t width) {
  require(num_rows >= 0 && width >= 1, "{}: {} rows of width {}, expected at least 0 of width 1", what,
          num_rows, width);
  require(width <= std::numeric_limits<std::int64_t>::max() / size_of(dtype) &&
              num_rows <= std::numeric_limits<std::int64_t>::max() / row_bytes(dtype, width),
          "{}: {} rows of width {} ({}) exceed 2^63 - 1 bytes", what, num_rows, width, name_of(dtype));
  require(data != nullptr || num_rows == 0, "{}: no memory given for {} rows", what, num_rows);
}

void check_handle(std::string_view what, const Communicator& group, const DispatchHandle& handle) {
  require(std::ssize(handle.send_rows) == group.size() && std::ssize(handle.receive_rows) == group.size(),
          "{}: a handle of a dispatch among {} ranks in a group of {}", what, handle.send_rows.size(),
          group.size());
}

std::int64_t first_of_part(std::span<const std::int64_t> counts, int r) {
  return std::accumulate(counts.begin(), counts.begin() + r, std::int64_t{0});
}

void gather_rows(const std::byte* source, std::span<const std::int64_t> token, std::int64_t bytes_per_row,
                 std::byte* target) {
  for (std::size_t i = 0; i < token.size();) {
    std::size_t end = i + 1;
    while (end < token.size() && token[end] == token[end - 1] + 1) ++end;
    const std::int64_t bytes = static_cast<std::int64_t>(end - i) * bytes_per_row;
    std::memcpy(target, source + token[i] * bytes_per_row, static_cast<std::size_t>(bytes));
    target += bytes;
    i = end;
  }
}

}  // namespace moesaic
