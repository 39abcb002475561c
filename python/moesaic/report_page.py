"""A report as one HTML page that opens offline: the sections in order, plotly.js inlined, light or dark as the reader likes."""

import html
import json
import time
from pathlib import Path

import numpy as np
from plotly.offline import get_plotlyjs

from moesaic import report_data as data
from moesaic import report_figures as figures
from moesaic import report_gathers as gathers
from moesaic import report_reduces as reduces
from moesaic import report_summary as summary

HERE = Path(__file__).parent


def escape(value):
    return html.escape(str(value))


class Page:
    """Collects sections; figures go into one JSON block that the script draws from."""

    def __init__(self):
        self.body, self.contents, self.figures = [], [], {}

    def section(self, name, title, *blocks):
        self.contents.append((name, title))
        self.body.append(f'<section id="{name}"><h2>{escape(title)}</h2>{"".join(blocks)}</section>')

    def plot(self, name, title, figure, remark=""):
        """A figure, or the sentence that says why there is none."""
        head = f"<h3>{escape(title)}</h3>" if title else ""
        if isinstance(figure, str):
            return f'<div class="plot">{head}<p class="missing">{escape(figure)}</p></div>'
        self.figures[name] = json.loads(figure.to_json())
        note = f'<p class="remark">{remark}</p>' if remark else ""
        height = figure.layout.height or 340
        return (f'<div class="plot">{head}{note}'
                f'<div class="figure" id="{name}" style="height:{height}px"></div></div>')


def grid(*blocks):
    return f'<div class="grid">{"".join(blocks)}</div>'


def table(head, rows, kind=""):
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{cell if isinstance(cell, Markup) else escape(cell)}</td>" for cell in row)
                    + "</tr>" for row in rows)
    return f'<div class="scroll"><table class="{kind}"><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table></div>'


class Markup(str):
    """Text that is HTML already."""


def missing(text):
    return f'<p class="missing">{escape(text)}</p>'


def top(run):
    parts = "".join(f'<div class="card"><div class="label">{escape(label)}</div><div class="value">{escape(value)}</div>'
                    f'<div class="label">{escape(remark)}</div></div>' for label, value, remark in summary.cards(run))
    text = f"<p>{escape(summary.what_it_did(run))} {escape(summary.where_time_went(run))}</p>"
    look = summary.worth_a_look(run)
    if look:
        text += '<p class="lead">Worth a look</p><ul class="look">' + "".join(f"<li>{escape(s)}</li>" for s in look) + "</ul>"
    elif run.steps:
        text += "<p>Nothing stands out: no step was skipped, every expert gets tokens, no rank lags.</p>"
    if run.notes:
        text += ('<p class="lead">Missing from this run directory</p><ul class="look">'
                 + "".join(f"<li>{escape(note)}</li>" for note in run.notes) + "</ul>")
    return f'<div class="cards">{parts}</div><div class="summary">{text}</div>'


def learning(page, run):
    by_file = figures.heldout_by_file(run)
    if by_file is None:
        blocks = [page.plot("loss", "", figures.loss(run))]
    else:
        remark = ("Training draws files by data.weights; held-out counts every token alike."
                  if run.option("data", "weights") else "")
        blocks = [grid(page.plot("loss", "All data", figures.loss(run), remark),
                       page.plot("heldout", "Held-out loss by file", by_file))]
    if not run.evaluations:
        every = run.option("train", "eval_every", 0)
        blocks.append(missing("No held-out loss: " + ("train.eval_every is 0 and the run has not reached its end."
                                                      if not every else "no evaluation has been made yet.")))
    page.section("learning", "Loss", *blocks,
                 grid(page.plot("rate", "Learning rate", figures.learning_rate(run)),
                      page.plot("norm", "Gradient norm", figures.gradient_norm(run))))


def speed(page, run):
    page.section(
        "time", "Where time goes",
        page.plot("ranks", "By rank", figures.time_by_rank(run),
                  "The compute thread of each rank; hatched: it stands still. Steps wait for the slowest rank."),
        page.plot("phases", "Over the run", figures.time_over_steps(run)),
        grid(page.plot("speed", "Throughput", figures.throughput(run)),
             page.plot("hidden", "Communication: hidden and exposed", figures.communication(run))))


