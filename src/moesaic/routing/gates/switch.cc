// switch: the expert with the largest logit. Fedus et al. 2021 (arXiv 2101.03961).
#include "moesaic/routing/gate_form.h"

namespace moesaic {

extern const Gate kSwitchGate;
const Gate kSwitchGate{
    .name = "switch",
    // Normalised over its only choice, a weight would be 1 and the router would get no gradient.
    .top_k = 1,
    .by_softmax = [](const GateOptions&) { return true; },
    .weighing = [](const GateOptions&) { return Weighing{}; },
    .balance =
        [](const GateOptions& options) {
          return Balance{Balance::Of::kAllChoices, static_cast<double>(options.num_experts)};
        },
};

}  // namespace moesaic
