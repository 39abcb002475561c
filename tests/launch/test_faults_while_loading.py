"""Faults while `--resume` loads a checkpoint, or tokens later on: the job ends soon, non-zero, named, whole; the checkpoint is
as it was, and the next resume goes on as if nothing had been."""

import os
import re
import shutil

import pytest
from program import (FAILURE, Job, metrics, moesaic, newest_checkpoint, processes_of, settings, tensors_on_disk, train,
                     wait_until, write_config)

LIBRARY = os.path.join(os.environ["MOESAIC_BUILD"], "libread_fault.so")
RANKS = 3
STEPS = 6
TIMEOUT = 10  # seconds of silence that count as a loss, where that matters; ranks share a busy machine
SOON = 60  # far more than any of these takes, even on a machine with much else to do

# Rank, which of its reads, of the files whose path has the text. A rank verifies every third file of the manifest, then opens
# all tensor files (two reads each: length and text of the header), and then reads its shards.
PLACES = {
    "looking_for_the_newest": (0, 1, "manifest.json"),
    "verifying": (0, 1, "step-000004/model-00000"),
    "verifying_another_file": (2, 1, "step-000004/model-00001"),
    "opening_the_optimizer": (2, 1, "step-000004/optimizer.safetensors.index"),
    "opening_the_model": (1, 4, "step-000004/model-"),
    "reading_the_model": (1, 9, "step-000004/model-"),
    "reading_the_moments": (2, 9, "step-000004/optimizer-"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The run that nothing happened to; and one that stopped after the checkpoint of step 4."""
    folder = tmp_path_factory.mktemp("loading")
    config = write_config(folder, parallel__experts=["exchange", "gather"], parallel__ranks=RANKS, train__steps=STEPS,
                          checkpoint__every=2, train__eval_tokens=64, optim__name="adamw", comm__timeout_s=TIMEOUT)
    train(config, folder / "straight", ranks=RANKS)
    train(config, folder / "stopped", ranks=RANKS, train__stop_at=4)
    return folder / "straight", folder / "stopped"


@pytest.fixture
def run_dir(runs, tmp_path):
    return shutil.copytree(runs[1], tmp_path / "run")


def resume(run_dir, place, action, mpi, *arguments):
    """Resumes with the fault, on threads at as many reads of all ranks together; it was met, and no process is left."""
    rank, nth, text = place
    who = rank if mpi else -1
    at = nth if mpi or nth == 1 else nth * RANKS
    mark = run_dir.parent / "met"
    with Job("train", "--run-dir", run_dir, "--resume", *arguments, *([] if mpi else ["--ranks", RANKS]), mpi_ranks=RANKS if mpi else 0,
             env={**os.environ, "LD_PRELOAD": LIBRARY, "READ_FAULT_MET": str(mark),
                  "READ_FAULT": f"{who} {at} {action} {text}"}) as job:
        ended = job.finish(timeout=SOON)
        assert mark.exists(), ended.stdout + ended.stderr
        wait_until(lambda: not processes_of(run_dir), timeout=10)
    return ended


def goes_on_as_if_nothing_had_been(runs, run_dir):
    straight, stopped = runs
    assert newest_checkpoint(run_dir).name == "step-000004"
    for file in (stopped / "checkpoints").rglob("*"):
        if file.is_file():
            assert (run_dir / file.relative_to(stopped)).read_bytes() == file.read_bytes(), file
    resumed = moesaic("train", "--run-dir", run_dir, "--resume", mpi_ranks=RANKS)
    assert resumed.returncode == 0, resumed.stderr
    assert metrics(run_dir) == metrics(straight)
    assert newest_checkpoint(run_dir).name == f"step-{STEPS:06}"
    assert tensors_on_disk(newest_checkpoint(run_dir)) == tensors_on_disk(newest_checkpoint(straight))


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_a_rank_killed_while_loading_is_named_and_ends_all(runs, run_dir, place):
    ended = resume(run_dir, place, "kill", mpi=True)
    assert ended.returncode != 0
    assert re.search(rf"rank {place[0]}\b.*exited on signal 9", ended.stdout + ended.stderr), ended.stdout + ended.stderr
    assert "resuming after step" not in ended.stdout
    goes_on_as_if_nothing_had_been(runs, run_dir)


def test_a_rank_stopped_while_loading_is_lost_after_the_timeout(runs, run_dir):
    ended = resume(run_dir, PLACES["reading_the_model"], "stop", mpi=True)
    assert ended.returncode != 0
    assert re.search(rf"rank [02] made no progress .*for {TIMEOUT * 1000} ms; it still waits for .*(from|to) rank 1\b",
                     ended.stderr), ended.stderr
    goes_on_as_if_nothing_had_been(runs, run_dir)


@pytest.mark.parametrize("mpi", [False, True], ids=["on_threads", "on_processes"])
@pytest.mark.parametrize("where", list(PLACES))
def test_a_disk_that_fails_while_loading_is_named_and_ends_all(runs, run_dir, where, mpi):
    ended = resume(run_dir, PLACES[where], "fail", mpi)
    assert ended.returncode != 0 if mpi else ended.returncode == FAILURE
    assert re.search(rf"moesaic: .*rank \d: .*cannot read {run_dir}/checkpoints/\S+: Input/output error", ended.stderr), ended.stderr
    goes_on_as_if_nothing_had_been(runs, run_dir)


@pytest.mark.parametrize("mpi", [False, True], ids=["on_threads", "on_processes"])
def test_a_disk_that_fails_under_a_token_file_is_named(runs, run_dir, mpi):
    words = run_dir.parent / "words.txt"
    shutil.copy(runs[0].parent / "words.txt", words)
    ended = resume(run_dir, (1, 3, str(words)), "fail", mpi, *settings(data__files=[str(words)]))
    assert ended.returncode != 0 if mpi else ended.returncode == FAILURE
    assert re.search(rf"moesaic: .*rank \d: cannot read {words}: Input/output error", ended.stderr), ended.stderr
    assert newest_checkpoint(run_dir).name == "step-000004"
