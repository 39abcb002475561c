"""train --record-weights: what the images hold; moesaic codec: what it says of them, and what it refuses."""

import json

import pytest
import torch
from program import FAILURE, MISUSE, moesaic, refused, settings, train, write_config
from safetensors.torch import load_file

LOSSLESS = {"raw", "entropy", "exponent_reuse", "residual", "momentum"}
STEPS = 5


def record(folder, name="trace", steps=(1, 2, 3, 4), **options):
    """Trains in folder/name.run with a checkpoint after every step, and records into folder/name."""
    trace = folder / name
    config = write_config(folder, train__steps=STEPS, optim__lr=1e-3, checkpoint__every=1, moe__d_expert=64,
                          parallel__experts=options.pop("experts", "gather"))
    train(config, folder / f"{name}.run", "--record-weights", trace, "--record-steps", ",".join(map(str, steps)),
          **options)
    return trace


def image(trace, step):
    return load_file(trace / f"step-{step:06}.safetensors")


def masters(trace, steps_done):
    """Tensor name -> fp32 masters after that many steps, from the checkpoint of the run that was recorded."""
    tensors = {}
    for file in (trace.parent / f"{trace.name}.run" / "checkpoints" / f"step-{steps_done:06}").glob("model-*.safetensors"):
        tensors.update(load_file(file))
    return tensors


def expected_unit(masters_of_model, name):
    """An expert unit as the images have it: every expert's matrices, one after the other."""
    layer, matrices = name.split(".")[1], {"gate_up": ("gate_proj", "up_proj"), "down": ("down_proj",)}[name.split(".")[2]]
    experts = [f"model.layers.{layer}.mlp.experts.{e}.{m}.weight" for e in range(6) for m in matrices]
    return torch.cat([masters_of_model[tensor].flatten() for tensor in experts]).to(torch.bfloat16)


def same_bits(a, b):
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


@pytest.mark.parametrize("options", [
    {}, {"ranks": 2}, {"ranks": 3, "experts": "exchange"}, {"ranks": 2, "mpi": True}, {"ranks": 2, "train__dtype": "bf16"},
], ids=["1", "2", "3-exchange", "2-mpi", "2-bf16"])
def test_an_image_is_the_masters_that_the_step_starts_from_rounded(tmp_path, options):
    trace = record(tmp_path, steps=(1, 4), **options)
    assert sorted(file.name for file in trace.iterdir()) == ["step-000001.safetensors", "step-000004.safetensors",
                                                            "trace.json"]
    index, units = json.loads((trace / "trace.json").read_text()), image(trace, 4)
    assert {unit["name"]: unit["words"] for unit in index["units"]} == {name: words.numel() for name, words in units.items()}
    held = masters(trace, 3)
    for name, words in units.items():
        kind = next(unit["kind"] for unit in index["units"] if unit["name"] == name)
        if kind == "expert":
            assert same_bits(words, expected_unit(held, name)), name
    # Dense tensors: all of them but the routers, which travel in fp32.
    dense = torch.cat([words.float() for name, words in units.items() if name.split(".")[-1] not in ("gate_up", "down")])
    of_masters = torch.cat([t.to(torch.bfloat16).float().flatten() for name, t in held.items()
                            if ".experts." not in name and not name.endswith("mlp.gate.weight")])
    assert torch.equal(dense.sort().values, of_masters.sort().values)


def test_images_of_equal_weights_are_equal_on_any_number_of_ranks(tmp_path):
    first = [record(tmp_path, f"trace{i}", steps=(1,), **options)
             for i, options in enumerate([{}, {"ranks": 2}, {"ranks": 3, "experts": "exchange"}])]
    images = [(trace / "step-000001.safetensors").read_bytes() for trace in first]
    assert images[0] == images[1] == images[2]


def test_every_method_is_checked_and_measured(tmp_path):
    trace, figures = record(tmp_path), tmp_path / "codec.json"
    ran = moesaic("codec", trace, "--json", figures)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    steps = json.loads(figures.read_text())["steps"]
    assert [step["step"] for step in steps] == [2, 3, 4]
    assert [step["previous_differences_known"] for step in steps] == [False, True, True]
    for step in steps:
        assert step["weights"] == 2 * 6 * 3 * 32 * 64 and step["units"] == 4
        assert 0 < step["exponents_changed"] < step["words_changed"] <= 1
        assert 0 < step["entropy_given_previous"] <= step["entropy_given_exponent"]
        assert step["learning_rate"] > 0 and step["memcpy_gbps"] > 0
        methods = {method["method"]: method for method in step["methods"]}
        assert {name for name, method in methods.items() if method["lossless"]} == LOSSLESS
        assert set(methods) - LOSSLESS == {"int8"}
        for method in methods.values():
            assert 0 < method["bits_per_weight"] < 16.1 and method["encode_gbps"] > 0 and method["decode_gbps"] > 0
        for name in ("residual", "momentum"):
            assert methods[name]["bits_per_weight"] < methods["entropy"]["bits_per_weight"] < 16
    assert "momentum" in ran.stdout and "learning rate" in ran.stdout


