"""How weights were gathered: what coding saved, what it cost, and what the gates decided.

Reads the "gathers" of metrics.jsonl: units that can travel coded, step by step. Figures are like those of report_figures.
"""

import numpy as np

from moesaic import report_data as data
from moesaic.report_figures import (BLUE, GREEN, GREY, KIND_LABELS, LAYERS, ORANGE, PURPLE, RED, TEAL, figure, rounded,
                                    stacked)

NUMBERS = ["words", "runs", "unsent", "raw_bytes", "message_bytes", "bits_per_weight", "seconds", "exposed_seconds",
           "encode_seconds", "decode_seconds", "reference_bytes", "keys", "resyncs", "predicted_raw_seconds", "predicted_coded_seconds"]
METHODS = {"raw": GREY, "entropy": ORANGE, "int8": RED, "exponent_reuse": TEAL, "residual": BLUE, "momentum": GREEN}
MOST_LINES = 12  # that can be told apart

NONE = "No gather has been recorded that could travel coded: weights in bf16, of units that several ranks own."


class Gathers:
    """Arrays [steps, units], NaN where a line has nothing of a unit. Units are those of the last line."""

    def __init__(self, lines):
        self.steps = np.array([line["step"] for line in lines])
        self.units = [entry["unit"] for entry in lines[-1]["gathers"]]
        at = {unit: i for i, unit in enumerate(self.units)}
        shape = (len(lines), len(self.units))
        self.numbers = {name: np.full(shape, np.nan) for name in NUMBERS}
        self.method = np.full(shape, "", dtype=object)
        self.probe = np.zeros(shape, dtype=bool)
        self.decided = np.zeros(shape, dtype=bool)
        for row, line in enumerate(lines):
            for entry in line["gathers"]:
                column = at.get(entry["unit"])
                if column is None:
                    continue
                for name in NUMBERS:
                    self.numbers[name][row, column] = data.number(entry.get(name))
                self.method[row, column] = entry["method"]
                self.probe[row, column] = bool(entry.get("probe"))
                self.decided[row, column] = "predicted_raw_seconds" in entry

    def __getitem__(self, name):
        return self.numbers[name]

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
    if len(gathers.units) > MOST_LINES:
        return bits_by_colour(gathers, bits)
    fig = figure("step", "bits per weight", height=380)
    for i, unit in enumerate(gathers.units):
        seen = np.isfinite(bits[:, i])
        if not seen.any():
            continue
        # Gaps stay gaps; what stands alone between two of them is no line.
        x, y = data.thin(gathers.steps, bits[:, i], 300)
        fig.add_scatter(x=x, y=rounded(y, 4), name=unit, mode="lines" if seen.sum() > 0.9 * len(seen) else "lines+markers",
                        line=dict(color=LAYERS[i % len(LAYERS)], width=1.8, dash="solid" if i < len(LAYERS) else "dash"),
                        marker=dict(size=4))
    fig.update_yaxes(rangemode="tozero")
    return fig


def bits_by_colour(gathers, bits):
    x, rows = data.bucket_means(gathers.steps, list(bits.T))
    fig = figure("step", "", height=min(900, 130 + 18 * len(gathers.units)), hovermode="closest")
    fig.add_heatmap(z=rounded(np.array(rows), 3), x=x, y=gathers.units, zmin=0, zmax=max(4.0, float(np.nanmax(rows))),
                    colorscale=[[0, "#eceae4"], [0.5, "#e0a868"], [1, "#b5382c"]],
                    hovertemplate="step %{x}, %{y}: %{z} bits per weight<extra></extra>",
                    colorbar=dict(title=dict(text="bits per<br>weight", side="top"), thickness=14))
    fig.update_yaxes(autorange="reversed")
    return fig


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
        stacked(fig, x, y, method, colour)
    fig.update_yaxes(range=[0, 100])
    return fig


def time_over_steps(run):
    """Of all units' gathers: what compute did not have to wait for, and what it did."""
    gathers = of(run)
    if gathers is None:
        return NONE
    whole = np.nansum(gathers["seconds"], axis=1) * 1e3
    exposed = np.minimum(np.nansum(gathers["exposed_seconds"], axis=1) * 1e3, whole)
    x, (hidden, waited) = data.bucket_means(gathers.steps, [whole - exposed, exposed])
    fig = figure("step", "ms per step, slowest ranks", barmode="stack")
    stacked(fig, x, hidden, "hidden behind compute", GREEN)
    stacked(fig, x, waited, "exposed (compute waits)", RED)
    return fig


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


DECISIONS = ["unit", "weights", "travels now", "so far", "changes", "probes", "raw, predicted", "coded, predicted", "measured",
             "bits", "kept"]


def decisions(run):
    """A row per unit, in the columns of DECISIONS; times in ms, of late steps."""
    gathers = of(run)
    if gathers is None:
        return []
    recent = slice(-max(3, min(200, len(gathers.steps) // 5)), None)
    rows = []
    for i, unit in enumerate(gathers.units):
        methods = gathers.method[:, i]
        settled = methods[~gathers.probe[:, i] & (methods != "")]
        counts = {method: int((methods == method).sum()) for method in METHODS}
        shares = ", ".join(f"{method} {100 * count / max(1, sum(counts.values())):.0f}\N{NO-BREAK SPACE}%"
                           for method, count in sorted(counts.items(), key=lambda item: -item[1]) if count)
        decided = gathers.decided[:, i].any()

        def late_ms(name):
            value = data.mean(gathers[name][recent, i]) * 1e3
            return f"{value:.3g} ms" if np.isfinite(value) else "–"

        bits = gathers["bits_per_weight"][:, i]
        bits = bits[np.isfinite(bits)]
        kept = gathers["reference_bytes"][:, i] / gathers["words"][:, i]
        kept = kept[np.isfinite(kept)]
        rows.append((unit, f"{int(gathers['words'][-1, i]):,}", settled[-1] if len(settled) else "–", shares,
                     int((settled[1:] != settled[:-1]).sum()) if decided else "fixed",
                     int(gathers.probe[:, i].sum()) if decided else "–", late_ms("predicted_raw_seconds"),
                     late_ms("predicted_coded_seconds"), late_ms("seconds"), f"{bits[-1]:.2f}" if len(bits) else "–",
                     f"{kept[-1]:.2f}\N{NO-BREAK SPACE}B/weight" if len(kept) else "–"))
    return rows


def resyncs(run):
    gathers = of(run)
    return 0 if gathers is None else int(np.nansum(gathers["resyncs"]))


def in_words(run):
    """What coding did, in a sentence; empty where there is nothing to say."""
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
    return text
