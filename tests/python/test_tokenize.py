"""python -m moesaic.tokenize: what it writes, what it refuses, and that moesaic trains on it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "launch"), str(Path(__file__).resolve().parents[2] / "python")]
from moesaic import tokenize as moesaic_tokenize  # noqa: E402
from program import SOURCE, losses, moesaic, refused, train, write_config  # noqa: E402

EOS = "<|endoftext|>"
SAMPLE = SOURCE / "data" / "latin.txt"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A folder as Hugging Face's: byte-level BPE of 400 tokens, trained on the sample."""
    folder = tmp_path_factory.mktemp("tokenizer")
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator([SAMPLE.read_text(encoding="utf-8")[:20000]],
                             trainers.BpeTrainer(vocab_size=400, special_tokens=[EOS], show_progress=False,
                                                 initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS}))
    return folder


def tokenize(*arguments):
    path = os.pathsep.join(filter(None, [str(SOURCE / "python"), os.environ.get("PYTHONPATH")]))
    return subprocess.run([sys.executable, "-m", "moesaic.tokenize", *map(str, arguments)], capture_output=True, text=True,
                          timeout=120, env={**os.environ, "PYTHONPATH": path})


def tokenized(tokenizer, output, *arguments):
    ran = tokenize("--tokenizer", tokenizer, "--output", output, *arguments)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""  # no terminal, no progress bar
    side = json.loads(Path(f"{output}.json").read_text())
    ids = np.load(output) if output.suffix == ".npy" else np.fromfile(output, dtype="<u2")
    assert len(ids) == side["num_tokens"]
    return ids, side


def text_of(tokenizer, ids):
    return Tokenizer.from_file(str(tokenizer / "tokenizer.json")).decode(list(ids), skip_special_tokens=False)


