"""Rows counted by the headers of their batches are as many as those that are decoded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from braidmq.spark.source import row_counter  # noqa: E402
from braidmq.spark.source.columns import COUNT, arrow_schema  # noqa: E402
from braidmq.spark.source.row_counter import RowCounter  # noqa: E402
from braidmq.wire.compress import Codec  # noqa: E402
from braidmq.wire.records import build_batch, restamp_append_time  # noqa: E402

CONSTANTS = ("partition", "timestampType", "topic")
batches = st.lists(
    st.tuples(st.integers(1, 30), st.sampled_from([Codec.NONE, *Codec]), st.booleans()), max_size=8
)


def stored(written: list[tuple[int, Codec, bool]]) -> list[tuple[bytes, range, bool]]:
    """Batches of so many records: the bytes, the offsets, and whether the broker stamped them."""
    found, offset = [], 0
    for count, codec, append_time in written:
        batch = build_batch([(None, b"v", [], 5)] * count, codec, base_offset=offset)
        if append_time:
            restamp_append_time(batch, 1234)
        found.append((bytes(batch), range(offset, offset + count), append_time))
        offset += count
    return found


def counted(
    columns: tuple[str, ...], batches: list[tuple[bytes, range, bool]], first: int, end: int
) -> list[dict[str, Any]]:
    counter = RowCounter(columns, "orders", 7, first, end)
    found = [*counter.feed(memoryview(b"".join(each[0] for each in batches))), *counter.flush()]
    for each in found:
        each.validate(full=True)
    rows: list[dict[str, Any]] = pa.Table.from_batches(found, arrow_schema(columns)).to_pylist()
    return rows


@settings(deadline=None)
@given(batches, st.integers(0, 60), st.integers(0, 120))
def test_as_many_rows_as_there_are_records_in_the_range(
    written: list[tuple[int, Codec, bool]], first: int, length: int
) -> None:
    """S1: whatever the codec, with ranges that cut through batches, and both kinds of time."""
    there = stored(written)
    end = first + length
    kinds = [int(kind) for _, offsets, kind in there for offset in offsets if first <= offset < end]

    rows = counted(CONSTANTS, there, first, end)
    assert [row["timestampType"] for row in rows] == kinds
    assert {(row["topic"], row["partition"]) for row in rows} <= {("orders", 7)}
    assert sum(row[COUNT] for row in counted((COUNT,), there, first, end)) == len(kinds)
    grouped = counted(("timestampType", COUNT), there, first, end)
    assert all(row[COUNT] for row in grouped)
    assert sum(row[COUNT] for row in grouped if row["timestampType"]) == sum(kinds)
    assert sum(row[COUNT] for row in grouped) == len(kinds)


def test_a_count_of_nothing_is_a_zero_and_a_group_of_nothing_is_none() -> None:
    """S1: Spark adds up what tasks counted: of no numbers at all it would make a null."""
    assert counted((COUNT,), [], 0, 9) == [{COUNT: 0}]
    assert counted(("partition", COUNT), [], 0, 9) == []


def test_arrow_batches_are_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: however many records a batch has."""
    monkeypatch.setattr(row_counter, "ROWS_MAX", 16)
    ((batch, _, _),) = stored([(50, Codec.NONE, False)])
    counter = RowCounter(("partition",), "orders", 7, 0, 50)

    found = [*counter.feed(memoryview(batch)), *counter.flush()]
    assert [each.num_rows for each in found] == [16, 16, 16, 2]
