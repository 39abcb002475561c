"""The plots of a report, as plotly figures without colours of their own background: the page adds light or dark.

Each function returns a figure, or a string that says what is missing. Every axis names its unit.
"""

import numpy as np
import plotly.graph_objects as go

from moesaic import report_data as data

# Legible on white and on near-black.
BLUE, ORANGE, GREEN, RED, PURPLE, TEAL, GOLD, GREY = (
    "#3b7dd8", "#e07b39", "#3f9b5f", "#cf4a4a", "#8a63c9", "#2a9d9d", "#c79a1e", "#8a8f98")

# What the compute thread does: (column, phases) -> label and colour, bottom of the stack first.
PARTS = [
    ("forward", "working", ["forward"], BLUE),
    ("recompute", "working", ["recompute"], "#7fb0ec"),
    ("backward", "working", ["backward"], PURPLE),
    ("optimizer", "working", ["optimizer", "norm"], GREEN),
    ("exchange: packing", "working", ["exchange"], GOLD),
    ("other work", "working", ["data", "gather", "reduce", "counts", "control", "evaluate", "save", "step"], GREY),
    ("waiting: tokens", "waiting", ["exchange"], RED),
    ("waiting: weights", "waiting", ["gather"], ORANGE),
    ("waiting: gradients", "waiting", ["reduce"], TEAL),
    ("waiting: others", "waiting", ["counts", "control", "norm", "evaluate", "save", "forward", "backward",
                                    "recompute", "optimizer", "data", "step"], "#e48f8f"),
]
KIND_COLOURS = {"gather": ORANGE, "reduce": TEAL, "exchange": RED, "control": GREY}
KIND_LABELS = {"gather": "weights (gather)", "reduce": "gradients (reduce)", "exchange": "tokens (exchange)",
               "control": "control"}
LAYERS = [BLUE, ORANGE, GREEN, PURPLE, RED, TEAL, GOLD, GREY]


def figure(x_title, y_title, **layout):
    fig = go.Figure()
    fig.update_layout(template="none", height=340, margin=dict(l=64, r=16, t=12, b=48), hovermode="x unified",
                      legend=dict(orientation="h", x=0, y=1.02, yanchor="bottom", traceorder="normal"))
    fig.update_layout(**layout)
    fig.update_xaxes(title=dict(text=x_title), zeroline=False, ticks="outside", ticklen=4)
    fig.update_yaxes(title=dict(text=y_title), zeroline=False, ticks="", automargin=True)
    return fig


def add_line(fig, x, y, name, colour, raw=False, **more):
    shown = data.thin(x, y) if raw else data.thin_smooth(x, y)
    # Digits a reader can use: the page is a tenth of the size.
    fig.add_scatter(x=shown[0], y=rounded(shown[1]), name=name, mode="lines" if len(x) > 1 else "markers",
                    line=dict(color=colour, width=1 if raw else 2), marker=dict(color=colour, size=8),
                    opacity=0.5 if raw else 1, **more)


