"""Files that are damaged, foreign, full, not ours to write, or in use: what is said, and what is left as it was."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import warnings
from pathlib import Path

import pytest
from checkpoints import rewrite_manifest
from program import (FAILURE, MISUSE, Job, losses, metrics, moesaic, newest_checkpoint, refused, settings, tensors_on_disk,
                     train, wait_until, write_config)

NOBODY = 65534
RANKS = 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train(write_config(folder, train__steps=8, train__eval_tokens=64, checkpoint__every=4), folder / "run", ranks=RANKS,
          train__stop_at=4)
    return folder / "run"


@pytest.fixture
def copy(trained, tmp_path):
    # The configuration names its token file by its absolute path, so a copy runs anywhere.
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def resume(run_dir, *arguments, **options):
    return moesaic("train", "--run-dir", run_dir, "--resume", *arguments, **options)


def whole(run_dir):
    """Every file but the lock, which says who had the directory last."""
    return {file: file.read_bytes() for file in run_dir.rglob("*") if file.is_file() and file.name != "lock"}


# ---- configuration files ----


@pytest.mark.parametrize("content, words", [
    (b"", ["data.files is empty"]),
    (bytes(range(256)), [":1: "]),
    (b"[model]\nvocab_size = 256\n\0\0\0", [":3: "]),
    (b"[model]\nactivation = \"\xff\xfe\"\n", [":2: "]),
    (b"PK\x03\x04 a zip file", [":1: "]),
    (b'{"model": {"vocab_size": 256}}', [":1: "]),
])
def test_a_file_that_is_no_configuration_is_refused_with_its_line(tmp_path, content, words):
    file = tmp_path / "c.toml"
    file.write_bytes(content)
    refused(MISUSE, moesaic("train", "--config", file, "--run-dir", tmp_path / "run"), *words)
    assert not (tmp_path / "run").exists()


def test_a_folder_is_no_configuration(tmp_path):
    refused(MISUSE, moesaic("train", "--config", tmp_path, "--run-dir", tmp_path / "run"), tmp_path)


def test_a_mark_of_byte_order_and_windows_line_ends_change_nothing(tmp_path):
    plain = write_config(tmp_path)
    windows = tmp_path / "windows.toml"
    windows.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes().replace(b"\n", b"\r\n"))
    shown = moesaic("config", "--config", windows)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout == moesaic("config", "--config", plain).stdout


# ---- token files ----


def test_a_token_file_that_shrinks_during_the_run_ends_it_with_a_word(tmp_path):
    config = write_config(tmp_path)
    run_dir = tmp_path / "run"
    log = run_dir / "metrics.jsonl"
    with Job("train", "--config", config, "--run-dir", run_dir, "--ranks", RANKS,
             *settings(train__steps=1000000, checkpoint__every=2)) as job:
        wait_until(lambda: log.exists() and log.read_text().count("\n") >= 3)
        os.truncate(tmp_path / "words.txt", 100)
        ended = job.finish()
    refused(FAILURE, ended, tmp_path / "words.txt", "has 100 bytes, but had 6000 when the run began")
    assert moesaic("inspect", run_dir).returncode == 0


# ---- checkpoints ----


def test_a_manifest_rewritten_alike_is_accepted(copy):
    # So the tests below change only what they say.
    rewrite_manifest(newest_checkpoint(copy), lambda body: None)
    assert moesaic("inspect", copy).returncode == 0


@pytest.mark.parametrize("change, words", [
    (lambda body: body.update(format_version=2), ["format version is 2, expected 1"]),
    (lambda body: body.pop("next_sample"), ["next_sample"]),
    (lambda body: body["files"][0].update(name="../../words.txt"), ["../../words.txt", "not a plain file name"]),
    (lambda body: body["files"][0].update(bytes=5), ["bytes, expected 5"]),
])
def test_a_manifest_of_the_future_or_of_somebody_else_is_refused(copy, change, words):
    rewrite_manifest(newest_checkpoint(copy), change)
    before = whole(copy)
    refused(FAILURE, resume(copy), newest_checkpoint(copy), *words)
    assert whole(copy) == before


@pytest.mark.parametrize("content", [b"", b"random \x00\xff bytes", b"{}", b"[[[[", b'{"manifest": 5, "crc32c": 7}'])
def test_a_file_that_is_no_manifest_is_named(copy, content):
    (newest_checkpoint(copy) / "manifest.json").write_bytes(content)
    refused(FAILURE, resume(copy), newest_checkpoint(copy) / "manifest.json")


def test_a_checkpoint_folder_without_a_manifest_is_named(copy):
    (newest_checkpoint(copy) / "manifest.json").unlink()
    refused(FAILURE, resume(copy), newest_checkpoint(copy) / "manifest.json", "No such file")


def test_a_random_file_as_a_tensor_file_is_named(copy):
    file = next(newest_checkpoint(copy).glob("model-*.safetensors"))
    file.write_bytes(os.urandom(file.stat().st_size))
    refused(FAILURE, resume(copy), file, "CRC32C is")


@pytest.mark.parametrize("change, key, before", [
    ({"model__d_model": 64}, "model.d_model is 64", "32"),
    ({"train__seed": 2}, "train.seed is 2", "1"),
    ({"data__seq_len": 8}, "data.seq_len is 8", "16"),
    ({"moe__top_k": 1}, "moe.top_k is 1", "2"),
])
def test_a_checkpoint_of_another_configuration_is_refused_by_the_first_key(copy, change, key, before):
    unchanged = whole(copy)
    refused(MISUSE, resume(copy, *settings(**change)), f"{key}, but the run to resume was started with {before}")
    assert whole(copy) == unchanged


def test_a_checkpoint_of_another_optimizer_is_refused_by_the_tensor(copy):
    refused(MISUSE, resume(copy, *settings(optim__name="sgd")), "tensor ", "has no place in this model")


# ---- nowhere to write ----


def goes_on_from_step_4(run_dir, trained):
    """What failed left the checkpoint before as it was: the run ends as one that nothing happened to."""
    assert newest_checkpoint(run_dir).name == "step-000004"
    assert {path.name for path in (run_dir / "checkpoints").iterdir()} == {"latest", "step-000004"}
    assert tensors_on_disk(newest_checkpoint(run_dir)) == tensors_on_disk(newest_checkpoint(trained))
    assert resume(run_dir).returncode == 0
    straight = run_dir.parent / "straight"
    train(trained / "config.toml", straight, ranks=RANKS)
    assert losses(run_dir) == losses(straight)


@pytest.mark.parametrize("mpi", [False, True], ids=["on_threads", "on_processes"])
def test_a_file_past_its_limit_while_saving_is_named_and_harms_nothing(copy, trained, mpi):
    limit = 40_000  # less than a tensor file, more than the metrics
    assert min(file.stat().st_size for file in newest_checkpoint(copy).glob("model-*.safetensors")) > limit
    # The ranks have the limit, mpirun has not; without the shared memory of Open MPI, which is a file as well.
    ran = resume(copy, mpi_ranks=RANKS if mpi else 0, within=["prlimit", f"--fsize={limit}"],
                 env={**os.environ, "OMPI_MCA_btl": "self,tcp"})
    assert ran.returncode not in (0, -signal.SIGXFSZ), ran.stderr
    assert f"cannot write {copy}/checkpoints/step-000008.tmp/model-0000" in ran.stderr and "File too large" in ran.stderr
    assert "terminate called" not in ran.stderr
    goes_on_from_step_4(copy, trained)


def test_a_full_disk_while_saving_is_named_and_harms_nothing(copy, trained, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    size = sum(file.stat().st_size for file in copy.rglob("*") if file.is_file())
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size * 5 // 4}", "tmpfs", disk], capture_output=True,
                             text=True)
    if mounted.returncode != 0:  # not root, or a container that may not: the file limit goes the same way
        warnings.warn(f"no small disk here ({mounted.stderr.strip()}); the file limit stands for it")
        return test_a_file_past_its_limit_while_saving_is_named_and_harms_nothing(copy, trained, mpi=False)
    try:
        shutil.copytree(copy, disk / "run")
        ran = resume(disk / "run")
        refused(FAILURE, ran, f"cannot write {disk}/run/checkpoints/step-000008.tmp/", "No space left on device")
        assert moesaic("inspect", disk / "run").returncode == 0
        shutil.copytree(disk / "run", tmp_path / "moved")
    finally:
        subprocess.run(["umount", disk], check=True)
    goes_on_from_step_4(tmp_path / "moved", trained)


def test_metrics_that_are_no_file_are_named(copy):
    (copy / "metrics.jsonl").unlink()
    (copy / "metrics.jsonl").mkdir()
    refused(FAILURE, resume(copy), copy / "metrics.jsonl", "Is a directory")
    assert newest_checkpoint(copy).name == "step-000004"


def test_metrics_with_lines_of_somebody_else_keep_what_is_ours(copy, trained):
    log = copy / "metrics.jsonl"
    log.write_bytes(b'{"step": "one"}\n[1]\n\xff\xfe\n' + log.read_bytes() + b'{"step": 5, "loss": 1.0}\n{"step": 6, "lo')
    ran = resume(copy, *settings(train__stop_at=5))
    assert ran.returncode == 0, ran.stderr
    assert metrics(copy)[:4] == metrics(trained)[:4] and metrics(copy)[4]["step"] == 5


@pytest.fixture
def open_folder():
    """A folder that other users may enter."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def as_somebody_else():
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}


