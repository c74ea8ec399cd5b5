"""The histogram of `braid perf`."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from braidmq.cli.histogram import PERCENTILES, VALUE_MAX_US, Histogram

values = st.lists(st.integers(0, VALUE_MAX_US), min_size=1, max_size=300)


def filled(recorded: list[int]) -> Histogram:
    histogram = Histogram()
    for value in recorded:
        histogram.record(value)
    return histogram


@given(values, st.sampled_from(PERCENTILES))
def test_a_percentile_is_right_to_one_percent(recorded: list[int], percent: float) -> None:
    """O1: compared with sorting everything."""
    exact = sorted(recorded)[max(1, math.ceil(len(recorded) * percent / 100)) - 1]
    found = filled(recorded).percentile(percent)
    assert exact <= found <= exact * 1.01 + 1


@given(values)
def test_bars_count_every_value_once(recorded: list[int]) -> None:
    """O1: nothing falls between two bars."""
    bars = list(filled(recorded).bars())
    assert sum(bar.values for bar in bars) == len(recorded)
    assert all(one.high_us == two.low_us for one, two in pairwise(bars) if two.low_us > 1)


@given(values)
def test_least_largest_and_mean_are_exact(recorded: list[int]) -> None:
    """O1: they do not go through the buckets."""
    histogram = filled(recorded)
    assert (histogram.min_us, histogram.max_us) == (min(recorded), max(recorded))
    assert histogram.mean_us == sum(recorded) / len(recorded)


def test_an_empty_histogram_has_zeros_and_no_bars() -> None:
    """O1: a run of no records is shown, not a crash."""
    assert Histogram().percentile(99) == 0
    assert list(Histogram().bars()) == []
    assert set(Histogram().summary().values()) == {0}
