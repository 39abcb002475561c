// softmax_choice.h: what a gate that chooses by softmax (Gate::by_softmax) has worked out, as differentiable
// functions of its logits. No tensor of all probabilities is made, forward or backward.
//
// Local. T tokens, E experts, K choices, G sequences that are summed apart.
#pragma once

#include <ATen/core/Tensor.h>

#include "moesaic/routing/gate.h"

namespace moesaic {

struct SoftmaxChoice {
  at::Tensor logits;         // [T,K] of the choices; 0 where absent
  at::Tensor probabilities;  // [T,K] of the choices
  at::Tensor log_sums;       // [T,1]
  at::Tensor sums;           // [G,E] probabilities of valid tokens
};

// logits [T,E] fp32, those that `choices` were made from; tokens that are not valid get no
// gradient from sums.
SoftmaxChoice softmax_choice(const at::Tensor& logits, const Choices& choices);

}  // namespace moesaic
