"""torchtitan's MoE layer in one process: token-choice router, grouped experts in bf16 (whatever they are given)."""

import sys
import types

import torch

# Its expert parallelism within a node wants triton, which has no CPU build; nothing of it runs in one process.
ABSENT = types.ModuleType("torchtitan.distributed.minimal_async_ep")
for name in ("combine_op", "dispatch_op", "init_buffer", "MinimalAsyncEPDispatchMetadata"):
    setattr(ABSENT, name, type(name, (), {}))
sys.modules.setdefault(ABSENT.__name__, ABSENT)

from torchtitan.models.common.linear import Linear  # noqa: E402
from torchtitan.models.common.moe import GroupedExperts, MoE, RoutedExperts, TokenChoiceTopKRouter  # noqa: E402
from torchtitan.models.common.token_dispatcher import LocalTokenDispatcher  # noqa: E402


class Layer:
    def __init__(self, case, _, router, w_in, w_out):
        if not case["gated"] or case["capacity_factor"] or w_in.dtype != torch.bfloat16:
            raise ValueError("torchtitan has SwiGLU experts in bf16, without capacity")
        experts, width, expert_width = w_out.shape
        config = MoE.Config(
            num_experts=experts, load_balance_coeff=None,
            routed_experts=RoutedExperts.Config(
                inner_experts=GroupedExperts.Config(dim=width, hidden_dim=expert_width, num_experts=experts),
                token_dispatcher=LocalTokenDispatcher.Config(num_experts=experts, top_k=case["top_k"])),
            router=TokenChoiceTopKRouter.Config(
                num_experts=experts, gate=Linear.Config(in_features=width, out_features=experts), top_k=case["top_k"],
                score_func="softmax", route_norm=True))
        with torch.device("meta"):
            self.module = config.build()
        self.experts, self.gate = self.module.routed_experts.inner_experts, self.module.router.gate
        self.gate.weight = torch.nn.Parameter(router)
        self.experts.w1_EFD = torch.nn.Parameter(w_in[:, :expert_width].contiguous())
        self.experts.w3_EFD = torch.nn.Parameter(w_in[:, expert_width:].contiguous())
        self.experts.w2_EDF = torch.nn.Parameter(w_out)

    def __call__(self, x):
        return self.module(x[None])[0]

    def gradients(self):
        experts = self.experts
        return {"d_router": self.gate.weight.grad, "d_w_in": torch.cat([experts.w1_EFD.grad, experts.w3_EFD.grad], dim=1),
                "d_w_out": experts.w2_EDF.grad}
