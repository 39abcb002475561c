"""Text to token files for `moesaic train`: python -m moesaic.tokenize --tokenizer tokenizer.json --output train.bin a.txt b.jsonl

Reads as a stream, writes as a stream: neither the text nor the tokens are ever whole in memory. The output gets its name
when it is complete, and a side file OUTPUT.json that says what is in it. docs/data.md tells the rest.
"""

import argparse
import codecs
import hashlib
import itertools
import json
import os
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

# Text is given to the tokenizer in pieces of about this size, several at a time so that it can use all cores.
PIECE_BYTES = 1 << 20
BATCH_BYTES = 8 << 20
NPY_HEADER_BYTES = 128


class Problem(Exception):
    """What is wrong, for people."""


# ---- the tokenizer ----


def tokenizer_file(path):
    """tokenizer.json itself, or that of a folder."""
    path = Path(path)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise Problem(f"{file} does not exist; --tokenizer takes a tokenizer.json or a folder that has one")
    return file


def load_tokenizer(file):
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises plain Exception
        raise Problem(f"{file} is no tokenizer of Hugging Face's tokenizers package: {error}") from None


def end_of_document(tokenizer, file, asked, none):
    """Name and id of the token after each document; None where --no-eos says so."""
    if none:
        return None, None
    specials = sorted(token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special)
    name = asked or eos_of_config(file.parent / "tokenizer_config.json")
    known = f"; its special tokens: {', '.join(specials) if specials else 'none'}"
    if name is None:
        raise Problem(f"which token ends a document? {file} does not say: give --eos TOKEN or --no-eos{known}")
    number = tokenizer.token_to_id(name)
    if number is None:
        raise Problem(f"the tokenizer has no token {name!r}{known}")
    return name, number


def eos_of_config(file):
    """eos_token of a tokenizer_config.json, where there is one."""
    if not file.is_file():
        return None
    try:
        eos = json.loads(file.read_text(encoding="utf-8")).get("eos_token")
    except (ValueError, AttributeError) as error:
        raise Problem(f"{file} is not what transformers writes: {error}") from None
    return eos.get("content") if isinstance(eos, dict) else eos


# ---- documents ----


# All of these yield (text, whether a document ends here, bytes read).


def not_utf8(file, byte, at):
    return Problem(f"{file}: byte 0x{byte:02x} at {at} is not UTF-8")


def decoded_lines(file, stream):
    at = 0
    for line in stream:
        try:
            yield line.decode("utf-8"), len(line)
        except UnicodeDecodeError as error:
            raise not_utf8(file, line[error.start], at + error.start) from None
        at += len(line)


CUTS_TRIED = 8
CUT_CONTEXT = 256


def places_to_cut(text):
    """From the end: after line ends without other white space beside them, then before spaces after a word. Where the
    usual pre-tokenizers separate."""
    for at in range(len(text) - 1, 1, -1):
        if text[at - 1] == "\n" and not text[at].isspace() and not text[at - 2].isspace():
            yield at
    for at in range(len(text) - 1, 0, -1):
        if text[at] == " " and not text[at - 1].isspace():
            yield at


def place_to_cut(text, ids):
    """Where the tokens of the text are those of its two parts; 0: nowhere that was tried. Nowhere at all where the
    tokenizer puts a prefix before every input (Metaspace, SentencePiece, ByteLevel with add_prefix_space)."""
    for at in itertools.islice(places_to_cut(text), CUTS_TRIED):
        before, after = text[max(0, at - CUT_CONTEXT):at], text[at:at + CUT_CONTEXT]
        if ids(before + after) == ids(before) + ids(after):
            return at
    return 0