def traffic(page, run):
    nodes = run.environment.get("nodes")
    remark = "All ranks are on one node: nothing crosses a network link." if nodes == 1 else ""
    page.section("traffic", "Bytes",
                 grid(page.plot("bytes", "Per step, by kind", figures.bytes_over_steps(run)),
                      page.plot("reach", "In all, within and between nodes", figures.bytes_by_reach(run), remark)))


def weights(page, run):
    if gathers.of(run) is None:
        return
    ratio = gathers.prediction(run)
    blocks = [page.plot("bits", "Bits per weight of each unit", gathers.bits_over_steps(run),
                        "Left out: steps in which a unit travelled raw (16 bits) or in full, as in the first step."),
              grid(page.plot("saved", "Raw and sent, by kind", gathers.raw_and_sent(run)),
                   page.plot("gathering", "Gathers: hidden and exposed", gathers.time_over_steps(run),
                             "Sums over units; of each, the slowest rank and the one that waited longest.")),
              grid(page.plot("methods", "How units travelled", gathers.methods_over_steps(run)),
                   page.plot("ratio", "How well times were predicted", ratio) if ratio is not None else ""),
              "<h3>Decisions</h3><p>Times are of a late step, all its gathers of a unit together. Kept: references, on the "
              "rank that keeps most of them.</p>",
              decision_table(gathers.DECISIONS, gathers.decisions(run))]
    page.section("weights", "Gathered weights", f"<p>{escape(gathers.in_words(run))}</p>", *blocks)


def gradients(page, run):
    if reduces.of(run) is None:
        return
    page.section("gradients", "Gradients between nodes", f"<p>{escape(reduces.in_words(run))}</p>",
                 grid(page.plot("gradient_bits", "Bits per gradient of each unit", reduces.bits_over_steps(run),
                                "Experts without tokens on a node send nothing, by any wire."),
                      page.plot("reducing", "Reduces: hidden and exposed", reduces.time_over_steps(run),
                                "Sums over units; of each, the slowest rank and the one that waited longest.")),
                 "<h3>Decisions</h3><p>Times are of a late step, all its reduces of a unit together.</p>",
                 decision_table(reduces.DECISIONS, reduces.decisions(run)))


def decision_table(columns, rows):
    rest = f"<p>… and {len(rows) - 200} more.</p>" if len(rows) > 200 else ""
    return table(columns, rows[:200]) + rest


def routing(page, run):
    heat = figures.expert_load(run)
    blocks = []
    if not isinstance(heat, str):
        options = "".join(f'<option value="{i}">{escape(trace.name)}</option>' for i, trace in enumerate(heat.data))
        blocks.append(f'<label class="selector">Show <select data-figure="load">{options}</select></label>')
    blocks.append(page.plot("load", "Load of each expert", heat,
                            "1 is the fair share. Black: the expert was not chosen once in that stretch of steps."))
    blocks.append(grid(page.plot("balance", "Balance by layer", figures.balance(run)),
                       page.plot("drops", "Drops", figures.drops(run), drops_remark(run))))
    blocks.append("<h3>Experts without tokens</h3>" + dead_table(run))
    page.section("experts", "Experts", *blocks)


def drops_remark(run):
    shares = [figures.drop_shares(run, reason) for reason in ("dropped", "dropped_random")] if run.steps else []
    return "No choice was dropped in this run." if shares and np.nanmax(shares, initial=0) == 0 else ""


def dead_table(run):
    found = data.choices(run)
    if found is None:
        return missing(figures.NO_CHOICES)
    steps, chosen = found
    recent = summary.recent_records(steps)
    since = int(steps[-recent])
    dead = data.dead_experts(steps, chosen, recent)
    if not dead:
        return (f"<p>Every one of the {chosen.shape[2]} experts of all {chosen.shape[1]} MoE layers was chosen "
                f"in steps {since:,} to {int(steps[-1]):,}.</p>")
    rows = [(figures.layer_name(run, layer), expert, f"step {last:,}" if last else "never") for layer, expert, last in dead[:200]]
    rest = f"<p>… and {len(dead) - 200} more.</p>" if len(dead) > 200 else ""
    return f"<p>Not chosen since step {since:,}:</p>" + table(["layer", "expert", "last chosen"], rows) + rest


