#!/usr/bin/env python3
"""performance.py [--check]: write the tables of docs/performance.md from bench/results/*.json.

A table stands between `<!-- table FILE -->` and `<!-- end -->`; so no figure is typed by hand. --check changes nothing and
exits 1 where a table is not what its file gives.
"""

import json
import re
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]
PAGE = SOURCE / "docs" / "performance.md"
PLACE = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

# Columns in this order, others not at all: minimum and 90th percentile stay in the file.
METRICS = ["time_us", "step_us", "tokens_per_s", "gb_per_s", "gflop_per_s"]
UNITS = {"time_us": "µs", "step_us": "ms per step", "tokens_per_s": "tokens/s", "gb_per_s": "GB/s",
         "gflop_per_s": "GFLOP/s"}


def shown(value, metric):
    if metric == "step_us":
        value /= 1000
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def label(variant):
    """int8, of weights or gradients, alone among ours changes what it carries: a table must not pass over that."""
    return f"{variant} (lossy)" if variant == "int8" else variant


# Of the codec's table: metric, digits.
COLUMNS = [("bits_per_weight", 3), ("encode_gbps", 2), ("encode_kept_tables_gbps", 2), ("decode_gbps", 2),
           ("encode_over_memcpy", 3), ("encode_kept_tables_over_memcpy", 3), ("decode_over_memcpy", 3),
           ("kept_bytes_per_weight", 1)]


def codec_lines(rows):
    """A line per method and step: these have no case of their own, as a codec has sizes beside times."""
    lines = ["| step | method | bits per weight | encode GB/s | with kept tables | decode GB/s | encode / memcpy | with kept tables | "
             "decode / memcpy | kept B per weight |", "| --- " * 10 + "|"]
    for case in dict.fromkeys(row["case"] for row in rows):
        figures = {}
        for row in rows:
            if row["case"] == case:
                figures.setdefault(row["variant"], {})[row["metric"]] = row["value"] if row["verified"] else None
        trace = figures.pop("trace")
        lines.append(f"| **{case}** | {100 * trace['words_changed']:.1f}% of words, {100 * trace['exponents_changed']:.2f}% of "
                     f"exponents changed | H(exponent) {trace['entropy_given_exponent']:.3f}, H(exponent, previous) "
                     f"{trace['entropy_given_previous']:.3f} | | | | | | | |")
        for variant, of in figures.items():
            if None in of.values():
                lines.append(f"| | {label(variant)} | wrong result: no figures | | | | | | | |")
                continue
            cells = [f"{of[metric]:.{digits}f}" if metric in of else ""
                     for metric, digits in COLUMNS]
            lines.append(f"| | {label(variant)} | {' | '.join(cells)} |")
    return lines


# Of `step`: a column's head, its metric, and what turns its figure into the text of a cell.
STEP_COLUMNS = [("s per step", "step_us", lambda us: f"{us / 1e6:.2f}"),
                ("MB on the busiest card", "nic_bytes", lambda n: f"{n / 1e6:.1f}"),
                ("gather: exposed / at work, s", ("gather_exposed_us", "gather_background_us"), None),
                ("reduce: exposed / at work, s", ("reduce_exposed_us", "reduce_background_us"), None),
                ("bits per weight", "bits_per_weight", lambda x: f"{x:.2f}"),
                ("bits per gradient", "bits_per_gradient", lambda x: f"{x:.2f}"),
                ("kept B per weight", "kept_bytes_per_weight", lambda x: f"{x:.2f}"),
                ("over FSDP2's default", "speedup_over_fsdp2_default", lambda x: f"**{x:.2f}**"),
                ("over its best", "speedup_over_best_fsdp2", lambda x: f"**{x:.2f}**")]


