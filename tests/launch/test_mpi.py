"""Ranks as threads and as MPI processes make the same run, bit for bit; so does a run that was stopped and resumed."""

import pytest
from program import losses, metrics, moesaic, newest_checkpoint, tensors_on_disk, train, write_config

# ranks, configuration
LAYOUTS = {
    "2_exchange": (2, {"parallel__experts": "exchange"}),
    "4_exchange_in_groups_of_2": (4, {"parallel__experts": "exchange", "parallel__exchange_size": 2}),
    "4_gather": (4, {"parallel__experts": "gather"}),
    "3_exchange": (3, {"parallel__experts": "exchange"}),
}


def assert_same_run(a, b):
    assert metrics(a) == metrics(b)
    files_a, files_b = tensors_on_disk(newest_checkpoint(a)), tensors_on_disk(newest_checkpoint(b))
    assert list(files_a) == list(files_b)
    different = [name for name in files_a if files_a[name] != files_b[name]]
    assert different == []


@pytest.mark.parametrize("ranks, changes", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_threads_and_processes_give_the_same_bits(tmp_path, ranks, changes):
    config = write_config(tmp_path, train__eval_every=10, **changes)
    train(config, tmp_path / "threads", ranks=ranks)
    train(config, tmp_path / "mpi", ranks=ranks, mpi=True)
    lines = metrics(tmp_path / "mpi")
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 21))
    assert [line["step"] for line in lines if "heldout_loss" in line] == [10, 20]
    assert losses(tmp_path / "mpi")[-1] < losses(tmp_path / "mpi")[0] - 0.1  # it learned: not equal for want of change
    assert len(tensors_on_disk(newest_checkpoint(tmp_path / "mpi"))) == 2 * ranks
    assert_same_run(tmp_path / "threads", tmp_path / "mpi")


@pytest.mark.parametrize("mpi", [False, True], ids=["on_threads", "on_processes"])
def test_a_resumed_run_equals_a_straight_one_bit_for_bit(tmp_path, mpi):
    config = write_config(tmp_path, train__eval_every=10)
    train(config, tmp_path / "straight", ranks=2)
    train(config, tmp_path / "resumed", ranks=2, train__stop_at=10)
    assert len(losses(tmp_path / "resumed")) == 10
    train(config, tmp_path / "resumed", "--resume", ranks=2, mpi=mpi)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed")


def test_a_run_resumes_from_its_directory_alone(tmp_path):
    config = write_config(tmp_path)
    train(config, tmp_path / "straight", ranks=2)
    train(config, tmp_path / "resumed", ranks=2, train__stop_at=10)
    ran = moesaic("train", "--run-dir", tmp_path / "resumed", "--resume", "--set", "train.stop_at=0")
    assert ran.returncode == 0, ran.stderr
    assert "resuming after step 10" in ran.stdout
    assert_same_run(tmp_path / "straight", tmp_path / "resumed")


@pytest.mark.parametrize("before, after, mpi, experts", [(2, 4, True, "exchange"), (4, 3, False, "gather"),
                                                         (3, 1, False, "exchange")])
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path, before, after, mpi, experts):
    config = write_config(tmp_path, parallel__experts=experts)
    train(config, tmp_path / "straight", ranks=before)
    train(config, tmp_path / "moved", ranks=before, train__stop_at=10)
    train(config, tmp_path / "moved", "--resume", ranks=after, mpi=mpi)
    straight, moved = losses(tmp_path / "straight"), losses(tmp_path / "moved")
    assert moved[:10] == straight[:10]
    # The same sequences in the same order: another order would be off by several percent.
    assert moved == pytest.approx(straight, rel=1e-4)
    assert len(tensors_on_disk(newest_checkpoint(tmp_path / "moved"))) == 2 * after


@pytest.mark.parametrize("mpi", [False, True], ids=["on_threads", "on_processes"])
def test_a_run_is_not_overwritten(tmp_path, mpi):
    config = write_config(tmp_path, train__steps=3)
    train(config, tmp_path / "run", ranks=2)
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns)
              for file in (tmp_path / "run").rglob("*") if file.is_file()}
    refused = moesaic("train", "--config", config, "--run-dir", tmp_path / "run", *([] if mpi else ["--ranks", 2]),
                      mpi_ranks=2 if mpi else 0)
    assert refused.returncode == 2
    assert f"{tmp_path / 'run'} already holds a training run" in refused.stderr and "--resume" in refused.stderr
    after = {file: (file.read_bytes(), file.stat().st_mtime_ns)
             for file in (tmp_path / "run").rglob("*") if file.is_file()}
    assert after == before
