"""How a report thins and sums up what a run recorded."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
from moesaic import report_data as data  # noqa: E402
from moesaic.report_figures import resumed_after, rounded  # noqa: E402
from moesaic.report_summary import duration, in_words, si, too_few_cores  # noqa: E402


def test_a_thinned_line_keeps_its_ends_and_its_extremes():
    y = np.sin(np.arange(100_000) / 1000)
    y[54_321], y[7] = 50.0, -50.0
    x, kept = data.thin(np.arange(100_000), y)
    assert len(x) <= data.MAX_POINTS + 2
    assert {0, 7, 54_321, 99_999} <= set(x.tolist())
    assert (np.diff(x) > 0).all() and np.array_equal(kept, y[x])


def test_a_line_of_gaps_can_be_thinned():
    x, y = data.thin(np.arange(5000), np.full(5000, np.nan))
    assert len(x) <= data.MAX_POINTS + 2 and np.isnan(y).all()


def test_smoothing_does_not_shift_a_straight_line_and_steps_over_gaps():
    line = np.arange(200.0)
    assert np.allclose(data.smooth(line, 20)[10:-10], line[10:-10])
    line[100] = np.nan
    assert np.isfinite(data.smooth(line, 20)).all()


def test_bucket_means_of_everything_are_the_mean():
    x, (y,) = data.bucket_means(np.arange(1, 1001), [np.arange(1000.0)], most=10)
    assert len(x) == 10 and x[-1] == 1000
    assert np.isclose(y.mean(), 499.5)


def test_load_is_one_where_experts_are_equally_busy():
    chosen = np.full((30, 2, 4), 7.0)
    chosen[:, 1] = [0, 0, 0, 28]
    steps, load = data.load_over_time(np.arange(1, 31), chosen, most=3)
    assert load.shape == (2, 4, 3) and steps[-1] == 30
    assert np.allclose(load[0], 1) and np.allclose(load[1, 3], 4) and np.allclose(load[1, :3], 0)


def test_dead_experts_are_named_with_the_step_that_last_used_them():
    chosen = np.ones((10, 2, 3))
    chosen[4:, 0, 2] = 0
    chosen[:, 1, 1] = 0
    assert data.dead_experts(np.arange(1, 11), chosen, recent=5) == [(0, 2, 4), (1, 1, None)]


def test_numbers_for_people():
    assert [si(1234567), si(950), si(float("nan"))] == ["1.23 M", "950", "–"]
    assert [duration(0.0123), duration(75), duration(7200)] == ["12 ms", "75 s", "2.0 h"]
    assert rounded([123456.7, 0.00123456, 0, np.nan])[:3].tolist() == [123460.0, 0.0012346, 0.0]


def test_more_ranks_than_hardware_threads_are_told_apart_from_slow_messages():
    here = {"hosts": ["a", "a", "a", "b"], "cores": 4, "threads_per_rank": 1}
    assert too_few_cores(here) == [] and too_few_cores({}) == []
    (said,) = too_few_cores(dict(here, threads_per_rank=2))
    assert said.startswith("3 ranks with 2 compute threads each share the 4 hardware threads of a")


def test_parts_of_a_step_read_as_words():
    assert [in_words(part) for part in ("forward", "waiting: tokens")] == ["forward", "waiting for tokens"]


def test_starts_close_to_each_other_share_one_label():
    run = data.Run(Path("."), steps=[{"step": step} for step in range(1, 101)],
                   invocations=[{"from_step": step} for step in (0, 40, 44, 44, 80)])
    assert resumed_after(run) == [(40, True), (44, False), (80, True)]
