#include "moesaic/comm/collectives.h"

#include <iterator>
#include <string_view>
#include <utility>

#include "moesaic/comm/algorithms.h"
#include "moesaic/comm/executor.h"
#include "moesaic/comm/layout.h"

namespace moesaic {
namespace {

void require_bytes(std::string_view what, std::int64_t got, std::int64_t expected) {
  require(got == expected, "{}: expected {} bytes from the counts, got {}", what, expected, got);
}

std::int64_t at_rank(std::span<const std::int64_t> counts, int rank) {
  return counts[static_cast<std::size_t>(rank)];
}

Schedule checked_all_gather_v(const Communicator& group, std::span<const std::byte> mine,
                              std::span<const std::int64_t> bytes_per_rank, std::span<const std::byte> all,
                              std::span<const std::int64_t> offsets) {
  const auto begin = offsets_of("all_gather_v", bytes_per_rank, group.size());
  require_bytes("all_gather_v: mine", std::ssize(mine), at_rank(bytes_per_rank, group.rank()));
  require_bytes("all_gather_v: all", std::ssize(all), begin.back());
  return all_gather_v_schedule(group.topology(), group.rank(), bytes_per_rank, offsets);
}

Schedule checked_reduce_scatter_v(const Communicator& group, std::span<const std::byte> input, DType wire,
                                  std::span<const std::int64_t> elements_per_rank,
                                  std::span<const float> output, std::span<const std::int64_t> offsets) {
  Schedule schedule =
      reduce_scatter_v_schedule(group.topology(), group.rank(), wire, elements_per_rank, offsets);
  require_bytes("reduce_scatter_v: input", std::ssize(input),
                offsets_of("reduce_scatter_v", elements_per_rank, group.size(), size_of(wire)).back());
  require(std::ssize(output) == at_rank(elements_per_rank, group.rank()),
          "reduce_scatter_v: output: expected {} elements from the counts, got {}",
          at_rank(elements_per_rank, group.rank()), output.size());
  return schedule;
}

template <typename T>
void all_reduce_of(Communicator& group, DType dtype, std::span<T> values) {
  execute(group, "all_reduce", all_reduce_schedule(group.topology(), group.rank(), dtype, std::ssize(values)),
          {std::as_bytes(values), std::as_writable_bytes(values)});
}

}  // namespace

void barrier(Communicator& group) {
  execute(group, "barrier", barrier_schedule(group.size(), group.rank()), {});
}

void broadcast(Communicator& group, std::span<std::byte> buffer, int root) {
  execute(group, "broadcast", broadcast_schedule(group.size(), group.rank(), root, std::ssize(buffer)),
          {.output = buffer});
}

void all_gather_v(Communicator& group, std::span<const std::byte> mine,
                  std::span<const std::int64_t> bytes_per_rank, std::span<std::byte> all,
                  std::span<const std::int64_t> offsets) {
  execute(group, "all_gather_v", checked_all_gather_v(group, mine, bytes_per_rank, all, offsets),
          {mine, all});
}

Pending start_all_gather_v(Communicator& group, std::span<const std::byte> mine,
                           std::span<const std::int64_t> bytes_per_rank, std::span<std::byte> all,
                           std::span<const std::int64_t> offsets, std::string_view span) {
  return start(group, "all_gather_v", checked_all_gather_v(group, mine, bytes_per_rank, all, offsets),
               {mine, all}, {}, span);
}

void all_to_all_v(Communicator& group, std::span<const std::byte> send,
                  std::span<const std::int64_t> send_bytes, std::span<std::byte> receive,
                  std::span<const std::int64_t> receive_bytes) {
  require_bytes("all_to_all_v: send", std::ssize(send),
                offsets_of("all_to_all_v: send_bytes", send_bytes, group.size()).back());
  require_bytes("all_to_all_v: receive", std::ssize(receive),
                offsets_of("all_to_all_v: receive_bytes", receive_bytes, group.size()).back());
  execute(group, "all_to_all_v", all_to_all_v_schedule(group.size(), group.rank(), send_bytes, receive_bytes),
          {send, receive});
}

void reduce_scatter_v(Communicator& group, std::span<const std::byte> input, DType wire,
                      std::span<const std::int64_t> elements_per_rank, std::span<float> output,
                      std::span<const std::int64_t> offsets) {
  execute(group, "reduce_scatter_v",
          checked_reduce_scatter_v(group, input, wire, elements_per_rank, output, offsets),
          {input, std::as_writable_bytes(output)});
}

Pending start_reduce_scatter_v(Communicator& group, std::span<const std::byte> input, DType wire,
                               std::span<const std::int64_t> elements_per_rank, std::span<float> output,
                               std::span<const std::int64_t> offsets, std::string_view span) {
  return start(group, "reduce_scatter_v",
               checked_reduce_scatter_v(group, input, wire, elements_per_rank, output, offsets),
               {input, std::as_writable_bytes(output)}, {}, span);
}

void all_reduce(Communicator& group, std::span<double> values) { all_reduce_of(group, DType::kF64, values); }
void all_reduce(Communicator& group, std::span<std::int64_t> values) {
  all_reduce_of(group, DType::kI64, values);
}
void all_reduce(Communicator& group, std::span<float> values) { all_reduce_of(group, DType::kF32, values); }

}  // namespace moesaic