@pytest.mark.parametrize("name", ["t.bin", "t.npy"])
def test_text_comes_back_from_its_tokens(tmp_path, tokenizer, name):
    ids, side = tokenized(tokenizer, tmp_path / name, SAMPLE)
    assert ids.dtype == np.uint16 and ids.ndim == 1
    assert text_of(tokenizer, ids) == SAMPLE.read_text(encoding="utf-8") + EOS
    assert side["format"] == "moesaic tokens" and side["dtype"] == "uint16" and side["vocab_size"] == 400
    assert side["num_documents"] == 1 and side["eos_token"] == EOS and ids[-1] == side["eos_id"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [name, name + ".json"]


def test_pieces_of_a_long_text_give_the_tokens_of_the_whole(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(moesaic_tokenize, "PIECE_BYTES", 1000)
    monkeypatch.setattr(moesaic_tokenize, "BATCH_BYTES", 3000)
    text = SAMPLE.read_text(encoding="utf-8")[:30000] + "élève\n\n  verse\n" * 500
    file = tmp_path / "long.txt"
    file.write_text(text, encoding="utf-8")
    assert moesaic_tokenize.main(["--tokenizer", str(tokenizer), "--output", str(tmp_path / "t.bin"), "--no-eos",
                                  str(file)]) == 0
    whole = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    assert np.array_equal(np.fromfile(tmp_path / "t.bin", dtype="<u2"), whole)


@pytest.mark.parametrize("pre_tokenizer", [pre_tokenizers.Metaspace(prepend_scheme="always"),
                                           pre_tokenizers.ByteLevel(add_prefix_space=True)],
                         ids=["metaspace", "byte level with a prefix"])
def test_a_tokenizer_that_prefixes_every_input_gets_the_text_whole(tmp_path, tokenizer, monkeypatch, pre_tokenizer):
    monkeypatch.setattr(moesaic_tokenize, "PIECE_BYTES", 1000)
    prefixing = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    prefixing.pre_tokenizer = pre_tokenizer
    prefixing.save(str(tmp_path / "tokenizer.json"))
    text = SAMPLE.read_text(encoding="utf-8")[:10000]
    (tmp_path / "long.txt").write_text(text, encoding="utf-8")
    assert moesaic_tokenize.main(["--tokenizer", str(tmp_path / "tokenizer.json"), "--output",
                                  str(tmp_path / "t.bin"), "--no-eos", str(tmp_path / "long.txt")]) == 0
    whole = prefixing.encode(text, add_special_tokens=False).ids
    assert np.array_equal(np.fromfile(tmp_path / "t.bin", dtype="<u2"), whole)


def test_half_of_a_surrogate_pair_is_named_by_line(tmp_path, tokenizer, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": "a\\ud800b"}\n')
    assert moesaic_tokenize.main(["--tokenizer", str(tokenizer), "--output", str(tmp_path / "t.bin"),
                                  str(tmp_path / "a.jsonl")]) != 0
    assert "a.jsonl:2" in capsys.readouterr().err
    assert not (tmp_path / "t.bin").exists()


def test_a_long_line_without_any_space_is_held_whole(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(moesaic_tokenize, "PIECE_BYTES", 1001)  # within a character
    file = tmp_path / "line.txt"
    file.write_text("é" * 5000, encoding="utf-8")
    assert moesaic_tokenize.main(["--tokenizer", str(tokenizer), "--output", str(tmp_path / "t.bin"), "--no-eos",
                                  str(file)]) == 0
    assert text_of(tokenizer, np.fromfile(tmp_path / "t.bin", dtype="<u2")) == "é" * 5000


def test_each_line_of_jsonl_is_a_document(tmp_path, tokenizer):
    file = tmp_path / "d.jsonl"
    file.write_text("".join(json.dumps({"body": text, "id": 3}) + "\n\n" for text in ["salve", "", "vale\nvale"]))
    ids, side = tokenized(tokenizer, tmp_path / "t.npy", file, "--field", "body")
    assert text_of(tokenizer, ids) == f"salve{EOS}vale\nvale{EOS}" and side["num_documents"] == 2


def test_lines_of_text_can_be_documents(tmp_path, tokenizer):
    file = tmp_path / "lines.txt"
    file.write_bytes(b"salve\r\n\nvale")
    ids, side = tokenized(tokenizer, tmp_path / "t.bin", file, "--split", "line")
    assert text_of(tokenizer, ids) == f"salve{EOS}vale{EOS}" and side["num_documents"] == 2


def test_a_vocabulary_past_16_bits_is_written_in_32(tmp_path):
    wide = Tokenizer(models.WordLevel({f"w{i}": i for i in range(70000)}, unk_token="w0"))
    wide.pre_tokenizer = pre_tokenizers.Whitespace()
    wide.save(str(tmp_path / "wide.json"))
    file = tmp_path / "words.txt"
    file.write_text("w1 w69999 unknown")
    ran = tokenize("--tokenizer", tmp_path / "wide.json", "--no-eos", "--output", tmp_path / "t.bin", file)
    assert ran.returncode == 0, ran.stderr
    assert np.fromfile(tmp_path / "t.bin", dtype="<u4").tolist() == [1, 69999, 0]
    assert json.loads((tmp_path / "t.bin.json").read_text())["dtype"] == "uint32"


def test_moesaic_trains_on_what_was_tokenized(tmp_path, tokenizer):
    for name, data_format in (("t.bin", "uint16"), ("t.npy", "npy")):
        ids, _ = tokenized(tokenizer, tmp_path / name, SAMPLE)
        config = write_config(tmp_path, data__files=[name], data__format=data_format, model__vocab_size=400)
        train(config, tmp_path / data_format, train__steps=2)
    assert losses(tmp_path / "npy") == losses(tmp_path / "uint16") and len(losses(tmp_path / "npy")) == 2
    shown = moesaic("inspect", tmp_path / "t.npy", "--format", "npy")
    assert f"{len(ids)} tokens" in shown.stdout and "first: " + " ".join(map(str, ids[:16])) in shown.stdout
    # What the side file says is checked: ids of another width would be noise that trains without complaint.
    wrong = moesaic("train", "--config", config, "--run-dir", tmp_path / "wrong", "--set", "data.format=bytes",
                    "--set", 'data.files=["' + str(tmp_path / "t.bin") + '"]')
    refused(2, wrong, "t.bin holds uint16", "is read as uint8", "data.format")


def write_bytes(folder, name, content):
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize("name, content, words", [
    ("absent.txt", None, ["absent.txt does not exist"]),
    ("bad.txt", b"vale\nva\xffle", ["bad.txt", "byte 0xff at 7 is not UTF-8"]),
    ("short.txt", b"vale \xc3", ["short.txt", "byte 0xc3 at 5 is not UTF-8"]),
    ("empty.txt", b"", ["no text"]),
    ("bad.jsonl", b'{"text": "a"}\n{"text"\n', ["bad.jsonl:2: not JSON"]),
    ("list.jsonl", b'["a"]\n', ["list.jsonl:1", "list, expected an object"]),
    ("other.jsonl", b'{"body": "a", "n": 1}\n', ["other.jsonl:1: no field 'text'; there is 'body', 'n'", "--field"]),
    ("number.jsonl", b'{"text": 5}\n', ["number.jsonl:1: field 'text' is a int, expected a string"]),
])
def test_input_that_cannot_be_read_is_named_and_nothing_is_left(tmp_path, tokenizer, name, content, words):
    file = tmp_path / name if content is None else write_bytes(tmp_path, name, content)
    ran = tokenize("--tokenizer", tokenizer, "--output", tmp_path / "t.bin", file)
    refused(2, ran, *words)
    assert "Traceback" not in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ([] if content is None else [name])


def test_what_the_command_line_lacks_is_said(tmp_path, tokenizer):
    file = write_bytes(tmp_path, "a.txt", b"salve")
    lone = write_bytes(tmp_path, "lone.json", (tokenizer / "tokenizer.json").read_bytes())
    output = ["--output", tmp_path / "t.bin", file]
    refused(2, tokenize("--tokenizer", lone, *output), "--eos TOKEN or --no-eos", EOS)
    refused(2, tokenize("--tokenizer", lone, "--eos", "</s>", *output), "no token '</s>'", EOS)
    refused(2, tokenize("--tokenizer", tmp_path, *output), "tokenizer.json does not exist")
    refused(2, tokenize("--tokenizer", file, *output), "a.txt is no tokenizer")
    refused(2, tokenize("--tokenizer", tokenizer, "--output", tmp_path / "t.txt", file), "ends in .bin or .npy")
    refused(2, tokenize("--tokenizer", tokenizer, "--output", tmp_path / "no" / "t.bin", file), "does not exist")


def test_an_output_is_only_replaced_when_told(tmp_path, tokenizer):
    file = write_bytes(tmp_path, "a.txt", b"salve")
    before, _ = tokenized(tokenizer, tmp_path / "t.bin", file)
    file.write_bytes(b"vale vale")
    refused(2, tokenize("--tokenizer", tokenizer, "--output", tmp_path / "t.bin", file), "t.bin exists", "--force")
    assert np.array_equal(np.fromfile(tmp_path / "t.bin", dtype="<u2"), before)
    after, _ = tokenized(tokenizer, tmp_path / "t.bin", file, "--force")
    assert text_of(tokenizer, after) == "vale vale" + EOS
