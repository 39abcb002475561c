"""Text from a model that was trained on the tokens of a Hugging Face tokenizer.

python -m moesaic.generate --tokenizer tokenizer.json --run-dir runs/a --prompt "Once upon a time" [options of moesaic generate]

`moesaic generate` takes and shows the ids of such tokens; this turns text into ids, and the ids that come back into text, as
they come.
"""

import argparse
import codecs
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from moesaic.tokenize import Problem, load_tokenizer, tokenizer_file

BUILT = Path(__file__).resolve().parents[2] / "build" / "release" / "moesaic"


def program(given):
    """The moesaic to run: the one given, that of this repository, or the one on the PATH."""
    found = given or (str(BUILT) if BUILT.exists() else shutil.which("moesaic"))
    if found is None or not os.access(found, os.X_OK):
        raise Problem(f"{found or BUILT} cannot be run: give --moesaic FILE, or build it with `make build`")
    return found


class Decoder:
    """Text of ids that come one by one. What might change with the next one waits: half a character, or a merged space."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.ids = []
        self.shown = ""

    def add(self, token):
        self.ids.append(token)
        text = self.tokenizer.decode(self.ids, skip_special_tokens=False)
        return "" if text.endswith("\N{REPLACEMENT CHARACTER}") else self.rest(text)

    def finish(self):
        return self.rest(self.tokenizer.decode(self.ids, skip_special_tokens=False))

    def rest(self, text):
        new, self.shown = text[len(self.shown):], text
        return new


def words_of(stream):
    """The words of a text stream, each as soon as it is complete, and the newlines between as words of their own."""
    read = codecs.getincrementaldecoder("utf-8")()
    word = ""
    while piece := stream.read1(65536):
        for char in read.decode(piece):
            if not char.isspace():
                word += char
                continue
            if word:
                yield word
            word = ""
            if char == "\n":
                yield char


def show(tokenizer, stream, out):
    """Lines of ids become text; what else there is, labels of prompts, stays as it is."""
    decoder, others = Decoder(tokenizer), []
    for word in words_of(stream):
        if word == "\n":
            out.write((" ".join(others) if others else decoder.finish()) + "\n")
            decoder, others = Decoder(tokenizer), []
        elif others or not word.isdigit():
            others.append(word)
        else:
            out.write(decoder.add(int(word)))
        out.flush()


def arguments(argv):
    parser = argparse.ArgumentParser(prog="python -m moesaic.generate", description=__doc__.split("\n\n")[0],
                                     epilog="All other options are those of `moesaic generate`.")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json, or a folder that has one")
    parser.add_argument("--prompt", action="append", required=True, help="text to continue; may be repeated")
    parser.add_argument("--end", metavar="TOKEN", action="append", default=[],
                        help="a token that ends a prompt, such as <|endoftext|>; may be repeated")
    parser.add_argument("--moesaic", metavar="FILE", help="the program (default: the one built here, or on the PATH)")
    return parser.parse_known_args(argv)


def run(argv):
    options, others = arguments(argv)
    file = tokenizer_file(options.tokenizer)
    tokenizer = load_tokenizer(file)
    for name in options.end:
        number = tokenizer.token_to_id(name)
        if number is None:
            raise Problem(f"the tokenizer {file} has no token {name!r}")
        others += ["--end-token", str(number)]
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        prompts.write_text("".join(
            json.dumps({"prompt": " ".join(map(str, tokenizer.encode(text, add_special_tokens=False).ids))}) + "\n"
            for text in options.prompt))
        with subprocess.Popen([program(options.moesaic), "generate", "--prompts-file", str(prompts), *others],
                              stdout=subprocess.PIPE) as process:
            show(tokenizer, process.stdout, sys.stdout)
        return process.returncode


def main(argv=None):
    try:
        return run(argv)
    except Problem as problem:
        print(f"moesaic.generate: error: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
