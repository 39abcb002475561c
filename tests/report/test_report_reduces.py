"""What a report says of gradients between nodes: sums against lines written by hand, and the plots in a browser."""

import json
import sys
from pathlib import Path

import pytest

for folder in ("python", "tests/launch"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / folder))
from browser import open_page  # noqa: E402
from moesaic import report, report_gathers, report_reduces  # noqa: E402
from moesaic import report_data as data  # noqa: E402
from program import metrics, train, write_config  # noqa: E402


def reduce(unit="layers.0", wire="entropy", bits=10.0, seconds=0.02, **more):
    """A step's reduce of a unit that sends 100,000 words between nodes."""
    return {"unit": unit, "wire": wire, "runs": 1, "raw_bytes": 200_000, "message_bytes": round(12_500 * bits), "seconds": seconds,
            "exposed_seconds": 0.5 * seconds, "encode_seconds": 0.001, "decode_seconds": 0.002, **more}


def line(step, *reduces, **more):
    return {"step": step, "loss": 2.0, "inter_node_bytes_by_kind": {"gather": 0, "reduce": 130_000}, "reduces": list(reduces), **more}


def run_of(*lines):
    return data.Run(Path("."), steps=list(lines))


def test_bits_are_those_of_all_words_also_the_ones_left_out():
    (trace,) = report_reduces.bits_over_steps(run_of(line(1, reduce(bits=10)), line(2, reduce(bits=5)))).data
    assert list(trace.y) == [10, 5]


def test_what_was_not_sent_counts_as_saved():
    raw, sent = report_gathers.saved_bytes(run_of(line(1, reduce(bits=10)), line(2, reduce(bits=8))))
    assert sent["reduce"] == 260_000
    assert raw["reduce"] == 260_000 + 75_000 + 100_000


def test_hidden_and_exposed_add_up():
    hidden, exposed = report_reduces.time_over_steps(run_of(line(1, reduce(), reduce("b", seconds=0.04)))).data
    assert list(hidden.y) == [30] and list(exposed.y) == [30]


def test_decisions_count_changes_but_not_probes():
    decided = {"predicted_bf16_seconds": 0.05, "predicted_entropy_seconds": 0.01, "window_seconds": 0.004,
               "probe": False}
    lines = [line(1, reduce(wire="bf16", bits=16, **decided)), line(2, reduce(**decided)),
             line(3, reduce(wire="bf16", bits=16, **{**decided, "probe": True})), line(4, reduce(**decided))]
    (row,) = report_reduces.decisions(run_of(*lines))
    row = dict(zip(report_reduces.DECISIONS, row))
    assert (row["travels now"], row["changes"], row["probes"], row["bits"]) == ("entropy", 1, 1, "10.00")
    assert (row["bf16, predicted"], row["entropy, predicted"], row["measured"]) == ("50 ms", "10 ms", "20 ms")
    assert row["window"] == "4 ms"


@pytest.mark.parametrize("wire, lossy", [("entropy", False), ("int8", True)])
def test_a_lossy_wire_is_called_so(wire, lossy):
    text = report_reduces.in_words(run_of(line(1, reduce(wire=wire, bits=8))))
    assert text.startswith("Gradients took 8.00 bits each between nodes instead of 16.")
    assert ("lossy" in text) == lossy


def test_a_page_without_them_has_no_such_section(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 2.0}) + "\n")
    assert report.main([str(tmp_path), "--html", str(tmp_path / "report.html")]) == 0
    assert "Gradients between nodes" not in open_page(tmp_path / "report.html")["text"]


def test_what_a_trainer_records_is_what_a_page_shows(tmp_path):
    config = write_config(tmp_path, train__steps=12, train__dtype="bf16", parallel__experts="gather", comm__ranks_per_node=1,
                          moe__d_expert=64)
    train(config, tmp_path / "run", ranks=2, report=True)
    page = open_page(tmp_path / "run" / "report.html")
    assert page["complaints"] == []
    for name in ("gradient_bits", "reducing"):
        plot = page["drawn"][name]
        assert plot["values"] and all(count > 0 for count in plot["values"]), (name, plot)
    steps = [line for line in metrics(tmp_path / "run") if "loss" in line]
    assert len(steps) == 12 and all(line["reduces"] for line in steps)
    for entry in steps[-1]["reduces"]:
        assert entry["unit"] in page["text"]
        assert 0 < entry["message_bytes"] <= 1.05 * entry["raw_bytes"] and "predicted_entropy_seconds" in entry
