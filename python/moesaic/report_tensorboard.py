"""A run as TensorBoard event files: scalars, with the times at which they were written unknown (steps count)."""

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from moesaic import report_data as data

# Tag -> key of metrics.jsonl.
SCALARS = {
    "loss/train": "loss",
    "loss/balance": "balance_loss",
    "loss/z": "z_loss",
    "optimizer/learning_rate": "learning_rate",
    "optimizer/gradient_norm": "gradient_norm",
    "speed/tokens_per_s": "tokens_per_s",
    "speed/seconds_per_step": "seconds",
    "communication/exposed_seconds": "exposed_seconds",
    "communication/hidden_seconds": "hidden_seconds",
    "bytes/gather": "gather_bytes",
    "bytes/reduce": "reduce_bytes",
    "bytes/exchange": "exchange_bytes",
    "bytes/control": "control_bytes",
    "bytes/inter_node": "inter_node_bytes",
    "routing/dropped": "dropped",
    "routing/dropped_random": "dropped_random",
    "routing/dropped_non_finite": "dropped_non_finite",
}


def scalars_of(line):
    """(tag, value) of one line of metrics.jsonl; values that are not finite are left out."""
    found = [(tag, data.number(line.get(key))) for tag, key in SCALARS.items()]
    found += [(f"routing/load_of_fullest_expert/{layer}", data.number(load))
              for layer, load in enumerate(line.get("expert_load", []))]
    return [(tag, value) for tag, value in found if np.isfinite(value)]


def evaluation_scalars(line):
    found = [("loss/held_out", data.number(line["heldout_loss"]))]
    found += [(f"loss/held_out/{name}", data.number(loss)) for name, loss in line.get("heldout_loss_by_file", {}).items()]
    return [(tag, value) for tag, value in found if np.isfinite(value)]


def write(run, folder):
    writer = EventFileWriter(str(folder))
    try:
        for line in run.steps:
            add(writer, line["step"], scalars_of(line))
        for line in run.evaluations:
            add(writer, line["step"], evaluation_scalars(line))
    finally:
        writer.close()


def add(writer, step, scalars):
    if scalars:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars]
        writer.add_event(Event(step=step, summary=Summary(value=values)))
