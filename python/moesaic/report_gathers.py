"""How weights were gathered: what coding saved, what it cost, and what the gates decided.

Reads the "gathers" of metrics.jsonl: units that can travel coded, step by step. Figures are like those of report_figures.
"""

import numpy as np

from moesaic import report_data as data
from moesaic import report_reduces
from moesaic.report_figures import BLUE, GREEN, GREY, KIND_LABELS, ORANGE, PURPLE, RED, TEAL, figure, rounded, stacked
from moesaic.report_units import UnitSteps, hidden_and_exposed, label, unit_lines

NUMBERS = ["words", "runs", "unsent", "raw_bytes", "message_bytes", "bits_per_weight", "seconds", "exposed_seconds",
           "encode_seconds", "decode_seconds", "reference_bytes", "keys", "resyncs", "predicted_raw_seconds", "predicted_coded_seconds",
           "window_seconds"]
METHODS = {"raw": GREY, "entropy": ORANGE, "int8": RED, "exponent_reuse": TEAL, "residual": BLUE, "momentum": GREEN}

NONE = "No gather has been recorded that could travel coded: weights in bf16, of units that several ranks own."


class Gathers(UnitSteps):
    def __init__(self, lines):
        super().__init__(lines, "gathers", NUMBERS, "method", "predicted_raw_seconds")

    @property
    def sent_bytes(self):
        """Between nodes: each message once to every other node; what raw_bytes would have been where it is raw."""
        with np.errstate(divide="ignore", invalid="ignore"):
            other_nodes = self["raw_bytes"] / (2 * self["words"] * self["runs"])
        return np.where(self.method == "raw", self["raw_bytes"], self["message_bytes"] * other_nodes)


def of(run):
    """None where nothing was recorded."""
    lines = [line for line in run.steps if line.get("gathers")]
    return Gathers(lines) if lines else None


def saved_bytes(run):
    """Per kind, since the start, between nodes: (what raw words would have been, what was sent)."""
    sent = {kind: float(sum(line.get("inter_node_bytes_by_kind", {}).get(kind) or 0 for line in run.steps))
            for kind in data.KINDS}
    raw = dict(sent)
    gathers = of(run)
    if gathers is not None:
        raw["gather"] += float(np.nansum(gathers["raw_bytes"] - gathers.sent_bytes))
    reduces = report_reduces.of(run)
    if reduces is not None:
        raw["reduce"] += report_reduces.saved_bytes(reduces)
    return raw, sent


def raw_and_sent(run):
    """A bar of each for every kind."""
    raw, sent = saved_bytes(run)
    if not sum(raw.values()):
        return "Nothing crossed between nodes."
    fig = figure("MB between nodes since the start", "", barmode="group", height=300)
    labels = [KIND_LABELS[kind] for kind in data.KINDS]
    fig.add_bar(y=labels, x=rounded([sent[kind] / 1e6 for kind in data.KINDS], 4), name="sent", orientation="h",
                marker=dict(color=GREEN))
    fig.add_bar(y=labels, x=rounded([raw[kind] / 1e6 for kind in data.KINDS], 4), name="as raw words", orientation="h",
                marker=dict(color=GREY))
    fig.update_layout(hovermode="y unified", margin=dict(l=150, r=16, t=12, b=48))
    return fig


def bits_over_steps(run):
    """Of each unit's messages; a line each, or where those are too many, a row of colours each."""
    gathers = of(run)
    if gathers is None:
        return NONE
    # What is sent in full, as the first message is, would flatten the rest.
    bits = np.where(gathers["keys"] > 0, np.nan, gathers["bits_per_weight"])
    if np.isnan(bits).all():
        return "No unit has sent differences yet: all gathers were raw (16 bits a weight) or in full."
    return unit_lines(gathers, bits, "bits per weight")


def methods_over_steps(run):
    gathers = of(run)
    if gathers is None:
        return NONE
    fig = figure("step", "% of units", barmode="stack", bargap=0)
    for method, colour in METHODS.items():
        share = 100.0 * (gathers.method == method).mean(axis=1)
        if share.max() == 0:
            continue
        x, (y,) = data.bucket_means(gathers.steps, [share])
        stacked(fig, x, y, label(method), colour)
    fig.update_yaxes(range=[0, 100])
    fig.update_layout(showlegend=True)  # also of one method alone
    return fig


