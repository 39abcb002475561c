"""The command line: what it refuses, with which status and which words, and what it shows on a terminal."""

import os
import pty
import re
import signal
from pathlib import Path

import pytest
from program import (FAILURE, MISUSE, SOURCE, Job, metrics, moesaic, newest_checkpoint, refused, settings, train,
                     wait_until, write_config, write_text)


def try_to_train(folder, *arguments, mpi_ranks=0, within=(), **changes):
    """Trains the tiny model in folder/run, with what is wrong in arguments or changes."""
    return moesaic("train", "--config", write_config(folder), "--run-dir", folder / "run", *arguments,
                   *settings(**changes), mpi_ranks=mpi_ranks, within=within)


# ---- the command line ----


def test_no_subcommand_is_misuse():
    refused(MISUSE, moesaic(), "subcommand")


def test_an_unknown_subcommand_is_named():
    refused(MISUSE, moesaic("trian"), "trian")


def test_help_lists_the_subcommands():
    shown = moesaic("--help")
    assert shown.returncode == 0 and shown.stderr == ""
    for subcommand in ("train", "eval", "generate", "inspect", "config", "calibrate"):
        assert f"\n  {subcommand} " in shown.stdout
    assert moesaic("train", "--help").returncode == 0


def test_train_without_a_configuration_says_what_it_needs():
    refused(MISUSE, moesaic("train"), "--config FILE", "--resume")


def test_an_unknown_option_is_named(tmp_path):
    refused(MISUSE, try_to_train(tmp_path, "--rank", "2"), "--rank")


@pytest.mark.parametrize("value", ["0", "-1", "two"])
def test_a_number_of_ranks_that_is_none_is_refused(tmp_path, value):
    refused(MISUSE, try_to_train(tmp_path, "--ranks", value), "--ranks", value)


def test_ranks_that_differ_from_the_mpi_job_are_misuse(tmp_path):
    ran = try_to_train(tmp_path, "--ranks", 4, mpi_ranks=2)
    assert "--ranks 4 but the MPI job has 2 ranks" in ran.stderr
    assert ran.returncode == MISUSE
    assert not (tmp_path / "run").exists()


# ---- the configuration ----


def test_a_missing_configuration_is_named(tmp_path):
    refused(MISUSE, moesaic("train", "--config", tmp_path / "absent.toml"), tmp_path / "absent.toml", "not exist")


