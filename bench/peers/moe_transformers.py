"""transformers' OLMoE layer, with one of its implementations of experts ("eager", "grouped_mm")."""

import torch
from transformers import OlmoeConfig
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock


class Layer:
    def __init__(self, case, implementation, router, w_in, w_out):
        if not case["gated"] or case["capacity_factor"]:
            raise ValueError("transformers' OLMoE has SwiGLU experts without capacity")
        config = OlmoeConfig(hidden_size=w_out.shape[1], intermediate_size=w_out.shape[2], num_experts=w_in.shape[0],
                             num_experts_per_tok=case["top_k"], norm_topk_prob=True, experts_implementation=implementation)
        with torch.device("meta"):
            self.module = OlmoeSparseMoeBlock(config)
        self.module.gate.weight = torch.nn.Parameter(router)
        self.module.experts.gate_up_proj = torch.nn.Parameter(w_in)
        self.module.experts.down_proj = torch.nn.Parameter(w_out)

    def __call__(self, x):
        return self.module(x[None])[0]

    def gradients(self):
        experts = self.module.experts
        return {"d_router": self.module.gate.weight.grad, "d_w_in": experts.gate_up_proj.grad, "d_w_out": experts.down_proj.grad}
