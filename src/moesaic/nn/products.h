// products.h: products of dense matrices, and attention, in bf16 at the speed of fp32.
//
// The library multiplies bf16 matrices on a CPU without 512-bit vectors an order of magnitude slower than
// fp32 ones. There the operands are widened to fp32 (exactly), multiplied, and the result is rounded once;
// elsewhere, and for fp32, the library's own product is taken. What autograd keeps stays in bf16 and is
// widened again in the backward pass, so a gathered weight can be freed between the two. Attention keeps its
// operands in fp32. Local.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace moesaic {

// Whether a product of bf16 matrices with this many rows is taken in fp32. With fewer, reading the weights is
// what takes the time.
bool widens_bf16(std::int64_t rows);

// out [M,N] = a [M,K] times b [K,N]. Not for autograd.
void multiply_into(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

// x [...,K], weight [N,K]: x times weight^T, [...,N].
at::Tensor project(const at::Tensor& x, const at::Tensor& weight);

// As at::scaled_dot_product_attention without dropout; q [B,H,S,d], k and v [B,H,S',d], mask [S,S'] of bool.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const std::optional<at::Tensor>& mask, bool causal);

}  // namespace moesaic
