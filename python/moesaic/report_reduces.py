"""How gradients travelled to their owners: what coding saved, what it cost, and what the gates decided.

Reads the "reduces" of metrics.jsonl: units whose gradients cross nodes in bf16. Figures are like those of report_figures.
"""

import numpy as np

from moesaic.report_units import UnitSteps, hidden_and_exposed, unit_lines

NUMBERS = ["runs", "raw_bytes", "message_bytes", "seconds", "exposed_seconds", "encode_seconds", "decode_seconds",
           "predicted_bf16_seconds", "predicted_entropy_seconds", "window_seconds"]
WIRES = ["bf16", "entropy", "int8"]


def of(run):
    """None where nothing was recorded."""
    lines = [line for line in run.steps if line.get("reduces")]
    return UnitSteps(lines, "reduces", NUMBERS, "wire", "predicted_bf16_seconds") if lines else None


def saved_bytes(reduces):
    """Between nodes, since the start: what coding and blocks of zeros left out."""
    return float(np.nansum(reduces["raw_bytes"] - reduces["message_bytes"]))


def bits(reduces):
    with np.errstate(divide="ignore", invalid="ignore"):
        return 16 * reduces["message_bytes"] / reduces["raw_bytes"]


def bits_over_steps(run):
    reduces = of(run)
    return unit_lines(reduces, bits(reduces), "bits per gradient")


def time_over_steps(run):
    return hidden_and_exposed(of(run))


DECISIONS = ["unit", "travels now", "so far", "changes", "probes", "bf16, predicted", "entropy, predicted", "window",
             "measured", "bits"]


def decisions(run):
    """A row per unit, in the columns of DECISIONS; times in ms, of late steps."""
    reduces = of(run)
    rows = []
    for i, unit in enumerate(reduces.units):
        seen = bits(reduces)[:, i]
        seen = seen[np.isfinite(seen)]
        rows.append((unit, *reduces.choices(i, WIRES), reduces.late_ms("predicted_bf16_seconds", i),
                     reduces.late_ms("predicted_entropy_seconds", i), reduces.late_ms("window_seconds", i),
                     reduces.late_ms("seconds", i),
                     f"{seen[-1]:.2f}" if len(seen) else "–"))
    return rows


def in_words(run):
    reduces = of(run)
    raw, sent = np.nansum(reduces["raw_bytes"]), np.nansum(reduces["message_bytes"])
    if not raw:
        return ""
    lossy = " int8 is lossy: it changes the sums." if (reduces.method == "int8").any() else ""
    return f"Gradients took {16 * sent / raw:.2f} bits each between nodes instead of 16.{lossy}"