def test_a_run_directory_without_permission_to_write_is_named(open_folder):
    config = write_config(open_folder)
    os.chmod(open_folder, 0o555)
    ran = moesaic("train", "--config", config, "--run-dir", open_folder / "run", **as_somebody_else())
    refused(FAILURE, ran, open_folder / "run", "Permission denied")


def test_a_run_that_may_be_read_but_not_written_is_named_and_can_be_evaluated(open_folder, trained):
    shutil.copytree(trained, open_folder / "run")
    shutil.copy(trained.parent / "words.txt", open_folder)
    for path in (open_folder / "run").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    os.chmod(open_folder / "run", 0o555)
    data = settings(data__files=[str(open_folder / "words.txt")])
    refused(FAILURE, resume(open_folder / "run", *data, **as_somebody_else()), open_folder / "run", "Permission denied")
    evaluated = moesaic("eval", "--run-dir", open_folder / "run", *data, **as_somebody_else())
    assert evaluated.returncode == 0, evaluated.stderr
    os.chmod(open_folder / "run", 0o755)


# ---- in use ----


@pytest.mark.parametrize("mpi", [False, True], ids=["on_threads", "on_processes"])
def test_a_second_run_in_the_same_directory_is_refused_while_the_first_lives(tmp_path, mpi):
    run_dir = tmp_path / "run"
    with Job("train", "--config", write_config(tmp_path), "--run-dir", run_dir, "--ranks", RANKS,
             *settings(train__steps=1000000, checkpoint__every=2)) as first:
        wait_until(lambda: (run_dir / "checkpoints" / "latest").exists())
        second = resume(run_dir, mpi_ranks=RANKS if mpi else 0)
        assert second.returncode not in (0, MISUSE)
        assert f"cannot train in {run_dir}: {run_dir}/lock is held by process {first.process.pid} on " in second.stderr
        steps = len(losses(run_dir))
        wait_until(lambda: len(losses(run_dir)) > steps + 2)
        first.process.kill()  # a lock does not outlive its process
    assert resume(run_dir, *settings(train__stop_at=0, train__steps=len(losses(run_dir)) + 5)).returncode == 0
