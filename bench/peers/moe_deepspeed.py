"""DeepSpeed's MoE layer, with experts in plain PyTorch, as its users write them.

It multiplies every expert with as many rows as the fullest has (without capacity) or as the capacity allows.
"""

import logging

import torch

# A kernel that it would compile at the first use, for collectives in shared memory; there are none here.
from deepspeed.ops import __compatible_ops__

__compatible_ops__["deepspeed_shm_comm"] = False
from deepspeed.moe.layer import MoE  # noqa: E402

logging.getLogger("DeepSpeed").setLevel(logging.ERROR)


class Expert(torch.nn.Module):
    def __init__(self, gated, width, hidden_width, expert_width):
        super().__init__()
        self.gated = gated
        self.w_in = torch.nn.Linear(width, hidden_width, bias=False)
        self.w_out = torch.nn.Linear(expert_width, width, bias=False)

    def forward(self, x):
        before = self.w_in(x)
        if not self.gated:
            return self.w_out(torch.nn.functional.relu(before))
        gate, up = before.chunk(2, dim=-1)
        return self.w_out(torch.nn.functional.silu(gate) * up)


class Layer:
    """w_in and w_out are of this process's experts: all, or those that are its under expert parallelism."""

    def __init__(self, case, _, router, w_in, w_out):
        own, hidden_width, width = w_in.shape
        experts = len(router)
        with torch.device("meta"):
            self.module = MoE(hidden_size=width, expert=Expert(case["gated"], width, hidden_width, w_out.shape[2]),
                              num_experts=experts, ep_size=experts // own, k=case["top_k"], capacity_factor=case["capacity_factor"] or 1.0,
                              min_capacity=0, drop_tokens=case["capacity_factor"] > 0, use_rts=False,
                              top2_2nd_expert_sampling=False)  # no random choices
        if own < experts:
            self.module.set_deepspeed_parallelism()
        self.gate = self.module.deepspeed_moe.gate.wg
        self.experts = self.module.deepspeed_moe.experts.deepspeed_experts
        self.gate.weight = torch.nn.Parameter(router)
        for expert, into, out in zip(self.experts, w_in, w_out, strict=True):
            expert.w_in.weight, expert.w_out.weight = torch.nn.Parameter(into), torch.nn.Parameter(out)

    def __call__(self, x):
        return self.module(x)[0]

    def gradients(self):
        return {"d_router": self.gate.weight.grad,
                "d_w_in": torch.stack([expert.w_in.weight.grad for expert in self.experts]),
                "d_w_out": torch.stack([expert.w_out.weight.grad for expert in self.experts])}
