"""Faults put into every phase of a step: the job ends soon, non-zero, named, whole; the checkpoint before goes on as if nothing
had been."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from program import (FAILURE, MOESAIC, Job, losses, metrics, moesaic, newest_checkpoint, processes_of, settings,
                     tensors_on_disk, train, wait_until, write_config)

DRILL = os.path.join(os.environ["MOESAIC_BUILD"], "fault_drill")
RANKS = 3
STEPS = 6
TIMEOUT = 10  # seconds of silence that count as a loss, where that matters; ranks share a busy machine
SOON = 60  # far more than any of these takes, even on a machine with much else to do

# Ranks and phases take turns: (rank, phase, name of the span).
PLACES = [
    (0, "data", ""),
    (0, "forward", "layer"),
    (1, "backward", "layer"),
    (2, "gather", ""),
    (0, "reduce", ""),
    (1, "exchange", ""),
    (1, "norm", ""),
    (2, "optimizer", "update"),
    (2, "evaluate", ""),
    (1, "save", "write"),
    (2, "save", "sync"),
    (0, "save", "manifest"),
    (0, "save", "rename"),
    (0, "save", "latest"),
]
# Between these and the end of the job the new checkpoint is complete.
AFTER_THE_RENAME = {"latest"}


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """A configuration, and the run that nothing happened to."""
    folder = tmp_path_factory.mktemp("drill")
    # Both ways to the experts, so that there is an exchange; a checkpoint after every second step.
    config = write_config(folder, parallel__experts=["exchange", "gather"], parallel__ranks=RANKS, train__steps=STEPS,
                          checkpoint__every=2, train__eval_every=2, train__eval_tokens=64)
    train(config, folder / "straight", ranks=RANKS)
    return config, folder / "straight"


def drill(config, run_dir, action, rank, phase, name, mpi, step=4):
    launcher = ["mpirun", "-n", str(RANKS), "--oversubscribe", "--bind-to", "none"] if mpi else []
    words = [DRILL, str(config), str(run_dir), action, str(rank), str(step), phase, *([name] if name else [])]
    with subprocess.Popen([*launcher, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as process:
        try:
            out, err = process.communicate(timeout=SOON)
        except subprocess.TimeoutExpired:
            for pid in processes_of(run_dir):
                os.kill(pid, signal.SIGKILL)
            process.kill()
            pytest.fail(f"the job still ran after {SOON} s: {process.communicate()}")
    assert "the drill was not met" not in err
    wait_until(lambda: not processes_of(run_dir), timeout=10)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def goes_on_as_if_nothing_had_been(setting, run_dir, saved_step):
    config, straight = setting
    assert newest_complete(run_dir) == saved_step
    train(config, run_dir, "--resume", ranks=RANKS)
    assert metrics(run_dir) == metrics(straight)
    assert newest_checkpoint(run_dir).name == f"step-{STEPS:06}"
    assert tensors_on_disk(newest_checkpoint(run_dir)) == tensors_on_disk(newest_checkpoint(straight))
    assert not [path.name for path in (run_dir / "checkpoints").iterdir() if path.suffix in (".tmp", ".old")]


def newest_complete(run_dir):
    inspected = moesaic("inspect", run_dir)
    assert inspected.returncode == 0, inspected.stderr
    assert "every file has the size and the checksum" in inspected.stdout
    return int(re.search(r"steps done (\d+)", inspected.stdout)[1])


@pytest.mark.parametrize("rank, phase, name", PLACES, ids=[f"{p}_{n or 'any'}_rank_{r}" for r, p, n in PLACES])
def test_a_rank_killed_there_is_named_and_ends_all(tmp_path, setting, rank, phase, name):
    run_dir = tmp_path / "run"
    ended = drill(setting[0], run_dir, "kill", rank, phase, name, mpi=True)
    assert ended.returncode != 0
    assert re.search(rf"rank {rank}\b.*exited on signal 9", ended.stdout + ended.stderr), ended.stdout + ended.stderr
    goes_on_as_if_nothing_had_been(setting, run_dir, 4 if name in AFTER_THE_RENAME else 2)


@pytest.mark.parametrize("rank, phase, name", PLACES, ids=[f"{p}_{n or 'any'}_rank_{r}" for r, p, n in PLACES])
def test_a_rank_that_fails_there_as_a_thread_is_named_and_ends_all(tmp_path, setting, rank, phase, name):
    run_dir = tmp_path / "run"
    ended = drill(setting[0], run_dir, "throw", rank, phase, name, mpi=False)
    assert ended.returncode == FAILURE
    # Its main thread may meet the end of the job before it asks the operation that failed in the background.
    assert re.match(rf"moesaic: error: rank {rank}: (rank {rank} aborted: )?a fault put into {phase}", ended.stderr), ended.stderr
    goes_on_as_if_nothing_had_been(setting, run_dir, 4 if name in AFTER_THE_RENAME else 2)


# Two nodes, of two ranks and of one: the rank stands for others on the way of their rows (0), or for none (1).
@pytest.mark.parametrize("rank, name", [(0, "combine"), (1, "dispatch_again"), (2, "dispatch")])
@pytest.mark.parametrize("route", ["flat", "leader", "rail", "rail_dedup"])
def test_a_rank_killed_in_an_exchange_by_any_route_is_named_and_ends_all(tmp_path, route, rank, name):
    config = write_config(tmp_path, parallel__experts=["exchange", "exchange"], parallel__ranks=RANKS, train__steps=STEPS,
                          checkpoint__every=2, train__eval_tokens=64, comm__route=route, comm__ranks_per_node=2)
    ended = drill(config, tmp_path / "run", "kill", rank, "exchange", name, mpi=True)
    assert ended.returncode != 0
    assert re.search(rf"rank {rank}\b.*exited on signal 9", ended.stdout + ended.stderr), ended.stdout + ended.stderr
    assert newest_complete(tmp_path / "run") == 2


def test_a_rank_that_fails_under_mpi_is_named_and_ends_all(tmp_path, setting):
    ended = drill(setting[0], tmp_path / "run", "throw", 1, "backward", "layer", mpi=True)
    assert ended.returncode != 0
    assert "moesaic: rank 1: a fault put into backward layer" in ended.stderr


def test_a_stopped_rank_is_lost_after_the_timeout_and_no_process_stays(tmp_path, setting):
    config = tmp_path / "impatient.toml"
    config.write_text(setting[0].read_text() + f"[comm]\ntimeout_s = {TIMEOUT}\n")
    ended = drill(config, tmp_path / "run", "stop", 1, "backward", "layer", mpi=True)
    assert ended.returncode != 0
    assert f"for {TIMEOUT * 1000} ms; it still waits for" in ended.stderr
    # What it had to send may all have been sent.
    assert re.search(r"rank [02] made no progress .*still waits for .*(from|to) rank 1\b", ended.stderr), ended.stderr
    goes_on_as_if_nothing_had_been(setting, tmp_path / "run", 2)


# The drill stalls for three times this long.
IMPATIENT = {"comm__timeout_s": 2.0, "parallel__ranks": RANKS, "train__steps": 3, "train__eval_tokens": 64}


@pytest.mark.parametrize("name, rank, mpi", [("write", 1, False), ("manifest", 0, False), ("sync", 2, True)])
def test_a_save_that_takes_longer_than_the_timeout_is_no_loss(tmp_path, name, rank, mpi):
    ended = drill(write_config(tmp_path, **IMPATIENT), tmp_path / "run", "stall", rank, "save", name, mpi, step=3)
    assert ended.returncode == 0, ended.stderr
    assert newest_complete(tmp_path / "run") == 3


def test_the_same_silence_elsewhere_is_a_loss(tmp_path):
    # Or the test above would show nothing.
    ended = drill(write_config(tmp_path, **IMPATIENT), tmp_path / "run", "stall", 1, "backward", "layer", mpi=False, step=3)
    assert ended.returncode == FAILURE and re.search(r"made no progress .*(from|to) rank 1\b", ended.stderr), ended.stderr


# ---- signals that ask for an end ----


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_ranks_under_mpi_saves_and_ends(tmp_path, number):
    run_dir = tmp_path / "run"
    log = run_dir / "metrics.jsonl"
    with Job("train", "--config", write_config(tmp_path), "--run-dir", run_dir, *settings(train__steps=1000000),
             mpi_ranks=2) as job:
        wait_until(lambda: log.exists() and log.read_text().count("\n") >= 3)
        if number == signal.SIGUSR1:  # mpirun passes it on
            job.process.send_signal(number)
        else:
            for pid in processes_of(run_dir):
                if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode() == MOESAIC:
                    os.kill(pid, number)
        ended = job.finish(timeout=SOON)
    assert ended.returncode == 0, ended.stderr
    assert "stopped after" in ended.stdout
    assert newest_checkpoint(run_dir).name == f"step-{metrics(run_dir)[-1]['step']:06}"


def test_sigterm_to_mpirun_saves_where_the_ranks_are_given_time(tmp_path):
    # By itself Open MPI 4.1 passes SIGTERM on after one second and kills the ranks after another (docs/errors.md).
    run_dir = tmp_path / "run"
    log = run_dir / "metrics.jsonl"
    with Job("train", "--config", write_config(tmp_path), "--run-dir", run_dir, *settings(train__steps=1000000),
             mpi_ranks=2, env={**os.environ, "OMPI_MCA_odls_base_sigkill_timeout": "6"}) as job:
        wait_until(lambda: log.exists() and log.read_text().count("\n") >= 3)
        job.process.send_signal(signal.SIGTERM)
        job.finish(timeout=SOON)
        wait_until(lambda: not processes_of(run_dir), timeout=SOON)
    assert newest_checkpoint(run_dir).name == f"step-{metrics(run_dir)[-1]['step']:06}"
    resumed = moesaic("train", "--run-dir", run_dir, "--resume", *settings(train__stop_at=len(losses(run_dir)) + 1),
                      "--ranks", 2)
    assert resumed.returncode == 0, resumed.stderr
