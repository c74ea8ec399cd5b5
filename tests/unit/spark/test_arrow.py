"""Records decoded to Arrow columns are the records that `records()` gives one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from braidmq.spark.source import arrow  # noqa: E402
from braidmq.spark.source.columns import ARROW_TYPES  # noqa: E402
from braidmq.spark.source.timestamps import TimestampTooLarge  # noqa: E402
from braidmq.wire.compress import Codec  # noqa: E402
from braidmq.wire.errors import ApiError  # noqa: E402
from braidmq.wire.records import build_batch, parse_header, records, restamp_append_time, stamp  # noqa: E402

EVERYTHING = tuple(ARROW_TYPES)
optional_bytes = st.none() | st.binary(max_size=300)
names = st.text(max_size=8) | st.sampled_from(["braid.tag", "braid.id"])
rows = st.lists(
    st.tuples(
        optional_bytes,
        optional_bytes,
        st.lists(st.tuples(names, optional_bytes), max_size=4),
        st.integers(0, 2**42),
    ),
    min_size=1,
    max_size=40,
)


def decode(
    batches: list[bytes],
    columns: tuple[str, ...] = EVERYTHING,
    first: int = 0,
    end: int = 2**62,
    apart: bool = True,
) -> Any:
    """The rows of an Arrow table as dictionaries, fed with one batch at a time or with all."""
    decoder = arrow.ArrowDecoder(columns, "orders", 7, first, end)
    found = []
    for some in batches if apart else [b"".join(batches)]:
        found += list(decoder.feed(memoryview(some)))
    found += list(decoder.flush())
    for each in found:
        each.validate(full=True)
    return pa.Table.from_batches(found, arrow.arrow_schema(columns)).to_pylist()


def expected(batches: list[bytes], first: int = 0, end: int = 2**62) -> list[dict[str, Any]]:
    """The same from the one-by-one decoder."""
    found = []
    for batch in batches:
        append_time = parse_header(batch).timestamp_type_append
        for record in records(batch):
            headers = dict(reversed(record.headers))
            if first <= record.offset < end:
                found.append(
                    {
                        "key": record.key,
                        "value": record.value,
                        "topic": "orders",
                        "partition": 7,
                        "offset": record.offset,
                        "timestamp": record.timestamp * 1000,
                        "timestampType": int(append_time),
                        "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
                        "tag": headers.get("braid.tag"),
                        "messageId": headers.get("braid.id"),
                    }
                )
    return found


def plain(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Times as microseconds, texts that are binary in one and text in the other as bytes."""
    for row in found:
        if not isinstance(row["timestamp"], int):
            row["timestamp"] = int(pa.scalar(row["timestamp"], pa.timestamp("us", tz="UTC")).value)
        for name in ("tag", "messageId"):
            if isinstance(row[name], str):
                row[name] = row[name].encode()
    return found


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(rows, st.sampled_from([Codec.NONE, Codec.NONE, *Codec]), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 60),
    st.integers(0, 120),
)
def test_columns_hold_what_records_hold(
    written: list[tuple[Any, Codec, bool]], first: int, length: int
) -> None:
    """S1: every codec, nulls, headers, tags, both kinds of timestamp, and any range of offsets."""
    batches, offset = [], 0
    for content, codec, append_time in written:
        utf8 = [
            (key, value, [(name, _text(name, item)) for name, item in headers], when)
            for key, value, headers, when in content
        ]
        batch = build_batch(utf8, codec, base_offset=offset)
        if append_time:
            restamp_append_time(batch, 1234)
        batches.append(bytes(batch))
        offset += len(content)

    held = expected(batches, first, first + length)
    assert plain(decode(batches, EVERYTHING, first, first + length)) == held
    assert plain(decode(batches, EVERYTHING, first, first + length, apart=False)) == held
    pruned = ("offset", "value", "timestampType", "key")
    assert decode(batches, pruned, first, first + length, apart=False) == [
        {name: row[name] for name in pruned} for row in held
    ]


def _text(name: str, content: bytes | None) -> bytes | None:
    """A tag is text: what else a client may write there is not valid Arrow, and not looked at here."""
    return b"red" if name.startswith("braid.") and content is not None else content


