"""A histogram of durations with a fixed relative error and a fixed size, whatever is recorded.

Values are sorted into buckets whose width doubles with each power of two, 128 buckets to a power, so every
percentile is right to better than 1 % (the idea of Gil Tene's HdrHistogram). Values are whole microseconds
up to about 71 minutes; larger ones count as that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

SUB_BITS = 7
SUB_COUNT = 1 << SUB_BITS
VALUE_MAX_US = (1 << 32) - 1
PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)


class Bar(NamedTuple):
    """Values from `low_us` up to, not including, `high_us`."""

    low_us: int
    high_us: int
    values: int


class Histogram:
    """Counts by size of value."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_us = 0
        self.min_us = 0
        self.max_us = 0
        self._counts = [0] * (_index(VALUE_MAX_US) + 1)

    def record_seconds(self, seconds: float, times: int = 1) -> None:
        self.record(int(seconds * 1_000_000), times)

    def record(self, value_us: int, times: int = 1) -> None:
        value_us = min(max(value_us, 0), VALUE_MAX_US)
        self.min_us = value_us if self.count == 0 else min(self.min_us, value_us)
        self.max_us = max(self.max_us, value_us)
        self.count += times
        self.sum_us += value_us * times
        self._counts[_index(value_us)] += times

    @property
    def mean_us(self) -> float:
        return self.sum_us / self.count if self.count else 0.0

    def percentile(self, percent: float) -> int:
        """The value that `percent` of all values do not exceed; 0 when nothing was recorded."""
        wanted = max(1, -(-self.count * percent // 100))
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min(_last_value(index), self.max_us)
        return 0

    def bars(self) -> Iterator[Bar]:
        """The counts by power of two, from the smallest value seen to the largest; for drawing."""
        if not self.count:
            return
        for bits in range(self.min_us.bit_length(), self.max_us.bit_length() + 1):
            low_us, high_us = (1 << bits) >> 1, 1 << bits
            yield Bar(low_us, high_us, sum(self._counts[_index(low_us) : _index(high_us - 1) + 1]))

    def summary(self) -> dict[str, float]:
        """Milliseconds by name, for JSON and tables."""
        named = {f"p{percent:g}": self.percentile(percent) / 1000 for percent in PERCENTILES}
        return {
            "min": self.min_us / 1000,
            "mean": round(self.mean_us / 1000, 3),
            **named,
            "max": self.max_us / 1000,
        }


def _index(value_us: int) -> int:
    # Below 2^7 every value has its own bucket; above, the leading 7 bits after the first choose it.
    shift = max(0, value_us.bit_length() - SUB_BITS - 1)
    return (shift << SUB_BITS) + (value_us >> shift)


def _last_value(index: int) -> int:
    """The largest value that falls into a bucket."""
    shift = max(0, (index >> SUB_BITS) - 1)
    return (((index - (shift << SUB_BITS)) + 1) << shift) - 1
