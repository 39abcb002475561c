// moe_layer_case.h: what every program of the benchmark moe_layer computes: one layer, its weights, its
// tokens.
//
// No rounding decides where a token goes: the router's rows are orthogonal, and each token has a multiple of
// the rows of the experts it is meant for in it. So gates that multiply in bf16 and in fp32 choose alike, and
// all programs do the same work. Where experts have a capacity, each gets exactly as many tokens: nobody
// drops. Weights of the chosen are normalised where there are several: one of the peers can do nothing else.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace moesaic::bench {

struct LayerShape {
  std::string name;
  std::int64_t width, expert_width, num_experts, top_k;
  bool gated;              // SwiGLU; else ReLU
  double capacity_factor;  // 0: dropless
  std::int64_t hidden_width() const { return gated ? 2 * expert_width : expert_width; }
};

enum class Spread {
  kUniform,   // every set of experts is as likely
  kBalanced,  // all experts have equally many tokens
  kSkewed,    // 80% of the tokens are on one expert (and elsewhere, if they have several)
};

struct LayerCase {
  LayerShape shape;
  std::int64_t num_tokens;
  at::ScalarType dtype;
  bool backward;
  int threads = 1;
  Spread spread = Spread::kUniform;

  std::string name() const;
  // So few tokens that weights come from memory: then enough sets of weights take turns that none is still in
  // the cache.
  bool is_decode() const { return num_tokens <= 32 && shape.name != "tiny"; }
};

struct LayerWeights {
  at::Tensor in;   // [E,H,D]
  at::Tensor out;  // [E,D,F]
};

struct LayerInputs {
  LayerInputs() = default;
  explicit LayerInputs(const LayerCase& layer);

  at::Tensor x, gradient;  // [T,D]
  at::Tensor router;       // [E,D] fp32, of values that the layer's dtype has
  at::Tensor expert_ids;   // [T,K] int64: what the router chooses
  LayerWeights weights;
  std::vector<std::int64_t> rows;  // [E] tokens of each expert
  std::int64_t num_sets = 1;       // of weights, that take turns
};

// What a pass gives; gradients are undefined without a backward pass.
struct LayerResults {
  at::Tensor y, d_x, d_router, d_w_in, d_w_out;
};

// In fp64, straight from the formula; on all cores.
LayerResults reference_results(const LayerCase& layer, const LayerInputs& inputs);

// "" or which result differs from the reference by more than its tolerance: relative to the largest element,
// 1e-5 in fp32 and 2e-2 in bf16.
std::string difference(const LayerResults& got, const LayerResults& expected, at::ScalarType dtype);

}  // namespace moesaic::bench