@pytest.mark.parametrize("line, words", [
    ("num_layer = 2", ["unknown key model.num_layer", "did you mean model.num_layers?"]),
    ('num_layers = "two"', ["model.num_layers", 'string "two"', "expected integer >= 1"]),
    ("num_layers = 0", ["model.num_layers", "integer 0", "expected integer >= 1"]),
    ("num_layers = 2.5", ["model.num_layers", "2.5", "expected integer"]),
    ('activation = "gelu"', ["model.activation", '"gelu"', '"swiglu", "relu"']),
    ("num_layers =", ["expected value"]),
    ("num_layers = 2\nnum_layers = 3", ["num_layers"]),
])
def test_a_wrong_line_is_named_with_what_was_expected(tmp_path, line, words):
    config = tmp_path / "wrong.toml"
    config.write_text(f"# a comment\n[model]\nvocab_size = 256\n{line}\n")
    number = 5 if line.count("\n") else 4
    ran = moesaic("train", "--config", config, "--run-dir", tmp_path / "run")
    refused(MISUSE, ran, f"{config}:{number}", *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("assignment, words", [
    ("train.step=3", ["unknown key train.step", "did you mean train.steps?"]),
    ("trian.steps=3", ["unknown section [trian]", "did you mean [train]?"]),
    ("train.steps", ["expected section.key=value"]),
    ("steps=3", ["expected section.key=value"]),
    ("train.steps=0", ["integer 0", "expected integer >= 1"]),
    ('train.steps="x"', ['string "x"', "expected integer"]),
    ("moe.gate=top", ['"top"', '"switch", "gshard", "top_k"']),
    ("train.batch_tokens=100", ["train.batch_tokens is 100", "data.seq_len * train.accumulation"]),
    ("moe.top_k=9", ["top_k is 9", "(6)"]),
    ("data.seq_len=32", ["data.seq_len is 32", "model.max_seq_len (16)"]),
    ("parallel.exchange_size=3", ["exchange_size is 3", "divisor of the world size 1"]),
    ("data.files=[]", ["data.files is empty"]),
])
def test_a_wrong_override_is_named_with_what_was_expected(tmp_path, assignment, words):
    refused(MISUSE, try_to_train(tmp_path, "--set", assignment), *words)
    assert not (tmp_path / "run").exists()


def under_a_shell(of_rank_0="", of_rank_1=""):
    """A command that runs each rank of an MPI job, after the shell commands of its own."""
    return ["sh", "-c", f'case $OMPI_COMM_WORLD_RANK in 0) {of_rank_0};; 1) {of_rank_1};; esac; exec "$0" "$@"']


def test_one_rank_speaks_of_a_wrong_configuration_under_mpi(tmp_path):
    ran = try_to_train(tmp_path, "--set", "train.step=3", mpi_ranks=3, within=under_a_shell(of_rank_0="sleep 1"))
    assert ran.returncode == MISUSE
    assert ran.stderr.count("did you mean train.steps?") == 1


def test_a_rank_whose_configuration_alone_is_wrong_speaks_under_mpi(tmp_path):
    ran = try_to_train(tmp_path, mpi_ranks=2, within=under_a_shell(of_rank_1='set -- "$@" --set train.step=3'))
    assert ran.returncode == MISUSE
    assert ran.stderr.count("did you mean train.steps?") == 1


def test_the_reference_is_the_documentation():
    shown = moesaic("config", "--reference")
    assert shown.returncode == 0
    assert shown.stdout == (SOURCE / "docs" / "configuration.md").read_text()


def test_a_resolved_configuration_resolves_to_itself(tmp_path):
    first = moesaic("config", "--config", write_config(tmp_path), *settings(train__steps=7, moe__top_k=3))
    assert first.returncode == 0
    assert "\nsteps = 7\n" in first.stdout and "\ntop_k = 3\n" in first.stdout
    resolved = tmp_path / "resolved.toml"
    resolved.write_text(first.stdout)
    assert moesaic("config", "--config", resolved).stdout == first.stdout


def test_overrides_hold_without_a_configuration_file():
    assert "\nsteps = 7\n" in moesaic("config", "--set", "train.steps=7").stdout
    refused(MISUSE, moesaic("config", "--set", "train.step=7"), "did you mean train.steps?")


@pytest.mark.parametrize("config", sorted(path.name for path in (SOURCE / "configs").glob("*.toml")))
def test_every_configuration_of_the_repository_resolves(config):
    assert moesaic("config", "--config", SOURCE / "configs" / config).returncode == 0


# ---- token files and run directories ----


def test_a_missing_token_file_is_named(tmp_path):
    refused(FAILURE, try_to_train(tmp_path, data__files=[str(tmp_path / "absent.txt")]),
            tmp_path / "absent.txt", "No such file")
    assert not (tmp_path / "run").exists()


def test_a_folder_is_no_token_file(tmp_path):
    refused(MISUSE, try_to_train(tmp_path, data__files=[str(tmp_path)]), tmp_path, "folder", "expected a file")


@pytest.mark.parametrize("content, changes, words", [
    (b"", {}, ["is empty"]),
    (b"hi", {}, ["no window", "17 tokens"]),
    (b"x" * 6001, {"data__format": "uint16"}, ["6001 bytes", "multiple of 2"]),
])
def test_a_file_that_cannot_be_training_data_is_refused(tmp_path, content, changes, words):
    file = tmp_path / "tokens.bin"
    file.write_bytes(content)
    refused(MISUSE, try_to_train(tmp_path, data__files=[str(file)], **changes), *words)
    assert not (tmp_path / "run").exists()


def test_token_ids_outside_the_vocabulary_are_named_with_file_and_position(tmp_path):
    file = write_text(tmp_path)
    refused(FAILURE, try_to_train(tmp_path, data__files=[str(file)], data__format="uint16"),
            file, "has id", "vocab_size (256)", "data.format")


def test_a_run_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    ran = moesaic("train", "--config", write_config(tmp_path), "--run-dir", tmp_path / "file" / "run")
    refused(FAILURE, ran, tmp_path / "file" / "run", "Not a directory")


@pytest.mark.parametrize("command", [["eval"], ["generate", "--prompt", "a"], ["train", "--resume"]],
                         ids=["eval", "generate", "resume"])
def test_a_directory_without_a_run_is_misuse(tmp_path, command):
    refused(MISUSE, moesaic(*command, "--run-dir", tmp_path), tmp_path / "config.toml")


def test_a_run_directory_without_a_checkpoint_is_named(tmp_path):
    config = write_config(tmp_path)
    (tmp_path / "config.toml").write_text(config.read_text())
    refused(FAILURE, moesaic("eval", "--run-dir", tmp_path), "no checkpoint", tmp_path / "checkpoints")
    refused(FAILURE, moesaic("train", "--run-dir", tmp_path, "--resume"), "no checkpoint", tmp_path / "checkpoints")


def test_resume_without_a_checkpoint_leaves_nothing_behind(tmp_path):
    config = write_config(tmp_path)
    ran = moesaic("train", "--config", config, "--run-dir", tmp_path / "absent", "--resume")
    refused(FAILURE, ran, "no checkpoint", tmp_path / "absent" / "checkpoints")
    assert not (tmp_path / "absent").exists()


def test_a_run_that_completed_no_checkpoint_is_said_to_be_past_resuming(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    ran = moesaic("train", "--config", write_config(tmp_path), "--run-dir", tmp_path / "run")
    refused(MISUSE, ran, "completed no checkpoint", "remove it or choose another --run-dir")


def test_a_run_cannot_be_made_shorter_than_it_is(tmp_path):
    train(write_config(tmp_path), tmp_path / "run", train__steps=3)
    ran = moesaic("train", "--run-dir", tmp_path / "run", "--resume", "--set", "train.steps=2")
    refused(MISUSE, ran, "train.steps is 2", "made 3")
    refused(MISUSE, moesaic("train", "--run-dir", tmp_path / "run", "--resume", "--trace"), "all of its 3 steps")


def test_resume_of_a_finished_run_changes_nothing(tmp_path):
    train(write_config(tmp_path), tmp_path / "run", train__steps=3)
    before = metrics(tmp_path / "run")
    assert moesaic("train", "--run-dir", tmp_path / "run", "--resume").returncode == 0
    assert metrics(tmp_path / "run") == before


def test_sigterm_saves_and_ends(tmp_path):
    # As docs/configuration.md says of train.stop_at: "save and end after this step, as on SIGTERM".
    run_dir = tmp_path / "run"
    log = run_dir / "metrics.jsonl"
    with Job("train", "--config", write_config(tmp_path), "--run-dir", run_dir, "--ranks", 2,
             *settings(train__steps=1000000)) as job:
        wait_until(lambda: log.exists() and log.read_text().count("\n") >= 3)
        job.process.send_signal(signal.SIGTERM)
        ended = job.finish(timeout=20)
    assert ended.returncode == 0, ended.stderr
    assert (run_dir / "checkpoints" / "latest").exists(), "SIGTERM ended the run without a checkpoint"
    assert newest_checkpoint(run_dir).name == f"step-{metrics(run_dir)[-1]['step']:06}"


# ---- terminals ----


def test_no_progress_bar_where_there_is_no_terminal(tmp_path):
    ran = train(write_config(tmp_path), tmp_path / "run")
    assert ran.stderr == ""
    assert "\r" not in ran.stdout and "\x1b" not in ran.stdout
    assert "held-out loss after step 20" in ran.stdout


def shown_on_a_terminal(folder, *arguments, **changes):
    """What training shows there, and how it ended."""
    terminal, other_end = pty.openpty()
    shown = b""
    with Job("train", "--config", write_config(folder, **changes), "--run-dir", folder / "run", *arguments,
             stderr=other_end) as job:
        os.close(other_end)
        try:
            while piece := os.read(terminal, 65536):
                shown += piece
        except OSError:  # EIO: the program has closed its end
            pass
        ran = job.finish()
    os.close(terminal)
    assert ran.returncode == 0
    return shown.decode(), ran


def test_a_terminal_shows_a_progress_bar(tmp_path):
    text, ran = shown_on_a_terminal(tmp_path)
    lines = text.split("\r")
    assert sum("tokens/s" in line for line in lines) == 20
    assert " 1/20 [" in text and "20/20 [========================]" in text and "loss" in text
    assert re.search(r"exposed \d+%  [\d.e-]+ MB moved", text) and "b/weight" not in text
    assert "\r" not in ran.stdout


def test_the_progress_bar_shows_what_a_weight_took_between_nodes(tmp_path):
    text, _ = shown_on_a_terminal(tmp_path, "--ranks", 2, comm__ranks_per_node=1, parallel__experts="gather",
                                  train__dtype="bf16", codec__method="momentum")
    last = [line for line in text.split("\r") if "tokens/s" in line][-1]
    assert 0 < float(re.search(r"([\d.]+) b/weight", last)[1]) < 16 and "MB/NIC" in last


def test_the_default_run_directory_carries_the_name_of_the_configuration(tmp_path):
    ran = moesaic("train", "--config", write_config(tmp_path), *settings(train__steps=1), cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    (made,) = (tmp_path / "runs").iterdir()
    assert made.name.endswith("-tiny") and str(Path("runs") / made.name) in ran.stdout