def rounded(values, digits=5):
    values = np.asarray(values, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = 10.0 ** (digits - 1 - np.floor(np.log10(np.abs(values))))
    scale = np.where(np.isfinite(scale), scale, 1.0)
    return np.round(values * scale) / scale


def raw_and_smooth(fig, x, y, name, colour):
    window = data.window_of(len(x))
    if window < 2:
        add_line(fig, x, y, name, colour)
        return
    add_line(fig, x, y, f"{name}, each step", colour, raw=True)
    add_line(fig, x, data.smooth(y, window), f"{name}, mean of {window} steps", colour)


def nothing(values):
    return len(values) == 0 or not np.isfinite(values).any()


def resumed_after(run):
    """(step, whether there is room for a word beside it) of each start but the first."""
    room = 0.2 * (run.step[-1] - run.step[0]) if len(run.steps) else 0
    found, last = [], -np.inf
    for step in sorted({entry.get("from_step", 0) for entry in run.invocations[1:]}):
        labelled = step - last >= room
        last = step if labelled else last
        found.append((step, labelled))
    return found


def loss(run):
    fig = figure("step", "loss (nats per token)", height=380)
    losses = run.column("loss")
    if nothing(losses) and not run.evaluations:
        return "No step with a finite loss has been recorded."
    if not nothing(losses):
        raw_and_smooth(fig, run.step, losses, "training", BLUE)
    if run.evaluations:
        fig.add_scatter(x=[line["step"] for line in run.evaluations],
                        y=[data.number(line["heldout_loss"]) for line in run.evaluations], name="held-out",
                        mode="lines+markers", line=dict(color=ORANGE, width=2), marker=dict(size=8))
    for step, labelled in resumed_after(run):
        fig.add_vline(x=step, line=dict(color=GREY, dash="dot", width=1), annotation_text="resumed" if labelled else "",
                      annotation_position="bottom right")
    return fig


def heldout_by_file(run):
    names = sorted({name for line in run.evaluations for name in line.get("heldout_loss_by_file", {})})
    if len(names) < 2:
        return None
    fig = figure("step", "held-out loss (nats per token)", height=380)
    for i, name in enumerate(names):
        lines = [line for line in run.evaluations if name in line.get("heldout_loss_by_file", {})]
        fig.add_scatter(x=[line["step"] for line in lines],
                        y=[data.number(line["heldout_loss_by_file"][name]) for line in lines], name=name,
                        mode="lines+markers", line=dict(color=LAYERS[i % len(LAYERS)], width=2))
    fig.update_xaxes(rangemode="tozero")
    return fig


def line_of(name, label, y_title, colour, factor=1.0):
    def plot(run):
        values = run.column(name) * factor
        if nothing(values):
            return f"No {label} has been recorded."
        fig = figure("step", y_title)
        raw_and_smooth(fig, run.step, values, label, colour)
        fig.update_yaxes(rangemode="tozero")
        return fig
    return plot


throughput = line_of("tokens_per_s", "throughput", "thousand tokens per second", GREEN, 1e-3)
gradient_norm = line_of("gradient_norm", "gradient norm", "norm before clipping", PURPLE)


def learning_rate(run):
    values = run.column("learning_rate")
    if nothing(values):
        return "No learning rate has been recorded."
    fig = figure("step", "learning rate (per step)", showlegend=False)
    add_line(fig, run.step, values, "learning rate", TEAL)
    fig.update_yaxes(rangemode="tozero", exponentformat="power")
    return fig


def part_seconds(table, column, phases):
    """Seconds [steps, ranks] of one part of the stack."""
    return sum((table[column, phase] for phase in phases if (column, phase) in table),
               np.zeros_like(table["seconds", "all"]))


NO_TIMES = "No times by phase have been recorded."


def time_by_rank(run):
    found = data.times(run)
    if found is None:
        return NO_TIMES
    steps, table = found
    ranks = table["seconds", "all"].shape[1]
    # The first steps allocate memory and start threads.
    skip = min(len(steps) - 1, 3)
    fig = figure("mean time per step (ms)", "rank", barmode="stack", height=max(240, 130 + 30 * min(ranks, 32)))
    for label, column, phases, colour in PARTS:
        values = part_seconds(table, column, phases)[skip:].mean(axis=0) * 1e3
        if values.max() <= 0:
            continue
        fig.add_bar(y=list(range(ranks)), x=rounded(values, 4), name=label, orientation="h",
                    marker=dict(color=colour, line=dict(width=0),
                                pattern=dict(shape="/" if column == "waiting" else "", fgopacity=0.5)),
                    hovertemplate="%{x:.3g} ms")
    fig.update_layout(hovermode="y unified")
    fig.update_yaxes(autorange="reversed", dtick=1 if ranks <= 32 else None)
    return fig


def time_over_steps(run):
    found = data.times(run)
    if found is None:
        return NO_TIMES
    steps, table = found
    fig = figure("step", "ms per step, mean of ranks", barmode="stack", bargap=0, height=380)
    for label, column, phases, colour in PARTS:
        values = part_seconds(table, column, phases).mean(axis=1) * 1e3
        if values.max() <= 0:
            continue
        x, (y,) = data.bucket_means(steps, [values])
        stacked(fig, x, y, label, colour)
    return fig


def stacked(fig, x, y, label, colour):
    if len(x) == 1:  # an area of one point has no width
        fig.add_bar(x=x, y=rounded(y, 4), name=label, marker=dict(color=colour))
        return
    fig.add_scatter(x=x, y=rounded(y, 4), name=label, stackgroup="all", mode="lines",
                    line=dict(color=colour, width=0.5), fillcolor=colour)


def communication(run):
    exposed, hidden = run.column("exposed_seconds"), run.column("hidden_seconds")
    if nothing(exposed):
        return "No communication times have been recorded."
    x, (e, h) = data.bucket_means(run.step, [exposed * 1e3, hidden * 1e3])
    fig = figure("step", "ms per step, mean of ranks", barmode="stack")
    stacked(fig, x, h, "hidden behind compute", GREEN)
    stacked(fig, x, e, "exposed (compute waits)", RED)
    return fig


def bytes_over_steps(run):
    rows = {kind: run.column(f"{kind}_bytes") for kind in data.KINDS}
    if all(nothing(row) for row in rows.values()):
        return "No traffic has been recorded."
    fig = figure("step", "MB per step, all ranks", barmode="stack")
    x, means = data.bucket_means(run.step, [row / 1e6 for row in rows.values()])
    for kind, y in zip(rows, means):
        stacked(fig, x, y, KIND_LABELS[kind], KIND_COLOURS[kind])
    return fig


def bytes_by_reach(run):
    """Within nodes and between them."""
    between = {kind: 0.0 for kind in data.KINDS}
    total = {kind: 0.0 for kind in data.KINDS}
    for line in run.steps:
        for kind in data.KINDS:
            total[kind] += line.get(f"{kind}_bytes") or 0
            between[kind] += line.get("inter_node_bytes_by_kind", {}).get(kind) or 0
    if not run.steps:
        return "No traffic has been recorded."
    fig = figure("MB since the start, all ranks", "", barmode="stack", height=260)
    labels = [KIND_LABELS[kind] for kind in data.KINDS]
    fig.add_bar(y=labels, x=[(total[kind] - between[kind]) / 1e6 for kind in data.KINDS], name="within a node",
                orientation="h", marker=dict(color=TEAL))
    fig.add_bar(y=labels, x=[between[kind] / 1e6 for kind in data.KINDS], name="between nodes", orientation="h",
                marker=dict(color=RED))
    fig.update_layout(hovermode="y unified", margin=dict(l=150, r=16, t=12, b=48))
    return fig


NO_CHOICES = "No routing has been recorded: the model has no MoE layer, or no step was made."

# Load on a scale of doublings: a quarter of the fair share to four times it; black: no token at all.
LOAD_SCALE = [[0.0, "#16181d"], [0.08, "#16181d"], [0.0801, "#2f5d9b"], [0.54, "#eceae4"], [1.0, "#b5382c"]]


def expert_load(run):
    """One trace per layer; the page has a selector that shows one of them."""
    found = data.choices(run)
    if found is None:
        return NO_CHOICES
    steps, load = data.load_over_time(*found)
    layers, experts, _ = load.shape
    fig = figure("step", "expert", height=min(720, max(260, 110 + 22 * experts)))
    with np.errstate(divide="ignore", invalid="ignore"):
        doublings = np.clip(np.nan_to_num(np.log2(load), neginf=-9), -2, 2)
    # The lowest colour is for experts without a token.
    height = np.where(load > 0, doublings, -2.5)
    for layer in range(layers):
        fig.add_heatmap(z=np.round(height[layer], 2), x=steps, y=list(range(experts)), zmin=-2.5, zmax=2.1,
                        customdata=rounded(load[layer], 3), visible=layer == 0, name=layer_name(run, layer),
                        colorscale=LOAD_SCALE, hovertemplate="step %{x}, expert %{y}: %{customdata} × the fair share"
                                                             "<extra></extra>",
                        colorbar=dict(title=dict(text="× fair<br>share", side="top"), thickness=14,
                                      tickvals=[-2.4, -2, -1, 0, 1, 2],
                                      ticktext=["none", "≤ ¼", "½", "1", "2", "≥ 4"]))
    fig.update_layout(hovermode="closest")
    fig.update_yaxes(dtick=1 if experts <= 16 else None)
    return fig


def layer_name(run, moe_layer):
    return f"layer {moe_layer + int(run.option('model', 'num_dense_layers', 0) or 0)}"


def balance(run):
    lines = [line for line in run.steps if line.get("expert_load")]
    if not lines:
        return NO_CHOICES
    count = len(lines[-1]["expert_load"])
    lines = [line for line in lines if len(line["expert_load"]) == count]
    steps = np.array([line["step"] for line in lines])
    fig = figure("step", "fullest expert ÷ mean")
    for layer in range(count):
        values = np.array([data.number(line["expert_load"][layer]) for line in lines])
        x, y = data.thin_smooth(steps, data.smooth(values, data.window_of(len(values))), 300)
        fig.add_scatter(x=x, y=rounded(y, 4), name=layer_name(run, layer), mode="lines" if len(x) > 1 else "markers",
                        line=dict(color=LAYERS[layer % len(LAYERS)], width=1.8), marker=dict(size=8))
    return fig


def drop_shares(run, reason="dropped"):
    """Percent of choices lost to capacity ("dropped") or left out at random ("dropped_random"), per step."""
    layers = int(run.option("model", "num_layers", 0) or 0) - int(run.option("model", "num_dense_layers", 0) or 0)
    made = int(run.option("train", "batch_tokens", 0) or 0) * int(run.option("moe", "top_k", 0) or 0) * layers
    return run.column(reason) * (100.0 / made if made else float("nan"))


def drops(run):
    shares = drop_shares(run)
    if nothing(shares):
        return NO_CHOICES
    fig = figure("step", "% of choices dropped")
    raw_and_smooth(fig, run.step, shares, "past capacity", ORANGE)
    at_random = drop_shares(run, "dropped_random")
    if np.nanmax(at_random, initial=0) > 0:
        raw_and_smooth(fig, run.step, at_random, "left out at random", TEAL)
    fig.update_yaxes(rangemode="tozero")
    if max(np.nanmax(shares), np.nanmax(at_random, initial=0)) == 0:
        fig.update_yaxes(range=[0, 1])
    return fig