def time_over_steps(run):
    gathers = of(run)
    return NONE if gathers is None else hidden_and_exposed(gathers)


def prediction(run):
    """Measured over predicted time of what was chosen; None where no gate decided."""
    gathers = of(run)
    if gathers is None or not gathers.decided.any():
        return None
    predicted = np.where(gathers.method == "raw", gathers["predicted_raw_seconds"], gathers["predicted_coded_seconds"])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(gathers.decided, gathers["seconds"] / predicted, np.nan)
    ratio[~np.isfinite(ratio)] = np.nan
    fig = figure("step", "measured ÷ predicted time")
    for label, which, colour in (("raw", gathers.method == "raw", GREY), ("coded", gathers.method != "raw", PURPLE)):
        each = np.array([data.mean(row) for row in np.where(which, ratio, np.nan)])
        seen = np.isfinite(each)
        if seen.any():
            x, y = data.thin(gathers.steps[seen], each[seen], 400)
            fig.add_scatter(x=x, y=rounded(y, 3), name=f"{label}, mean of units", mode="lines+markers",
                            line=dict(color=colour, width=1.5), marker=dict(size=4))
    fig.update_yaxes(type="log", dtick="D2")
    return fig if fig.data else None


DECISIONS = ["unit", "weights", "travels now", "so far", "changes", "probes", "raw, predicted", "coded, predicted", "window",
             "measured", "bits", "kept"]


def decisions(run):
    """A row per unit, in the columns of DECISIONS; times in ms, of late steps."""
    gathers = of(run)
    if gathers is None:
        return []
    rows = []
    for i, unit in enumerate(gathers.units):
        bits = gathers["bits_per_weight"][:, i]
        bits = bits[np.isfinite(bits)]
        kept = gathers["reference_bytes"][:, i] / gathers["words"][:, i]
        kept = kept[np.isfinite(kept)]
        rows.append((unit, f"{int(gathers['words'][-1, i]):,}", *gathers.choices(i, METHODS),
                     gathers.late_ms("predicted_raw_seconds", i), gathers.late_ms("predicted_coded_seconds", i),
                     gathers.late_ms("window_seconds", i), gathers.late_ms("seconds", i), f"{bits[-1]:.2f}" if len(bits) else "–",
                     f"{kept[-1]:.2f}\N{NO-BREAK SPACE}B/weight" if len(kept) else "–"))
    return rows


def resyncs(run):
    gathers = of(run)
    return 0 if gathers is None else int(np.nansum(gathers["resyncs"]))


def last_resync(run):
    """(step, unit, what a rank said of it) of the last one; None where there was none, or its reason is not known."""
    said = [(line["step"], unit["unit"], unit["resync_reason"]) for line in run.steps for unit in line.get("gathers", [])
            if unit.get("resync_reason")]
    return said[-1] if said else None


def trials_in_words(run):
    """What trials of whole steps found; empty where there was none."""
    trials = [(line["step"], line["trial"]) for line in run.steps if line.get("trial")]
    if not trials:
        return ""
    step, last = trials[-1]
    times = f"{1e3 * last['coded_seconds']:.4g} ms coded and {1e3 * last['plain_seconds']:.4g} ms plain"
    taken = "nothing is coded since" if last["taken"] == "plain" else "coding stayed"
    count = "One trial of plain steps" if len(trials) == 1 else f"The last of {len(trials)} trials of plain steps"
    return f" {count}, at step {step}: steps took {times}; {taken}."


def in_words(run):
    """What coding did, in a few sentences; empty where there is nothing to say."""
    gathers = of(run)
    if gathers is None:
        return ""
    coded = gathers.method != "raw"
    words = np.nansum(np.where(coded, gathers["message_bytes"], 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = np.nansum(np.where(coded, 8 * gathers["message_bytes"] / gathers["bits_per_weight"], 0.0))
    text = ""
    if weights > 0:
        text = f"Coded gathers took {8 * words / weights:.2f} bits a weight instead of 16"
        raw, sent = saved_bytes(run)
        if sent["gather"] > 0:
            text += f"; {raw['gather'] / sent['gather']:.1f} times fewer bytes of weights crossed between nodes"
        text += "."
        if (gathers.method == "int8").any():
            text += " int8 is lossy: it rounds the weights that are computed with."
    return text + trials_in_words(run)
