// balance.h: the auxiliary losses of one MoE layer, as this rank's share.
//
// Local: what other ranks chose comes in as counts. Shares are sums over this rank's tokens divided by a
// count over all ranks, so that ranks and micro-steps only ever add (contract 2 of the design). Padding and
// tokens without finite logits count nowhere. f is detached.
//
//   T tokens of this rank in B sequences, E experts; c_e choices of e before drops, N tokens (over the scope)
//   balance: factor * sum_e f_e * (sum over tokens of p_te) / step_tokens, f_e = c_e / N over the micro-step
//     of all ranks (global), over this rank, or over each token's sequence; c_e and factor as the gate has
//     them (routing/gate_form.h, Balance). 1.0 at perfect balance. Kept mass: p is 0 where e was not chosen,
//     and f_e is its share of the sum of p.
//   "hf": E * sum_e (mean over layers f_e) * (mean over layers P_e): about k at balance. Its gradient in one
//   layer needs
//     the choices of later layers, so it is completed in the backward pass, from CoupledBalance.
//   z: sum over tokens of logsumexp(h)^2 / step_tokens.
// Sources: Fedus et al. 2021 (balance), Zoph et al. 2022 (z-loss), transformers' load_balancing_loss_func
// ("hf").
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "moesaic/nn/stage.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic {

// Sums of probabilities [G,E], G groups: 1, or B for the sequence scope. probabilities [T,E]; valid [T,1]
// fp32, 1 or 0.
at::Tensor probability_sums(const at::Tensor& probabilities, const at::Tensor& valid,
                            std::int64_t num_groups);

// f [G,E] from counts, detached, of this rank's tokens. Groups without tokens: 0.
at::Tensor chosen_shares(Balance::Of of, const Choices& choices, std::int64_t num_experts,
                         std::int64_t num_groups);

// f [1,E] from counts of all ranks. chosen [E].
at::Tensor global_shares(std::span<const std::int64_t> chosen, std::int64_t num_tokens);

// f [G,E] from sums of kept probabilities, [G,E], detached.
at::Tensor mass_shares(const at::Tensor& sums);

// The share in Hugging Face's convention of layer `layer`, its facts already in `coupled`. sums [1,E];
// num_tokens: of all ranks in this micro-step; not yet divided by step_tokens but by 1 / num_layers^2.
at::Tensor coupled_balance(const at::Tensor& sums, std::shared_ptr<const CoupledBalance> coupled, int layer,
                           std::int64_t num_moe_layers, std::int64_t num_tokens);

// sum over valid tokens of log_sums^2. log_sums [T,1]: log of the sum of exp(logit).
at::Tensor z_sum(const at::Tensor& log_sums, const at::Tensor& valid);

}  // namespace moesaic
