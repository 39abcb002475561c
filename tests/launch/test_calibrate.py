"""moesaic calibrate: what it prints and writes, as threads and under mpirun. No time is looked at but for being one."""

import json
import re

import pytest
from program import FAILURE, MISUSE, moesaic, refused

METHODS = ["entropy", "int8", "exponent_reuse", "residual", "momentum"]


def calibrated(folder, *arguments, mpi_ranks=0):
    """What it printed, and the JSON that it wrote."""
    file = folder / "calibration.json"
    ran = moesaic("calibrate", "--seconds", 0.1, "--json", file, *arguments, mpi_ranks=mpi_ranks)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    assert f"written to {file}" in ran.stdout
    return ran.stdout, json.loads(file.read_text())


def numbers_of(line):
    return [float(word) for word in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", line)]


def row(shown, name):
    (line,) = [line for line in shown.splitlines() if re.match(rf"  {name}( \(lossy\))?  ", line)]
    return line


def test_threads_measure_links_and_coders(tmp_path):
    shown, result = calibrated(tmp_path, "--ranks", 4, "--ranks-per-node", 2)
    assert (result["format"], result["version"]) == ("moesaic calibration", 2)
    assert result["node_of_rank"] == [0, 0, 1, 1] and result["between_measured"] is True
    assert shown.startswith("4 ranks on 2 nodes, ")
    for name, link in {"between nodes": result["between"], "inside a node": result["inside"]}.items():
        line = row(shown, name)
        microseconds, megabits = numbers_of(line)[:2]
        assert microseconds == pytest.approx(1e6 * link["seconds_per_message"], abs=0.06)
        assert megabits == pytest.approx(8e-6 / link["seconds_per_byte"], rel=0.01, abs=0.06)
    assert list(result["codec"]) == METHODS
    for method, rates in {**result["codec"], "their gradients": result["gradients"]}.items():
        expected = [1e-9 * rates[way][when] for way in ("encode", "decode")
                    for when in ("alone_bytes_per_s", "together_bytes_per_s")]
        assert numbers_of(row(shown, method)) == pytest.approx([*expected, rates["bits_per_word"]], abs=0.006)
    assert len(numbers_of(row(shown, "memcpy"))) == 2


def test_it_says_what_a_gate_would_choose_and_why(tmp_path):
    shown, _ = calibrated(tmp_path, "--ranks", 4, "--ranks-per-node", 2)
    rows = [line for line in shown.splitlines() if re.search(r" (node|rank) +\d", line) and "=" in line]
    assert len(rows) == 8  # four sizes, two places for the references
    for line in rows:
        _, raw, coded, *parts, factor = numbers_of(line.replace("x faster", " "))
        assert coded == pytest.approx(sum(parts), abs=0.004)  # the why: what the coded way is made of
        choice = re.search(r"  (raw|momentum), ", line)[1]
        assert choice == ("momentum" if coded < raw else "raw") or abs(coded - raw) < 0.002
        assert factor == pytest.approx(max(raw, coded) / min(raw, coded), rel=0.1, abs=0.06)


def test_processes_of_one_host_are_one_node(tmp_path):
    shown, result = calibrated(tmp_path, mpi_ranks=2)
    assert result["node_of_rank"] == [0, 0] and result["between_measured"] is False
    assert result["between"] == result["inside"]
    assert shown.count("ranks on 1 node") == 1  # rank 0 alone speaks
    assert "not measured: all ranks are on one node" in row(shown, "between nodes")


def test_processes_may_be_counted_as_nodes(tmp_path):
    _, result = calibrated(tmp_path, "--ranks-per-node", 1, mpi_ranks=2)
    assert result["node_of_rank"] == [0, 1] and result["between_measured"] is True


def test_one_rank_has_coders_but_no_links(tmp_path):
    shown, result = calibrated(tmp_path)
    assert "none: there is one rank" in shown and "choice" not in shown
    assert result["inside"] == {"seconds_per_message": 0, "seconds_per_byte": 0}
    assert result["codec"]["momentum"]["decode"]["alone_bytes_per_s"] > 0


@pytest.mark.parametrize("option, value", [("--seconds", "0"), ("--seconds", "soon"), ("--ranks", "0"),
                                           ("--ranks-per-node", "-1")])
def test_options_out_of_range_are_named(option, value):
    refused(MISUSE, moesaic("calibrate", option, value), option, value)


def test_a_folder_that_is_not_there_is_named_before_anything_is_measured(tmp_path):
    refused(MISUSE, moesaic("calibrate", "--json", tmp_path / "no" / "c.json"), "--json", "no is no directory")


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    refused(FAILURE, moesaic("calibrate", "--seconds", 0.1, "--json", tmp_path), tmp_path)
