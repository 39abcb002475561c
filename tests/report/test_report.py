"""The report: opened in a browser as a reader would, on whole runs and on what is left of broken ones."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launch"))
from browser import open_page  # noqa: E402
from program import FAILURE, MISUSE, moesaic, refused, train, write_config  # noqa: E402

# Every plot of a page about a run that lacks nothing.
PLOTS = {"loss", "heldout", "rate", "norm", "ranks", "phases", "speed", "hidden", "bytes", "reach", "load", "balance",
         "drops"}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A finished run of two ranks on two files, with its report and a timeline. Not to be changed."""
    folder = tmp_path_factory.mktemp("report")
    texts = [folder / name for name in ("a.txt", "b.txt")]
    for text in texts:
        text.write_text("the sea was calm and no wind blew. " * 150)
    config = write_config(folder, data__files=[str(text) for text in texts], train__steps=12, train__eval_every=5,
                          checkpoint__every=5)
    run = folder / "run"
    train(config, run, "--trace", ranks=2, report=True)
    return run


def copy_of(run_dir, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    return copy


def report(run_dir):
    """Writes the page again and opens it."""
    ran = moesaic("report", run_dir)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    page = open_page(run_dir / "report.html")
    assert page["complaints"] == []
    return page


def assert_every_plot_has_data(page):
    for name, plot in page["drawn"].items():
        assert plot["values"] and all(count > 0 for count in plot["values"]), f"{name}: {plot}"
        assert plot["marks"] > 0, f"{name} drew nothing: {plot}"
        assert plot["titles"], f"{name} has no axis title"


def test_training_writes_a_page_that_opens_offline_with_data_in_every_plot(run_dir):
    page = open_page(run_dir / "report.html")
    assert page["complaints"] == []
    assert set(page["drawn"]) == PLOTS
    assert_every_plot_has_data(page)
    for words in ("Trained 12 steps", "on 2 ranks", "held-out", "A late step takes", "vocab_size", "step-000010",
                  "Open MPI", "trace.json"):
        assert words in page["text"], words
    assert "missing" not in page["text"].lower()


def test_the_page_needs_nothing_from_outside(run_dir):
    text = (run_dir / "report.html").read_text()
    assert len(text) < 15e6
    assert not re.search(r'<(?:script|link|img|iframe)[^>]*\s(?:src|href)="(?!data:)', text)


def test_the_layer_selector_offers_every_moe_layer(run_dir):
    options = re.findall(r'<option value="(\d+)">(.*?)</option>', (run_dir / "report.html").read_text())
    assert options == [("0", "layer 0"), ("1", "layer 1")]


def test_a_torn_last_line_is_left_out_and_said(run_dir, tmp_path):
    copy = copy_of(run_dir, tmp_path)
    file = copy / "metrics.jsonl"
    file.write_text(file.read_text() + '{"step":13,"loss":1.2')
    page = report(copy)
    assert_every_plot_has_data(page)
    assert "1 line of metrics.jsonl could not be read" in page["text"]


def test_one_step_without_evaluation_or_environment(run_dir, tmp_path):
    copy = copy_of(run_dir, tmp_path)
    file = copy / "metrics.jsonl"
    file.write_text(file.read_text().splitlines()[0] + "\n")
    (copy / "environment.json").unlink()
    shutil.rmtree(copy / "checkpoints")
    page = report(copy)
    assert set(page["drawn"]) == PLOTS - {"heldout"}
    assert_every_plot_has_data(page)
    for words in ("No held-out loss", "environment.json is missing", "no checkpoint"):
        assert words in page["text"], words


def test_a_run_that_made_no_step(run_dir, tmp_path):
    folder = tmp_path / "young"
    folder.mkdir()
    shutil.copy(run_dir / "config.toml", folder)
    page = report(folder)
    assert page["drawn"] == {}
    assert "has not recorded a step" in page["text"] and "metrics.jsonl is missing" in page["text"]


def test_losses_that_are_not_finite_and_old_lines_without_times(run_dir, tmp_path):
    copy = copy_of(run_dir, tmp_path)
    lines = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for key in ("times", "expert_choices", "exposed_seconds", "hidden_seconds"):
            line.pop(key, None)
        if line["step"] == 3:
            line.update(loss=None, gradient_norm=None, skipped=True)
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = report(copy)
    assert set(page["drawn"]) == PLOTS - {"ranks", "phases", "hidden", "load"}
    assert_every_plot_has_data(page)
    assert "1 step had a loss or a gradient that is not finite" in page["text"]
    assert "No times by phase have been recorded" in page["text"]


def test_a_resumed_run_shows_its_starts(run_dir, tmp_path):
    config = write_config(tmp_path, train__steps=8)
    run = tmp_path / "run"
    train(config, run, ranks=2, train__stop_at=4)
    ran = moesaic("train", "--run-dir", run, "--resume", "--ranks", 1, "--no-report")
    assert ran.returncode == 0, ran.stderr
    page = report(run)
    assert_every_plot_has_data(page)
    assert "started 2 times" in page["text"] and "resumed" in page["text"]
    starts = json.loads((run / "environment.json").read_text())["invocations"]
    assert [(start["from_step"], start["ranks"]) for start in starts] == [(0, 2), (4, 1)]


def test_a_long_run_on_many_experts_gives_a_page_of_bounded_size(run_dir, tmp_path):
    folder = tmp_path / "long"
    folder.mkdir()
    shutil.copy(run_dir / "config.toml", folder)
    lines = [line for line in map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines()) if "loss" in line]
    experts = [[7 + (expert % 3) for expert in range(64)] for _ in range(8)]
    with open(folder / "metrics.jsonl", "w") as out:
        for step in range(1, 20001):
            line = dict(lines[step % len(lines)], step=step, expert_load=[1.5] * 8)
            if step % 20 == 1:
                line["expert_choices"] = experts
            else:
                line.pop("expert_choices", None)
            out.write(json.dumps(line) + "\n")
    ran = moesaic("report", folder)
    assert ran.returncode == 0, ran.stderr
    assert (folder / "report.html").stat().st_size < 15e6


