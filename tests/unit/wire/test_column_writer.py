"""Records written from columns: the same bytes as record by record, compiled or not."""

from __future__ import annotations

import importlib.util
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braidmq.wire.kernel import murmur2
from braidmq.wire.records import HEADER_BYTES, build_batch, records, seal_batch
from unit.wire.compiling import WIRE

TAG, DELIVER_AT = b"tag", b"deliver-at"
NOW_MS = 1_800_000_000_123

optional_bytes = st.none() | st.binary(max_size=200)
header_lists = st.none() | st.lists(
    st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=9)), max_size=3
)
times_us = st.none() | st.integers(0, 4_102_444_800_000_000)
row_lists = st.lists(
    st.tuples(optional_bytes, optional_bytes, header_lists, times_us, optional_bytes, optional_bytes),
    min_size=1,
    max_size=20,
)
Row = tuple[Any, ...]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("braidmq.wire.column_writer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Cython's classes look for themselves among the imported modules.
    sys.modules.setdefault(spec.name, module)
    spec.loader.exec_module(module)
    return module


pytestmark = pytest.mark.xdist_group("compiled")
PLAIN = load(WIRE / "column_writer.py")


@pytest.fixture(scope="session")
def compiled(built: dict[str, Path]) -> ModuleType:
    return load(built["column_writer"])


def bitmap(cells: Sequence[object], shift: int) -> bytes:
    """Empty if nothing is null, else a bit per cell; the cells before `shift` count as null."""
    if None not in cells:
        return b""
    bits = [False] * shift + [cell is not None for cell in cells]
    return bytes(
        sum(bit << place for place, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8)
    )


def offsets(sizes: Sequence[int], shift: int) -> array[int]:
    ends = array("i", [0] * (shift + 1))
    for size in sizes:
        ends.append(ends[-1] + size)
    return ends


def byte_column(kind: ModuleType, cells: Sequence[bytes | None], shift: int) -> Any:
    sizes = [len(cell or b"") for cell in cells]
    content = b"".join(cell or b"" for cell in cells)
    return kind.ByteColumn(offsets(sizes, shift), content, bitmap(cells, shift), shift)


def columns(kind: ModuleType, rows: Sequence[Row], shift: int) -> Any:
    """The rows as Arrow would hold them, behind `shift` rows that are not ours."""
    keys, values, headers, times, tags, due = zip(*rows, strict=True)
    flat = [header for each in headers for header in each or ()]
    lists = kind.HeaderColumn(
        offsets([len(each or ()) for each in headers], shift),
        bitmap(headers, shift),
        shift,
        byte_column(kind, [name.encode() for name, _ in flat], 0),
        byte_column(kind, [content for _, content in flat], 0),
    )
    numbers = kind.NumberColumn(
        array("q", [0] * shift + [when or 0 for when in times]), bitmap(times, shift), shift
    )
    return kind.Columns(
        byte_column(kind, keys, shift),
        byte_column(kind, values, shift),
        lists,
        numbers,
        byte_column(kind, tags, shift),
        TAG,
        byte_column(kind, due, shift),
        DELIVER_AT,
        NOW_MS,
    )


def expected(rows: Sequence[Row]) -> list[tuple[bytes | None, bytes | None, list[Any], int]]:
    """The rows as records have them."""
    wanted = []
    for key, value, headers, when_us, tag, due in rows:
        written = list(headers or ())
        written += [(TAG.decode(), tag)] if tag is not None else []
        written += [(DELIVER_AT.decode(), due)] if due is not None else []
        wanted.append((key, value, written, NOW_MS if when_us is None else when_us // 1000))
    return wanted


def written(kind: ModuleType, rows: Sequence[Row], order: Sequence[int], shift: int) -> bytearray:
    """The rows in that order as one batch."""
    laid = columns(kind, rows, shift)
    out = bytearray(HEADER_BYTES + sum(kind.record_bytes(laid, row) + 16 for row in order))
    base = kind.timestamp_ms(laid, order[0])
    reached, at, latest = kind.append_rows(
        out, HEADER_BYTES, array("i", order), 0, len(order), laid, 0, base, base
    )
    assert reached == len(order)
    del out[at:]
    return seal_batch(out, len(order), base, latest)


@given(rows=row_lists, shift=st.integers(0, 9))
def test_columns_become_the_batch_that_rows_would(rows: list[Row], shift: int) -> None:
    """S3: byte for byte what `build_batch` makes, and readable by `records`."""
    batch = written(PLAIN, rows, range(len(rows)), shift)
    wanted = expected(rows)
    assert batch == build_batch(wanted)
    assert [(r.key, r.value, r.headers, r.timestamp) for r in records(batch)] == wanted


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
@given(rows=row_lists, shift=st.integers(0, 9), randomness=st.randoms(use_true_random=False))
def test_the_compiled_writer_writes_the_same(
    compiled: ModuleType, rows: list[Row], shift: int, randomness: Any
) -> None:
    """S3: also when rows are taken out of order."""
    order = list(range(len(rows)))
    randomness.shuffle(order)
    assert compiled.COMPILED
    assert written(compiled, rows, order, shift) == written(PLAIN, rows, order, shift)


@pytest.mark.parametrize("mode", ["plain", "compiled"])
def test_writing_stops_before_a_record_that_does_not_fit(mode: str, request: pytest.FixtureRequest) -> None:
    """S3: nothing is written past the end, and the rest can follow in another batch."""
    kind = PLAIN if mode == "plain" else request.getfixturevalue("compiled")
    rows: list[Row] = [(b"k", b"v" * size, None, None, None, None) for size in (10, 10, 100, 10)]
    laid = columns(kind, rows, 0)
    room = sum(kind.record_bytes(laid, row) for row in range(3))
    for missing, taken in ((0, 3), (1, 2), (100, 2), (115, 1), (room, 0)):
        out = bytearray(room - missing) + b"guard"
        view = memoryview(out)[: room - missing]
        reached, at, _ = kind.append_rows(view, 0, array("i", range(4)), 0, 4, laid, 0, NOW_MS, NOW_MS)
        assert (reached, out[room - missing :]) == (taken, b"guard")
        assert at == sum(kind.record_bytes(laid, row) for row in range(taken))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    cells=st.lists(st.tuples(optional_bytes, st.none() | st.integers(0, 6)), min_size=1, max_size=30),
    partitions=st.integers(7, 12),
    shift=st.integers(0, 9),
)
@pytest.mark.parametrize("mode", ["plain", "compiled"])
def test_a_row_goes_where_it_wants_or_where_its_key_belongs(
    mode: str,
    cells: list[tuple[bytes | None, int | None]],
    partitions: int,
    shift: int,
    request: pytest.FixtureRequest,
) -> None:
    """S3 P2: the wanted partition, else murmur2 of the key, else the sticky one."""
    kind = PLAIN if mode == "plain" else request.getfixturevalue("compiled")
    keys, wanted = zip(*cells, strict=True)
    chosen = array("i", bytes(4 * len(cells)))
    numbers = kind.NumberColumn(
        array("q", [0] * shift + [place or 0 for place in wanted]), bitmap(wanted, shift), shift
    )
    bad = kind.choose_partitions(
        chosen, len(cells), numbers, byte_column(kind, keys, shift), partitions, 6, 0, 1
    )
    by_hash = [6 if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]
    assert bad == -1
    assert list(chosen) == [
        place if place is not None else hashed for place, hashed in zip(wanted, by_hash, strict=True)
    ]
    order, ends = array("i", bytes(4 * len(cells))), array("i", bytes(4 * partitions))
    kind.group_rows(chosen, len(cells), partitions, order, ends)
    assert list(order) == sorted(range(len(cells)), key=lambda row: chosen[row])
    assert [order[: ends[place]] for place in range(partitions)][-1] == order


@pytest.mark.parametrize("mode", ["plain", "compiled"])
def test_rows_without_a_key_take_turns_by_size(mode: str, request: pytest.FixtureRequest) -> None:
    """S3 P2: a partition gets a batch full of them before the next one does."""
    kind = PLAIN if mode == "plain" else request.getfixturevalue("compiled")
    chosen = array("i", bytes(4 * 10))
    kind.choose_partitions(chosen, 10, None, None, 3, 250, 50, 100)
    assert list(chosen) == [2, 0, 0, 1, 1, 2, 2, 0, 0, 1]


@pytest.mark.parametrize("mode", ["plain", "compiled"])
@pytest.mark.parametrize("wanted", [-1, 3, 2**40])
def test_a_partition_that_is_not_there_is_named(
    mode: str, wanted: int, request: pytest.FixtureRequest
) -> None:
    """S3: the first row that asks for it."""
    kind = PLAIN if mode == "plain" else request.getfixturevalue("compiled")
    numbers = kind.NumberColumn(array("q", [2, wanted]), b"", 0)
    assert kind.choose_partitions(array("i", [0, 0]), 2, numbers, None, 3, 0, 0, 1) == 1
