#include <algorithm>
#include <cstddef>
#include <vector>

#include "moesaic/kernels/element.h"
#include "moesaic/kernels/permute.h"
#include "moesaic/kernels/reference.h"

namespace moesaic::kernels {

void reference::counting_permute(const std::int32_t* expert_of_slot, std::int64_t num_slots,
                                 std::int64_t num_experts, std::int64_t* expert_begin,
                                 std::int64_t* position_of_slot) {
  std::fill_n(expert_begin, num_experts + 1, 0);
  for (std::int64_t s = 0; s < num_slots; ++s) {
    const std::int32_t expert = expert_of_slot[s];
    require(0 <= expert && expert < num_experts, "counting_permute: slot {} has expert {}, expected 0..{}", s,
            expert, num_experts - 1);
    ++expert_begin[expert + 1];
  }
  for (std::int64_t e = 0; e < num_experts; ++e) expert_begin[e + 1] += expert_begin[e];

  std::vector<std::int64_t> next(expert_begin, expert_begin + num_experts);
  for (std::int64_t s = 0; s < num_slots; ++s) position_of_slot[s] = next[expert_of_slot[s]]++;
}

void reference::permute_rows(DType dtype, const void* rows, const std::int64_t* slot_begin,
                             const std::int64_t* position_of_slot, std::int64_t num_rows, std::int64_t width,
                             void* permuted) {
  for_row_dtype(dtype, "permute_rows", [&](auto element) {
    const std::int64_t row_bytes = width * static_cast<std::int64_t>(sizeof element);
    const auto* from = static_cast<const std::byte*>(rows);
    auto* to = static_cast<std::byte*>(permuted);
    for (std::int64_t i = 0; i < num_rows; ++i) {
      for (std::int64_t s = slot_begin[i]; s < slot_begin[i + 1]; ++s) {
        std::copy_n(from + i * row_bytes, row_bytes, to + position_of_slot[s] * row_bytes);
      }
    }
  });
}

void reference::permute_rows_scaled(DType dtype, const void* rows, const std::int64_t* slot_begin,
                                    const std::int64_t* position_of_slot, const float* factor,
                                    std::int64_t num_rows, std::int64_t width, void* permuted) {
  for_row_dtype(dtype, "permute_rows_scaled", [&](auto element) {
    using T = decltype(element);
    for (std::int64_t i = 0; i < num_rows; ++i) {
      const T* from = static_cast<const T*>(rows) + i * width;
      for (std::int64_t s = slot_begin[i]; s < slot_begin[i + 1]; ++s) {
        T* to = static_cast<T*>(permuted) + position_of_slot[s] * width;
        for (std::int64_t d = 0; d < width; ++d) store(to[d], factor[s] * load(from[d]));
      }
    }
  });
}

void counting_permute(const std::int32_t* expert_of_slot, std::int64_t num_slots, std::int64_t num_experts,
                      std::int64_t* expert_begin, std::int64_t* position_of_slot, Stream) {
  reference::counting_permute(expert_of_slot, num_slots, num_experts, expert_begin, position_of_slot);
}

void permute_rows(DType dtype, const void* rows, const std::int64_t* slot_begin,
                  const std::int64_t* position_of_slot, std::int64_t num_rows, std::int64_t width,
                  void* permuted, Stream) {
  reference::permute_rows(dtype, rows, slot_begin, position_of_slot, num_rows, width, permuted);
}

}  // namespace moesaic::kernels
