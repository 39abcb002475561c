// base: in training every expert gets the same number of tokens, chosen so that the sum of logits is as large
// as can be; otherwise a token takes its best expert. Lewis et al. 2021 (arXiv 2103.16716).
#include "moesaic/routing/auction.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic {

extern const Gate kBaseGate;
const Gate kBaseGate{
    .name = "base",
    .top_k = 1,
    .capacity = Gate::Capacity::kNone,
    .note =
        "assigns the tokens of a rank together, dealt out at random: what a token gets depends on the "
        "others in its batch and on the number of ranks",
    .ordered = false,
    .choose = [](const GateOptions& options, const GateInput& input,
                 std::span<std::int32_t> ids) { choose_largest(options, input.logits, ids); },
    .gathering = [](const GateOptions&,
                    bool training) { return training ? Gathering::kShuffled : Gathering::kNone; },
    .assign = [](const GateOptions& options,
                 std::span<const float> logits) { return auction(logits, options.num_experts); },
    .weighing = [](const GateOptions&) { return Weighing{.score = ScoreKind::kSigmoid}; },
    .balance = [](const GateOptions&) { return Balance{}; },
};

}  // namespace moesaic
