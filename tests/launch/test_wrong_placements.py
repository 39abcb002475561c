"""Checkpoints whose checksums are all right and whose experts lie where they cannot: refused with a word, nothing is loaded."""

import json
import shutil

import pytest
from checkpoints import describe_again, rewrite_manifest
from program import FAILURE, losses, moesaic, newest_checkpoint, refused, train, write_config
from safetensors.numpy import load_file, save_file

RANKS = 2  # each has three of the six experts
FIRST, SECOND = (f"model-{rank:05}-of-{RANKS:05}.safetensors" for rank in range(RANKS))
OF_EXPERT_0 = "model.layers.0.mlp.experts.0.gate_proj.weight"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("placed")
    train(write_config(folder, train__steps=4, train__eval_tokens=64), folder / "run", ranks=RANKS, train__stop_at=2)
    return folder / "run"


@pytest.fixture
def copy(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def refused_untouched(run_dir, *words):
    content = {file: file.read_bytes() for file in run_dir.rglob("*") if file.is_file() and file.name != "lock"}
    assert moesaic("inspect", run_dir).returncode == 0  # the checksums are right
    refused(FAILURE, moesaic("train", "--run-dir", run_dir, "--resume"), *words)
    refused(FAILURE, moesaic("eval", "--run-dir", run_dir), *words)
    assert {file: file.read_bytes() for file in content} == content
    assert newest_checkpoint(run_dir).name == "step-000002"


def test_the_manifest_says_who_owned_which_expert(trained):
    body = json.loads((newest_checkpoint(trained) / "manifest.json").read_text())["manifest"]
    assert body["placement"] == {"num_experts": 6, "world_size": 2, "exchange_size": 2, "experts_of": [[0, 1, 2], [3, 4, 5]]}


def test_without_lists_as_older_checkpoints_are_experts_lie_in_order(copy, trained):
    rewrite_manifest(newest_checkpoint(copy), lambda body: body["placement"].pop("experts_of"))
    for run_dir in (copy, shutil.copytree(trained, copy.parent / "untouched")):
        assert moesaic("train", "--run-dir", run_dir, "--resume").returncode == 0
    assert losses(copy) == losses(copy.parent / "untouched")


@pytest.mark.parametrize("change, words", [
    ({"experts_of": [[0, 1, 2], [2, 3, 4, 5]]}, "gives expert 2 to ranks 0 and 1 of an exchange group, expected one owner"),
    ({"experts_of": [[0, 1, 1, 2], [3, 4, 5]]}, "gives expert 1 to ranks 0 and 0 of an exchange group, expected one owner"),
    ({"experts_of": [[0, 1], [3, 4, 5]]}, "gives expert 2 to no rank, expected one of 0..1"),
    ({"experts_of": [[0, 1, 2], [3, 4, 6]]}, "gives rank 1 of an exchange group expert 6, expected one of 0..5"),
    ({"experts_of": [[0, 1, 2], [3, 4, -1]]}, "gives rank 1 of an exchange group expert -1, expected one of 0..5"),
    ({"experts_of": [[0, 1, 2], [3, 4, "5"]]}, 'gives rank 1 of an exchange group expert "5", expected one of 0..5'),
    ({"experts_of": [[0, 1, 2], [], [3, 4, 5]]}, "lists the experts of 3 ranks, expected those of the 2 of an exchange group"),
    ({"experts_of": 7}, "lists the experts of 1 ranks, expected those of the 2 of an exchange group"),
    ({"num_experts": 7}, "has 7 experts, expected the 6 of the model"),
    ({"exchange_size": 3}, "exchange_size in the manifest's placement is 3, expected a divisor of the 2 ranks"),
    ({"exchange_size": 0}, "exchange_size in the manifest's placement is 0, expected an integer of at least 1"),
    ({"world_size": 3, "exchange_size": 3}, "lists 6 files, expected 8, as 3 ranks write them"),
    ({"world_size": 4294967298}, "world_size in the manifest's placement is 4294967298, expected an integer"),
    # The files are as the experts in order; so these are of somebody else.
    ({"experts_of": [[3, 4, 5], [0, 1, 2]]}, "00001-of-00002.safetensors, expected a file of its expert's owner: "),
    ({"experts_of": [[0, 1, 3], [2, 4, 5]]}, "00001-of-00002.safetensors, expected a file of its expert's owner: "),
])
def test_a_placement_that_is_none_is_refused(copy, change, words):
    rewrite_manifest(newest_checkpoint(copy), lambda body: body["placement"].update(change))
    refused_untouched(copy, words)


def test_a_manifest_without_a_placement_is_refused(copy):
    rewrite_manifest(newest_checkpoint(copy), lambda body: body.update(placement=None))
    refused_untouched(copy, newest_checkpoint(copy) / "manifest.json", "the manifest's placement is not what this program writes")


def test_the_file_of_a_rank_that_was_not_there_is_refused(copy):
    checkpoint = newest_checkpoint(copy)
    other = f"model-{RANKS:05}-of-{RANKS:05}.safetensors"
    (checkpoint / SECOND).rename(checkpoint / other)
    index = checkpoint / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(SECOND, other))

    def change(body):
        for entry in body["files"]:
            entry["name"] = entry["name"].replace(SECOND, other)

    rewrite_manifest(checkpoint, change)
    describe_again(checkpoint, index)
    refused_untouched(copy, f"lists {other}", f"expected of 2 ranks {SECOND}")


