// rows.h: sizes and copies of rows that lie back to back. Local. Sizes are int64 throughout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "moesaic/exchange/dispatch.h"

namespace moesaic {

// InvalidArgument unless the shape is possible and there is memory where there are elements. `what` is for
// the message.
void check_rows(std::string_view what, const void* data, DType dtype, std::int64_t num_rows,
                std::int64_t width);

// InvalidArgument unless `handle` was made in a group of this size.
void check_handle(std::string_view what, const Communicator& group, const DispatchHandle& handle);

inline std::int64_t row_bytes(DType dtype, std::int64_t width) { return width * size_of(dtype); }

// Sum of counts before part `r`.
std::int64_t first_of_part(std::span<const std::int64_t> counts, int r);

// target row i = source row token[i]. Consecutive tokens are copied at once.
void gather_rows(const std::byte* source, std::span<const std::int64_t> token, std::int64_t bytes_per_row,
                 std::byte* target);

}  // namespace moesaic
