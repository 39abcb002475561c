"""train --trace: a timeline of some steps, with a lane for every thread of every rank."""

import json

import pytest
from program import MISUSE, moesaic, refused, settings, train, write_config


def spans(run_dir):
    """{rank: {lane: [event]}} of trace.json."""
    events = json.loads((run_dir / "trace.json").read_text())["traceEvents"]
    lanes = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    found = {}
    for event in events:
        if event["ph"] == "X":
            found.setdefault(event["pid"], {}).setdefault(lanes[event["pid"], event["tid"]], []).append(event)
    return found


def steps_of(lanes):
    return sorted(int(event["name"].split()[1]) for event in lanes["compute"] if event["cat"] == "step")


def overlapping(a, b):
    return a["ts"] < b["ts"] + b["dur"] and b["ts"] < a["ts"] + a["dur"]


def gathers_ahead(lanes):
    """Pairs of a forward of layer 0 and a gather of layer 1 that ran at the same time."""
    forward = [event for event in lanes["compute"] if event["cat"] == "forward" and event["name"] == "layer 0"]
    gathers = [event for lane, events in lanes.items() if lane.startswith("gather") for event in events
               if event["name"].startswith("layers.1.")]
    return [(f, g) for f in forward for g in gathers if overlapping(f, g)]


@pytest.mark.parametrize("mpi", [False, True], ids=["threads", "mpi"])
def test_every_rank_has_its_lanes_and_gathers_ahead(tmp_path, mpi):
    # Wide enough that a gather takes time; 20 steps are 20 chances to be seen beside a forward.
    config = write_config(tmp_path, parallel__experts="gather", train__steps=20, model__d_model=128, moe__d_expert=128)
    train(config, tmp_path / "run", "--trace", "1:20", ranks=2, mpi=mpi)
    found = spans(tmp_path / "run")
    assert sorted(found) == [0, 1]
    for lanes in found.values():
        assert {"compute", "gather", "reduce"} <= set(lanes)
        assert steps_of(lanes) == list(range(1, 21))
    assert any(gathers_ahead(lanes) for lanes in found.values())


def test_three_steps_in_the_middle_by_default(tmp_path):
    train(write_config(tmp_path, train__steps=9), tmp_path / "run", "--trace")
    assert steps_of(spans(tmp_path / "run")[0]) == [4, 5, 6]


def test_a_run_that_stops_early_still_writes_what_it_has(tmp_path):
    train(write_config(tmp_path, train__steps=9), tmp_path / "run", "--trace", "2:8", train__stop_at=4)
    assert steps_of(spans(tmp_path / "run")[0]) == [2, 3, 4]


def test_the_phases_of_a_step_add_up_to_no_more_than_the_step(tmp_path):
    train(write_config(tmp_path, train__steps=3), tmp_path / "run", ranks=2)
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        times = json.loads(line).get("times")
        if times is None:
            continue
        for rank, seconds in enumerate(times["seconds"]):
            phases = sum(by_rank[rank] for part in ("working", "waiting") for by_rank in times[part].values())
            assert 0 < phases <= seconds + 1e-4  # each phase is rounded to a microsecond
        assert {"forward", "backward", "optimizer", "step"} <= set(times["working"])
        assert "reduce" in times["background"]


@pytest.mark.parametrize("range_of_steps", ["5", "0:3", "4:2", "a:b", "30:40"])
def test_a_range_that_makes_no_sense_is_refused(tmp_path, range_of_steps):
    ran = moesaic("train", "--config", write_config(tmp_path), "--run-dir", tmp_path / "run", "--trace", range_of_steps,
                  *settings(train__steps=9))
    refused(MISUSE, ran, range_of_steps)
