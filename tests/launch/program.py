"""The built moesaic, run on models so small that a step takes milliseconds: as threads, under mpirun, in the background."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).resolve().parents[2]
MOESAIC = os.path.join(os.environ["MOESAIC_BUILD"], "moesaic")

# Exit statuses of an error: of the command line or the configuration; of the work itself.
MISUSE, FAILURE = 2, 1

# Fields of metrics.jsonl that a clock fills in.
CLOCKS = {"tokens_per_s", "seconds", "blocked_seconds", "exposed_seconds", "hidden_seconds", "times"}

TINY = {
    "model.vocab_size": 256,
    "model.num_layers": 2,
    "model.d_model": 32,
    "model.num_heads": 2,
    "model.max_seq_len": 16,
    "moe.num_experts": 6,
    "moe.top_k": 2,
    "moe.d_expert": 16,
    "parallel.experts": "exchange",
    "data.seq_len": 16,
    "optim.lr": 5e-3,
    "train.steps": 20,
    "train.batch_tokens": 128,
}


def write_text(folder, size=6000, seed=1):
    """Text with something to learn: words drawn from a small set."""
    random = np.random.default_rng(seed)
    words = ["".join(chr(c) for c in random.integers(97, 123, random.integers(2, 8))) for _ in range(40)]
    text = ""
    while len(text) < size:
        text += words[random.integers(len(words))] + (".\n" if random.integers(9) == 0 else " ")
    file = Path(folder) / "words.txt"
    file.write_text(text[:size])
    return file


def write_config(folder, name="tiny.toml", **changes):
    """A tiny model on words.txt. Keys as in train__steps=5; None leaves a key out."""
    values = dict(TINY)
    if "data__files" not in changes:
        values["data.files"] = [str(write_text(folder))]
    values.update({key.replace("__", "."): value for key, value in changes.items()})
    sections = {}
    for key, value in values.items():
        section, name_in_section = key.split(".")
        if value is not None:
            sections.setdefault(section, []).append(f"{name_in_section} = {json.dumps(value)}")
    file = Path(folder) / name
    file.write_text("".join(f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sections.items()))
    return file


def processes_of(run_dir):
    """Ids of the living processes whose command line names `run_dir`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(run_dir).encode() in words:
            found.append(int(pid))
    return found


class Job:
    """A moesaic in the background. Leaving the `with` ends every process of it."""

    def __init__(self, *arguments, mpi_ranks=0, report=False, within=(), **popen):
        """report: whether `train` writes its report, which takes longer than a tiny run. within: a command that runs each
        rank, as in ["nice"]."""
        launcher = ["mpirun", "-n", str(mpi_ranks), "--oversubscribe", "--bind-to", "none"] if mpi_ranks else []
        self.words = [str(a) for a in arguments]
        if self.words[:1] == ["train"] and not report and "--no-report" not in self.words:
            self.words.append("--no-report")
        # Who is in the run directory already is somebody else's.
        self.others = processes_of(self.run_dir()) if self.run_dir() else []
        self.process = subprocess.Popen([*launcher, *within, MOESAIC, *self.words], start_new_session=True,
                                        text=True, errors="surrogateescape",  # a young model writes any bytes
                                        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen})

    def run_dir(self):
        return self.words[self.words.index("--run-dir") + 1] if "--run-dir" in self.words else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # mpirun gives each rank a process group of its own: those are found by the run directory.
        leftover = processes_of(self.run_dir()) if self.run_dir() else []
        for pid in set(leftover).difference(self.others):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def finish(self, timeout=120):
        out, err = self.process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(self.words, self.process.returncode, out, err)


def moesaic(*arguments, mpi_ranks=0, timeout=120, report=False, **popen):
    with Job(*arguments, mpi_ranks=mpi_ranks, report=report, **popen) as job:
        return job.finish(timeout)


def settings(**changes):
    """settings(train__steps=5) -> ["--set", "train.steps=5"]"""
    return [word for key, value in changes.items()
            for word in ("--set", f"{key.replace('__', '.')}={json.dumps(value)}")]


def train(config, run_dir, *arguments, ranks=1, mpi=False, report=False, **changes):
    """Trains to the end, on threads or on processes; fails the test when moesaic does."""
    ran = moesaic("train", "--config", config, "--run-dir", run_dir, *settings(**changes),
                  *([] if mpi else ["--ranks", ranks]), *arguments, mpi_ranks=ranks if mpi else 0, report=report)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran


def refused(status, ran, *words):
    """It ended with `status` and a message for people on standard error that has all `words`."""
    assert ran.returncode == status, ran.stdout + ran.stderr
    for word in words:
        assert str(word) in ran.stderr
    assert len(ran.stderr.splitlines()) <= 3 and max(map(len, ran.stderr.split())) < 200, ran.stderr
    assert "terminate called" not in ran.stderr


def metrics(run_dir):
    """The lines of metrics.jsonl without the clocks' fields."""
    lines = (Path(run_dir) / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in CLOCKS} for line in lines]


def losses(run_dir):
    return [line["loss"] for line in metrics(run_dir) if "loss" in line]


def newest_checkpoint(run_dir):
    checkpoints = Path(run_dir) / "checkpoints"
    return checkpoints / (checkpoints / "latest").read_text().strip()


def tensors_on_disk(checkpoint):
    """File name -> bytes, of the model and optimizer files."""
    return {file.name: file.read_bytes() for file in sorted(Path(checkpoint).glob("*.safetensors"))}


def wait_until(condition, timeout=60, every=0.005):
    """The first true value of condition(); fails after `timeout` seconds."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(every)
    raise AssertionError(f"still waiting after {timeout} s")
