"""The layering check sees what it is there for: each case is a small tree with one thing wrong, or nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import layering  # noqa: E402

HEADER = "// x.h: says what it does.\n#pragma once\n"


def violations(tmp_path, files):
    root = tmp_path / "moesaic"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return layering.check_tree(root)[1]


def test_allowed_includes_pass(tmp_path):
    assert violations(tmp_path, {
        "core/error.h": HEADER,
        "kernels/sum.cc": '#include "moesaic/core/error.h"\n#include <vector>\n#include "hwy/highway.h"\n',
        "exchange/dispatch.h": HEADER + '#include "moesaic/placement/placement.h"\n#include "moesaic/core/error.h"\n',
        "nn/stage.h": HEADER + '#include <ATen/ATen.h>\n#include "moesaic/exchange/dispatch.h"\n',
        "infer/generate.cc": '#include "moesaic/train/checkpoint.h"\n',
        "cli/main.cc": '#include "moesaic/infer/generate.h"\n#include <iostream>\nint main() { std::cout << 1; exit(2); }\n',
    }) == []


@pytest.mark.parametrize("room, include", [
    ("core", "moesaic/comm/transport.h"),
    ("kernels", "moesaic/comm/transport.h"),
    ("comm", "moesaic/kernels/convert.h"),
    ("routing", "moesaic/placement/placement.h"),
    ("placement", "moesaic/kernels/top_k.h"),
    ("codec", "moesaic/comm/transport.h"),
    ("cost", "moesaic/kernels/convert.h"),
    ("exchange", "moesaic/codec/codec.h"),
    ("exchange", "moesaic/nn/stage.h"),
    ("simulate", "moesaic/kernels/convert.h"),
    ("nn", "moesaic/shard/shard.h"),
    ("shard", "moesaic/train/trainer.h"),
    ("interop", "moesaic/train/trainer.h"),
    ("train", "moesaic/infer/generate.h"),
    ("infer", "moesaic/cli/commands.h"),
    ("train", "moesaic/nowhere/x.h"),
])
def test_an_include_against_the_table_is_reported(tmp_path, room, include):
    found = violations(tmp_path, {f"{room}/x.cc": f'// why\n#include "{include}"\n'})
    assert len(found) == 1
    assert f"moesaic/{room}/x.cc:2: {room} includes {include}" in found[0]


@pytest.mark.parametrize("line", [
    "#include <moesaic/nn/stage.h>",
    '  #  include "moesaic/nn/stage.h"',
    '#include "../nn/stage.h"',
    '/* a */ #include "moesaic/nn/stage.h"  // b',
])
def test_every_way_to_write_an_include_is_seen(tmp_path, line):
    found = violations(tmp_path, {"comm/x.cc": line + "\n", "nn/stage.h": HEADER})
    assert len(found) == 1 and "comm includes" in found[0]


@pytest.mark.parametrize("room", [room for room, _, torch in layering.ROOMS if not torch])
@pytest.mark.parametrize("include", ["torch/torch.h", "ATen/ATen.h", "c10/util/Half.h"])
def test_rooms_without_torch_may_not_include_it(tmp_path, room, include):
    found = violations(tmp_path, {f"{room}/x.cc": f"#include <{include}>\n"})
    assert len(found) == 1 and "must not include torch" in found[0]


@pytest.mark.parametrize("line, what", [
    ('auto home = std::getenv("HOME");', "environment"),
    ('setenv("A", "b", 1);', "environment"),
    ("std::cout << 1;", "prints"),
    ("std::cerr << 1;", "prints"),
    ("#include <iostream>", "prints"),
    ('printf("%d", 1);', "prints"),
    ('std::fprintf(stderr, "x");', "prints"),
    ('fmt::print("x");', "prints"),
    ('spdlog::info("x");', "prints"),
    ("std::exit(1);", "ends the process"),
    ("if (bad) exit(EXIT_FAILURE);", "ends the process"),
    ("::_exit(3);", "ends the process"),
    ("std::abort();", "ends the process"),
    ("abort();", "ends the process"),
    ("std::terminate();", "ends the process"),
])
def test_a_library_room_may_not(tmp_path, line, what):
    found = violations(tmp_path, {"train/x.cc": line + "\n"})
    assert len(found) == 1 and what in found[0], found


@pytest.mark.parametrize("line", [
    'transport.abort("rank 1 was killed");',
    "peer->abort(reason);",
    "void MpiTransport::abort(const std::string& reason) noexcept {",
    "virtual void abort(const std::string& reason) noexcept = 0;",
    "// never printf(), never std::exit(1)",
    "/* std::cout */ int x = 0;",
    'throw IoError("exit(1) or abort() in a message, or std::cerr");',
    "std::snprintf(text, sizeof text, format, value);",
    "std::int64_t big = 1'000'000;  // and std::cout",
    "MPI_Abort(MPI_COMM_WORLD, 1);",
    "const char* text = R\"(std::cout << \"x\")\";",
    "fmt::print(file, \"{}\", 1);",
])
def test_lines_that_only_look_like_it_pass(tmp_path, line):
    assert violations(tmp_path, {"comm/x.cc": line + "\n"}) == []


def test_a_header_needs_its_comment_and_pragma(tmp_path):
    found = violations(tmp_path, {
        "core/bare.h": "#pragma once\nint f();\n",
        "core/twice.h": "// twice.h: something.\nint f();\n",
    })
    assert len(found) == 2
    assert "bare.h:1: a header opens with a comment" in found[0]
    assert "twice.h:1: no #pragma once" in found[1]


def test_a_header_read_once_per_instruction_set_has_its_own_guard(tmp_path):
    guard = "#if defined(X_INL_H) == defined(HWY_TARGET_TOGGLE)\n#define X_INL_H\n#endif\n"
    assert violations(tmp_path, {"kernels/x_inl.h": "// x_inl.h: vectors.\n" + guard}) == []
    assert len(violations(tmp_path, {"kernels/x_inl.h": "// no #pragma once, but HWY_TARGET_TOGGLE in words\n"})) == 1


def test_a_folder_outside_the_table_is_reported(tmp_path):
    found = violations(tmp_path, {"utils/x.h": HEADER})
    assert len(found) == 1 and "utils is not a room" in found[0]


def test_an_empty_tree_does_not_pass(tmp_path):
    (tmp_path / "moesaic").mkdir()
    assert len(layering.check_tree(tmp_path / "moesaic")[1]) == 1


def test_the_command_exits_1_and_names_the_line(tmp_path):
    violations(tmp_path, {"comm/x.cc": '#include "moesaic/nn/stage.h"\n'})
    script = Path(layering.__file__)
    run = subprocess.run([sys.executable, script, tmp_path / "moesaic"], capture_output=True, text=True)
    assert run.returncode == 1
    assert "moesaic/comm/x.cc:1:" in run.stdout
