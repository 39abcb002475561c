"""eval, generate and inspect on a small trained model, and on checkpoints that something has happened to."""

import json
import re
import shutil

import numpy as np
import pytest
from program import FAILURE, MISUSE, SOURCE, Job, metrics, moesaic, newest_checkpoint, refused, train, write_config
from safetensors.numpy import load_file

RANKS = 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 2 ranks that has learned something."""
    folder = tmp_path_factory.mktemp("trained")
    train(write_config(folder, train__steps=120, optim__lr=1e-2), folder / "run", ranks=RANKS)
    return folder / "run"


@pytest.fixture
def copy(trained, tmp_path):
    """A copy of that run to do harm to."""
    return shutil.copytree(trained, tmp_path / "run")


# ---- eval ----


def test_eval_gives_the_loss_that_training_ended_with(trained):
    ran = moesaic("eval", "--run-dir", trained)
    assert ran.returncode == 0, ran.stderr
    expected = metrics(trained)[-1]["heldout_loss"]
    assert ran.stdout.splitlines()[0] == str(newest_checkpoint(trained))
    assert f" {expected:.4f} nats per token" in ran.stdout
    assert "words.txt" in ran.stdout


def test_logits_are_those_of_the_loss(trained, tmp_path):
    file = tmp_path / "logits.safetensors"
    ran = moesaic("eval", "--run-dir", trained, "--logits", file, "--ranks", 3)
    assert ran.returncode == 0, ran.stderr
    dumped = load_file(file)
    assert dumped["tokens"].shape == (8, 16) and dumped["logits"].shape == (8, 16, 256)
    assert np.isfinite(dumped["logits"]).all()
    # Windows follow each other: a token's target is the next token, but for the last of a window.
    logits, targets = dumped["logits"][:, :-1], dumped["tokens"][:, 1:]
    log_sums = np.log(np.exp(logits.astype(np.float64)).sum(-1))
    loss = (log_sums - np.take_along_axis(logits, targets[..., None], -1)[..., 0]).mean()
    assert loss == pytest.approx(metrics(trained)[-1]["heldout_loss"], rel=0.25)


def test_the_experts_of_tokens_are_told(trained, tmp_path):
    routed = []
    for ranks in (1, 3):
        file = tmp_path / f"routing{ranks}.safetensors"
        ran = moesaic("eval", "--run-dir", trained, "--routing", file, "--ranks", ranks)
        assert ran.returncode == 0, ran.stderr
        routed.append(load_file(file))
    assert sorted(routed[0]) == ["layers.0.experts", "layers.1.experts", "tokens"]
    windows = len(routed[0]["tokens"])
    for layer in ("layers.0.experts", "layers.1.experts"):
        experts = routed[0][layer]
        assert experts.shape == (16 * windows, 2) and experts.min() == 0 and experts.max() == 5
        assert (experts[:, 0] != experts[:, 1]).all()
        assert np.array_equal(experts, routed[1][layer])
    # Of the same token in different places, the first layer mostly chooses the same.
    tokens, first = routed[0]["tokens"].ravel(), routed[0]["layers.0.experts"][:, 0]
    common = np.bincount(tokens).argmax()
    assert np.bincount(first[tokens == common]).max() > 0.5 * (tokens == common).sum()


# ---- generate ----


def run_generate(run_dir, prompts, *arguments, new_tokens=(24,), **how):
    words = [word for prompt in prompts for word in ("--prompt", prompt)]
    words += [word for count in new_tokens for word in ("--max-new-tokens", count)]
    ran = moesaic("generate", "--run-dir", run_dir, *words, *arguments, **how)
    assert ran.returncode == 0, ran.stderr
    return ran


def generate(run_dir, prompts, *arguments, **how):
    return run_generate(run_dir, prompts, *arguments, **how).stdout


def blocks(out):
    """The text of each labelled block."""
    return [part.split(" ---\n", 1)[1][:-1] for part in out.split("--- prompt ")[1:]]


PROMPTS = ["the ", "a", "no such word. And one that is much longer than the sixteen tokens of a context"]


def test_every_prompt_is_continued_in_order(trained):
    out = generate(trained, PROMPTS)
    parts = out.split("--- prompt ")
    assert [part.split(" ---\n")[0] for part in parts[1:]] == ["1", "2", "3"]
    for part, prompt in zip(parts[1:], PROMPTS):
        text = part.split(" ---\n", 1)[1]
        assert text.startswith(prompt) and len(text.rstrip("\n")) > len(prompt)
    assert len(set(out.split(" ---\n")[1])) > 5  # not one character over and over


def test_greedy_is_the_same_each_time_and_on_any_number_of_ranks(trained):
    once = generate(trained, PROMPTS, "--ranks", 1)
    assert generate(trained, PROMPTS, "--ranks", 1) == once
    assert generate(trained, PROMPTS, "--ranks", 3) == once
    assert generate(trained, PROMPTS, "--ranks", 1, "--seed", 5) == once  # nothing is drawn


def test_draws_depend_on_the_seed_and_the_temperature(trained):
    drawn = generate(trained, PROMPTS, "--temperature", 1, "--seed", 3)
    assert generate(trained, PROMPTS, "--temperature", 1, "--seed", 3) == drawn
    assert generate(trained, PROMPTS, "--temperature", 1, "--seed", 4) != drawn
    assert generate(trained, PROMPTS, "--temperature", 2, "--seed", 3) != drawn
    assert generate(trained, PROMPTS, "--temperature", 1e-4, "--seed", 3) == generate(trained, PROMPTS)


@pytest.mark.parametrize("arguments, word", [
    ([], "--prompt is required"),
    (["--prompt", ""], "prompt 1 is empty"),  # counted as in the output
    (["--prompt", "a", "--temperature", "-1"], "--temperature"),
    (["--prompt", "a", "--max-new-tokens", "-1"], "--max-new-tokens"),
    (["--prompt", "a", "--max-new-tokens", "1", "--max-new-tokens", "2"], "2 times for 1 prompts"),
    (["--prompt", "a", "--top-k", "-1"], "--top-k"),
    (["--prompt", "a", "--top-p", "1.5"], "--top-p"),
    (["--prompt", "a", "--top-p", "0"], "top_p is 0"),
    (["--prompt", "a", "--context", "17"], "max_seq_len (16)"),
    (["--prompt", "a", "--weights", "some"], "--weights"),
    (["--prompt", "a", "--stop", ""], "a stop is empty"),
    (["--prompts-file", "absent.txt"], "absent.txt"),
])
def test_a_wrong_request_to_generate_is_misuse(trained, arguments, word):
    ran = moesaic("generate", "--run-dir", trained, *arguments)
    refused(MISUSE, ran, word)
    assert ran.stdout == ""  # found before any rank starts, and before the prompt is shown


def test_one_prompt_is_plain_text(trained):
    out = generate(trained, ["the "])
    assert out.startswith("the ") and len(out) == len("the ") + 24 + 1 and "---" not in out
    assert blocks(generate(trained, ["the ", "a"]))[0] + "\n" == out


@pytest.mark.parametrize("mpi", [False, True], ids=["on_threads", "on_processes"])
@pytest.mark.parametrize("experts", ["exchange", "gather"])
def test_a_rank_that_finishes_early_keeps_joining(trained, mpi, experts):
    prompts, how = ["the ", "one two"], {"mpi_ranks": 2} if mpi else {}
    out = generate(trained, prompts, "--set", f'parallel.experts="{experts}"', "--ranks", 2, new_tokens=(3, 10), **how)
    assert [len(block) for block in blocks(out)] == [4 + 3, 7 + 10]
    assert blocks(out) == [generate(trained, [p], "--ranks", 1, new_tokens=(n,))[:-1] for p, n in zip(prompts, (3, 10))]


def test_any_prompt_can_be_drawn_again_alone(trained):
    sampling = ["--temperature", 1, "--top-k", 40, "--top-p", 0.95]
    together = blocks(generate(trained, PROMPTS, *sampling, "--seed", 5, "--ranks", 2))
    for i, prompt in enumerate(PROMPTS):
        assert generate(trained, [prompt], *sampling, "--seed", 5 + i)[:-1] == together[i]


def test_narrow_sampling_is_greedy(trained):
    greedy = generate(trained, PROMPTS)
    assert generate(trained, PROMPTS, "--temperature", 1, "--top-k", 1) == greedy
    assert generate(trained, PROMPTS, "--temperature", 1, "--top-p", 1e-9) == greedy


def test_prompts_come_from_files(trained, tmp_path):
    lines = tmp_path / "prompts.txt"
    lines.write_text("the \n\na\n")
    assert generate(trained, [], "--prompts-file", lines) == generate(trained, ["the ", "a"])
    objects = tmp_path / "prompts.jsonl"
    objects.write_text('{"prompt": "the ", "max_new_tokens": 3}\n{"prompt": "a", "seed": 9}\n')
    drawn = blocks(generate(trained, [], "--prompts-file", objects, "--temperature", 1))
    assert len(drawn[0]) == 4 + 3
    assert drawn[1] + "\n" == generate(trained, ["a"], "--temperature", 1, "--seed", 9)
    objects.write_text('{"prompt": "the "}\n{"promt": "a"}\n')
    refused(MISUSE, moesaic("generate", "--run-dir", trained, "--prompts-file", objects), "line 2", "prompt")


def test_a_stop_ends_a_prompt(trained):
    whole = generate(trained, ["the "])[:-1]
    stop = whole[9:11]
    end = whole.index(stop, 4) + 2
    assert generate(trained, ["the "], "--stop", "no such text", "--stop", stop)[:-1] == whole[:end]
    assert generate(trained, ["the "], "--end-token", ord(whole[4]))[:-1] == whole[:5]


def test_figures_go_to_standard_error(trained):
    told = run_generate(trained, ["the ", "a"]).stderr
    assert "prefill 5 tokens" in told and "decode  46 tokens" in told and told.count("tokens/s") == 2
    assert re.search(r"[\d.]+ ms until each prompt's next", told)
    # 2 layers of keys and values, 32 fp32 wide, of a context of 16, for the one prompt of each rank.
    assert f"key-value cache {2 * 2 * 32 * 4 * 16 / 2**20:.2f} MiB" in told
    assert run_generate(trained, ["the ", "a"], "--quiet").stderr == ""


def test_gathered_weights_are_kept_or_not(trained):
    gather = ["--set", 'parallel.experts="gather"', "--ranks", 2]
    kept = run_generate(trained, PROMPTS, *gather, "--weights", "keep")
    anew = run_generate(trained, PROMPTS, *gather, "--weights", "gather")
    assert kept.stdout == anew.stdout == generate(trained, PROMPTS)
    assert "gathered once and kept" in kept.stderr and " 0.00 MiB in decode" in kept.stderr
    assert "gathered anew for every token" in anew.stderr and " 0.00 MiB in decode" not in anew.stderr


def test_output_is_valid_utf_8_whatever_the_model_writes(tmp_path):
    train(write_config(tmp_path, train__steps=1), tmp_path / "run")  # it knows nothing yet: any bytes
    out = generate(tmp_path / "run", ["a", "b"], "--temperature", 5, new_tokens=(300,))
    assert "\N{REPLACEMENT CHARACTER}" in out
    out.encode("utf-8")  # fails for bytes that did not decode


def test_text_comes_while_it_is_made(trained):
    with Job("generate", "--run-dir", trained, "--prompt", "the ", "--max-new-tokens", 1_000_000) as job:
        assert job.process.stdout.read(200).startswith("the ")
        assert job.process.poll() is None


# ---- inspect ----


def test_inspect_plans_memory_for_a_configuration():
    ran = moesaic("inspect", SOURCE / "configs" / "olmoe-1b-7b.toml", "--ranks", 64)
    assert ran.returncode == 0, ran.stderr
    first, *parts, total = ran.stdout.splitlines()
    assert "6919.16M parameters" in first and "1282.02M active" in first and "64 ranks" in first
    sizes = {line.rsplit(maxsplit=1)[0].strip(): float(line.rsplit(maxsplit=1)[1]) for line in [*parts, total]}
    # A 64th of 4 bytes per parameter, and of two moments of as many.
    assert sizes["fp32 masters"] == pytest.approx(6919161856 * 4 / 64 / 2**20, rel=1e-3)
    assert sizes["optimizer moments"] == pytest.approx(2 * sizes["fp32 masters"], rel=1e-3)
    assert sizes.pop("total") == pytest.approx(sum(sizes.values()), rel=1e-3)


def test_inspect_shows_a_run_and_a_checkpoint_alike(trained):
    run, checkpoint = moesaic("inspect", trained), moesaic("inspect", newest_checkpoint(trained))
    assert run.returncode == checkpoint.returncode == 0
    assert run.stdout == checkpoint.stdout
    assert "steps done 120" in run.stdout and '"world_size":2' in run.stdout
    for file in newest_checkpoint(trained).iterdir():
        assert file.name in run.stdout or file.name == "manifest.json"
    assert "every file has the size and the checksum of the manifest" in run.stdout


def test_inspect_counts_the_tensors_of_files_and_indices(trained):
    checkpoint = newest_checkpoint(trained)
    file = checkpoint / f"model-00000-of-{RANKS:05}.safetensors"
    tensors = load_file(file)
    ran = moesaic("inspect", file, "--verbose")
    elements = sum(tensor.size for tensor in tensors.values())
    assert ran.returncode == 0 and f"{len(tensors)} tensors, {elements} elements" in ran.stdout
    for name, tensor in tensors.items():
        assert f"  {name} " in ran.stdout and str(list(tensor.shape)) in ran.stdout
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text())["weight_map"]
    shown = moesaic("inspect", checkpoint / "model.safetensors.index.json")
    assert shown.returncode == 0 and f"{len(index)} tensors" in shown.stdout


def test_inspect_reads_token_files(tmp_path):
    file = tmp_path / "tokens.bin"
    file.write_bytes(np.array([5, 1000, 7], dtype="<u2").tobytes())
    shown = moesaic("inspect", file, "--format", "uint16")
    assert shown.returncode == 0
    assert "3 tokens read as uint16, ids up to 1000" in shown.stdout and "first: 5 1000 7" in shown.stdout
    refused(MISUSE, moesaic("inspect", file, "--format", "uint32"), "6 bytes", "multiple of 4")


def test_inspect_refuses_what_it_does_not_know(tmp_path):
    refused(MISUSE, moesaic("inspect", tmp_path / "absent"), tmp_path / "absent", "not exist")
    refused(MISUSE, moesaic("inspect", tmp_path), tmp_path, "neither a checkpoint nor a run")
    # Any other .json is not an index, and not a safetensors file with a header of 2^61 bytes either.
    other = tmp_path / "other.json"
    other.write_text("{}")
    refused(MISUSE, moesaic("inspect", other), other, "no safetensors index")


def test_a_manifest_stands_for_its_checkpoint(trained):
    shown = moesaic("inspect", newest_checkpoint(trained) / "manifest.json")
    assert shown.returncode == 0 and "every file has the size and the checksum" in shown.stdout


# ---- checkpoints that something has happened to ----


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)


def shorten(file):
    file.write_bytes(file.read_bytes()[:-4])


def named_once(ran):
    assert "rank 0: rank" not in ran.stderr and "rank 1: rank" not in ran.stderr, ran.stderr


@pytest.mark.parametrize("kind", ["model", "optimizer"])
@pytest.mark.parametrize("command", [["inspect"], ["eval", "--run-dir"], ["train", "--resume", "--run-dir"],
                                     ["generate", "--prompt", "a", "--run-dir"]],
                         ids=["inspect", "eval", "resume", "generate"])
def test_a_flipped_bit_is_found_and_its_file_named(copy, command, kind):
    file = newest_checkpoint(copy) / f"{kind}-00001-of-{RANKS:05}.safetensors"
    flip_a_bit(file)
    refused(FAILURE, moesaic(*command, copy), file, "CRC32C is", "expected")


def test_an_error_on_ranks_names_a_rank_once(copy):
    flip_a_bit(newest_checkpoint(copy) / f"model-00001-of-{RANKS:05}.safetensors")
    named_once(moesaic("eval", "--run-dir", copy))
    named_once(moesaic("eval", "--run-dir", copy, "--set", "model.d_model=64"))


def test_a_shortened_file_is_named(copy):
    checkpoint = newest_checkpoint(copy)
    file = checkpoint / f"model-00001-of-{RANKS:05}.safetensors"
    shorten(file)
    refused(FAILURE, moesaic("eval", "--run-dir", copy, "--checkpoint", checkpoint), file, "bytes, expected")
    refused(FAILURE, moesaic("inspect", checkpoint), file, "bytes, expected")


def test_a_run_whose_only_checkpoint_is_damaged_says_which(copy):
    checkpoint = newest_checkpoint(copy)
    shorten(checkpoint / f"model-00001-of-{RANKS:05}.safetensors")
    refused(FAILURE, moesaic("eval", "--run-dir", copy), checkpoint.name)


def test_a_run_whose_only_checkpoint_is_damaged_is_not_overwritten(copy, trained):
    shorten(newest_checkpoint(copy) / f"model-00001-of-{RANKS:05}.safetensors")
    before = {file: file.read_bytes() for file in copy.rglob("*") if file.is_file()}
    ran = moesaic("train", "--config", trained.parent / "tiny.toml", "--run-dir", copy, "--set", "train.steps=2")
    assert {file: file.read_bytes() for file in copy.rglob("*") if file.is_file()} == before
    refused(MISUSE, ran, copy)


def test_the_checkpoint_before_a_torn_one_is_used(tmp_path):
    run_dir = tmp_path / "run"
    train(write_config(tmp_path, train__steps=4, checkpoint__every=2), run_dir, ranks=RANKS)
    shorten(newest_checkpoint(run_dir) / f"model-00001-of-{RANKS:05}.safetensors")
    ran = moesaic("train", "--run-dir", run_dir, "--resume")
    assert ran.returncode == 0 and "resuming after step 2 " in ran.stdout, ran.stderr
    assert [line["step"] for line in metrics(run_dir) if "loss" in line] == [1, 2, 3, 4]


def test_a_changed_manifest_is_found(copy):
    manifest = newest_checkpoint(copy) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step": 120', '"step": 121'))
    refused(FAILURE, moesaic("inspect", newest_checkpoint(copy)), manifest, "CRC32C is")


def test_a_checkpoint_or_manifest_of_another_model_is_refused(copy, tmp_path):
    other = tmp_path / "other"
    train(write_config(tmp_path, name="wide.toml", model__d_model=64, train__steps=1), other, ranks=RANKS)
    refused(MISUSE, moesaic("eval", "--run-dir", copy, "--checkpoint", newest_checkpoint(other)),
            "model.embed_tokens.weight", "[256,64]", "expected fp32 [256,32]")
    refused(MISUSE, moesaic("train", "--run-dir", copy, "--resume", "--set", "model.num_layers=3"),
            "model.num_layers is 3, but the run to resume was started with 2")
    shutil.copy(newest_checkpoint(other) / "manifest.json", newest_checkpoint(copy))
    refused(FAILURE, moesaic("eval", "--run-dir", copy, "--checkpoint", newest_checkpoint(copy)),
            "model-00000-of-00002.safetensors", "bytes, expected")
