#!/usr/bin/env python3
"""layering.py [SOURCE_ROOT]: the rules of the house that an include or a call can break.

    python3 tests/structure/layering.py            # checks src/moesaic beside it

A folder of src/moesaic is a room. A room includes only rooms that its row of ROOMS names; rooms that must outlive any
one framework never include torch; only the command line prints, exits or reads the environment; a header opens with a
comment and says #pragma once. Prints one line per violation and exits 1 if there are any.
"""

import re
import sys
from pathlib import Path

ALL_ABOVE = object()

# The table of docs/architecture.md, top to bottom: (room, rooms it may use, may it include torch).
ROOMS = [
    ("core", [], False),
    ("comm", ["core"], False),
    ("kernels", ["core"], False),
    ("codec", ["core", "kernels"], False),
    ("routing", ["core", "kernels"], False),
    ("placement", ["core", "routing"], False),
    ("cost", ["core", "comm", "codec"], False),
    ("exchange", ["core", "comm", "kernels", "routing", "placement", "cost"], False),
    ("simulate", ["core", "comm", "exchange", "routing", "cost", "codec", "placement"], False),
    ("nn", ALL_ABOVE, True),
    ("shard", ALL_ABOVE, True),
    ("interop", ALL_ABOVE, True),
    ("train", ALL_ABOVE, True),
    ("infer", ALL_ABOVE, True),
    ("cli", ALL_ABOVE, True),
]

HEADERS = {".h", ".cuh"}
SOURCES = HEADERS | {".cc", ".cu"}
TORCH_FOLDERS = {"torch", "ATen", "c10", "caffe2"}

# Not after a dot, an arrow, a name or its own scope: transport.abort() and Pool::exit() are somebody else's functions.
FREE = r"(?:\bstd::|(?<![\w:])::|(?<![\w.:>~]))"
LIBRARY_RULES = [
    ("reads or changes the environment", FREE + r"(?:secure_)?(?:getenv|setenv|unsetenv|putenv)\s*\(|\benviron\b"),
    ("prints", r"\bstd::(?:cout|cerr|clog)\b|\b(?:stdout|stderr)\b|#\s*include\s*<iostream>"),
    ("prints", FREE + r"v?printf\s*\(|" + FREE + r"(?:puts|putchar|perror)\s*\("),
    ("prints", r"\bfmt::print(?:ln)?\s*\(\s*\"|\bspdlog::(?:trace|debug|info|warn|error|critical)\s*\("),
    ("ends the process", FREE + r"(?:_exit|_Exit|quick_exit|exit)\s*\(\s*[^)\s]"),
    ("ends the process", FREE + r"(?:abort|terminate)\s*\(\s*\)"),
]
LIBRARY_RULES = [(what, re.compile(pattern)) for what, pattern in LIBRARY_RULES]
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')

# Comments, strings and characters, in the order in which the first of them begins.
LEXEMES = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^()\s\\]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'',
    re.DOTALL,
)


def may_use():
    """room -> (rooms it may include, may it include torch)."""
    rules = {}
    for room, uses, torch in ROOMS:
        rules[room] = (set(rules) if uses is ALL_ABOVE else set(uses), torch)
    return rules


def without_comments(text, keep_strings):
    """The text with comments blanked (strings too unless kept); line numbers stay."""

    def blank(match):
        lexeme = match.group(0)
        if lexeme.startswith("/"):
            return re.sub(r"[^\n]", " ", lexeme)
        if keep_strings:
            return lexeme
        return lexeme[0] + re.sub(r"[^\n]", " ", lexeme[1:-1]) + lexeme[-1]

    return LEXEMES.sub(blank, text)


def includes(text):
    """(line number, path as written) of every #include."""
    for number, line in enumerate(without_comments(text, keep_strings=True).splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) or match.group(2)


def room_of_include(path, file, root):
    """The room that an include reaches, or None where it is not one of ours."""
    if path.startswith("moesaic/"):
        return path.split("/")[1]
    beside = (file.parent / path).resolve()  # "x.h", "../nn/stage.h"
    if beside.is_file() and beside.is_relative_to(root):
        return beside.relative_to(root).parts[0]
    return None


def check_file(file, room, root, rules):
    text = file.read_text(encoding="utf-8")
    name = file.relative_to(root.parent)
    allowed, torch = rules[room]
    for number, path in includes(text):
        other = room_of_include(path, file, root)
        if other is not None and other != room and other not in allowed:
            listed = ", ".join(r for r, _, _ in ROOMS if r in allowed) or "no other room"
            yield f"{name}:{number}: {room} includes {path}; it may use {listed}"
        if path.split("/")[0] in TORCH_FOLDERS and not torch:
            yield f"{name}:{number}: {room} includes {path}; it must not include torch"
    if room != "cli":
        for number, line in enumerate(without_comments(text, keep_strings=False).splitlines(), 1):
            for what, pattern in LIBRARY_RULES:
                if pattern.search(line):
                    yield f"{name}:{number}: {room} {what}; only cli may: {line.strip()}"
    if file.suffix in HEADERS:
        if not text.startswith("//"):
            yield f"{name}:1: a header opens with a comment: what it does, collective or local, errors"
        # Highway's per-target headers are read once per instruction set: HWY_TARGET_TOGGLE guards them instead.
        if not re.search(r"^#pragma once$|^#if.*\bHWY_TARGET_TOGGLE\b", text, re.MULTILINE):
            yield f"{name}:1: no #pragma once"


def check_tree(root):
    """(number of files seen, violations) of a folder laid out like src/moesaic."""
    root = Path(root).resolve()
    rules = may_use()
    files = sorted(f for f in root.rglob("*") if f.suffix in SOURCES)
    violations = []
    for file in files:
        room = file.relative_to(root).parts[0]
        if room in rules:
            violations.extend(check_file(file, room, root, rules))
        else:
            violations.append(f"{file.relative_to(root.parent)}:1: {room} is not a room of the table in layering.py")
    if not files:
        violations.append(f"{root}: no source files")
    return len(files), violations


def main(arguments):
    root = arguments[0] if arguments else Path(__file__).resolve().parents[2] / "src" / "moesaic"
    num_files, violations = check_tree(root)
    for violation in violations:
        print(violation)
    print(f"layering: {num_files} files, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
