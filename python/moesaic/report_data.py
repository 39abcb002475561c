"""What a run directory says about its run, as arrays that a page can hold: long runs are thinned out here.

A run may be young, killed, or resumed: whatever is missing is empty, and `notes` says in words what was left out.
"""

import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

MAX_POINTS = 1200  # of a line
MAX_COLUMNS = 240  # of a heat-map or a stack

KINDS = ["gather", "reduce", "exchange", "control"]


@dataclass
class Run:
    folder: Path
    steps: list = field(default_factory=list)  # lines of metrics.jsonl, by step
    evaluations: list = field(default_factory=list)
    config: dict = field(default_factory=dict)
    config_text: str = ""
    environment: dict = field(default_factory=dict)  # of the last invocation
    invocations: list = field(default_factory=list)
    checkpoints: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    has_trace: bool = False

    @property
    def step(self):
        return self.column("step")

    def column(self, name):
        """One number per step; NaN where a line has none."""
        return np.array([number(line.get(name)) for line in self.steps], dtype=float)

    def option(self, section, key, default=None):
        return self.config.get(section, {}).get(key, default)


def number(value):
    """JSON has no NaN: the program writes null for it."""
    return float(value) if isinstance(value, (int, float)) else float("nan")


def read_lines(path, notes):
    """The objects of a JSON-lines file. A line that is torn (the run was killed while writing it) is left out."""
    if not path.exists():
        notes.append(f"{path.name} is missing: this run has not recorded any step.")
        return []
    objects, broken = [], 0
    for line in path.read_text(errors="replace").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict) and isinstance(value.get("step"), int):
            objects.append(value)
        elif line.strip():
            broken += 1
    if broken:
        notes.append(f"{broken} line{'s' if broken > 1 else ''} of {path.name} could not be read and "
                     "were left out (a run that is killed can tear its last line).")
    return objects


def read_json(path, notes):
    if not path.exists():
        notes.append(f"{path.name} is missing.")
        return {}
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        notes.append(f"{path.name} could not be read: {error}.")
        return {}
    return value if isinstance(value, dict) else {}


def read_config(path, notes):
    if not path.exists():
        notes.append(f"{path.name} is missing: the configuration is not known.")
        return {}, ""
    text = path.read_text(errors="replace")
    try:
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        notes.append(f"{path.name} could not be read: {error}.")
        return {}, text


def read_checkpoints(folder):
    found = []
    for path in sorted(folder.glob("step-*")):
        if not path.is_dir():
            continue
        manifest = path / "manifest.json"
        found.append({
            "name": path.name,
            "bytes": sum(file.stat().st_size for file in path.iterdir() if file.is_file()),
            "files": sum(1 for file in path.iterdir() if file.is_file()),
            "complete": manifest.exists() and path.suffix == "",
            "time": manifest.stat().st_mtime if manifest.exists() else None,
        })
    return found


def load(folder):
    """The run in `folder`. FileNotFoundError when there is none."""
    folder = Path(folder)
    if not (folder / "metrics.jsonl").exists() and not (folder / "config.toml").exists():
        raise FileNotFoundError(f"{folder} holds no training run: expected metrics.jsonl or config.toml in it")
    run = Run(folder)
    # One line per step: of a step done twice (a resumed run) the later one counts.
    by_step = {}
    for line in read_lines(folder / "metrics.jsonl", run.notes):
        if "heldout_loss" in line:
            run.evaluations.append(line)
        elif "loss" in line:
            by_step[line["step"]] = line
    run.steps = [by_step[step] for step in sorted(by_step)]
    run.config, run.config_text = read_config(folder / "config.toml", run.notes)
    environment = read_json(folder / "environment.json", run.notes)
    run.invocations = [entry for entry in environment.get("invocations", []) if isinstance(entry, dict)]
    run.environment = run.invocations[-1] if run.invocations else {}
    run.checkpoints = read_checkpoints(folder / "checkpoints")
    run.has_trace = (folder / "trace.json").exists()
    return run


