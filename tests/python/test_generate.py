"""Text from a model of token files: ids at the command line, text with the tokenizer."""

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "launch"), str(Path(__file__).resolve().parents[2] / "python")]
from moesaic import generate as moesaic_generate  # noqa: E402
from program import MISUSE, MOESAIC, SOURCE, moesaic, refused, train, write_config  # noqa: E402

EOS = "<|endoftext|>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Byte-level BPE of 300 tokens: letters beyond ASCII are more than one."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator([(SOURCE / "data" / "latin.txt").read_text(encoding="utf-8")[:20000]],
                             trainers.BpeTrainer(vocab_size=300, special_tokens=[EOS], show_progress=False,
                                                 initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(file))
    return file


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("run")
    text = (SOURCE / "data" / "latin.txt").read_text(encoding="utf-8")[:20000]
    np.array(Tokenizer.from_file(str(tokenizer)).encode(text).ids, dtype="<u2").tofile(folder / "latin.bin")
    train(write_config(folder, data__files=[str(folder / "latin.bin")], data__format="uint16", model__vocab_size=300),
          folder / "run")
    return folder / "run"


def generate_ids(run_dir, *arguments):
    ran = moesaic("generate", "--run-dir", run_dir, "--quiet", "--max-new-tokens", 12, *arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def generate_text(tokenizer, run_dir, *arguments):
    words = [sys.executable, "-m", "moesaic.generate", "--moesaic", MOESAIC, "--tokenizer", tokenizer, "--run-dir", run_dir,
             "--quiet", "--max-new-tokens", 12, *arguments]
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(SOURCE / "python")})


def test_ids_are_continued_by_ids(run_dir):
    drawn = ["--prompt", "40 7  299", "--temperature", 1]
    ids = [int(word) for word in generate_ids(run_dir, *drawn).split()]
    assert ids[:3] == [40, 7, 299] and len(ids) == 15 and all(0 <= token < 300 for token in ids)
    stop = ids[5:7]
    end = next(i for i in range(5, 8) if ids[i - 2:i] == stop)
    assert [int(word) for word in generate_ids(run_dir, *drawn, "--stop", f"{stop[0]} {stop[1]}").split()] == ids[:end]


@pytest.mark.parametrize("prompt, word", [("40 seven", '"seven"'), ("-3", '"-3"'), ("1.5", '"1.5"'), ("40 300", "300")])
def test_what_is_no_id_of_the_vocabulary_is_named(run_dir, prompt, word):
    refused(MISUSE, moesaic("generate", "--run-dir", run_dir, f"--prompt={prompt}"), word)


def test_text_is_what_the_ids_say(tokenizer, run_dir):
    reader = Tokenizer.from_file(str(tokenizer))
    prompts = ["Gallia est ", "Æneas, ünd"]
    texts = []
    for prompt in prompts:
        ids = reader.encode(prompt, add_special_tokens=False).ids
        ids = [int(word) for word in generate_ids(run_dir, "--prompt", " ".join(map(str, ids))).split()]
        texts.append(reader.decode(ids, skip_special_tokens=False))
        assert texts[-1].startswith(prompt)
        assert generate_text(tokenizer, run_dir, "--prompt", prompt).stdout == texts[-1] + "\n"
    both = generate_text(tokenizer, run_dir, "--prompt", prompts[0], "--prompt", prompts[1])
    assert both.returncode == 0, both.stderr
    assert both.stdout == f"--- prompt 1 ---\n{texts[0]}\n--- prompt 2 ---\n{texts[1]}\n"


def test_text_comes_as_its_ids_do(tokenizer):
    reader = Tokenizer.from_file(str(tokenizer))
    ids = reader.encode("Æneas", add_special_tokens=False).ids
    assert len(ids) > 5  # the first letter is two tokens
    decoder, shown = moesaic_generate.Decoder(reader), []
    for token in ids:
        shown.append(decoder.add(token))
    assert shown[0] == "" and shown[1] == "Æ" and "".join(shown) == "Æneas" and decoder.finish() == ""
    # Half a character is shown when nothing more comes.
    out = io.StringIO()
    moesaic_generate.show(reader, io.BufferedReader(io.BytesIO(f"{ids[0]}\n".encode())), out)
    assert out.getvalue() == "\N{REPLACEMENT CHARACTER}\n"


def test_mistakes_are_named(tokenizer, run_dir, tmp_path):
    absent = generate_text(tmp_path / "absent", run_dir, "--prompt", "a")
    assert absent.returncode == 2 and "absent does not exist" in absent.stderr
    unknown = generate_text(tokenizer, run_dir, "--prompt", "a", "--end", "<end>")
    assert unknown.returncode == 2 and "has no token '<end>'" in unknown.stderr
    no_program = generate_text(tokenizer, run_dir, "--prompt", "a", "--moesaic", tmp_path / "none")
    assert no_program.returncode == 2 and "none cannot be run" in no_program.stderr
    refused(MISUSE, generate_text(tokenizer, run_dir, "--prompt", "a", "--top-p", "2"), "top-p")
