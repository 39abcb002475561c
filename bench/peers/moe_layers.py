"""One MoE layer of another program as a peer of ours; see bench/moe_layer_peers.h.

usage: moe_layers.py PEER

Requests are JSON objects, one a line:
  {"action": "load", "folder", "top_k", "gated", "capacity_factor", "backward", "threads", "sets"}
      reads inputs.safetensors of the folder: x, gradient [T,D], router [E,D], w_in [E,H,D] (gate rows first), w_out [E,D,F];
      makes `sets` layers with weights of their own, which take turns; answers with a "note" on how it computes
  {"action": "run", "calls"}       that many passes; answers with their microseconds
  {"action": "results"}            one pass; answers with the "file" of y, and of d_x, d_router, d_w_in, d_w_out after a backward pass
  {"action": "unload"}
"""

import ctypes
import gc
import json
import sys
import time
from pathlib import Path

from answers import answer, run

# PEER -> its module, and what its layers() is told.
PEERS = {"deepspeed": ("moe_deepspeed", None), "torchtitan": ("moe_torchtitan", None),
         "transformers_eager": ("moe_transformers", "eager"), "transformers_grouped_mm": ("moe_transformers", "grouped_mm")}


def give_back_memory():
    """What is freed is kept, as the benchmark sets malloc; the next case, and others, need it."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


class Loaded:
    """The layers of one case, in turn."""

    def __init__(self, module, option, case):
        import torch
        from safetensors.torch import load_file
        torch.set_num_threads(case["threads"])
        self.folder, self.backward = Path(case["folder"]), case["backward"]
        tensors = load_file(self.folder / "inputs.safetensors")
        self.x = tensors["x"].clone().requires_grad_(self.backward)  # a copy: the file's memory is the file
        self.gradient = tensors["gradient"].clone()
        self.layers = []
        for _ in range(case["sets"]):
            weights = {name: tensors[name].to(self.x.dtype, copy=True) for name in ("router", "w_in", "w_out")}
            self.layers.append(module.Layer(case, option, **weights))
        del tensors
        give_back_memory()
        self.used = 0

    def run(self, backward=True):
        import torch
        self.used = (self.used + 1) % len(self.layers)
        layer = self.layers[self.used]
        if not (backward and self.backward):
            with torch.no_grad():  # weights keep requires_grad: without it F.linear takes a slower way for bf16
                return layer(self.x)
        layer.module.zero_grad(set_to_none=True)
        self.x.grad = None
        y = layer(self.x)
        y.backward(self.gradient)
        return y

    def save_results(self):
        from safetensors.torch import save_file
        results = {"y": self.run().detach()}
        if self.backward:
            results |= {"d_x": self.x.grad} | self.layers[self.used].gradients()
        file = self.folder / "results.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in results.items()}, file)
        return str(file)


def load(module, option, case):
    """A case, computed in the faster of the ways its CPU leaves; and what to know about it."""
    import fp32_products
    import torch
    loaded = Loaded(module, option, case)
    if loaded.x.dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        fp32_products.use(False)
        return loaded, ""
    seconds = {}
    for in_fp32 in (True, True, False):  # the first one meets cold memory
        fp32_products.use(in_fp32)
        begin = time.perf_counter()
        loaded.run(backward=False)  # what is faster forward is so backward, which may take ten times as long
        seconds[in_fp32] = time.perf_counter() - begin
    fp32_products.use(seconds[True] < seconds[False])
    return loaded, "products on fp32 copies" if seconds[True] < seconds[False] else ""


def main(peer):
    name, option = PEERS[peer]
    module = __import__(name)
    answer(ready=True)
    loaded = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["action"] == "load":
            loaded, note = load(module, option, request)
            answer(note=note)
        elif request["action"] == "run":
            begin = time.perf_counter()
            for _ in range(request["calls"]):
                loaded.run()
            answer(us=(time.perf_counter() - begin) * 1e6)
        elif request["action"] == "results":
            answer(file=loaded.save_results())
        else:
            loaded = None
            give_back_memory()
            answer()


if __name__ == "__main__":
    run(main)
