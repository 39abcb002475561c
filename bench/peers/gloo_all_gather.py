"""gloo's all_gather_into_tensor of BYTES from every rank, through torch.distributed; see mpi_all_gather.cc for the lines.

usage: gloo_all_gather.py ITERATIONS BYTES...     under tools/cluster run --launcher torch, or torchrun
"""

import statistics
import time
import warnings

from answers import answer, run
from card import sent_and_received

WARM_UP = 2


def main(*words):
    iterations, *sizes = map(int, words)
    if iterations < 1 or not sizes or min(sizes) < 1:
        raise ValueError("expected ITERATIONS BYTES..., all above 0")
    import torch
    import torch.distributed as dist
    warnings.filterwarnings("ignore", category=FutureWarning)  # torch 2.13 gives the call another name
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def largest(value, dtype=torch.int64):
        found = torch.tensor([value], dtype=dtype)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return found.item()

    def part(rank, size):
        i = torch.arange(size)
        return ((rank * 31 + i * 7 + i // 251) % 256).to(torch.uint8)

    for size in sizes:
        mine, everyone = part(rank, size), torch.empty(ranks * size, dtype=torch.uint8)
        seconds, received = [], 0
        for i in range(WARM_UP + iterations):
            everyone.zero_()
            dist.barrier()
            if i == WARM_UP:
                _, received = sent_and_received()
            begin = time.perf_counter()
            dist.all_gather_into_tensor(everyone, mine)
            slowest = largest(time.perf_counter() - begin, torch.float64)
            if i >= WARM_UP:
                seconds.append(slowest)
        received = largest((sent_and_received()[1] - received) // iterations)
        wrong = largest(int(any(not torch.equal(everyone[r * size:(r + 1) * size], part(r, size)) for r in range(ranks))))
        if wrong:
            raise ValueError(f"all_gather_into_tensor of {size} bytes gave wrong bytes")
        if rank == 0:
            answer(bytes_per_rank=size, ranks=ranks, seconds=statistics.median(seconds), nic_received_bytes=received)
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
