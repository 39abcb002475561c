"""The moesaic_bench binary: its figures file, its names, its errors. Never its times."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = os.path.join(os.environ["MOESAIC_BUILD"], "moesaic_bench")


def bench(*arguments):
    return subprocess.run([BENCH, *arguments], capture_output=True, text=True, timeout=600)


def rows_of(file):
    """The rows, after a look at the form of everything."""
    result = json.loads(file.read_text())
    assert set(result) == {"name", "machine", "rows"}
    assert {"cpu", "cores", "flags", "compiler", "build_type", "threads"} <= set(result["machine"])
    for row in result["rows"]:
        assert set(row) - {"note"} == {"case", "variant", "metric", "value", "unit", "verified"}
        assert row["case"] == " ".join(row["case"].split()) and row["variant"] and row["metric"] and row["unit"]
        if not row["verified"]:
            assert row["value"] is None, row
        elif row["metric"] == "kept_bytes_per_weight":  # some methods keep nothing
            assert row["value"] >= 0, row
        else:
            assert row["value"] is not None and row["value"] > 0, row
    return result["rows"]


def run_tiny(name, tmp_path, *arguments):
    file = tmp_path / f"{name}.json"
    ran = bench("run", name, "--size", "tiny", "--json", str(file), *arguments)
    assert ran.returncode != 2, ran.stdout + ran.stderr  # then there is no file to look at
    return ran, rows_of(file)


def test_list_names_every_benchmark_with_its_sizes():
    listed = bench("list")
    assert listed.returncode == 0
    names = {line.split()[0] for line in listed.stdout.splitlines()}
    assert names == {"kernels", "moe_layer", "gates", "collectives", "overlap", "train_tokens", "codec", "gather", "exchange",
                     "exchange_step", "routes", "step"}
    assert "small, medium, large" in listed.stdout


def test_kernels_writes_verified_rows(tmp_path):
    file = tmp_path / "kernels.json"
    ran = bench("run", "kernels", "--size", "small", "--json", str(file))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = rows_of(file)
    assert len(rows) > 100 and all(row["verified"] for row in rows)
    cases = {row["case"].split()[0] for row in rows}
    assert {"permute_rows", "ordered_weighted_sum", "swiglu_backward", "adamw", "convert", "top_k"} <= cases
    for case in {row["case"] for row in rows}:
        variants = {row["variant"] for row in rows if row["case"] == case}
        assert "moesaic" in variants and len(variants) == 2, case


def values(rows, case, metric):
    return {row["variant"]: row["value"] for row in rows if row["case"] == case and row["metric"] == metric}


OUTSIDE = {"deepspeed", "torchtitan"}  # in an environment of their own, which is not everywhere


def test_moe_layer_times_both_passes_beside_floors_and_peers(tmp_path):
    ran, rows = run_tiny("moe_layer", tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    here = {"moesaic", "floor_mm", "floor_best", "transformers_eager", "transformers_grouped_mm"}
    for case in ("tiny 40 fp32 forward", "tiny 40 fp32 forward+backward", "tiny 40 bf16 forward+backward 2 threads"):
        times = values(rows, case, "time_us")
        assert here <= set(times) <= here | OUTSIDE, case
        assert all(times[variant] for variant in here)
        over = {variant for variant in times if times[variant]} - {"floor_mm"}
        assert set(values(rows, case, "time_over_floor")) == over
        ours = {row["metric"]: row for row in rows if row["case"] == case and row["variant"] == "moesaic"}
        assert {f"speedup_over_{peer}" for peer in over if peer not in here or peer.startswith("transformers")} < set(ours)
        assert times[ours["speedup_over_best_peer"]["note"]] == min(times[peer] for peer in over - {"moesaic", "floor_best"})
    times = values(rows, "tiny_switch 40 fp32 forward+backward", "time_us")  # of the peers only DeepSpeed has such a layer
    assert set(times) == {"moesaic", "floor_mm", "floor_best", "deepspeed"} and times["moesaic"]
    for row in rows:  # absent ones say why
        assert row["verified"] or (row["variant"] in OUTSIDE and row["note"].startswith("absent: ")), row


def test_moe_layer_without_peers_says_why_and_times_the_rest(tmp_path):
    ran, rows = run_tiny("moe_layer", tmp_path, "--python", str(tmp_path / "absent"))
    assert ran.returncode == 0 and "ABSENT" in ran.stdout
    why = {row["variant"]: row["note"] for row in rows if row["case"] == "tiny 40 fp32 forward" and not row["verified"]}
    assert set(why) == {"deepspeed", "transformers_eager", "transformers_grouped_mm"}
    assert all("cannot start" in note for note in why.values()) and "setup.sh deepspeed" in why["deepspeed"]
    assert not [row for row in rows if row["metric"].startswith("speedup")]
    skewed = "tiny 40 fp32 forward+backward skewed 2 threads"
    assert set(values(rows, skewed, "time_us")) == {"moesaic", "moesaic_balanced"}
    assert set(values(rows, skewed, "time_over_balanced")) == {"moesaic"}


def test_a_peer_of_moe_layer_with_other_results_has_no_time(tmp_path):
    program = tmp_path / "python"  # the peer's own program, with one line more
    peers = tmp_path / "peers"
    shutil.copytree(ROOT / "bench" / "peers", peers)
    wrong = peers / "moe_transformers.py"
    wrong.write_text(wrong.read_text().replace("norm_topk_prob=True", "norm_topk_prob=False"))
    program.write_text(f'#!/bin/sh\nshift\nexec "{sys.executable}" "{peers}/moe_layers.py" "$@"\n')
    program.chmod(0o755)
    ran, rows = run_tiny("moe_layer", tmp_path, "--python", str(program))
    assert ran.returncode == 1 and "WRONG: transformers_grouped_mm: the output differs by" in ran.stdout
    times = values(rows, "tiny 40 fp32 forward", "time_us")
    assert times["moesaic"] and times["transformers_grouped_mm"] is None and times["transformers_eager"] is None


def test_gates_times_every_gate_against_plain_pytorch(tmp_path):
    ran, rows = run_tiny("gates", tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert {row["variant"] for row in rows} == {"moesaic", "pytorch"} and all(row["verified"] for row in rows)
    timed = {row["case"].rsplit(" ", 3)[0] for row in rows}
    assert {"switch", "gshard", "top_k", "top_k of groups", "base", "hash", "expert_choice"} <= timed


def test_collectives_are_verified_as_threads_and_under_mpi(tmp_path):
    ran, rows = run_tiny("collectives", tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    cases = {tuple(row["case"].split()[:3]) for row in rows}
    both = ("all_gather_v", "reduce_scatter_v", "all_to_all_v")
    assert cases == ({("inproc", name, world) for name in both for world in ("W2", "W4")}
                     | {("mpi", name, "W2") for name in (*both, "broadcast", "all_reduce")})
    assert {row["variant"] for row in rows} == {"moesaic", "memcpy", "mpi_native"}


def test_overlap_gives_the_same_losses_and_both_times(tmp_path):
    ran, rows = run_tiny("overlap", tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    steps = {(row["case"], row["variant"]) for row in rows if row["metric"] == "step_us"}
    cases = {f"{where} W2 {experts}{link}" for experts in ("gather", "exchange")
             for where, link in (("inproc", ""), ("inproc", " emulated 1gbit"), ("mpi", ""))}
    chunks = ("inproc W2 chunks", "inproc W2 chunks emulated 1gbit")
    assert steps == ({(case, variant) for case in cases for variant in ("overlap", "no_overlap")}
                     | {(case, variant) for case in chunks for variant in ("4_chunks", "1_chunk")})


def test_train_tokens_compares_with_the_pytorch_model(tmp_path):
    ran, rows = run_tiny("train_tokens", tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    variants = {row["variant"] for row in rows if row["metric"] == "tokens_per_s"}
    assert variants == {"moesaic", "transformers_grouped_mm", "transformers_eager"}


@pytest.fixture
def cluster():
    """Skips, with the reason, where this machine cannot make hosts."""
    able = subprocess.run([sys.executable, ROOT / "tools" / "cluster", "up", "--hosts", "1", "--rate", "1gbit", "--hold", "--name",
                           f"test_able_{os.getpid()}"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    if able.returncode == 3:
        pytest.skip(able.stderr.strip())
    assert able.returncode == 0, able.stderr


def test_add_keeps_the_cases_of_an_earlier_run_of_this_machine(tmp_path):
    file = tmp_path / "figures.json"
    again = ["run", "overlap", "--size", "tiny", "--json", str(file)]
    assert bench(*again, "--add").returncode == 0  # to nothing yet
    before = json.loads(file.read_text())
    case = before["rows"][0]["case"]
    renamed = [{**row, "case": "of another day"} for row in before["rows"] if row["case"] == case]
    file.write_text(json.dumps({**before, "rows": renamed + before["rows"]}))
    assert bench(*again, "--add").returncode == 0
    rows = json.loads(file.read_text())["rows"]
    assert rows[:len(renamed)] == renamed and len(rows) == len(renamed) + len(before["rows"])

    kept = json.dumps({**before, "machine": {**before["machine"], "cpu": "abacus"}})
    file.write_text(kept)
    refused = bench(*again, "--add")
    assert refused.returncode == 2 and "has machine" in refused.stderr and "abacus" in refused.stderr
    assert file.read_text() == kept


def test_step_times_ours_and_fsdp2_on_one_cluster(tmp_path, cluster):
    ours, peer = {"raw", "momentum entropy gradients", "auto no overlap"}, "fsdp2_prefetch"
    ran, rows = run_tiny("step", tmp_path, "--cluster", "--variants", ",".join([*ours, peer]))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert {row["case"] for row in rows} == {"2x1 1gbit 32"}
    for metric in ("step_us", "nic_bytes"):
        assert {row["variant"] for row in rows if row["metric"] == metric} == {*ours, peer}
    for metric in ("gather_background_us", "speedup_over_best_fsdp2"):
        assert {row["variant"] for row in rows if row["metric"] == metric} == ours
    coded = {row["metric"]: row["value"] for row in rows if row["variant"] == "momentum entropy gradients"}
    assert 0 < coded["bits_per_weight"] < 16 and 0 < coded["bits_per_gradient"] < 16 and 0 < coded["kept_bytes_per_weight"] < 5
    assert not any(row["metric"].startswith(("bits_per", "kept")) for row in rows if row["variant"] == "raw")


def test_gather_moves_the_claimed_bytes_by_every_method_beside_gloo_and_open_mpi(tmp_path, cluster):
    ran, rows = run_tiny("gather", tmp_path, "--cluster", "--traces", str(tmp_path / "traces"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert {row["case"] for row in rows} == {"2x1 1gbit lr4e-4 step5"}
    for metric in ("time_us", "nic_bytes"):
        assert {row["variant"] for row in rows if row["metric"] == metric} == METHODS | {"momentum rank", "auto", "gloo", "open_mpi"}
    figures = {(row["variant"], row["metric"]): row["value"] for row in rows}
    assert figures["raw", "bits_per_weight"] == 16 > figures["momentum", "bits_per_weight"]
    assert figures["momentum", "nic_bytes"] < figures["entropy", "nic_bytes"] < figures["raw", "nic_bytes"]
    assert 0 < figures["int8", "relative_error"] < 0.02
    assert {variant for variant, metric in figures if metric == "relative_error"} == {"int8"}  # the others are exact
    assert {"speedup_over_" + other for other in ("raw", "entropy", "int8", "exponent_reuse", "gloo", "open_mpi")} == {
        metric for variant, metric in figures if variant == "momentum" and metric.startswith("speedup")}


def test_exchange_moves_the_claimed_bytes_by_every_route_beside_k_copies(tmp_path, cluster):
    ran, rows = run_tiny("exchange", tmp_path, "--cluster")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    cases = [f"2x2 1gbit 256 tokens top-4 {routing}" for routing in ("uniform", "recorded")]
    assert {row["case"] for row in rows} == set(cases)
    routes = {"flat", "leader", "rail", "rail_dedup"}
    for case in cases:
        figures = {(row["variant"], row["metric"]): row["value"] for row in rows if row["case"] == case}
        for metric in ("time_us", "nic_bytes"):
            assert {variant for variant, has in figures if has == metric} == routes | {"auto", "k_copies"}
        assert figures["rail_dedup", "nic_bytes"] < figures["flat", "nic_bytes"] < figures["k_copies", "nic_bytes"]
        took = {metric.removeprefix("took_"): share for (_, metric), share in figures.items() if metric.startswith("took_")}
        assert set(took) <= routes and sum(took.values()) == pytest.approx(1)


def test_exchange_step_is_that_of_the_formula_beside_deepspeed(tmp_path, cluster):
    ran, rows = run_tiny("exchange_step", tmp_path, "--cluster")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    case, ours = "2x1 1gbit 32", {"auto", "auto in one piece", "flat"}
    assert {row["case"] for row in rows} == {case}
    peers = {row["variant"] for row in rows if row["verified"]} - ours  # DeepSpeed is not everywhere
    assert peers <= OUTSIDE
    for metric in ("step_us", "nic_bytes"):
        assert set(values([row for row in rows if row["verified"]], case, metric)) == ours | peers
    assert values(rows, case, "took_flat")["flat"] == 1
    if not peers:
        (why,) = (row["note"] for row in rows if not row["verified"])
        assert why.startswith("absent") and "bench/peers/setup.sh deepspeed installs it" in why


def test_routes_prices_leader_below_flat_where_messages_are_dear(tmp_path):
    ran, rows = run_tiny("routes", tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    cheap, dear = (values(rows, f"4x4 10gbit {us} us 8 tokens top-2", "projected_over_flat") for us in (1, 1000))
    assert set(cheap) == set(dear) == {"leader", "rail", "rail_dedup"}
    assert dear["leader"] < 0.5 < 1 < cheap["leader"]  # of 12 messages to other nodes 3 are left


# In place of DeepSpeed: it leaves zeros.
WRONG_LAYER = """#!{python}
import json, os, sys
import torch
from safetensors.torch import load_file, save_file
job, rank = json.load(open(sys.argv[2])), int(os.environ["RANK"])
inputs = load_file(job["folder"] + "/inputs.safetensors")
of = {{"y": "x", "d_x": "x", "d_w_in": "w_in", "d_w_out": "w_out"}}
results = {{name: torch.zeros_like(inputs[one][:len(inputs[one]) // 2]) for name, one in of.items()}}
save_file(results | {{"d_router": torch.zeros_like(inputs["router"])}}, job["folder"] + f"/results-{{rank}}.safetensors")
for _ in range(job["passes"] if rank == 0 else 0):
    print(json.dumps({{"seconds": 1.0, "nic_bytes": 100}}), flush=True)
"""


def test_a_peer_with_another_layer_has_no_time(tmp_path, cluster):
    peer = tmp_path / "python"
    peer.write_text(WRONG_LAYER.format(python=sys.executable))
    peer.chmod(0o755)
    ran, rows = run_tiny("exchange_step", tmp_path, "--cluster", "--variants", "auto,deepspeed", "--python", str(peer))
    assert ran.returncode == 1
    assert "WRONG: deepspeed: the output differs by" in ran.stdout
    assert all(row["verified"] == (row["variant"] == "auto") for row in rows)


def test_a_peer_with_other_losses_has_no_time(tmp_path, cluster):
    peer = tmp_path / "python"  # on rank 0 alone it speaks
    peer.write_text("#!/bin/sh\n[ $RANK = 0 ] && for step in 16 17; do echo "
                    """'{"step": '$step', "seconds": 1.0, "loss": 3.0, "nic_bytes": 100}'; done; true\n""")
    peer.chmod(0o755)
    ran, rows = run_tiny("step", tmp_path, "--cluster", "--variants", "raw,fsdp2_default", "--layouts", "2x1", "--rounds", "1",
                         "--python", str(peer))
    assert ran.returncode == 1
    assert "WRONG: the loss of step 16 is 3, raw has 5." in ran.stdout
    assert {(row["case"], row["variant"]) for row in rows} == {("2x1 1gbit 32", "raw"), ("2x1 1gbit 32", "fsdp2_default")}
    assert all(row["verified"] == (row["variant"] == "raw") for row in rows)


def test_a_cluster_is_made_only_when_told_and_a_part_that_is_unknown_is_named():
    quiet = bench("run", "step", "--size", "tiny")
    assert quiet.returncode == 2 and "say --cluster" in quiet.stderr
    assert bench("run", "kernels", "--cluster").returncode == 2
    assert bench("run", "step", "--rounds", "1").returncode == 2
    unknown = bench("run", "step", "--cluster", "--size", "tiny", "--variants", "row")
    assert unknown.returncode == 2 and "--variants 'row': expected some of raw, entropy" in unknown.stderr


# In place of the package, which is not everywhere: zlib under ZipNN's names.
ZIPNN = """
import zlib
class ZipNN:
    def __init__(self, input_format, bytearray_dtype, threads, delta_compressed_type=None):
        assert (input_format, bytearray_dtype, threads) == ("byte", "bfloat16", 1)
    def compress(self, data, delta_second_data=None):
        held = delta_second_data or bytes(len(data))
        compressed = zlib.compress(bytes(a ^ b for a, b in zip(data, held)), 1)
        data[:] = bytes(len(data))  # ZipNN spoils what it is given, too
        return compressed
    def decompress(self, data, delta_second_data=None):
        words = zlib.decompress(data)
        return bytearray(a ^ b for a, b in zip(words, delta_second_data or bytes(len(words))))BROKEN
"""
METHODS = {"raw", "entropy", "int8", "exponent_reuse", "residual", "momentum"}


def python_with_zipnn(tmp_path, broken=""):
    (tmp_path / "zipnn.py").write_text(ZIPNN.replace("BROKEN", broken))
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return program


def test_codec_records_once_and_measures_every_method_and_the_peer(tmp_path):
    arguments = ("--traces", str(tmp_path / "traces"), "--python", str(python_with_zipnn(tmp_path)))
    ran, rows = run_tiny("codec", tmp_path, *arguments)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "recorded in" in ran.stdout and sorted(os.listdir(tmp_path / "traces")) == ["tiny"]
    assert {row["case"] for row in rows} == {"lr4e-4 step5", "lr1e-5 step5"}
    for case in {row["case"] for row in rows}:
        figures = {(row["variant"], row["metric"]): row["value"] for row in rows if row["case"] == case}
        for variant in METHODS | {"zipnn", "zipnn_delta"}:
            assert {"bits_per_weight", "encode_gbps", "decode_gbps", "encode_over_memcpy", "decode_over_memcpy"} <= {
                metric for name, metric in figures if name == variant}
        assert {variant for variant, metric in figures if metric == "kept_bytes_per_weight"} == METHODS
        assert {variant for variant, metric in figures if metric == "encode_kept_tables_gbps"} == {"residual", "momentum"}
        assert 0 < figures["trace", "entropy_given_previous"] <= figures["trace", "entropy_given_exponent"]
        assert figures["momentum", "bits_per_weight"] < figures["entropy", "bits_per_weight"] < 16
        assert figures["zipnn_delta", "bits_per_weight"] < figures["zipnn", "bits_per_weight"]
    again, _ = run_tiny("codec", tmp_path, *arguments)
    assert again.returncode == 0 and "recorded in" not in again.stdout


def test_codec_without_the_peer_says_so_and_one_that_is_wrong_ends_it(tmp_path):
    traces = ("--traces", str(tmp_path / "traces"))
    ran, rows = run_tiny("codec", tmp_path, *traces, "--python", str(tmp_path / "absent"))
    assert ran.returncode == 0 and "no figures of ZipNN" in ran.stderr and "setup.sh zipnn" in ran.stderr
    assert METHODS < {row["variant"] for row in rows}
    wrong = python_with_zipnn(tmp_path, broken="[::-1]")
    ran = bench("run", "codec", "--size", "tiny", *traces, "--python", str(wrong))
    assert ran.returncode == 2 and "zipnn does not give back what it was given" in ran.stderr
    (tmp_path / "traces" / "tiny" / "recipe.txt").write_text("another")
    ran = bench("run", "codec", "--size", "tiny", *traces)
    assert ran.returncode == 2 and "traces of another recipe" in ran.stderr


def fake_python(tmp_path, answers):
    """In place of the Python that runs the peers: a program that prints `answers` and ends."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(answers) + "\nEND\ncat >/dev/null\n")
    program.chmod(0o755)
    return program


def test_losses_that_differ_get_no_time(tmp_path):
    wrong = ['{"ready": true}'] + ['{"loss": 5.0, "gradient_norm": 1.0}'] * 50
    ran, rows = run_tiny("train_tokens", tmp_path, "--python", str(fake_python(tmp_path, wrong)))
    assert ran.returncode == 1
    assert "WRONG: the loss of step 1 is" in ran.stdout and "transformers_grouped_mm has 5" in ran.stdout
    assert rows and all(not row["verified"] for row in rows)


def test_a_peer_that_cannot_run_says_why(tmp_path):
    absent = fake_python(tmp_path, ['{"error": "ModuleNotFoundError: No module named transformers"}'])
    ran = bench("run", "train_tokens", "--size", "tiny", "--python", str(absent))
    assert ran.returncode == 2
    assert "transformers_grouped_mm: ModuleNotFoundError" in ran.stderr


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
