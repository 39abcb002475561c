"""What a report says of gathers: sums against lines written by hand, and every plot of them in a browser."""

import json
import sys
from pathlib import Path

import pytest

for folder in ("python", "tests/launch"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / folder))
from browser import open_page  # noqa: E402
from moesaic import report, report_gathers, report_summary, report_units  # noqa: E402
from moesaic import report_data as data  # noqa: E402
from program import metrics, train, write_config  # noqa: E402

PLOTS = {"bits", "saved", "gathering", "methods", "ratio"}
WORDS = 80_000


def gather(unit="layers.0", method="momentum", bits=2.5, nodes=2, seconds=0.02, **more):
    """A step's two gathers of a unit, the second of a version that is held."""
    entry = {"unit": unit, "method": method, "words": WORDS, "runs": 2, "unsent": 0, "raw_bytes": 2 * WORDS * (nodes - 1) * 2,
             "seconds": seconds, "exposed_seconds": 0.25 * seconds}
    if method != "raw":
        entry |= {"unsent": 1, "message_bytes": round(WORDS * bits / 8), "bits_per_weight": bits, "encode_seconds": 0.001,
                  "decode_seconds": 0.002, "reference_bytes": 2 * WORDS, "keys": 0, "resyncs": 0}
    return entry | more


def line(step, *gathers, **more):
    return {"step": step, "loss": 2.0, "inter_node_bytes_by_kind": {"gather": 0, "reduce": 0}, "gathers": list(gathers), **more}


def run_of(*lines):
    return data.Run(Path("."), steps=list(lines))


def assert_data_in_all(page, plots):
    for name in plots:
        plot = page["drawn"][name]
        assert plot["values"] and all(count > 0 for count in plot["values"]) and plot["marks"] > 0 and plot["titles"], (name, plot)