# ---- the command line ----


def test_no_report_writes_none(tmp_path):
    train(write_config(tmp_path, train__steps=1), tmp_path / "run")
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_folder_without_a_run_is_refused(tmp_path):
    refused(FAILURE, moesaic("report", tmp_path), "holds no training run", tmp_path)
    refused(MISUSE, moesaic("report", tmp_path / "nowhere"), "nowhere")


def test_a_missing_python_is_named_and_no_failure_of_the_training(tmp_path, monkeypatch, run_dir):
    monkeypatch.setenv("MOESAIC_PYTHON", "/nowhere/python")
    refused(FAILURE, moesaic("report", run_dir), "/nowhere/python", "MOESAIC_PYTHON")
    ran = train(write_config(tmp_path, train__steps=1), tmp_path / "run", report=True)
    assert "warning" in ran.stderr and "/nowhere/python" in ran.stderr


def test_tensorboard_events_say_what_metrics_say(run_dir, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    ran = moesaic("report", run_dir, "--tensorboard", tmp_path / "events")
    assert ran.returncode == 0, ran.stderr
    events = EventAccumulator(str(tmp_path / "events"), size_guidance={"scalars": 0})
    events.Reload()
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]

    def assert_scalar(tag, key):
        expected = [(line["step"], line[key]) for line in lines if key in line]
        found = [(event.step, event.value) for event in events.Scalars(tag)]
        assert [step for step, _ in found] == [step for step, _ in expected]
        assert [value for _, value in found] == pytest.approx([value for _, value in expected], rel=1e-6)

    assert_scalar("loss/train", "loss")
    assert_scalar("loss/held_out", "heldout_loss")
    assert_scalar("optimizer/gradient_norm", "gradient_norm")
    assert_scalar("bytes/exchange", "exchange_bytes")
