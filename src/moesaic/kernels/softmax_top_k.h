// softmax_top_k.h: of each row of scores, the k largest with their share of the softmax over the row, and
// what losses need of the others: the log of the sum of exponentials, and each column's sum of probabilities.
// The probabilities [rows,n] themselves are never written.
//
//   p[r,j] = exp(scores[r,j] - log_sum[r]),  log_sum[r] = log sum_j exp(scores[r,j])
//
// Local. scores [rows,n] fp32, none NaN or +infinity, each row's largest finite; 1 <= k <= n, else
// InvalidArgument. ids and values are those of top_k() to the bit: the largest scores, not the largest
// probabilities, which may tie where scores do not.
// Order: a row's exponentials are added along one chain, ascending j, so that its bits do not depend on the
// other rows. Column sums add row r to chain r % 16, then the chains, ascending; fp32. The exponential and
// the logarithm are a library's, so what they enter is within 2e-6 of the oracle, relative.
// Cost: two passes over scores while they are near. Source: the online softmax fused with top-k of Milakov
// and Gimelshein (arXiv 1805.02867), with the largest score known before the sum.
#pragma once

#include <cstdint>

#include "moesaic/core/device.h"

namespace moesaic::kernels {

struct SoftmaxTopK {
  std::int32_t* ids;     // [rows,k]
  float* values;         // [rows,k] scores of those
  float* probabilities;  // [rows,k] p of those
  float* log_sum;        // [rows]
  float* sums;           // [n] sum of p[r] over the rows that count; null where nobody asks
};

// counted [rows]: which rows enter the sums; null: all.
void softmax_top_k(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t k,
                   const std::uint8_t* counted, const SoftmaxTopK& out, Stream stream = {});

// What reaches the outputs above, each without the others: `values` as if they were read from scores alone.
struct SoftmaxTopKGradients {
  const float* values;   // [rows,k]
  const float* log_sum;  // [rows]
  const float* sums;     // [n]
};

// d_scores[r,j] = p[r,j] (c[r] (d_sums[j] - sum_i p[r,i] d_sums[i]) + d_log_sum[r])
//               + sum over i with ids[r,i] = j of d_values[r,i],   c[r]: 1 where the row counts, else 0
// p is formed again from scores and log_sum. A negative id takes no part. The gradient of a chosen
// probability q[r,i] is its caller's to fold: q d_q to the value, and minus that to log_sum.
void softmax_top_k_backward(const float* scores, const float* log_sum, const std::int32_t* ids,
                            std::int64_t rows, std::int64_t n, std::int64_t k, const std::uint8_t* counted,
                            const SoftmaxTopKGradients& gradients, float* d_scores, Stream stream = {});

}  // namespace moesaic::kernels