def whole_text(file, stream, ids):
    """The file is one document, in pieces where it may be cut. ids(text): its tokens."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, at = "", 0
    while True:
        block = stream.read(PIECE_BYTES)
        kept = decoder.getstate()[0]  # the beginning of a character
        try:
            text += decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise not_utf8(file, (kept + block)[error.start], at - len(kept) + error.start) from None
        at += len(block)
        if not block:
            break
        cut = place_to_cut(text, ids)
        yield text[:cut], False, len(block)
        text = text[cut:]
    yield text, at > 0, 0


def lines_of_text(file, stream):
    for line, size in decoded_lines(file, stream):
        text = line.rstrip("\r\n")
        yield text, bool(text), size


def documents_of_jsonl(file, stream, field):
    """One document per line: the string under `field`."""
    for number, (line, size) in enumerate(decoded_lines(file, stream), 1):
        if not line.strip():
            yield "", False, size
            continue
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise Problem(f"{file}:{number}: not JSON: {error}") from None
        if not isinstance(entry, dict):
            raise Problem(f"{file}:{number}: a JSON {type(entry).__name__}, expected an object with {field!r}")
        if field not in entry:
            raise Problem(f"{file}:{number}: no field {field!r}; there is {', '.join(map(repr, entry)) or 'none'} (--field)")
        if not isinstance(entry[field], str):
            raise Problem(f"{file}:{number}: field {field!r} is a {type(entry[field]).__name__}, expected a string")
        try:
            entry[field].encode("utf-8")
        except UnicodeEncodeError as error:
            raise Problem(f"{file}:{number}: field {field!r} has half of a surrogate pair at {error.start}, which is no "
                          "character") from None
        yield entry[field], bool(entry[field]), size


def documents_of(file, options):
    with open(file, "rb") as stream:
        if file.suffix in (".jsonl", ".ndjson"):
            yield from documents_of_jsonl(file, stream, options.field)
        else:
            if options.split == "line":
                yield from lines_of_text(file, stream)
            else:
                yield from whole_text(file, stream, options.ids)


def batches(documents):
    """Lists of about BATCH_BYTES."""
    batch, size = [], 0
    for document in documents:
        batch.append(document)
        size += document[2]
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# ---- output ----


class TokenFile:
    """Written under a temporary name beside `path`; finish() gives it its own. Leaving the `with` without that removes it."""

    def __init__(self, path, dtype):
        self.path = path
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.num_tokens = 0
        self.temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self.file = open(self.temporary, "xb")
        if self.path.suffix == ".npy":
            self.file.write(self.npy_header())

    def npy_header(self):
        text = repr({"descr": self.dtype.str, "fortran_order": False, "shape": (self.num_tokens,)})
        length = NPY_HEADER_BYTES - 10
        return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"

    def write(self, ids):
        self.file.write(np.asarray(ids, dtype=self.dtype).tobytes())
        self.num_tokens += len(ids)

    def finish(self):
        if self.path.suffix == ".npy":
            self.file.seek(0)
            self.file.write(self.npy_header())
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        os.replace(self.temporary, self.path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.temporary.unlink(missing_ok=True)


def side_file(path):
    return path.with_name(path.name + ".json")


def write_side_file(path, content):
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


# ---- all of it ----


def check_files(options):
    output = options.output
    if output.suffix not in (".bin", ".npy"):
        raise Problem(f"--output is {output}, expected a name that ends in .bin or .npy")
    if not output.parent.is_dir():
        raise Problem(f"the folder of --output, {output.parent}, does not exist")
    if output.exists() and not options.force:
        raise Problem(f"{output} exists; give another --output, or --force to replace it")
    for file in options.inputs:
        if not file.is_file():
            raise Problem(f"{file} {'is no file' if file.exists() else 'does not exist'}")


def tokenize(options):
    """Writes the files; returns what the side file holds."""
    check_files(options)
    file = tokenizer_file(options.tokenizer)
    tokenizer = load_tokenizer(file)
    eos, eos_id = end_of_document(tokenizer, file, options.eos, options.no_eos)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    options.ids = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    dtype = "uint16" if vocab_size <= 1 << 16 else "uint32"
    num_documents = 0
    total = sum(input_file.stat().st_size for input_file in options.inputs)
    with TokenFile(options.output, dtype) as output, tqdm(
            total=total, unit="B", unit_scale=True, desc="tokenize",
            disable=options.quiet or not sys.stderr.isatty()) as progress:
        for input_file in options.inputs:
            for batch in batches(documents_of(input_file, options)):
                encoded = tokenizer.encode_batch([text for text, _, _ in batch], add_special_tokens=False)
                for encoding, (_, ends, size) in zip(encoded, batch):
                    output.write(encoding.ids + ([eos_id] if ends and eos is not None else []))
                    num_documents += ends
                    progress.update(size)
        if output.num_tokens == 0:
            raise Problem("the input has no text, so there are no tokens")
        # A side file of the file that was there before must not be taken for that of the new one.
        side_file(options.output).unlink(missing_ok=True)
        output.finish()
    content = {
        "format": "moesaic tokens",
        "vocab_size": vocab_size,
        "dtype": dtype,
        "num_tokens": output.num_tokens,
        "num_documents": num_documents,
        "eos_token": eos,
        "eos_id": eos_id,
        "tokenizer_sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "inputs": [str(input_file) for input_file in options.inputs],
    }
    write_side_file(side_file(options.output), content)
    return content


def parse(arguments):
    parser = argparse.ArgumentParser(prog="moesaic.tokenize", description="Text to token files for `moesaic train`.")
    parser.add_argument("inputs", nargs="+", type=Path, metavar="FILE",
                        help="text in UTF-8, or .jsonl / .ndjson with one document per line")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json, or a folder that has one")
    parser.add_argument("--output", required=True, type=Path,
                        help="FILE.bin (raw) or FILE.npy; uint16 where the vocabulary fits, else uint32")
    parser.add_argument("--field", default="text", help="of a .jsonl line: the key of its text (default: text)")
    parser.add_argument("--split", choices=("file", "line"), default="file",
                        help="what a document is in a text file: all of it (default) or each line")
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--eos", help="token after each document (default: eos_token of tokenizer_config.json)")
    end.add_argument("--no-eos", action="store_true", help="nothing between documents")
    parser.add_argument("--force", action="store_true", help="replace an output that exists")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    try:
        wrote = tokenize(options)
    except Problem as problem:
        print(f"moesaic.tokenize: error: {problem}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"moesaic.tokenize: error: {error.filename or options.output}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("moesaic.tokenize: interrupted; nothing was written", file=sys.stderr)
        return 130
    print(f"{options.output}: {wrote['num_tokens']} tokens of {wrote['num_documents']} documents, {wrote['dtype']}; "
          f"model.vocab_size = {wrote['vocab_size']}, data.format = "
          f"\"{'npy' if options.output.suffix == '.npy' else wrote['dtype']}\"")
    return 0


if __name__ == "__main__":
    sys.exit(main())
