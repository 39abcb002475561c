"""The top of a report: what the run did, where its time went, and what to look at, in plain words."""

import numpy as np

from moesaic import report_data as data
from moesaic import report_figures as figures
from moesaic import report_gathers as gathers


def si(value, unit=""):
    """1234567 -> '1.23 M'"""
    if not np.isfinite(value):
        return "–"
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".strip()


def duration(seconds):
    if not np.isfinite(seconds):
        return "–"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 120 else f"{hours:.1f} h"


def percent(share):
    return f"{100 * share:.0f}\N{NO-BREAK SPACE}%" if share >= 0.1 else f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def late(values):
    """The last fifth of a run, but 3 to 200 steps."""
    return values[-max(3, min(200, len(values) // 5)):]


def cards(run):
    """(label, value, remark) of the figures worth the first look."""
    steps = len(run.steps)
    losses, speed = run.column("loss"), run.column("tokens_per_s")
    planned = run.option("train", "steps")
    held_out = [data.number(line["heldout_loss"]) for line in run.evaluations]
    exposed, seconds = data.mean(late(run.column("exposed_seconds"))), data.mean(late(run.column("seconds")))
    out = [("steps", f"{int(run.step[-1]):,}" if steps else "0", f"of {planned:,}" if planned else ""),
           ("training loss", f"{data.mean(late(losses)):.3f}" if steps else "–", "nats per token")]
    if held_out:
        best = int(np.nanargmin(held_out)) if np.isfinite(held_out).any() else 0
        out.append(("held-out loss", f"{held_out[-1]:.3f}",
                    f"best {held_out[best]:.3f} at step {run.evaluations[best]['step']:,}"))
    else:
        out.append(("held-out loss", "–", "not evaluated"))
    out.append(("throughput", si(data.mean(late(speed))), "tokens per second"))
    share = exposed / seconds if seconds else float("nan")
    out.append(("waiting", percent(share) if np.isfinite(share) else "–", "for communication"))
    out.append(("time in steps", duration(float(np.nansum(run.column("seconds")))) if steps else "–", ""))
    return out


def what_it_did(run):
    if not run.steps:
        return "This run has not recorded a step yet."
    ranks = run.environment.get("ranks")
    tokens = len(run.steps) * int(run.option("train", "batch_tokens", 0) or 0)
    text = f"Trained {len(run.steps):,} step{'s' if len(run.steps) > 1 else ''}"
    if tokens:
        text += f" ({si(tokens)} tokens)"
    if len(run.invocations) > 1:
        text += ", the last of them"  # an earlier start may have had other ranks, and reached experts otherwise
    if ranks:
        text += f" on {ranks} rank{'s' if ranks > 1 else ''}"
    experts = run.option("parallel", "experts")
    if experts:
        names = sorted(set(experts)) if isinstance(experts, list) else [experts]
        text += f", experts reached by {' and '.join(names)}"
    losses = run.column("loss")
    finite = losses[np.isfinite(losses)]
    if len(finite) >= 3:
        text += f". The training loss went from {finite[0]:.2f} to {data.mean(late(finite)):.2f} nats per token"
    if run.evaluations:
        text += f"; on held-out text it is {data.number(run.evaluations[-1]['heldout_loss']):.3f}"
    text += "."
    if len(run.invocations) > 1:
        text += f" It was started {len(run.invocations)} times (resumed from a checkpoint)."
    return text


def in_words(part):
    """'waiting: tokens' -> 'waiting for tokens'"""
    return part.replace("waiting: ", "waiting for ").replace("exchange: packing", "packing tokens")


def where_time_went(run):
    found = data.times(run)
    if found is None:
        return ""
    _, table = found
    whole = late(table["seconds", "all"]).mean()
    if not whole > 0:
        return ""
    shares = [(late(figures.part_seconds(table, column, phases)).mean() / whole, label)
              for label, column, phases, _ in figures.PARTS]
    shares = sorted((share, label) for share, label in shares if share >= 0.02)[::-1]
    words = ", ".join(f"{in_words(label)} {percent(share)}" for share, label in shares)
    return f"A late step takes {duration(float(whole))}: {words}."


def worth_a_look(run):
    """Sentences, the most urgent first. Empty when all is as it should be."""
    found = []
    skipped = sum(1 for line in run.steps if line.get("skipped"))
    if skipped:
        found.append(f"{skipped} step{'s' if skipped > 1 else ''} had a loss or a gradient that is not finite and "
                     "changed nothing.")
    non_finite = int(np.nansum(run.column("dropped_non_finite"))) if run.steps else 0
    if non_finite:
        found.append(f"{non_finite:,} tokens had router logits that are not finite.")
    resyncs = gathers.resyncs(run)
    if resyncs:
        last = gathers.last_resync(run)
        reason = "" if last is None else f" The last was that of {last[1]} at step {last[0]}: {last[2]}."
        found.append(f"{resyncs} gather{'s' if resyncs > 1 else ''} had to be sent again in full: some rank held or received "
                     f"something else than was sent. Weights are right; memory or network may not be.{reason}")
    held_out = [data.number(line["heldout_loss"]) for line in run.evaluations]
    if len(held_out) >= 3 and held_out[-1] > min(held_out) * 1.02:
        found.append("The held-out loss is more than 2 % above its best: the model may be overfitting.")
    chosen = data.choices(run)
    if chosen is not None:
        dead = data.dead_experts(*chosen, recent_records(chosen[0]))
        if dead:
            found.append(f"{len(dead)} expert{'s' if len(dead) > 1 else ''} received no token lately "
                         "(see “Experts without tokens”).")
        loads = [max(line["expert_load"]) for line in run.steps[-50:] if line.get("expert_load")]
        if loads and np.mean(loads) > 2:
            found.append(f"The fullest expert gets {np.mean(loads):.1f} times its fair share: routing is unbalanced.")
    shares = late(figures.drop_shares(run)) if run.steps else np.array([])
    if len(shares) and data.mean(shares) > 5:
        found.append(f"{data.mean(shares):.0f} % of the choices are lost to capacity: consider a larger "
                     "moe.capacity_factor, or dropless routing.")
    found.extend(about_time(run))
    return found


def about_time(run):
    found = []
    exposed, seconds = data.mean(late(run.column("exposed_seconds"))), data.mean(late(run.column("seconds")))
    if np.isfinite(exposed) and seconds > 0 and exposed / seconds > 0.15:
        timeline = "the timeline (trace.json)" if run.has_trace else "a timeline (train --trace)"
        found.append(f"Compute waits for communication {percent(exposed / seconds)} of the time: see which kind below, "
                     f"and open {timeline} in Perfetto.")
        found.extend(too_few_cores(run.environment))
    table = data.times(run)
    if table is not None and table[1]["seconds", "all"].shape[1] > 1:
        work = sum(late(figures.part_seconds(table[1], column, phases)).mean(axis=0)
                   for _, column, phases, _ in figures.PARTS if column == "working")
        if work.min() > 0 and work.max() > 1.3 * work.min():
            found.append(f"Rank {int(work.argmax())} works {work.max() / work.min():.1f} times as long as rank "
                         f"{int(work.argmin())}: the others wait for it.")
    return found


def too_few_cores(environment):
    """Ranks that take turns on a processor look as if they waited for messages."""
    hosts, cores = environment.get("hosts"), environment.get("cores")
    if not hosts or not cores:
        return []
    ranks, threads = hosts.count(hosts[0]), environment.get("threads_per_rank", 1)
    if ranks * threads <= cores:
        return []
    return [f"{ranks} ranks with {threads} compute thread{'s' if threads > 1 else ''} each share the {cores} hardware "
            f"threads of {hosts[0]}: much of that waiting is for a turn on the processor, not for messages."]


def recent_records(steps):
    """How many of the last routing records count as lately."""
    return max(1, min(50, len(steps) // 10))
