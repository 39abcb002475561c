"""transformers' OLMoE under PyTorch's FSDP2 over gloo, going on from one of our checkpoints: a peer of the trainer.

usage: fsdp2_steps.py MODE CONFIG_TOML CHECKPOINT WARM_UP STEPS     under tools/cluster run --launcher torch

MODE is one of
  default     every layer is gathered before its forward and again before its backward pass
  no_reshard  reshard_after_forward=False: gathered once, kept until the backward pass
  prefetch    as default, with asynchronous all-gathers, each layer's started while the layer before computes (forward;
              in the backward pass FSDP2 always does so)
Weights and gradients cross the network in the type of the run (train.dtype), and one thread computes. Every step after the
first WARM_UP gives one line of rank 0; see bench/cluster_steps.h.

On a CPU without bf16 instructions PyTorch multiplies bf16 matrices some ten times slower than fp32 ones. There, products
and attention take copies of their operands in fp32: the fastest that PyTorch has to offer, and the same messages.
"""

import time
import tomllib
import warnings
from pathlib import Path

from answers import answer, run
from card import sent_and_received

MODES = ("default", "no_reshard", "prefetch")


def multiply_in_fp32():
    """All products of the model; attention follows, for its inputs are results of products."""
    import torch.nn.functional as F

    def in_fp32(product):
        return lambda x, weight, *args, **kwargs: product(x.float(), weight.float(), *args, **kwargs)
    F.linear, F.grouped_mm = in_fp32(F.linear), in_fp32(F.grouped_mm)


def sharded(config, checkpoint, mode, dtype):
    import torch
    from olmoe import load_olmoe
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    model = load_olmoe(config, checkpoint, experts="grouped_mm", attention="sdpa")
    options = {"reshard_after_forward": mode != "no_reshard"}
    if dtype != torch.float32:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
    layers = list(model.model.layers)
    for layer in layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    if mode == "prefetch":
        for module in (model, *layers):
            module._set_unshard_async_op(True)
        for layer, following in zip(layers, layers[1:], strict=False):
            layer.set_modules_to_forward_prefetch([following])
    return model


def optimizer_from(config, checkpoint, model):
    """AdamW where our run has left it."""
    import torch
    from olmoe import adamw, as_olmoe, checkpoint_tensors
    from torch.distributed.tensor import distribute_tensor
    optimizer = adamw(config, model, fused=True)
    moments = {}
    for name, tensor in checkpoint_tensors(checkpoint, "optimizer").items():
        moment, _, of = name.partition(".")
        moments.setdefault(moment, {})[of] = tensor
    moments = {moment: as_olmoe(tensors, config["model"]["num_layers"], config["moe"]["num_experts"])
               for moment, tensors in moments.items()}
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {"step": torch.tensor(float(steps_done(checkpoint)))} | {
            moment: distribute_tensor(tensors[name], parameter.device_mesh, parameter.placements, src_data_rank=None)
            for moment, tensors in moments.items()}
    return optimizer


def steps_done(checkpoint):
    return int(checkpoint.name.removeprefix("step-"))


def main(mode, config_file, checkpoint, warm_up, steps):
    import torch
    import torch.distributed as dist
    from data_order import TrainingData
    from olmoe import learning_rate
    if mode not in MODES:
        raise ValueError(f"MODE '{mode}': expected one of {', '.join(MODES)}")
    checkpoint, warm_up, steps = Path(checkpoint), int(warm_up), int(steps)
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    config = tomllib.loads(Path(config_file).read_text())
    data, train, seq_len = config["data"], config["train"], config["data"]["seq_len"]
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[train["dtype"]]
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        multiply_in_fp32()
    (file,) = data["files"]
    sequences = train["batch_tokens"] // seq_len
    if sequences % ranks or config["optim"]["clip_norm"] != 0:
        raise ValueError(f"expected clip_norm 0 and a batch for {ranks} ranks alike, got {config['optim']['clip_norm']} and {sequences}")
    batches = TrainingData(Path(file), seq_len, sequences, data["held_out_fraction"], train["seed"])
    mine = slice(rank * sequences // ranks, (rank + 1) * sequences // ranks)
    model = sharded(config, checkpoint, mode, dtype)
    optimizer = optimizer_from(config, checkpoint, model)

    def one_step(number):
        tokens, targets = (torch.from_numpy(rows[mine]) for rows in batches.batch(number))
        logits = model(input_ids=tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, number)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    first = steps_done(checkpoint)
    for number in range(first, first + warm_up + steps):
        dist.barrier()
        sent, received = sent_and_received()
        begin = time.perf_counter()
        loss = one_step(number)
        dist.barrier()
        seconds = time.perf_counter() - begin
        sent, received = (now - before for now, before in zip(sent_and_received(), (sent, received), strict=True))
        nic = torch.tensor([sent, received])
        dist.all_reduce(nic, dist.ReduceOp.MAX)
        dist.all_reduce(loss)
        if rank == 0 and number >= first + warm_up:
            answer(step=number + 1, seconds=seconds, loss=loss.item() / ranks, nic_bytes=nic.max().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
