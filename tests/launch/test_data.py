"""Which sequences a run reads, seen from outside: through stops, resumes and changes of ranks; with files of their own weights."""

import os

import numpy as np
import pytest
from program import FAILURE, MISUSE, losses, metrics, moesaic, refused, settings, train, write_config

# With a learning rate of 0 the weights stay, so a step's loss is a fingerprint of the sequences it read.
STILL = {"optim__lr": 0.0, "optim__weight_decay": 0.0}


def samples(folder, count, seed=3, name="samples.bin"):
    """A file of exactly `count` windows of 16 tokens."""
    file = folder / name
    file.write_bytes(np.random.default_rng(seed).integers(97, 123, 16 * count + 1, dtype=np.uint8).tobytes())
    return str(file)


@pytest.mark.parametrize("mpi", [False, True], ids=["on_threads", "on_processes"])
def test_ten_samples_stopped_resumed_twice_and_moved_to_two_ranks_are_read_in_the_same_order(tmp_path, mpi):
    # 10 samples, batch 2, 3 epochs of 5 steps.
    config = write_config(tmp_path, data__files=[samples(tmp_path, 10)], data__held_out_fraction=0.0,
                          train__batch_tokens=32, train__steps=15, moe__balance_loss=0.0, **STILL)
    train(config, tmp_path / "straight")
    run = tmp_path / "run"
    train(config, run, train__stop_at=7, mpi=mpi)
    train(config, run, "--resume", train__stop_at=9, mpi=mpi)
    assert losses(run) == losses(tmp_path / "straight")[:9]
    train(config, run, "--resume", ranks=2, mpi=mpi)
    straight = np.array(losses(tmp_path / "straight"))
    assert np.allclose(losses(run), straight, rtol=1e-6)
    # The fingerprint tells batches apart, and an epoch has every sample once: the means agree, the orders do not.
    epochs = straight.reshape(3, 5)
    assert np.allclose(epochs.mean(axis=1), straight.mean(), rtol=1e-6)
    assert min(abs(a - b) for i, a in enumerate(straight) for b in straight[:i]) > 1e-5


@pytest.mark.parametrize("mpi", [False, True], ids=["on_threads", "on_processes"])
@pytest.mark.parametrize("sequences", [5, 3])
def test_ranks_with_more_fewer_and_no_sequences_finish_together(tmp_path, sequences, mpi):
    # Four files with 4, 4, 8 and 4 batches left, four ranks: 2, 1, 1, 1 or 1, 1, 1, 0 sequences a step; 20 held-out
    # windows, so the last batch of an evaluation leaves ranks without, too.
    files = [samples(tmp_path, 2 * count, seed, f"{seed}.bin") for seed, count in enumerate((4, 4, 8, 4))]
    config = write_config(tmp_path, data__files=files, data__weights=[1, 1, 1, 1], data__held_out_fraction=0.5,
                          train__batch_tokens=16 * sequences, train__steps=12, train__eval_every=6)
    train(config, tmp_path / "one")
    train(config, tmp_path / "four", ranks=4, mpi=mpi)
    assert losses(tmp_path / "four") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    assert [line["step"] for line in metrics(tmp_path / "four") if "heldout_loss" in line] == [6, 12]


def test_a_weighted_mixture_goes_on_after_a_resume(tmp_path):
    files = [samples(tmp_path, count, seed, f"{seed}.bin") for seed, count in enumerate((3, 7, 5))]
    config = write_config(tmp_path, data__files=files, data__weights=[0.5, 0.3, 0.2], data__held_out_fraction=0.0,
                          train__batch_tokens=16, train__steps=20, moe__balance_loss=0.0, **STILL)
    train(config, tmp_path / "straight")
    train(config, tmp_path / "run", train__stop_at=9)
    train(config, tmp_path / "run", "--resume", ranks=2)
    straight = losses(tmp_path / "straight")
    assert losses(tmp_path / "run") == pytest.approx(straight, rel=1e-6)
    # Ten samples of three windows, six of seven, four of five: so many different sequences.
    assert len({round(loss, 6) for loss in straight}) == 3 + 6 + 4
    refused(MISUSE, moesaic("train", "--run-dir", tmp_path / "run", "--resume", *settings(data__weights=[1, 1, 1])),
            "data.weights is [1.0, 1.0, 1.0]", "started with [0.5, 0.3, 0.2]")


@pytest.mark.parametrize("weights, words", [
    ([1.0, 2.0], ["data.weights has 2 entries", "one per file of data.files (1)"]),
    ([0], ["data.weights has only zeros"]),
    ([-1], ["data.weights", "-1", "array of floats >= 0"]),
])
def test_weights_that_do_not_fit_are_refused(tmp_path, weights, words):
    ran = moesaic("train", "--config", write_config(tmp_path), "--run-dir", tmp_path / "run",
                  *settings(data__weights=weights))
    refused(MISUSE, ran, *words)


@pytest.mark.parametrize("array, status, words", [
    (np.zeros(100, ">u2"), MISUSE, ["'>u2' (big-endian)", "expected little-endian uint8"]),
    (np.zeros(100, np.float32), MISUSE, ["'<f4'", "expected little-endian uint8"]),
    (np.zeros((10, 10), np.uint16), MISUSE, ["shape (10, 10)", "one dimension"]),
    (np.full(100, 256, np.int32), FAILURE, ["has id 256", "vocab_size (256)"]),
    (np.full(100, -1, np.int64), FAILURE, ["has id -1", "vocab_size (256)"]),
])
def test_npy_files_that_are_no_tokens_are_named(tmp_path, array, status, words):
    np.save(tmp_path / "t.npy", array)
    ran = moesaic("train", "--config", write_config(tmp_path, data__files=["t.npy"], data__format="npy"), "--run-dir",
                  tmp_path / "run")
    refused(status, ran, tmp_path / "t.npy", *words)


def test_npy_of_any_width_order_and_version_is_read_as_the_same_tokens(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 256, 1000)
    expected = None
    for version in ((1, 0), (2, 0), (3, 0)):
        for dtype in (np.uint8, "<u2", "<u4", "<i4", "<i8"):
            with open(tmp_path / "t.npy", "wb") as file:
                np.lib.format.write_array(file, np.asfortranarray(tokens.astype(dtype)), version=version)
            shown = moesaic("inspect", tmp_path / "t.npy", "--format", "npy")
            assert shown.returncode == 0, shown.stderr
            expected = expected or shown.stdout
            assert shown.stdout == expected
    assert "1000 tokens" in expected and " ".join(map(str, tokens[:16])) in expected


def test_a_large_file_is_not_read_whole(tmp_path):
    # 200 GB of nothing: only the windows asked for are touched.
    file = tmp_path / "large.bin"
    with open(file, "wb") as large:
        os.truncate(large.fileno(), 200_000_000_000)
    config = write_config(tmp_path, data__files=[str(file)], train__steps=2, train__eval_tokens=64)
    train(config, tmp_path / "run")
    assert len(losses(tmp_path / "run")) == 2
