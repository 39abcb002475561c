// layout.h: offsets of parts that lie back to back, checked; shared by the schedules' builders.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "moesaic/comm/schedule.h"
#include "moesaic/core/error.h"

namespace moesaic {

// begin[i] of part i in bytes, and the total as begin[n]. `what` names the counts in errors.
inline std::vector<std::int64_t> offsets_of(std::string_view what, std::span<const std::int64_t> counts,
                                            int world_size, std::int64_t element_bytes = 1) {
  require(counts.size() == static_cast<std::size_t>(world_size),
          "{}: expected one count per rank ({}), got {}", what, world_size, counts.size());
  std::vector<std::int64_t> begin(counts.size() + 1, 0);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    require(counts[i] >= 0, "{}: the count of rank {} is {}; it must not be negative", what, i, counts[i]);
    require(counts[i] <= (std::numeric_limits<std::int64_t>::max() - begin[i]) / element_bytes,
            "{}: the counts up to rank {} exceed 2^63 - 1 bytes", what, i);
    begin[i + 1] = begin[i] + counts[i] * element_bytes;
  }
  return begin;
}

// Where each part lies when the caller says so (`given`, in elements, one per rank) rather than back to back.
// Parts may lie in any order but must stay inside the buffer that back-to-back parts would fill. Not checked:
// overlaps.
inline std::vector<std::int64_t> placed_offsets(std::string_view what, std::span<const std::int64_t> given,
                                                std::span<const std::int64_t> counts, int world_size,
                                                std::int64_t element_bytes = 1) {
  std::vector<std::int64_t> begin = offsets_of(what, counts, world_size, element_bytes);
  if (given.empty()) {
    begin.pop_back();
    return begin;
  }
  require(given.size() == counts.size(), "{}: expected one offset per rank ({}), got {}", what, world_size,
          given.size());
  const std::int64_t total = begin.back() / element_bytes;
  begin.pop_back();
  for (std::size_t i = 0; i < given.size(); ++i) {
    require(given[i] >= 0 && given[i] <= total - counts[i],
            "{}: the part of rank {} is [{}, {}), outside the buffer of {} elements", what, i, given[i],
            given[i] + counts[i], total);
    begin[i] = given[i] * element_bytes;
  }
  return begin;
}

inline Range part_of(BufferId buffer, std::span<const std::int64_t> begin, int i) {
  const auto at = static_cast<std::size_t>(i);
  return {buffer, begin[at], begin[at + 1] - begin[at]};
}

inline void require_rank(std::string_view what, int rank, int world_size) {
  require(rank >= 0 && rank < world_size, "{}: {} is not in 0..{}", what, rank, world_size - 1);
}

inline Op send_op(int peer, Range source, std::int32_t slot = 0) {
  return {.kind = OpKind::kSend, .peer = peer, .slot = slot, .source = source};
}
inline Op receive_op(int peer, Range target, std::int32_t slot = 0) {
  return {.kind = OpKind::kReceive, .peer = peer, .slot = slot, .target = target};
}
inline Op copy_op(Range source, Range target) {
  return {.kind = OpKind::kCopy, .source = source, .target = target};
}

inline Op sum_op(std::vector<std::vector<Range>> parts, DType wire, DType result, Range target,
                 std::vector<std::int32_t> after) {
  return {.kind = OpKind::kSum,
          .target = target,
          .parts = std::move(parts),
          .wire = wire,
          .result = result,
          .after = std::move(after)};
}

}  // namespace moesaic