def test_a_file_listed_for_two_ranks_is_refused(copy):
    def change(body):
        entries = {entry["name"]: entry for entry in body["files"]}
        entries[SECOND].update(entries[FIRST])

    rewrite_manifest(newest_checkpoint(copy), change)
    refused_untouched(copy, f"lists {FIRST} (again)", f"expected of 2 ranks {SECOND}")


def reindex(checkpoint, tensor, file):
    index = checkpoint / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    assert tensor in content["weight_map"]
    content["weight_map"][tensor] = file
    index.write_text(json.dumps(content))
    return index


def put(checkpoint, tensor, value, file):
    save_file({**load_file(checkpoint / file), tensor: value}, checkpoint / file)
    return checkpoint / file


def take(checkpoint, tensor, file):
    tensors = load_file(checkpoint / file)
    value = tensors.pop(tensor)
    save_file(tensors, checkpoint / file)
    return value


def test_an_expert_that_the_index_has_in_the_file_of_another_rank_is_refused(copy):
    checkpoint = newest_checkpoint(copy)
    describe_again(checkpoint, reindex(checkpoint, OF_EXPERT_0, SECOND))
    refused_untouched(copy, f"tensor '{OF_EXPERT_0}' is not in its shard {SECOND}")


def test_an_expert_in_the_files_of_two_ranks_is_refused(copy):
    checkpoint = newest_checkpoint(copy)
    describe_again(checkpoint, put(checkpoint, OF_EXPERT_0, load_file(checkpoint / FIRST)[OF_EXPERT_0], SECOND))
    refused_untouched(copy, f"tensor {OF_EXPERT_0} is in {checkpoint / SECOND}, expected only in {checkpoint / FIRST}")


def test_an_expert_in_the_file_of_a_rank_that_does_not_own_it_is_refused(copy):
    checkpoint = newest_checkpoint(copy)
    put(checkpoint, OF_EXPERT_0, take(checkpoint, OF_EXPERT_0, FIRST), SECOND)
    describe_again(checkpoint, reindex(checkpoint, OF_EXPERT_0, SECOND), checkpoint / FIRST, checkpoint / SECOND)
    refused_untouched(copy, f"tensor {OF_EXPERT_0} is in {checkpoint / SECOND}, expected a file of its expert's owner: {FIRST}")


def test_an_expert_in_no_file_is_refused(copy):
    checkpoint = newest_checkpoint(copy)
    take(checkpoint, OF_EXPERT_0, FIRST)
    describe_again(checkpoint, checkpoint / FIRST)
    refused_untouched(copy, f"tensor '{OF_EXPERT_0}' is not in its shard {FIRST}")


def test_a_tensor_that_no_index_knows_is_refused(copy):
    checkpoint = newest_checkpoint(copy)
    stranger = OF_EXPERT_0.replace("experts.0", "experts.6")
    describe_again(checkpoint, put(checkpoint, stranger, load_file(checkpoint / FIRST)[OF_EXPERT_0], SECOND))
    refused_untouched(copy, f"tensor {stranger} is in {checkpoint / SECOND}, but not in the index")
