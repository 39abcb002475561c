#include "moesaic/exchange/slot_lists.h"

#include <cmath>
#include <cstring>

#include "moesaic/exchange/require_of_peer.h"

namespace moesaic {
namespace {

template <typename T>
std::byte* write(std::byte* to, std::span<const T> values) {
  if (!values.empty()) std::memcpy(to, values.data(), values.size_bytes());
  return to + values.size_bytes();
}

template <typename T>
const std::byte* append(const std::byte* from, std::int64_t count, std::vector<T>& values) {
  const std::size_t before = values.size(), bytes = static_cast<std::size_t>(count) * sizeof(T);
  values.resize(before + static_cast<std::size_t>(count));
  if (bytes > 0) std::memcpy(values.data() + before, from, bytes);
  return from + bytes;
}

}  // namespace

std::int64_t slot_list_bytes(std::int64_t rows, std::int64_t slots) { return 4 * rows + 8 * slots; }

std::vector<std::byte> write_slot_lists(const SenderSide& side) {
  std::vector<std::byte> bytes(
      static_cast<std::size_t>(slot_list_bytes(std::ssize(side.token), std::ssize(side.position))));
  std::byte* to = bytes.data();
  std::size_t row = 0, slot = 0;
  for (std::size_t r = 0; r < side.rows.size(); ++r) {
    const auto rows = static_cast<std::size_t>(side.rows[r]), slots = static_cast<std::size_t>(side.slots[r]);
    to = write(to, std::span(side.slots_of_row).subspan(row, rows));
    to = write(to, std::span(side.local_expert).subspan(slot, slots));
    to = write(to, std::span(side.weight).subspan(slot, slots));
    row += rows;
    slot += slots;
  }
  return bytes;
}

void read_slot_list(std::span<const std::byte> part, std::int64_t rows, std::int64_t slots,
                    std::int64_t num_local_experts, int peer, DispatchHandle& handle) {
  require_of_peer(std::ssize(part) == slot_list_bytes(rows, slots), peer,
                  "sent slot lists of {} bytes, expected {}", part.size(), slot_list_bytes(rows, slots));
  std::vector<std::int32_t> slots_of_row;
  const std::byte* from = append(part.data(), rows, slots_of_row);
  const std::int64_t first_slot = handle.num_slots(), first_row = handle.num_rows();
  from = append(from, slots, handle.slot_expert);
  append(from, slots, handle.slot_weight);

  std::int64_t end = first_slot;
  for (const std::int32_t count : slots_of_row) {
    require_of_peer(count >= 1 && count <= num_local_experts, peer,
                    "sent a row with {} slots, expected 1 to {}", count, num_local_experts);
    handle.slot_begin.push_back(end += count);
  }
  require_of_peer(end - first_slot == slots, peer, "sent rows with {} slots in all, but announced {}",
                  end - first_slot, slots);
  std::vector<std::int64_t> named_by(static_cast<std::size_t>(num_local_experts), -1);
  for (std::int64_t row = first_row; row < handle.num_rows(); ++row) {
    const auto at = static_cast<std::size_t>(row);
    for (std::int64_t s = handle.slot_begin[at]; s < handle.slot_begin[at + 1]; ++s) {
      const std::int32_t e = handle.slot_expert[static_cast<std::size_t>(s)];
      const float weight = handle.slot_weight[static_cast<std::size_t>(s)];
      require_of_peer(e >= 0 && e < num_local_experts, peer, "sent a row for local expert {}, expected 0..{}",
                      e, num_local_experts - 1);
      auto& last = named_by[static_cast<std::size_t>(e)];
      require_of_peer(last != row, peer, "sent a row with local expert {} twice", e);
      last = row;
      require_of_peer(std::isfinite(weight), peer, "sent a slot of weight {}, expected a finite one", weight);
    }
  }
}

}  // namespace moesaic
