"""What metrics.jsonl tells of each unit, step by step: common to gathers of weights and reduces of gradients."""

import numpy as np

from moesaic import report_data as data
from moesaic.report_figures import GREEN, LAYERS, RED, figure, rounded, stacked

LOSSY = {"int8"}  # methods and wires that change what they carry
MOST_LINES = 12  # that can be told apart


def label(method):
    return f"{method} (lossy)" if method in LOSSY else method


class UnitSteps:
    """Arrays [steps, units], NaN where a line has nothing of a unit. Units are those of the last line.

    `key`: of the list in a line; `choice`: the field that names how a unit travelled; `predicted`: one that is there where a
    gate decides.
    """

    def __init__(self, lines, key, numbers, choice, predicted):
        self.steps = np.array([line["step"] for line in lines])
        self.units = [entry["unit"] for entry in lines[-1][key]]
        at = {unit: i for i, unit in enumerate(self.units)}
        shape = (len(lines), len(self.units))
        self.numbers = {name: np.full(shape, np.nan) for name in numbers}
        self.method = np.full(shape, "", dtype=object)
        self.probe = np.zeros(shape, dtype=bool)
        self.decided = np.zeros(shape, dtype=bool)
        for row, line in enumerate(lines):
            for entry in line[key]:
                column = at.get(entry["unit"])
                if column is None:
                    continue
                for name in numbers:
                    self.numbers[name][row, column] = data.number(entry.get(name))
                self.method[row, column] = entry[choice]
                self.probe[row, column] = bool(entry.get("probe"))
                self.decided[row, column] = predicted in entry

    def __getitem__(self, name):
        return self.numbers[name]

    def late_ms(self, name, unit):
        """Mean over the last fifth of the steps, as text."""
        recent = slice(-max(3, min(200, len(self.steps) // 5)), None)
        value = data.mean(self[name][recent, unit]) * 1e3
        return f"{value:.3g} ms" if np.isfinite(value) else "–"

    def choices(self, unit, all_methods):
        """What it travels by now, the share of each so far, how often that changed, and the probes."""
        methods = self.method[:, unit]
        settled = methods[~self.probe[:, unit] & (methods != "")]
        counts = {method: int((methods == method).sum()) for method in all_methods}
        shares = ", ".join(f"{label(method)} {100 * count / max(1, sum(counts.values())):.0f}\N{NO-BREAK SPACE}%"
                           for method, count in sorted(counts.items(), key=lambda item: -item[1]) if count)
        decided = self.decided[:, unit].any()
        return (label(settled[-1]) if len(settled) else "–", shares,
                int((settled[1:] != settled[:-1]).sum()) if decided else "fixed",
                int(self.probe[:, unit].sum()) if decided else "–")


def unit_lines(entries, values, title):
    """A line for each unit, or where those are too many, a row of colours."""
    if len(entries.units) > MOST_LINES:
        return unit_colours(entries, values, title)
    fig = figure("step", title, height=380)
    for i, unit in enumerate(entries.units):
        seen = np.isfinite(values[:, i])
        if not seen.any():
            continue
        # Gaps stay gaps; what stands alone between two of them is no line.
        x, y = data.thin(entries.steps, values[:, i], 300)
        fig.add_scatter(x=x, y=rounded(y, 4), name=unit, mode="lines" if seen.sum() > 0.9 * len(seen) else "lines+markers",
                        line=dict(color=LAYERS[i % len(LAYERS)], width=1.8, dash="solid" if i < len(LAYERS) else "dash"),
                        marker=dict(size=4))
    fig.update_yaxes(rangemode="tozero")
    return fig


def unit_colours(entries, values, title):
    x, rows = data.bucket_means(entries.steps, list(values.T))
    fig = figure("step", "", height=min(900, 130 + 18 * len(entries.units)), hovermode="closest")
    fig.add_heatmap(z=rounded(np.array(rows), 3), x=x, y=entries.units, zmin=0, zmax=max(4.0, float(np.nanmax(rows))),
                    colorscale=[[0, "#eceae4"], [0.5, "#e0a868"], [1, "#b5382c"]],
                    hovertemplate="step %{x}, %{y}: %{z} " + title + "<extra></extra>",
                    colorbar=dict(title=dict(text=title.replace("per ", "per<br>"), side="top"), thickness=14))
    fig.update_yaxes(autorange="reversed")
    return fig


def hidden_and_exposed(entries):
    """Of all units: what compute did not have to wait for, and what it did."""
    whole = np.nansum(entries["seconds"], axis=1) * 1e3
    exposed = np.minimum(np.nansum(entries["exposed_seconds"], axis=1) * 1e3, whole)
    x, (hidden, waited) = data.bucket_means(entries.steps, [whole - exposed, exposed])
    fig = figure("step", "ms per step, slowest ranks", barmode="stack")
    stacked(fig, x, hidden, "hidden behind compute", GREEN)
    stacked(fig, x, waited, "exposed (compute waits)", RED)
    return fig
