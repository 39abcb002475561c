// reference.h: the oracles. Each reads like the formula in the header of the same name, takes the same
// arguments, and is what the fast versions are tested against; none is meant to be fast.
#pragma once

#include <cstdint>

#include "moesaic/core/dtype.h"
#include "moesaic/kernels/experts.h"
#include "moesaic/kernels/optimizer.h"
#include "moesaic/kernels/softmax_top_k.h"

namespace moesaic::kernels::reference {

// top_k.h
void top_k(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t k, std::int32_t* ids,
           float* values);

// softmax_top_k.h
void softmax_top_k(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t k,
                   const std::uint8_t* counted, const SoftmaxTopK& out);
void softmax_top_k_backward(const float* scores, const float* log_sum, const std::int32_t* ids,
                            std::int64_t rows, std::int64_t n, std::int64_t k, const std::uint8_t* counted,
                            const SoftmaxTopKGradients& gradients, float* d_scores);

// permute.h
void counting_permute(const std::int32_t* expert_of_slot, std::int64_t num_slots, std::int64_t num_experts,
                      std::int64_t* expert_begin, std::int64_t* position_of_slot);
void permute_rows(DType dtype, const void* rows, const std::int64_t* slot_begin,
                  const std::int64_t* position_of_slot, std::int64_t num_rows, std::int64_t width,
                  void* permuted);
void permute_rows_scaled(DType dtype, const void* rows, const std::int64_t* slot_begin,
                         const std::int64_t* position_of_slot, const float* factor, std::int64_t num_rows,
                         std::int64_t width, void* permuted);

// ordered_sum.h
void ordered_weighted_sum(DType dtype, const void* y, const std::int64_t* slot_begin,
                          const std::int64_t* position_of_slot, const float* weight, std::int64_t num_rows,
                          std::int64_t width, DType result, void* out);
void slot_dots(DType dtype, const void* a, const void* y, const std::int64_t* slot_begin,
               const std::int64_t* position_of_slot, std::int64_t num_rows, std::int64_t width, float* dot);

// activation.h
void swiglu(DType dtype, const void* in, std::int64_t rows, std::int64_t width, void* h);
void swiglu_backward(DType dtype, const void* in, const void* dh, std::int64_t rows, std::int64_t width,
                     void* din);
void relu(DType dtype, const void* in, std::int64_t rows, std::int64_t width, void* h);
void relu_backward(DType dtype, const void* in, const void* dh, std::int64_t rows, std::int64_t width,
                   void* din);

// optimizer.h
void adamw(const AdamW& options, double decay, float gradient_scale, std::int64_t n, const float* gradient,
           float* master, float* exp_avg, float* exp_avg_sq);
void sgd(const Sgd& options, double decay, float gradient_scale, std::int64_t n, const float* gradient,
         float* master, float* momentum_buffer);
double sum_of_squares(const float* values, std::int64_t n);

// experts.h; `fused`: multiply-adds round once, as the CPU's do where it has them
void experts_forward(const ExpertShape& shape, const ExpertSlots& slots, const void* rows, const void* w_in,
                     const void* w_out, void* outputs, bool fused);
void experts_backward(const ExpertShape& shape, const ExpertSlots& slots, const void* g,
                      const float* slot_weight, const void* rows, const void* w_in, const void* w_out,
                      const ExpertGradients& gradients, bool fused);

// convert.h
void convert(DType from, const void* source, DType to, void* target, std::int64_t n);

}  // namespace moesaic::kernels::reference
