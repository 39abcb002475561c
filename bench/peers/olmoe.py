"""One of our runs in plain PyTorch: transformers' OLMoE from our checkpoint and configuration, trained by torch.

Used by the referee test (same losses?) and by the benchmarks train_tokens and step (same speed?).
"""

import math
from dataclasses import dataclass

import torch
from safetensors.torch import load_file
from transformers import OlmoeConfig, OlmoeForCausalLM


def checkpoint_tensors(checkpoint, kind="model"):
    """Global name -> tensor, of every model file, or "<moment>.<global name>" of every "optimizer" file."""
    tensors = {}
    for file in sorted(checkpoint.glob(f"{kind}-*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def as_olmoe(tensors, num_layers, num_experts):
    """The same under the names of transformers, which keeps a layer's experts in one tensor."""
    state = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}.mlp.experts."

        def stack(projection, prefix=prefix):
            return torch.stack([tensors[f"{prefix}{e}.{projection}.weight"] for e in range(num_experts)])
        state[prefix + "gate_up_proj"] = torch.cat([stack("gate_proj"), stack("up_proj")], dim=1)
        state[prefix + "down_proj"] = stack("down_proj")
    return state


def load_olmoe(config, checkpoint, experts="eager", attention="eager"):
    """`config`: a run's config.toml, parsed. Weights in fp32."""
    model, moe = config["model"], config["moe"]
    expected = {"activation": "swiglu", "num_dense_layers": 0, "qk_norm": True, "tie_embeddings": False}
    other = {key: model[key] for key, value in expected.items() if model[key] != value}
    if moe["gate"] != "top_k" or moe["score"] != "softmax" or moe["normalise"] == "after_drop" or moe["capacity_factor"] != 0:
        other["moe"] = moe
    if other:
        raise ValueError(f"transformers' OLMoE has nothing like {other}")
    olmoe = OlmoeForCausalLM(OlmoeConfig(
        vocab_size=model["vocab_size"], hidden_size=model["d_model"], intermediate_size=moe["d_expert"],
        num_hidden_layers=model["num_layers"], num_attention_heads=model["num_heads"],
        max_position_embeddings=model["max_seq_len"], rms_norm_eps=model["norm_eps"], tie_word_embeddings=False,
        hidden_act="silu", rope_parameters={"rope_type": "default", "rope_theta": model["rope_theta"]},
        clip_qkv=model["clip_qkv"] or None, num_experts=moe["num_experts"], num_experts_per_tok=moe["top_k"],
        norm_topk_prob=moe["normalise"] == "before_drop", router_aux_loss_coef=moe["balance_loss"],
        pad_token_id=None, bos_token_id=None, eos_token_id=None, use_cache=False, dtype="float32",
        attn_implementation=attention, experts_implementation=experts)).float()
    olmoe.load_state_dict(as_olmoe(checkpoint_tensors(checkpoint), model["num_layers"], moe["num_experts"]), strict=True)
    return olmoe


def learning_rate(config, step):
    """Of step `step` (from 0)."""
    optim = config["optim"]
    if optim["schedule"] != "constant":
        raise ValueError(f"optim.schedule: expected constant, got {optim['schedule']}")
    return optim["lr"] * min(1.0, (step + 1) / optim["warmup_steps"]) if optim["warmup_steps"] else optim["lr"]


@dataclass
class Step:
    loss: float
    gradient_norm: float
    router_logits: tuple | None


def adamw(config, model, fused):
    optim = config["optim"]
    norms = [p for name, p in model.named_parameters() if "norm" in name]
    others = [p for name, p in model.named_parameters() if "norm" not in name]
    return torch.optim.AdamW(
        [{"params": others}, {"params": norms, "weight_decay": 0.0}], lr=optim["lr"], fused=fused,
        betas=(optim["beta1"], optim["beta2"]), eps=optim["eps"], weight_decay=optim["weight_decay"])


class OlmoeTrainer:
    def __init__(self, config, checkpoint, fused=False, **implementations):
        self.config, self.steps_done = config, 0
        self.model = load_olmoe(config, checkpoint, **implementations)
        self.optimizer = adamw(config, self.model, fused)

    def step(self, tokens, targets):
        """tokens, targets [B,S] int64."""
        balance_loss = self.config["moe"]["balance_loss"]
        out = self.model(input_ids=tokens, output_router_logits=balance_loss > 0)
        loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad()
        (loss + balance_loss * out.aux_loss if balance_loss > 0 else loss).backward()
        limit = self.config["optim"]["clip_norm"]
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit if limit > 0 else math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.steps_done)
        self.optimizer.step()
        self.steps_done += 1
        return Step(loss.item(), norm.item(), out.router_logits)