# The same of `gather`.
GATHER_COLUMNS = [("ms", "time_us", lambda us: f"{us / 1e3:.1f}"),
                  ("MB on the busiest card", "nic_bytes", lambda n: f"{n / 1e6:.2f}"),
                  ("CPU ms, all ranks", "cpu_us", lambda us: f"{us / 1e3:.0f}"),
                  ("codec ms, slowest rank", "codec_us", lambda us: f"{us / 1e3:.0f}"),
                  ("bits per weight", "bits_per_weight", lambda x: f"{x:.2f}"),
                  ("kept B per weight and rank", "kept_bytes_per_weight", lambda x: f"{x:.2f}"),
                  *((f"over {label(other)}", f"speedup_over_{other}", lambda x: f"**{x:.2f}**")
                    for other in ("raw", "entropy", "int8", "exponent_reuse", "gloo", "open_mpi"))]


# The same of `exchange`.
EXCHANGE_COLUMNS = [("ms", "time_us", lambda us: f"{us / 1e3:.2f}"),
                    ("MB on the busiest card", "nic_bytes", lambda n: f"{n / 1e6:.2f}"),
                    ("time / k copies", "time_over_k_copies", lambda x: f"**{x:.2f}**"),
                    ("bytes / k copies", "nic_bytes_over_k_copies", lambda x: f"{x:.2f}"),
                    ("share of line rate", "line_rate_share", lambda x: f"{x:.2f}"),
                    ("time / best route", "time_over_best_route", lambda x: f"**{x:.2f}**"),
                    *((f"took {route}", f"took_{route}", lambda x: f"{x:.2f}")
                      for route in ("flat", "leader", "rail", "rail_dedup"))]


# The same of `exchange_step`.
EXCHANGE_STEP_COLUMNS = [("ms", "step_us", lambda us: f"{us / 1e3:,.0f}"),
                         ("MB on the busiest card", "nic_bytes", lambda n: f"{n / 1e6:.2f}"),
                         ("over DeepSpeed", "speedup_over_deepspeed", lambda x: f"**{x:.2f}**"),
                         ("bytes / DeepSpeed's", "nic_bytes_over_deepspeed", lambda x: f"{x:.2f}"),
                         *((f"took {route}", f"took_{route}", lambda x: f"{x:.2f}")
                           for route in ("flat", "leader", "rail", "rail_dedup"))]


def variant_lines(rows, columns):
    """A line per case and variant: many variants, and bytes beside times."""
    lines = [f"| case | variant | {' | '.join(head for head, _, _ in columns)} |", "| --- " * (2 + len(columns)) + "|"]
    figures = {}
    for row in rows:
        figures.setdefault((row["case"], row["variant"]), {})[row["metric"]] = row["value"] if row["verified"] else None

    def cell(of, metric, text):
        if isinstance(metric, tuple):
            return " / ".join(f"{of[one] / 1e6:.2f}" for one in metric if one in of)
        return text(of[metric]) if metric in of else ""
    for (case, variant), of in figures.items():
        cells = ["wrong result: no time"] if None in of.values() else [cell(of, metric, text) for _, metric, text in columns]
        lines.append(f"| {case} | {label(variant)} | {' | '.join(cells)} |")
    return lines


def route_lines(rows):
    """Of `routes`, a line per case: a projection, so nothing is a time."""
    lines = ["| case | flat, ms | leader / flat | rail / flat | rail_dedup / flat |", "| --- " * 5 + "|"]
    of = {(row["case"], row["variant"], row["metric"]): row["value"] for row in rows}
    for case in dict.fromkeys(row["case"] for row in rows):
        cells = [of[case, route, "projected_over_flat"] for route in ("leader", "rail", "rail_dedup")]
        lines.append(f"| {case} | {of[case, 'flat', 'projected_us'] / 1e3:.3g} | " +
                     " | ".join(f"**{cell:.2f}**" if cell == min(*cells, 1) else f"{cell:.2f}" for cell in cells) + " |")
    return lines


LAYER_PEERS = ["deepspeed", "transformers_eager", "transformers_grouped_mm", "torchtitan"]