def test_only_the_methods_asked_for(tmp_path):
    ran = moesaic("codec", record(tmp_path, steps=(1, 2)), "--methods", "raw,momentum", "--threads", "2")
    assert ran.returncode == 0 and "momentum" in ran.stdout and "exponent_reuse" not in ran.stdout
    refused(MISUSE, moesaic("codec", tmp_path / "trace", "--methods", "zip"), "zip", "momentum")


def test_a_resumed_run_goes_on_with_its_trace(tmp_path):
    trace = record(tmp_path, steps=(1, 2), train__stop_at=2)
    train(tmp_path / "tiny.toml", tmp_path / "trace.run", "--resume", "--record-weights", trace, "--record-steps", "3",
          checkpoint__every=0)
    assert [entry["step"] for entry in json.loads((trace / "trace.json").read_text())["images"]] == [1, 2, 3]


def test_what_is_no_trace_is_refused(tmp_path):
    refused(MISUSE, moesaic("codec", tmp_path / "absent"), tmp_path / "absent", "no directory")
    refused(MISUSE, moesaic("codec", tmp_path), "holds no weight trace")
    (tmp_path / "trace.json").write_text('{"format": 1}')
    refused(FAILURE, moesaic("codec", tmp_path), tmp_path / "trace.json", "config")


def test_steps_that_do_not_follow_each_other_are_refused(tmp_path):
    refused(MISUSE, moesaic("codec", record(tmp_path, steps=(1, 3))), "[1, 3]", "consecutive")


def test_a_damaged_image_is_named(tmp_path):
    trace = record(tmp_path, steps=(1, 2))
    file = trace / "step-000002.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    refused(FAILURE, moesaic("codec", trace), file, f"{len(whole) - 10} bytes, expected {len(whole)}")
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(FAILURE, moesaic("codec", trace), file, "CRC32C")
    file.unlink()
    refused(FAILURE, moesaic("codec", trace), file, "No such file")


@pytest.mark.parametrize("arguments, words", [
    (["--record-steps", "3"], ["--record-weights", "need each other"]),
    (["--record-weights", "DIR"], ["--record-steps", "need each other"]),
    (["--record-weights", "DIR", "--record-steps", "6"], ["6", "steps 1 to 5"]),
    (["--record-weights", "DIR", "--record-steps", "0,3"], ["0", "steps 1 to 5"]),
    (["--record-weights", "DIR", "--record-steps", "two"], ["two"]),
])
def test_what_cannot_be_recorded_is_refused_before_the_run(tmp_path, arguments, words):
    words_of_call = [str(tmp_path / "trace") if word == "DIR" else word for word in arguments]
    ran = moesaic("train", "--config", write_config(tmp_path), "--run-dir", tmp_path / "run", *words_of_call,
                  *settings(train__steps=STEPS))
    refused(MISUSE, ran, *words)
    assert not (tmp_path / "run").exists() and not (tmp_path / "trace").exists()


def test_a_trace_is_never_overwritten_nor_mixed_with_another_model(tmp_path):
    trace = record(tmp_path, steps=(1,))
    again = ["--record-weights", trace, "--record-steps", "2"]
    ran = moesaic("train", "--config", tmp_path / "tiny.toml", "--run-dir", tmp_path / "other", *again)
    refused(MISUSE, ran, trace, "already holds a weight trace")
    other = write_config(tmp_path, "other.toml", train__steps=STEPS, moe__num_experts=3)
    train(other, tmp_path / "other", train__stop_at=1)
    refused(MISUSE, moesaic("train", "--run-dir", tmp_path / "other", "--resume", *again), trace, "another model")


def test_a_trace_that_cannot_be_written_ends_the_run_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    ran = moesaic("train", "--config", write_config(tmp_path), "--run-dir", tmp_path / "run", "--ranks", 2,
                  "--record-weights", tmp_path / "file" / "trace", "--record-steps", "1")
    refused(FAILURE, ran, tmp_path / "file" / "trace")
