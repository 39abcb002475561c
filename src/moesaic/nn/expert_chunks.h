// expert_chunks.h: which slots of rows that arrive in chunks each expert works on: chunk by chunk, and all
// together in the order they have without chunks.
//
// Local. Names as in dispatch.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moesaic/exchange/dispatch.h"
#include "moesaic/nn/expert_products.h"

namespace moesaic {

// Of one chunk; rows counted from its first.
ExpertInput input_of_chunk(const kernels::ExpertShape& shape, const DispatchHandle& handle,
                           std::size_t chunk);

// In expert order, as one chunk of all rows has them: by source rank, then token.
struct AllSlots {
  ExpertInput input;                // `row`: where rows lie in memory
  std::vector<std::int64_t> place;  // [S] of each: its row in what the chunks made, chunk after chunk
};
AllSlots slots_of_all_chunks(const kernels::ExpertShape& shape, const DispatchHandle& handle,
                             std::span<const ExpertInput> chunks);

// values [slots of the chunk] in its row order to their places in all [S], in the handle's slot order.
void put_slot_values(const DispatchHandle& handle, std::size_t chunk, std::span<const float> values,
                     std::span<float> all);

}  // namespace moesaic