def layer_lines(rows):
    """Of `moe_layer`, a line per case: times over floor_mm, and how many times as fast as each peer ours is."""
    lines = ["| case | ours | floor_mm | ours / floor_mm | floor_best / floor_mm | " + " | ".join(LAYER_PEERS) + " | over the best peer | |",
             "| --- " * (7 + len(LAYER_PEERS)) + "|"]
    for case in dict.fromkeys(row["case"] for row in rows):
        of = {(row["variant"], row["metric"]): row for row in rows if row["case"] == case}

        def value(variant, metric, form, of=of):
            row = of.get((variant, metric))
            return "" if row is None else form.format(row["value"]) if row["verified"] else "wrong"

        def time(variant, of=of):
            row = of.get((variant, "time_us"))
            return "" if row is None else shown(row["value"] / 1000, "ms") + " ms" if row["verified"] else "wrong"

        def peer(variant, of=of):
            if not of.get((variant, "time_us"), {"verified": True})["verified"]:
                return "absent" if of[variant, "time_us"].get("note", "").startswith("absent") else "wrong"
            over = value(variant, "time_over_floor", "{:.2f}")
            return over and f"{over} ({value('moesaic', 'speedup_over_' + variant, '**{:.2f}×**')})"
        best = value("floor_best", "time_over_floor", "{:.2f}")
        extra = [value("moesaic", "time_over_balanced", "**{:.2f}** of balanced tokens' time"),
                 value("moesaic", "share_of_read_speed", "{:.2f} of the speed of reading the weights alone")]
        lines.append(f"| {case} | {time('moesaic')} | {time('floor_mm')} | {value('moesaic', 'time_over_floor', '**{:.2f}**')} | "
                     f"{best and best + ' ' + of['floor_best', 'time_us'].get('note', '')} | {' | '.join(map(peer, LAYER_PEERS))} | "
                     f"{value('moesaic', 'speedup_over_best_peer', '**{:.2f}×**')} | {'; '.join(filter(None, extra))} |")
    return lines


def case_lines(rows):
    cases = {}
    for row in rows:
        case = cases.setdefault(row["case"], {})
        if not row["verified"]:
            case.setdefault("wrong", True)
        elif row["unit"] == "ratio":
            case.setdefault("ratios", []).append((row["metric"], row["value"]))
        elif row["metric"] in METRICS:
            case.setdefault(row["metric"], []).append((row["variant"], row["value"]))
    lines = ["| case | median of each | ratio |", "| --- | --- | --- |"]
    for name, case in cases.items():
        if "wrong" in case:
            lines.append(f"| {name} | wrong result: no time | |")
            continue
        times = [f"{variant} {shown(value, metric)} {UNITS[metric]}"
                 for metric in METRICS if metric in case and metric != "gb_per_s" for variant, value in case[metric]]
        ratios = [f"{metric} **{value:.2f}**" for metric, value in case.get("ratios", [])]
        lines.append(f"| {name} | {'; '.join(times)} | {'; '.join(ratios)} |")
    return lines


def table(file):
    path = SOURCE / "bench" / "results" / file
    if not path.exists():
        return "Not measured yet.\n"  # the command stands above
    result = json.loads(path.read_text())
    lines = {"codec": codec_lines, "step": lambda rows: variant_lines(rows, STEP_COLUMNS),
             "gather": lambda rows: variant_lines(rows, GATHER_COLUMNS),
             "exchange": lambda rows: variant_lines(rows, EXCHANGE_COLUMNS),
             "exchange_step": lambda rows: variant_lines(rows, EXCHANGE_STEP_COLUMNS), "moe_layer": layer_lines, "routes": route_lines}.get(result["name"], case_lines)(result["rows"])
    machine = result["machine"]
    about = (f"{machine['cpu']}, {machine['cores']} cores, {', '.join(machine['flags'])}; {machine['compiler']}, "
             f"{machine['build_type']}; at most {machine['threads']} threads.")
    return "\n".join([*lines, "", about, ""])


def main():
    old = PAGE.read_text()
    new = PLACE.sub(lambda place: place[1] + table(place[2]) + place[3], old)
    if "--check" in sys.argv[1:]:
        if new != old:
            sys.exit("docs/performance.md is not what bench/results gives: run `make performance` or tools/performance.py")
    else:
        PAGE.write_text(new)


if __name__ == "__main__":
    main()
