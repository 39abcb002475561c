"""Gates from the outside: one per layer, what the program warns of, evaluation and generation from what was saved."""

import re
import sys
from pathlib import Path

import numpy as np

from program import SOURCE, metrics, moesaic, train, write_config

sys.path[:0] = [str(SOURCE / "python"), str(Path(__file__).resolve().parents[1] / "report")]
from browser import open_page  # noqa: E402
from moesaic import report_data, report_figures  # noqa: E402

MIXED = ["0.gate=hash", "0.top_k=1", "1.gate=dense_to_sparse", "1.top_k=1", "1.cooling_steps=30", "1.sparse_after=40",
         "2.gate=expert_choice", "2.capacity_factor=1.0", "3.gate=base", "3.top_k=1"]


def test_a_model_with_a_gate_for_each_layer_trains_resumes_evaluates_and_generates(tmp_path):
    config = write_config(tmp_path, model__num_layers=4, moe__per_layer=MIXED, train__steps=60, optim__lr=1e-2,
                          checkpoint__every=30, train__eval_every=60)
    ran = train(config, tmp_path / "run", ranks=2, report=True)
    assert "moesaic: warning: layers 2: gate expert_choice lets experts look across the batch" in ran.stderr
    assert "moesaic: warning: layers 3: gate base " in ran.stderr
    lines = [line for line in metrics(tmp_path / "run") if "loss" in line]
    assert len(lines[-1]["expert_choices"]) == 4
    assert sum(lines[-1]["expert_choices"][1]) == 128, "after sparse_after every token has one expert"
    assert sum(lines[0]["expert_choices"][1]) > 3 * 128, "at first nearly every expert"

    # The report has a heat-map of expert load for each layer.
    page = open_page(tmp_path / "run" / "report.html")
    assert page["complaints"] == []
    assert page["drawn"]["load"]["marks"] > 0 and page["drawn"]["load"]["values"] == [6 * 60]
    names = re.findall(r'<option value="\d+">(.*?)</option>', (tmp_path / "run" / "report.html").read_text())
    assert names == [f"layer {layer}" for layer in range(4)]
    maps = report_figures.expert_load(report_data.load(tmp_path / "run")).data
    assert [trace.name for trace in maps] == names
    for trace in maps:
        load = np.array(trace.customdata)
        assert load.shape == (6, 60) and np.allclose(load.mean(0), 1, atol=0.01), trace.name

    # Stopped half-way and resumed: the same losses, so tables and temperatures came back.
    train(config, tmp_path / "again", ranks=2, train__stop_at=30)
    train(config, tmp_path / "again", "--resume", ranks=2, train__stop_at=0)
    resumed = [line for line in metrics(tmp_path / "again") if "loss" in line]
    assert [line["loss"] for line in resumed] == [line["loss"] for line in lines]

    expected = metrics(tmp_path / "run")[-1]["heldout_loss"]
    evaluated = moesaic("eval", "--run-dir", tmp_path / "run", "--ranks", 2)
    assert evaluated.returncode == 0, evaluated.stderr
    assert f" {expected:.4f} nats per token" in evaluated.stdout

    ran = moesaic("generate", "--run-dir", tmp_path / "run", "--prompt", "abc", "--max-new-tokens", 12)
    assert ran.returncode == 0, ran.stderr


def test_gates_that_look_at_single_tokens_warn_of_nothing(tmp_path):
    ran = train(write_config(tmp_path, train__steps=1), tmp_path / "run")
    assert "warning" not in ran.stderr


def test_choices_left_out_at_random_are_told_from_those_past_capacity(tmp_path):
    config = write_config(tmp_path, moe__gate="gshard", moe__random_second=True, moe__capacity_factor=0.8)
    train(config, tmp_path / "run", ranks=2, report=True)
    run = report_data.load(tmp_path / "run")
    made = 2 * 128 * 2  # layers, tokens, choices of a step
    assert (run.column("dropped") > 0).all() and run.column("dropped_random").sum() > 0
    assert (run.column("dropped") + run.column("dropped_random") < made).all()
    assert np.allclose(report_figures.drop_shares(run, "dropped_random"), run.column("dropped_random") * 100 / made)
    drawn = open_page(tmp_path / "run" / "report.html")["drawn"]["drops"]
    names = {trace.name.split(",")[0] for trace in report_figures.drops(run).data}
    assert names == {"past capacity", "left out at random"} and len(drawn["values"]) >= 2
