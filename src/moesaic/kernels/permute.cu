#include "moesaic/core/launch.cuh"
#include "moesaic/kernels/cuda.h"
#include "moesaic/kernels/permute_device.h"
#include "moesaic/kernels/row_dtype.cuh"

namespace moesaic::kernels {

void cuda::counting_permute(const std::int32_t* expert_of_slot, std::int64_t num_slots,
                            std::int64_t num_experts, std::int64_t* expert_begin,
                            std::int64_t* position_of_slot, Stream stream) {
  constexpr const char* kName = "counting_permute";
  const std::int64_t tiles = SlotTiles::tiles_of(num_slots);
  const StreamBuffer<std::int64_t> counts(num_experts * tiles, stream);
  const SlotTiles sort = {expert_of_slot, num_slots,     num_experts,  SlotTiles::slots_of_a_tile(num_slots),
                          tiles,          counts.data(), expert_begin, position_of_slot};
  launch_warps(kName, stream, tiles, CountTile{sort});
  launch_warps(kName, stream, num_experts, PrefixOfExpert{sort});
  launch_warps(kName, stream, 1, PrefixOfExperts{sort});
  launch_warps(kName, stream, tiles, PlaceTile{sort});
}

namespace {

template <bool kScaled>
void permute(const char* name, DType dtype, const void* rows, const std::int64_t* slot_begin,
             const std::int64_t* position_of_slot, const float* factor, std::int64_t num_rows,
             std::int64_t width, void* permuted, Stream stream) {
  const auto run = [&](auto element, auto elements) {
    using T = decltype(element);
    const PermutePack<T, elements(), kScaled> task = {
        static_cast<const T*>(rows), slot_begin, position_of_slot, factor, width, static_cast<T*>(permuted)};
    launch_threads(name, stream, num_rows * (width / elements()), task);
  };
  for_packs(dtype, name, run, width, rows, permuted);
}

}  // namespace

void cuda::permute_rows(DType dtype, const void* rows, const std::int64_t* slot_begin,
                        const std::int64_t* position_of_slot, std::int64_t num_rows, std::int64_t width,
                        void* permuted, Stream stream) {
  permute<false>("permute_rows", dtype, rows, slot_begin, position_of_slot, nullptr, num_rows, width,
                 permuted, stream);
}

void cuda::permute_rows_scaled(DType dtype, const void* rows, const std::int64_t* slot_begin,
                               const std::int64_t* position_of_slot, const float* factor,
                               std::int64_t num_rows, std::int64_t width, void* permuted, Stream stream) {
  permute<true>("permute_rows_scaled", dtype, rows, slot_begin, position_of_slot, factor, num_rows, width,
                permuted, stream);
}

}  // namespace moesaic::kernels
