"""Where reading a segment of this machine's disk begins: by its index, if that tells the truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from struct import Struct
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("pyspark")

from hypothesis import given
from hypothesis import strategies as st

from braidmq.log.files import FileCache
from braidmq.log.index import SegmentIndex
from braidmq.platform.disk import RealDisk
from braidmq.spark.options import Isolation
from braidmq.spark.source.fetch import split_batches
from braidmq.spark.source.local_log import LocalRange
from braidmq.wire.records import build_batch

BASE = 7_000
RECORDS = 50
BATCHES = 40
END = BASE + RECORDS * BATCHES
KAFKA_ENTRY = Struct(">II")
FIRSTS = range(BASE, END, RECORDS)
PARTS = [
    bytes(
        build_batch([(None, b"%d" % (first + number), [], 0) for number in range(RECORDS)], base_offset=first)
    )
    for first in FIRSTS
]
POSITIONS = [sum(map(len, PARTS[:number])) for number in range(BATCHES)]
SEGMENT = b"".join(PARTS)


def stored(folder: Path, content: bytes) -> Path:
    """The path of the segment in that folder, without its ending."""
    place = folder / f"{BASE:020d}"
    place.with_suffix(".log").write_bytes(content)
    return place


def found(folder: Path, start: int) -> list[int]:
    """The first offsets of the batches that the disk gives from `start` on."""
    local = LocalRange(str(folder), start, END, Isolation.READ_UNCOMMITTED)
    return [each.header.base_offset for part in local.batches() for each in split_batches(part)]


def braid_index(place: Path) -> None:
    """As the broker writes it."""
    disk = RealDisk()
    index = SegmentIndex(disk, FileCache(4), str(place), BASE)
    for first, position in list(zip(FIRSTS, POSITIONS, strict=True))[::3]:
        index.add(first, position, 0)
    index.write_out()


def kafka_index(place: Path) -> None:
    """As Kafka's are: the last offset of a batch, none for the first, and room that is not used yet."""
    entries = list(zip(FIRSTS, POSITIONS, strict=True))[1::3]
    written = b"".join(KAFKA_ENTRY.pack(first + RECORDS - 1 - BASE, position) for first, position in entries)
    place.with_suffix(".index").write_bytes(written + bytes(8 * 1000))


@pytest.mark.parametrize("write_index", [braid_index, kafka_index])
@pytest.mark.parametrize("start", [END - 1, END - 6 * RECORDS, END - 5 * RECORDS - 1])
def test_what_lies_before_a_range_is_not_looked_at(
    tmp_path: Path, write_index: Callable[[Path], None], start: int
) -> None:
    """S1: a stream at the end of a large segment does not walk over all of it for each batch."""
    beginning = POSITIONS[20]
    place = stored(tmp_path, bytes(beginning) + SEGMENT[beginning:])
    assert found(tmp_path, start) == []

    write_index(place)

    assert found(tmp_path, start) == [first for first in FIRSTS if first + RECORDS > start]


@pytest.mark.parametrize("write_index", [braid_index, kafka_index])
def test_every_offset_is_found(tmp_path: Path, write_index: Callable[[Path], None]) -> None:
    """S1: at the ends and in the middle of batches, before the first entry and behind the last."""
    place = stored(tmp_path, SEGMENT)
    write_index(place)

    for start in range(BASE, END, 7):
        assert found(tmp_path, start) == [first for first in FIRSTS if first + RECORDS > start]


@given(
    st.binary(max_size=100)
    | st.lists(
        st.tuples(st.integers(0, RECORDS * BATCHES), st.sampled_from(POSITIONS) | st.integers(0, 2**32 - 1))
    ).map(lambda entries: b"".join(KAFKA_ENTRY.pack(*entry) for entry in entries)),
    st.integers(BASE, END - 1),
)
def test_an_index_that_lies_misleads_nobody(lies: bytes, start: int) -> None:
    """S1: entries are hints; the same batches are found whatever they say."""
    with TemporaryDirectory() as folder:
        stored(Path(folder), SEGMENT).with_suffix(".index").write_bytes(lies)
        assert found(Path(folder), start) == [first for first in FIRSTS if first + RECORDS > start]