def test_sent_bytes_are_messages_once_to_each_other_node():
    gathers = report_gathers.of(run_of(line(1, gather(bits=4, nodes=3), gather("b", "raw", nodes=3))))
    assert gathers.units == ["layers.0", "b"]
    assert gathers.sent_bytes.tolist() == [[WORDS // 2 * 2, 2 * WORDS * 2 * 2]]


def test_raw_bytes_replace_what_was_sent_coded_and_leave_other_kinds_alone():
    sent = WORDS // 2 + 1000  # a coded unit, and what cannot travel coded
    lines = [line(step, gather(bits=4), inter_node_bytes_by_kind={"gather": sent, "reduce": 70}) for step in (1, 2, 3)]
    raw, found = report_gathers.saved_bytes(run_of(*lines))
    assert found == {"gather": 3 * sent, "reduce": 210, "exchange": 0, "control": 0}
    assert raw == {"gather": 3 * (2 * WORDS * 2 + 1000), "reduce": 210, "exchange": 0, "control": 0}


def test_trials_of_whole_steps_are_told_in_words():
    assert "trial" not in report_gathers.in_words(run_of(line(1, gather())))
    first = {"coded_seconds": 2.0, "plain_seconds": 1.0, "taken": "plain"}
    once = report_gathers.in_words(run_of(line(7, gather(), trial=first), line(8, gather(method="raw"))))
    assert once.endswith("One trial of plain steps, at step 7: steps took 2000 ms coded and 1000 ms plain; nothing is coded since.")
    second = {"coded_seconds": 0.5, "plain_seconds": 0.625, "taken": "coded"}
    twice = report_gathers.in_words(run_of(line(7, gather(), trial=first), line(40, gather(), trial=second)))
    assert twice.endswith("The last of 2 trials of plain steps, at step 40: steps took 500 ms coded and 625 ms plain; coding stayed.")


@pytest.mark.parametrize("method, lossy", [("momentum", False), ("int8", True)])
def test_a_lossy_method_is_called_so_in_words_rows_and_plots(method, lossy):
    run = run_of(line(1, gather(method=method, bits=8)), line(2, gather(method=method, bits=8)))
    assert ("lossy" in report_gathers.in_words(run)) == lossy
    (row,) = report_gathers.decisions(run)
    named = f"{method} (lossy)" if lossy else method
    assert row[2:4] == (named, f"{named} 100\N{NO-BREAK SPACE}%")
    (trace,) = report_gathers.methods_over_steps(run).data
    assert trace.name == named


def test_the_last_resync_is_told_with_its_reason():
    resync = gather("layers.1", resyncs=1, resync_reason="the part of rank 0: chunk 3 …")
    run = run_of(line(1, gather(), gather("layers.1")), line(2, gather(), resync), line(3, gather(), gather("layers.1")))
    assert report_gathers.last_resync(run) == (2, "layers.1", "the part of rank 0: chunk 3 …")
    (found,) = [text for text in report_summary.worth_a_look(run) if "sent again" in text]
    assert found.startswith("1 gather had to be sent again in full")
    assert found.endswith("The last was that of layers.1 at step 2: the part of rank 0: chunk 3 ….")
    assert report_gathers.last_resync(run_of(line(1, gather()))) is None


def test_on_one_node_nothing_is_saved_between_nodes():
    assert report_gathers.raw_and_sent(run_of(line(1, gather(nodes=1)))) == "Nothing crossed between nodes."


def test_bits_leave_out_raw_steps_and_messages_in_full():
    figure = report_gathers.bits_over_steps(run_of(line(1, gather(bits=11, keys=2)), line(2, gather(bits=3)),
                                                   line(3, gather(method="raw")), line(4, gather(bits=2))))
    (trace,) = figure.data
    assert [(x, y) for x, y in zip(trace.x, trace.y) if y == y] == [(2, 3), (4, 2)]
    assert len(trace.y) == 4  # and a gap between them


def test_many_units_become_rows_of_colour():
    units = [gather(f"layers.{i}") for i in range(report_units.MOST_LINES + 1)]
    (trace,) = report_gathers.bits_over_steps(run_of(line(1, *units), line(2, *units))).data
    assert trace.type == "heatmap" and len(trace.z) == len(units) and list(trace.y) == [unit["unit"] for unit in units]


def test_exposed_time_is_a_part_of_the_whole():
    figure = report_gathers.time_over_steps(run_of(line(1, gather(), gather("b")), line(2, gather(), gather("b", seconds=0.04))))
    hidden, exposed = figure.data
    assert list(hidden.y) == [30, 45] and list(exposed.y) == [10, 15]


def test_decisions_count_changes_but_not_probes():
    decided = {"predicted_raw_seconds": 0.05, "predicted_coded_seconds": 0.01, "window_seconds": 0.004, "probe": False}
    raw = gather(method="raw", seconds=0.06, **decided)
    lines = [line(1, raw), line(2, gather(**decided)), line(3, {**raw, "probe": True}), line(4, gather(**decided))]
    (row,) = report_gathers.decisions(run_of(*lines))
    row = dict(zip(report_gathers.DECISIONS, row))
    assert row["unit"] == "layers.0" and row["weights"] == "80,000" and row["travels now"] == "momentum"
    assert (row["changes"], row["probes"]) == (1, 1)
    assert row["so far"] == "raw 50\N{NO-BREAK SPACE}%, momentum 50\N{NO-BREAK SPACE}%"
    assert row["raw, predicted"] == "50 ms" and row["coded, predicted"] == "10 ms" and row["bits"] == "2.50"
    assert row["kept"] == "2.00\N{NO-BREAK SPACE}B/weight" and row["window"] == "4 ms"


def test_a_fixed_method_has_no_decisions_to_count():
    (row,) = report_gathers.decisions(run_of(line(1, gather()), line(2, gather())))
    row = dict(zip(report_gathers.DECISIONS, row))
    assert (row["changes"], row["probes"], row["raw, predicted"]) == ("fixed", "–", "–")
    assert report_gathers.prediction(run_of(line(1, gather()))) is None


def test_units_of_an_earlier_layout_are_left_out():
    gathers = report_gathers.of(run_of(line(1, gather("old")), line(2, gather("new"))))
    assert gathers.units == ["new"] and gathers["words"].tolist()[1] == [WORDS]
    assert gathers.method[0, 0] == ""


@pytest.mark.parametrize("units", [2, report_units.MOST_LINES + 1])
def test_a_page_shows_them_all(tmp_path, units):
    decided = {"predicted_raw_seconds": 0.05, "predicted_coded_seconds": 0.02}
    lines = []
    for step in range(1, 21):
        entries = [gather(f"layers.{i}", "raw" if step == 9 else "momentum", bits=11 if step == 1 else 2.5, probe=step == 9,
                          **decided) for i in range(units)]
        if step == 7:
            entries[0]["resyncs"] = 1
        lines.append(line(step, *entries, inter_node_bytes_by_kind={"gather": 900_000 * units, "reduce": 100_000}))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    assert report.main([str(tmp_path), "--html", str(tmp_path / "report.html")]) == 0
    page = open_page(tmp_path / "report.html")
    assert page["complaints"] == []
    assert PLOTS <= set(page["drawn"])
    assert_data_in_all(page, PLOTS)
    for words in ("Coded gathers took 2.95 bits a weight", "times fewer bytes of weights", "1 gather had to be sent again in full",
                  "Decisions", f"layers.{units - 1}"):
        assert words in page["text"], words


@pytest.mark.parametrize("method", ["momentum", "auto"])
def test_what_a_trainer_records_is_what_a_page_shows(tmp_path, method):
    config = write_config(tmp_path, train__steps=12, train__dtype="bf16", parallel__experts="gather", codec__method=method,
                          comm__ranks_per_node=1, moe__d_expert=64)
    train(config, tmp_path / "run", ranks=2, report=True)
    page = open_page(tmp_path / "run" / "report.html")
    assert page["complaints"] == []
    # A gate may find every unit of so small a model too small; a fixed method has no prediction.
    assert {"saved", "gathering", "methods"} <= set(page["drawn"])
    assert ("ratio" in page["drawn"]) == (method == "auto")
    assert_data_in_all(page, page["drawn"])
    units = {entry["unit"] for line in metrics(tmp_path / "run") if "loss" in line for entry in line["gathers"]}
    assert units and all(unit in page["text"] for unit in units)
    raw, sent = report_gathers.saved_bytes(data.load(tmp_path / "run"))
    if method == "momentum":
        assert "bits" in page["drawn"]
        assert raw["gather"] > 1.5 * sent["gather"] > 0


def test_a_run_without_coded_units_has_no_such_section(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 2.0}) + "\n")
    assert report.main([str(tmp_path), "--html", str(tmp_path / "report.html")]) == 0
    assert 'id="weights"' not in (tmp_path / "report.html").read_text()
