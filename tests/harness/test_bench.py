"""The moesaic_bench binary: its figures file, its names, its errors. Never its times."""

import json
import os
import subprocess

BENCH = os.path.join(os.environ["MOESAIC_BUILD"], "moesaic_bench")


def bench(*arguments):
    return subprocess.run([BENCH, *arguments], capture_output=True, text=True, timeout=240)


def test_list_names_every_benchmark_with_its_sizes():
    listed = bench("list")
    assert listed.returncode == 0
    assert "kernels" in listed.stdout and "small, medium, large" in listed.stdout


def test_kernels_writes_verified_rows(tmp_path):
    file = tmp_path / "kernels.json"
    ran = bench("run", "kernels", "--size", "small", "--json", str(file))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads(file.read_text())
    assert set(result) == {"name", "machine", "rows"} and result["name"] == "kernels"
    assert {"cpu", "cores", "flags", "compiler", "build_type", "threads"} <= set(result["machine"])
    assert len(result["rows"]) > 100
    for row in result["rows"]:
        assert set(row) == {"case", "variant", "metric", "value", "unit", "verified"}
        assert row["verified"] is True and row["value"] > 0, row
    cases = {row["case"].split()[0] for row in result["rows"]}
    assert {"permute_rows", "ordered_weighted_sum", "swiglu_backward", "adamw", "convert", "top_k"} <= cases
    for case in {row["case"] for row in result["rows"]}:
        variants = {row["variant"] for row in result["rows"] if row["case"] == case}
        assert "moesaic" in variants and len(variants) == 2, case


def test_an_unknown_name_or_size_lists_the_known_and_the_nearest():
    unknown = bench("run", "kernel")
    assert unknown.returncode == 2
    assert "'kernel' is unknown" in unknown.stderr and "did you mean 'kernels'" in unknown.stderr
    size = bench("run", "kernels", "--size", "lage")
    assert size.returncode == 2
    assert "small, medium, large" in size.stderr and "did you mean 'large'" in size.stderr


def test_a_figures_file_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    refused = bench("run", "kernels", "--json", str(tmp_path / "absent" / "k.json"))
    assert refused.returncode == 2 and "cannot be written" in refused.stderr
    assert refused.stdout == ""


def test_no_arguments_is_misuse():
    assert bench().returncode == 2
