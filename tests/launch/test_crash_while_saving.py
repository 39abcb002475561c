"""A run that saves every step is killed twenty times: nothing complete is lost, and it ends as if never killed."""

import json
import random
import re
import time
from pathlib import Path

from program import Job, losses, moesaic, train, write_config

KILLS = 20
RANKS = 2


def complete_steps(run_dir):
    """Steps whose checkpoint stands in its place; every file was written before it got its name."""
    steps = []
    for folder in (Path(run_dir) / "checkpoints").glob("step-*"):
        if match := re.fullmatch(r"step-(\d+)", folder.name):
            steps.append(int(match[1]))
    return steps


def newest_step(run_dir):
    return max(complete_steps(run_dir), default=0)


def verified_step(run_dir):
    """Step of the newest checkpoint that inspect finds; its files have the checksums of the manifest."""
    inspected = moesaic("inspect", run_dir)
    assert inspected.returncode == 0, inspected.stderr
    assert "every file has the size and the checksum of the manifest" in inspected.stdout
    return int(re.search(r"steps done (\d+)", inspected.stdout)[1])


def steps_in_metrics(run_dir):
    return [json.loads(line)["step"] for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]


def life(config, run_dir, die_at):
    """One start, killed where die_at says: ("saving", s): s seconds past its first new checkpoint; ("any", s): of age s."""
    where, seconds = die_at
    before = newest_step(run_dir)
    with Job("train", "--config", config, "--run-dir", run_dir, "--ranks", RANKS,
             *(["--resume"] if before else [])) as job:
        born = time.monotonic()
        while where == "saving" and newest_step(run_dir) == before:
            assert job.process.poll() is None, job.finish().stderr
            assert time.monotonic() < born + 60, "no new checkpoint in 60 s"
            time.sleep(0.001)
        time.sleep(seconds)
        reported = newest_step(run_dir)
        job.process.kill()
        job.finish()
    return reported


def test_twenty_kills_lose_nothing_that_was_complete(tmp_path):
    config = write_config(tmp_path, train__steps=1000000, optim__lr=1e-3, optim__schedule="constant",
                          checkpoint__every=1, checkpoint__keep_last=2)
    run_dir = tmp_path / "run"
    draw = random.Random(7)
    half_written = 0
    for kill in range(KILLS):
        # Every fifth may die before it has loaded; the others within some saves.
        die_at = ("any", draw.uniform(0, 1.0)) if kill % 5 == 4 else ("saving", draw.uniform(0, 0.15))
        reported = life(config, run_dir, die_at)
        checkpoints = list((run_dir / "checkpoints").iterdir())
        half_written += any(entry.name.endswith((".tmp", ".old")) for entry in checkpoints)
        assert verified_step(run_dir) >= reported, f"kill {kill} at {die_at}"
        steps = steps_in_metrics(run_dir)
        assert steps == list(range(1, len(steps) + 1)), f"kill {kill} at {die_at}"
        assert len(steps) >= reported
    assert half_written > 0, "no kill fell into a save: the test shows nothing"

    done = verified_step(run_dir)
    # One more life, ended in order: what the kills left is cleared, and the losses are those of a run without kills.
    train(config, run_dir, "--resume", ranks=RANKS, train__stop_at=done + 2)
    assert sorted(complete_steps(run_dir)) == [done + 1, done + 2]
    assert {entry.name for entry in (run_dir / "checkpoints").iterdir()} == {
        "latest", *(f"step-{step:06}" for step in (done + 1, done + 2))}
    train(config, tmp_path / "straight", ranks=RANKS, train__stop_at=done + 2, checkpoint__every=0)
    assert losses(run_dir) == losses(tmp_path / "straight")
