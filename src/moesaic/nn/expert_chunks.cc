#include "moesaic/nn/expert_chunks.h"

#include <algorithm>

namespace moesaic {
namespace {

struct SlotRange {
  std::size_t begin, end;
  std::size_t size() const { return end - begin; }
};

SlotRange slots_of_row(const DispatchHandle& handle, std::int64_t row) {
  const auto at = static_cast<std::size_t>(row);
  return {static_cast<std::size_t>(handle.slot_begin[at]),
          static_cast<std::size_t>(handle.slot_begin[at + 1])};
}

// Calls body(slots) for each row of a chunk, in memory order.
template <typename Body>
void for_each_row(const DispatchHandle& handle, std::size_t chunk, const Body& body) {
  const std::int64_t begin = handle.chunks[chunk].first_row, end = begin + handle.chunks[chunk].num_rows;
  for (std::int64_t place = begin; place < end; ++place) {
    body(slots_of_row(handle, handle.row_there[static_cast<std::size_t>(place)]));
  }
}

}  // namespace

ExpertInput input_of_chunk(const kernels::ExpertShape& shape, const DispatchHandle& handle,
                           std::size_t chunk) {
  if (handle.chunks.size() == 1) {
    return expert_input(shape, handle.slot_begin, handle.slot_expert, handle.slot_weight);
  }
  std::vector<std::int64_t> row_begin{0};
  std::vector<std::int32_t> expert;
  std::vector<float> weight;
  for_each_row(handle, chunk, [&](const SlotRange& slots) {
    for (std::size_t s = slots.begin; s < slots.end; ++s) {
      expert.push_back(handle.slot_expert[s]);
      weight.push_back(handle.slot_weight[s]);
    }
    row_begin.push_back(std::ssize(expert));
  });
  return expert_input(shape, std::move(row_begin), expert, std::move(weight));
}

AllSlots slots_of_all_chunks(const kernels::ExpertShape& shape, const DispatchHandle& handle,
                             std::span<const ExpertInput> chunks) {
  AllSlots all{expert_input(shape, handle.slot_begin, handle.slot_expert, handle.slot_weight), {}};
  all.place.resize(all.input.row.size());
  std::int64_t slots_before = 0, place = 0;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    std::size_t in_chunk = 0;
    for_each_row(handle, c, [&](const SlotRange& slots) {
      for (std::size_t s = slots.begin; s < slots.end; ++s) {
        const auto at = static_cast<std::size_t>(all.input.position[s]);
        all.input.row[at] = place;
        all.place[at] = slots_before + chunks[c].position[in_chunk++];
      }
      ++place;
    });
    slots_before += chunks[c].num_slots();
  }
  return all;
}

void put_slot_values(const DispatchHandle& handle, std::size_t chunk, std::span<const float> values,
                     std::span<float> all) {
  for_each_row(handle, chunk, [&](const SlotRange& slots) {
    std::ranges::copy(values.first(slots.size()), all.begin() + static_cast<std::ptrdiff_t>(slots.begin));
    values = values.subspan(slots.size());
  });
}

}  // namespace moesaic
