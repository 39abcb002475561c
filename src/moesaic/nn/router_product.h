// router_product.h: the logits of a router, whose bits for a token do not depend on the other tokens.
//
// So a token is routed alike whichever rank holds it, however many tokens come with it, and whether it is
// generated or read. Local; the tokens are shared among the threads of this rank.
#pragma once

#include <ATen/core/Tensor.h>

namespace moesaic {

// x [T,D] times weight^T, weight [E,D], both fp32: [T,E].
at::Tensor router_product(const at::Tensor& x, const at::Tensor& weight);

}  // namespace moesaic
