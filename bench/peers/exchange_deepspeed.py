"""DeepSpeed's MoE layer under expert parallelism over gloo: a peer of ours in `moesaic_bench run exchange_step`.

usage: exchange_deepspeed.py JOB_JSON     under tools/cluster run --launcher torch; see bench/exchange_step_job.h

On a CPU without bf16 instructions PyTorch's bf16 products take several times longer than those on fp32 copies, which are
taken there. What crosses the network stays bf16.
"""

import json
import time
from pathlib import Path

from answers import answer, run
from card import sent_and_received


def part(tensor, rank, ranks):
    n = len(tensor) // ranks
    return tensor[rank * n:(rank + 1) * n].clone()


def main(job_file):
    import deepspeed
    import fp32_products
    import moe_deepspeed
    import torch
    import torch.distributed as dist
    from safetensors.torch import load_file, save_file
    job = json.loads(Path(job_file).read_text())
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    rank, ranks, folder = dist.get_rank(), dist.get_world_size(), Path(job["folder"])
    tensors = load_file(folder / "inputs.safetensors")
    x, gradient, w_in, w_out = (part(tensors[name], rank, ranks) for name in ("x", "gradient", "w_in", "w_out"))
    fp32_products.use(x.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported())
    layer = moe_deepspeed.Layer(job, None, tensors["router"].to(x.dtype), w_in, w_out)
    x.requires_grad_()

    def one_pass():
        layer.module.zero_grad(set_to_none=True)
        x.grad = None
        y = layer(x)
        y.backward(gradient)
        return y.detach()

    for i in range(job["warm_up"] + job["passes"]):
        dist.barrier()
        before = sent_and_received()
        begin = time.perf_counter()
        one_pass()
        dist.barrier()
        seconds = time.perf_counter() - begin
        nic = torch.tensor([now - then for now, then in zip(sent_and_received(), before, strict=True)])
        dist.all_reduce(nic, dist.ReduceOp.MAX)
        if rank == 0 and i >= job["warm_up"]:
            answer(seconds=seconds, nic_bytes=nic.max().item())
    results = {"y": one_pass(), "d_x": x.grad} | layer.gradients()
    save_file({name: tensor.contiguous() for name, tensor in results.items()}, folder / f"results-{rank}.safetensors")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
