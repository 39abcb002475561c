"""Gates from the outside: one per layer, what the program warns of, evaluation and generation from what was saved."""

from program import metrics, moesaic, train, write_config

MIXED = ["0.gate=hash", "0.top_k=1", "1.gate=dense_to_sparse", "1.top_k=1", "1.cooling_steps=30", "1.sparse_after=40",
         "2.gate=expert_choice", "2.capacity_factor=1.0", "3.gate=base", "3.top_k=1"]


def test_a_model_with_a_gate_for_each_layer_trains_resumes_evaluates_and_generates(tmp_path):
    config = write_config(tmp_path, model__num_layers=4, moe__per_layer=MIXED, train__steps=60, optim__lr=1e-2,
                          checkpoint__every=30, train__eval_every=60)
    ran = train(config, tmp_path / "run", ranks=2)
    assert "moesaic: warning: layers 2: gate expert_choice lets experts look across the batch" in ran.stderr
    assert "moesaic: warning: layers 3: gate base " in ran.stderr
    lines = [line for line in metrics(tmp_path / "run") if "loss" in line]
    assert len(lines[-1]["expert_choices"]) == 4
    assert sum(lines[-1]["expert_choices"][1]) == 128, "after sparse_after every token has one expert"
    assert sum(lines[0]["expert_choices"][1]) > 3 * 128, "at first nearly every expert"

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
