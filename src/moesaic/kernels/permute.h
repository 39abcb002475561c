// permute.h: the local layout transform: order slots by expert, and move rows into and out of that order.
//
// Local. R rows received, S slots (row, expert), E local experts, D width. Rows are fp32 or bf16.
// Source: counting-sort layout transform as in HetuMoE (arXiv 2203.14685).
#pragma once

#include <cstdint>

#include "moesaic/core/device.h"
#include "moesaic/core/dtype.h"

namespace moesaic::kernels {

// Stable counting sort. expert_of_slot [S] in 0..E-1; expert_begin [E+1] becomes the exclusive prefix of
// counts; position_of_slot [S]: where slot s lands (slots of one expert stay in slot order).
void counting_permute(const std::int32_t* expert_of_slot, std::int64_t num_slots, std::int64_t num_experts,
                      std::int64_t* expert_begin, std::int64_t* position_of_slot, Stream stream = {});

// permuted[position_of_slot[s]] = rows[i] for every row i and its slots s in slot_begin[i]..slot_begin[i+1].
// rows [R,D] -> permuted [S,D].
void permute_rows(DType dtype, const void* rows, const std::int64_t* slot_begin,
                  const std::int64_t* position_of_slot, std::int64_t num_rows, std::int64_t width,
                  void* permuted, Stream stream = {});

// The same with a factor: permuted[position_of_slot[s]] = round(factor[s] * rows[i]), product in fp32.
void permute_rows_scaled(DType dtype, const void* rows, const std::int64_t* slot_begin,
                         const std::int64_t* position_of_slot, const float* factor, std::int64_t num_rows,
                         std::int64_t width, void* permuted, Stream stream = {});

}  // namespace moesaic::kernels