def when(seconds):
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds)) if seconds else "–"


def checkpoints(page, run):
    rows = [(c["name"], summary.si(c["bytes"], "B"), c["files"], when(c["time"]),
             "complete" if c["complete"] else Markup('<span class="bad">incomplete</span>')) for c in run.checkpoints]
    page.section("checkpoints", "Checkpoints",
                 table(["name", "size", "files", "saved", "state"], rows) if rows
                 else missing("There is no checkpoint in this run directory."))


def setup(page, run):
    blocks = []
    if run.invocations:
        rows = [(i + 1, e.get("started", "–"), e.get("from_step", "–"), e.get("ranks", "–"), e.get("nodes", "–"),
                 e.get("transport", "–")) for i, e in enumerate(run.invocations)]
        blocks.append("<h3>Starts</h3>" + table(["", "started", "after step", "ranks", "nodes", "ranks are"], rows))
    if run.environment:
        blocks.append("<h3>Environment</h3>" + table(["", ""], environment_rows(run.environment), "pairs"))
    else:
        blocks.append(missing("The environment was not recorded."))
    page.section("environment", "Environment", *blocks)
    if not run.config_text:
        page.section("configuration", "Configuration", missing("config.toml is missing."))
        return
    sections = "".join(
        f"<div><h3>[{escape(name)}]</h3>" + table(["", ""], [(key, show(value)) for key, value in values.items()], "pairs") + "</div>"
        for name, values in run.config.items() if isinstance(values, dict))
    raw = f"<details><summary>config.toml as it is</summary><pre>{escape(run.config_text)}</pre></details>"
    page.section("configuration", "Configuration", f'<div class="columns">{sections}</div>{raw}')


def show(value):
    return ", ".join(map(str, value)) if isinstance(value, list) else json.dumps(value) if isinstance(value, bool) else value


def environment_rows(entry):
    hosts = entry.get("hosts") or []
    names = sorted(set(hosts))
    rows = [("hosts", ", ".join(f"{name} ({hosts.count(name)} ranks)" for name in names[:16]) + (" …" if len(names) > 16 else ""))]
    labels = {"cpu": "processor", "cores": "hardware threads", "memory_bytes": "memory", "threads_per_rank": "threads per rank",
              "system": "system", "moesaic": "Moesaic", "torch": "torch", "mpi": "MPI", "compiler": "compiler"}
    for key, label in labels.items():
        if key in entry:
            rows.append((label, summary.si(entry[key], "B") if key == "memory_bytes" else entry[key]))
    return rows


def render(run):
    page = Page()
    learning(page, run)
    speed(page, run)
    traffic(page, run)
    weights(page, run)
    gradients(page, run)
    routing(page, run)
    checkpoints(page, run)
    setup(page, run)
    title = f"{run.folder.resolve().name} · Moesaic"
    links = "".join(f'<a href="#{name}">{escape(text)}</a>' for name, text in page.contents)
    trace = " A timeline is in trace.json: open it at ui.perfetto.dev." if run.has_trace else ""
    written = f"Written {when(time.time())} from {run.folder}.{trace}"
    # "</" inside a script element would end it.
    figures_json = json.dumps(page.figures, separators=(",", ":")).replace("</", "<\\/")
    return "\n".join([
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">', f"<title>{escape(title)}</title>",
        f"<style>{(HERE / 'report.css').read_text()}</style>", f"<script>{get_plotlyjs()}</script>", "</head>", "<body>",
        f'<header><h1>{escape(run.folder.resolve().name)}</h1><p class="remark">{escape(written)}</p><nav>{links}</nav></header>',
        "<main>", top(run), *page.body, "</main>",
        f'<script type="application/json" id="figures">{figures_json}</script>',
        f"<script>{(HERE / 'report.js').read_text()}</script>", "</body>", "</html>", ""])
