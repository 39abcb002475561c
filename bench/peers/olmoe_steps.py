"""transformers' OLMoE as a peer of the trainer: one optimizer step per line read; see bench/trainer_steps.h.

usage: olmoe_steps.py CONFIG_TOML CHECKPOINT EXPERTS_IMPLEMENTATION THREADS
"""

import sys
import tomllib
from pathlib import Path

from answers import answer, run


def main(config_file, checkpoint, experts, threads):
    import torch
    from data_order import TrainingData
    from olmoe import OlmoeTrainer
    torch.set_num_threads(int(threads))
    config = tomllib.loads(Path(config_file).read_text())
    trainer = OlmoeTrainer(config, Path(checkpoint), fused=True, experts=experts, attention="sdpa")
    data, seq_len = config["data"], config["data"]["seq_len"]
    (file,) = data["files"]
    batches = TrainingData(Path(file), seq_len, config["train"]["batch_tokens"] // seq_len, data["held_out_fraction"],
                           config["train"]["seed"])
    answer(ready=True)
    for _ in sys.stdin:
        done = trainer.step(*(torch.from_numpy(rows) for rows in batches.batch(trainer.steps_done)))
        answer(loss=done.loss, gradient_norm=done.gradient_norm)


if __name__ == "__main__":
    run(main)