@pytest.mark.parametrize(
    "columns", [("value",), ("key", "offset"), ("headers",), ("tag", "topic"), ("timestamp",)]
)
def test_only_wanted_columns_are_there(columns: tuple[str, ...]) -> None:
    """S1: a pruned schema has these columns and no others, with the same content."""
    batch = bytes(build_batch([(b"k", b"v", [("braid.tag", b"red")], 5), (None, None, [], 6)]))

    found = decode([batch], columns)

    assert found == [{name: row[name] for name in columns} for row in decode([batch])]


def test_batches_are_of_bounded_size_whatever_comes() -> None:
    """S1: many small records, few large ones, and one larger than the usual room."""
    many = bytes(build_batch([(None, b"x", [], 0)] * 20_000))
    large = bytes(build_batch([(b"k" * 900_000, b"v" * 3_000_000, [("h", b"w" * 100_000)], 0)] * 3))
    decoder = arrow.ArrowDecoder(EVERYTHING, "orders", 0, 0, 2**62)

    found = [each for batch in (many, large) for each in decoder.feed(memoryview(batch))]
    found += list(decoder.flush())

    assert sum(each.num_rows for each in found) == 20_003
    assert max(each.num_rows for each in found) <= arrow.ROWS_MAX
    assert [len(value.as_py()) for value in found[-1].column("value")] == [3_000_000] * 3


@pytest.mark.parametrize(("key_bytes", "value_bytes"), [(600_000, 10), (3_000_000, 10), (600_000, 3_000_000)])
def test_a_record_larger_than_the_usual_room_is_a_row(key_bytes: int, value_bytes: int) -> None:
    """S1: whichever part of it is large, between records that are not."""
    small, large = (b"k", b"v", [], 1), (bytes(key_bytes), bytes(value_bytes), [], 1)
    batch = bytes(build_batch([small, large, small], Codec.NONE))

    found = decode([batch], ("key", "value"), 0, 3)

    sizes = [(len(row["key"]), len(row["value"])) for row in found]
    assert sizes == [(1, 1), (key_bytes, value_bytes), (1, 1)]


def test_a_malformed_record_is_an_error_and_not_a_row() -> None:
    """S1 W5: a record cut short inside a batch with the right CRC."""
    batch = bytearray(build_batch([(None, b"value", [], 0)]))
    batch[61] = 126

    before = bytes(build_batch([(None, b"value", [], 0)] * 7))
    for columns in (EVERYTHING, ("value",)):
        with pytest.raises(ApiError, match="batch at 0: the record at byte 0 is malformed"):
            decode([bytes(batch)], columns)
        stamp(batch, 7, 0)
        with pytest.raises(ApiError, match="batch at 7: the record at byte 0 is malformed"):
            decode([before, bytes(batch)], columns, apart=False)
        stamp(batch, 0, 0)


LAST_MS = (2**63 - 1) // 1000


@pytest.mark.parametrize("wild", [2**63 - 1, LAST_MS + 1, -LAST_MS - 1, -(2**63)])
def test_a_time_that_spark_has_no_room_for_is_told_with_its_offset(wild: int) -> None:
    """S1: a number at the end of 64 bits would be taken for a time; who leaves the column out reads on."""
    times = enumerate([5, wild])
    batches = [bytes(build_batch([(b"k", b"v", [], each)], base_offset=at)) for at, each in times]
    with pytest.raises(TimestampTooLarge, match="orders-7: the record at offset 1 has a timestamp"):
        decode(batches)
    assert [row["value"] for row in decode(batches, ("value", "offset"))] == [b"v", b"v"]


@pytest.mark.parametrize("far", [LAST_MS, -LAST_MS])
def test_the_last_times_that_spark_has_room_for_are_read(far: int) -> None:
    """S1: to the millisecond."""
    decoder = arrow.ArrowDecoder(("timestamp",), "orders", 7, 0, 2**62)
    assert list(decoder.feed(memoryview(build_batch([(b"k", b"v", [], far)])))) == []
    (batch,) = decoder.flush()
    assert batch.column(0).view(pa.int64()).to_pylist() == [far * 1000]