def smooth(values, window):
    """Mean over the `window` values around each one (fewer at the ends); gaps (NaN) are stepped over."""
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    at = np.arange(len(values))
    # To both sides, so that the line does not lag where values move.
    first, last = np.maximum(at - window // 2, 0), np.minimum(at + window // 2 + 1, len(values))
    with np.errstate(invalid="ignore"):
        return (sums[last] - sums[first]) / (counts[last] - counts[first])


def window_of(count):
    """How many steps a smoothed line averages over."""
    return max(1, min(100, count // 25))


def buckets(count, most):
    """[first, last) index ranges that cut `count` values into at most `most` parts."""
    edges = np.unique(np.linspace(0, count, min(count, most) + 1).astype(int))
    return list(zip(edges[:-1], edges[1:]))


def thin(x, y, most=MAX_POINTS):
    """At most `most` points of a line that still show its extremes: each bucket's lowest and highest."""
    if len(x) <= most:
        return x, y
    kept = []
    for first, last in buckets(len(x), most // 2):
        part = y[first:last]
        if np.all(np.isnan(part)):
            kept.append(first)
            continue
        kept.extend({first + int(np.nanargmin(part)), first + int(np.nanargmax(part))})
    kept = np.array(sorted({0, len(x) - 1, *kept}))
    return x[kept], y[kept]


def thin_smooth(x, y, most=MAX_POINTS // 2):
    """The same for a line that is smooth already: every n-th point."""
    kept = np.unique(np.linspace(0, len(x) - 1, min(len(x), most)).astype(int)) if len(x) else []
    return x[kept], y[kept]


def bucket_means(x, rows, most=MAX_COLUMNS):
    """Means over buckets of steps: x of each bucket's last step, and one array per row."""
    parts = buckets(len(x), most)
    at = np.array([x[last - 1] for _, last in parts])
    return at, [np.array([mean(row[first:last]) for first, last in parts]) for row in rows]


def mean(values):
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def choices(run):
    """Steps whose routing was recorded, and choices [steps, layers, experts]; None where there are none."""
    lines = [line for line in run.steps if line.get("expert_choices")]
    if not lines:
        return None
    shape = np.shape(lines[-1]["expert_choices"])
    lines = [line for line in lines if np.shape(line["expert_choices"]) == shape]
    return (np.array([line["step"] for line in lines]),
            np.array([line["expert_choices"] for line in lines], dtype=float))


def load_over_time(steps, chosen, most=MAX_COLUMNS):
    """Steps and load [layers, experts, columns]: an expert's share of a layer's choices times the experts."""
    columns = []
    parts = buckets(len(steps), most)
    for first, last in parts:
        total = chosen[first:last].sum(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            columns.append(total * total.shape[1] / total.sum(axis=1, keepdims=True))
    return np.array([steps[last - 1] for _, last in parts]), np.stack(columns, axis=2)


def dead_experts(steps, chosen, recent):
    """(layer, expert, last step with a token or None) of experts without a token in the last `recent` records."""
    quiet = np.argwhere(chosen[-recent:].sum(axis=0) == 0)
    found = []
    for layer, expert in quiet:
        used = np.nonzero(chosen[:, layer, expert])[0]
        found.append((int(layer), int(expert), int(steps[used[-1]]) if len(used) else None))
    return found


def times(run):
    """Steps with times by rank, and {(column, phase): seconds [steps, ranks]}; None where there are none.

    Columns: working and waiting (compute thread), background (all others). Lines of an earlier invocation on another
    number of ranks are left out.
    """
    lines = [line for line in run.steps if isinstance(line.get("times"), dict)]
    if not lines:
        return None
    ranks = len(lines[-1]["times"]["seconds"])
    lines = [line for line in lines if len(line["times"]["seconds"]) == ranks]
    keys = sorted({(column, phase) for line in lines for column in ("working", "waiting", "background")
                   for phase in line["times"].get(column, {})})
    zeros = [0.0] * ranks
    table = {(column, phase): np.array([line["times"].get(column, {}).get(phase, zeros) for line in lines], dtype=float)
             for column, phase in keys}
    table["seconds", "all"] = np.array([line["times"]["seconds"] for line in lines], dtype=float)
    return np.array([line["step"] for line in lines]), table
