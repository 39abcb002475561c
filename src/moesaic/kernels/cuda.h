// cuda.h: the GPU twins. Each takes the arguments of the function of the same name in the header of the same
// name; every pointer is one to memory of the device, and work is queued on the stream.
//
// Bits are those of the oracle, but for SwiGLU, whose exponential differs in its last bit (activation.h's
// bounds hold). Calls return before the work is done; k, dtypes and refused launches are checked at once.
// Nobody can throw from a queue: a slot whose expert does not exist gets position -1, and a slot at
// position -1 is moved nowhere and adds nothing. counting_permute takes memory from the stream's pool.
#pragma once

#include <cstdint>

#include "moesaic/core/device.h"
#include "moesaic/core/dtype.h"

namespace moesaic::kernels::cuda {

// top_k.h
void top_k(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t k, std::int32_t* ids,
           float* values, Stream stream = {});

// permute.h
void counting_permute(const std::int32_t* expert_of_slot, std::int64_t num_slots, std::int64_t num_experts,
                      std::int64_t* expert_begin, std::int64_t* position_of_slot, Stream stream = {});
void permute_rows(DType dtype, const void* rows, const std::int64_t* slot_begin,
                  const std::int64_t* position_of_slot, std::int64_t num_rows, std::int64_t width,
                  void* permuted, Stream stream = {});
void permute_rows_scaled(DType dtype, const void* rows, const std::int64_t* slot_begin,
                         const std::int64_t* position_of_slot, const float* factor, std::int64_t num_rows,
                         std::int64_t width, void* permuted, Stream stream = {});

// ordered_sum.h; sums of `dtype`
void ordered_weighted_sum(DType dtype, const void* y, const std::int64_t* slot_begin,
                          const std::int64_t* position_of_slot, const float* weight, std::int64_t num_rows,
                          std::int64_t width, void* out, Stream stream = {});
void slot_dots(DType dtype, const void* a, const void* y, const std::int64_t* slot_begin,
               const std::int64_t* position_of_slot, std::int64_t num_rows, std::int64_t width, float* dot,
               Stream stream = {});

// activation.h
void swiglu(DType dtype, const void* in, std::int64_t rows, std::int64_t width, void* h, Stream stream = {});
void swiglu_backward(DType dtype, const void* in, const void* dh, std::int64_t rows, std::int64_t width,
                     void* din, Stream stream = {});

}  // namespace moesaic::kernels::cuda
