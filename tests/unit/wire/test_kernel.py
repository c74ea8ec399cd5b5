"""The record kernel, as Python and as compiled C: one source, equal results, right or wrong input alike."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braidmq.wire.checksum import crc32c
from braidmq.wire.records import CONTROL, build_batch, check_stored, parse_header
from unit.wire.compiling import WIRE, build

INT64 = st.integers(-(2**63), 2**63 - 1)
optional_bytes = st.none() | st.binary(max_size=100)
header_lists = st.lists(st.tuples(st.text(max_size=8), optional_bytes), max_size=4)
record_lists = st.lists(
    st.tuples(INT64, optional_bytes, optional_bytes, header_lists), min_size=1, max_size=12
)


def load(path: Path) -> ModuleType:
    """The kernel from that very file, whichever of the two the package itself would import."""
    name = path.name.partition(".")[0]
    spec = importlib.util.spec_from_file_location(f"braidmq.wire.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pytestmark = pytest.mark.xdist_group("compiled")
PLAIN = load(WIRE / "kernel.py")
PLAIN_WALKER = load(WIRE / "batch_walker.py")


@pytest.fixture(scope="session")
def compiled(built: dict[str, Path]) -> ModuleType:
    return load(built["kernel"])


@pytest.fixture(scope="session")
def compiled_walker(built: dict[str, Path]) -> ModuleType:
    return load(built["batch_walker"])


@pytest.mark.parametrize("missing", [{"CC": "/nowhere/cc"}, {"BRAID_PURE": "1"}])
def test_the_package_builds_without_a_compiler(tmp_path: Path, missing: dict[str, str]) -> None:
    """P2: nothing is compiled, and nothing fails."""
    assert build(tmp_path, **missing) == []


def encoded(kernel: ModuleType, rows: list[tuple[Any, ...]]) -> bytes:
    out = bytearray()
    for index, (delta, key, value, headers) in enumerate(rows):
        kernel.append_record(out, index, delta, key, value, headers)
    return bytes(out)


def outcome(call: Callable[..., object], *arguments: object) -> object:
    """What a call gives, or what it raises, so that two kernels can be compared."""
    try:
        return call(*arguments)
    except ValueError as error:
        return str(error)


def test_the_plain_source_knows_that_it_is_not_compiled() -> None:
    """P2: COMPILED tells which of the two runs."""
    assert PLAIN.COMPILED is False


@given(rows=record_lists)
def test_records_come_back_as_they_were_appended(rows: list[tuple[Any, ...]]) -> None:
    """P5: encode and decode are inverse, and the walk agrees."""
    payload = encoded(PLAIN, rows)
    decoded, end = PLAIN.decode_records(payload, 0, len(rows), 0, 0, False)
    assert end == len(payload)
    assert decoded == [(index, *row) for index, row in enumerate(rows)]
    assert PLAIN.walk_records(payload, 0, len(rows)) == -1


@given(rows=record_lists, cut=st.integers(1, 200))
def test_a_cut_payload_is_found(rows: list[tuple[Any, ...]], cut: int) -> None:
    """W5: the walk and the decoder see every missing byte."""
    payload = encoded(PLAIN, rows)[:-cut]
    assert 0 <= PLAIN.walk_records(payload, 0, len(rows)) < len(rows)
    with pytest.raises(ValueError, match="malformed"):
        PLAIN.decode_records(payload, 0, len(rows), 0, 0, False)


@pytest.mark.parametrize(
    ("payload", "verdict"),
    [
        pytest.param("0c 00 00 00 01 01 00", -1, id="the smallest record"),
        pytest.param("0c 00 00 00 01 01 00 00", 1, id="a byte left over"),
        pytest.param("0c 00 00 02 01 01 00", 0, id="offset delta 1 in the first record"),
        pytest.param("0a 00 00 00 01 01", 0, id="a length too short for any record"),
        pytest.param("0e 00 00 00 01 01 00", 0, id="a length past the end"),
        pytest.param("0b 00 00 00 01 01 00", 0, id="a negative length"),
        pytest.param("ff ff ff ff 0f 00 00 00 01 01 00", 0, id="the most negative length"),
        pytest.param("8c 80 80 80 00 00 00 00 01 01 00", -1, id="a length in its longest form"),
        pytest.param("8c 80 80 80 80 00 00 00 00 01 01 00", 0, id="an overlong length"),
        pytest.param("8c 80 80 80 10 00 00 00 01 01 00", 0, id="a length of 33 bits"),
        pytest.param("1e 00 80 80 80 80 80 80 80 80 80 01 00 01 01 00", -1, id="a delta in its longest form"),
        pytest.param("1e 00 80 80 80 80 80 80 80 80 80 02 00 01 01 00", 0, id="a delta of 65 bits"),
        pytest.param("20 00 80 80 80 80 80 80 80 80 80 80 00 00 01 01 00", 0, id="an overlong delta"),
        pytest.param("0c 00 00 00 03 01 00", 0, id="a key of length -2"),
        pytest.param("0c 00 00 00 08 01 00", 0, id="a key past the record"),
        pytest.param("0c 00 00 00 01 03 00", 0, id="a value of length -2"),
        pytest.param("0c 00 00 00 01 01 01", 0, id="a header count of -1"),
        pytest.param("0c 00 00 00 01 01 02", 0, id="a header that is not there"),
        pytest.param("14 00 00 00 01 01 fe ff ff ff 0f", 0, id="two billion headers"),
        pytest.param("10 00 00 00 01 01 02 00 01", -1, id="a header with empty name and null value"),
        pytest.param("10 00 00 00 01 01 02 01 01", 0, id="a header with a null name"),
        pytest.param("10 00 00 00 01 01 02 00 03", 0, id="a header value of length -2"),
        pytest.param("0e 00 00 00 01 01 00 00", 0, id="a byte left over in the record"),
        pytest.param("", 0, id="nothing"),
    ],
)
@pytest.mark.parametrize("mode", ["plain", "compiled"])
def test_the_walk_accepts_exactly_well_formed_records(
    payload: str, verdict: int, mode: str, request: pytest.FixtureRequest
) -> None:
    """W5: each field's bounds, in both lives of the source."""
    kernel = PLAIN if mode == "plain" else request.getfixturevalue("compiled")
    content = bytes.fromhex(payload)
    assert kernel.walk_records(content, 0, 1) == verdict
    assert kernel.walk_records(memoryview(b"head" + content), 4, 1) == verdict


def test_deltas_that_leave_64_bits_are_malformed() -> None:
    """W5: wild timestamps and offsets do not wrap around."""
    payload = encoded(PLAIN, [(2**62, None, None, [])])
    assert PLAIN.decode_records(payload, 0, 1, 0, 2**62 - 1, False)[0][0][1] == 2**63 - 1
    with pytest.raises(ValueError, match="malformed"):
        PLAIN.decode_records(payload, 0, 1, 0, 2**62, False)
    assert PLAIN.decode_records(payload, 0, 1, 5, 2**62, True)[0] == [(5, 2**62, None, None, [])]


def test_murmur2_gives_the_values_of_kafka_s_own_test() -> None:
    """P2: figures published with Kafka's Java client, as unsigned numbers."""
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert {key: PLAIN.murmur2(key) for key in known} == {key: value % 2**32 for key, value in known.items()}


@given(key=st.binary(max_size=40))
def test_murmur2_agrees_with_a_stock_client(key: bytes) -> None:
    """P2: the same key goes to the same partition, whoever sends it."""
    assert PLAIN.murmur2(key) == aiokafka_murmur2(key) % 2**32


# Both lives


def test_the_compiled_kernel_knows_that_it_is(compiled: ModuleType) -> None:
    """P2: COMPILED is what check_produced goes by."""
    assert compiled.COMPILED is True


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
@given(rows=record_lists, base=INT64, timestamp=INT64, fixed=st.booleans())
def test_both_kernels_encode_and_decode_alike(
    compiled: ModuleType, rows: list[tuple[Any, ...]], base: int, timestamp: int, fixed: bool
) -> None:
    """P5: also where deltas overflow."""
    payload = encoded(PLAIN, rows)
    assert encoded(compiled, rows) == payload
    arguments = (payload, 0, len(rows), base, timestamp, fixed)
    assert outcome(compiled.decode_records, *arguments) == outcome(PLAIN.decode_records, *arguments)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None)
@given(rows=record_lists, damage=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3))
def test_both_kernels_judge_damaged_records_alike(
    compiled: ModuleType, rows: list[tuple[Any, ...]], damage: list[tuple[int, int]]
) -> None:
    """W5: the compiled code is as strict as the Python it comes from, and reads nothing outside."""
    payload = bytearray(encoded(PLAIN, rows))
    for at, byte in damage:
        payload[at % len(payload)] = byte
    view = bytes(payload)
    assert compiled.walk_records(view, 0, len(rows)) == PLAIN.walk_records(view, 0, len(rows))
    arguments = (view, 0, len(rows), 0, 0, False)
    assert outcome(compiled.decode_records, *arguments) == outcome(PLAIN.decode_records, *arguments)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None)
@given(junk=st.binary(max_size=80), count=st.integers(0, 6))
def test_both_kernels_judge_junk_alike(compiled: ModuleType, junk: bytes, count: int) -> None:
    """W5: any bytes give a verdict, the same one."""
    assert compiled.walk_records(junk, 0, count) == PLAIN.walk_records(junk, 0, count)
    arguments = (junk, 0, count, 0, 0, False)
    assert outcome(compiled.decode_records, *arguments) == outcome(PLAIN.decode_records, *arguments)
    assert compiled.murmur2(junk) == PLAIN.murmur2(junk)


class Columns:
    """Buffers for a few rows, filled again and again, and what has come out of them."""

    ROWS = 5
    BYTES = 4000

    def __init__(self, kernel: ModuleType) -> None:
        self._kernel = kernel
        self.rows: list[Any] = []

    def column(self, rows: int) -> tuple[Any, memoryview, memoryview, bytearray]:
        ends, content = memoryview(bytearray(4 * (rows + 1))).cast("i"), memoryview(bytearray(self.BYTES))
        valid = bytearray(b"\xff") * (rows // 8 + 1)
        return self._kernel.BytesColumn(ends, content, memoryview(valid)), ends, content, valid

    def decode(self, payload: bytes, count: int, first: int, end: int) -> list[Any]:
        window = self._kernel.Window(payload, count, 0, 0, False, first, end, 0, len(payload), len(payload))
        while window.left:
            before, start = window.left, window.at
            keys, values, tags = (self.column(self.ROWS) for _ in range(3))
            names, contents = (self.column(200) for _ in range(2))
            offsets, times = (memoryview(bytearray(8 * self.ROWS)).cast("q") for _ in range(2))
            rows = self._kernel.Rows(offsets, times, keys[0], values[0])
            self._kernel.decode_columns(window, rows)
            ends, valid = memoryview(bytearray(4 * (self.ROWS + 1))).cast("i"), bytearray(1)
            assert self._kernel.decode_headers(
                window, start, 0, ends, memoryview(valid), names[0], contents[0]
            )
            assert self._kernel.decode_header(window, start, 0, b"tag", tags[0])
            assert window.left < before
            for row in range(rows.count):
                headers = [(text(names, at), text(contents, at)) for at in range(ends[row], ends[row + 1])]
                key, value, tag = (text(each, row) for each in (keys, values, tags))
                self.rows.append((offsets[row], times[row], key, value, headers, tag))
        return self.rows


def text(column: tuple[Any, memoryview, memoryview, bytearray], row: int) -> bytes | None:
    """One row of a column, read as Arrow would."""
    _, ends, content, valid = column
    return bytes(content[ends[row] : ends[row + 1]]) if valid[row >> 3] >> (row & 7) & 1 else None


small_records = st.lists(
    st.tuples(
        st.integers(-(2**50), 2**50),
        optional_bytes,
        optional_bytes,
        st.lists(st.tuples(st.sampled_from(["tag", "other", ""]), optional_bytes), max_size=4),
    ),
    min_size=1,
    max_size=20,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(rows=small_records, first=st.integers(0, 20), count=st.integers(0, 20))
def test_both_kernels_fill_columns_with_what_records_hold(
    compiled: ModuleType, rows: list[tuple[Any, ...]], first: int, count: int
) -> None:
    """S1: row by row the same as decoded one by one, whichever of the two runs."""
    payload = encoded(PLAIN, rows)
    decoded, _ = PLAIN.decode_records(payload, 0, len(rows), 0, 0, False)
    expected = [
        (offset, time * 1000, key, value, [(name.encode(), content) for name, content in headers],
         next((content for name, content in headers if name == "tag"), None))
        for offset, time, key, value, headers in decoded
        if first <= offset < first + count
    ]  # fmt: skip

    for kernel in (PLAIN, compiled):
        assert Columns(kernel).decode(payload, len(rows), first, first + count) == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
@given(rows=small_records, damage=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3))
def test_both_kernels_stop_at_the_same_damage(
    compiled: ModuleType, rows: list[tuple[Any, ...]], damage: list[tuple[int, int]]
) -> None:
    """W5 S1: columns are as strict as everything else, and nothing is written past their room."""
    payload = bytearray(encoded(PLAIN, rows))
    for at, byte in damage:
        payload[at % len(payload)] = byte
    arguments = (bytes(payload), len(rows), -(2**62), 2**62)

    assert outcome(Columns(compiled).decode, *arguments) == outcome(Columns(PLAIN).decode, *arguments)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=8), offset=st.integers(0, 40))
def test_batches_before_an_offset_are_skipped(
    compiled_walker: ModuleType, sizes: list[int], offset: int
) -> None:
    """S1: by their headers alone; a cut or senseless one ends the walk."""
    log, starts, next_offset = bytearray(), [], 0
    for size in sizes:
        starts.append((len(log), next_offset + size - 1))
        log += build_batch([(None, b"x", (), 0)] * size, base_offset=next_offset)
        next_offset += size
    view = bytes(log)
    expected = next((at for at, last in starts if last >= offset), len(view))

    for walker in (PLAIN_WALKER, compiled_walker):
        assert walker.skip_batches(view, 0, offset) == expected
        # The last batch is cut: the walk ends in front of it.
        assert walker.skip_batches(view[:-1], 0, offset) == min(expected, starts[-1][0])
        assert walker.skip_batches(b"\xff" * 100, 0, 5) == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    damage=st.none() | st.tuples(st.integers(0, 10**6), st.integers(1, 255)),
    until=st.integers(0, 40),
    bytes_max=st.integers(1, 1000),
)
def test_batches_are_checked_as_one_by_one(
    compiled_walker: ModuleType, sizes: list[int], damage: tuple[int, int] | None, until: int, bytes_max: int
) -> None:
    """W5 S1: a run ends before the first batch that is not whole, not sound, masked or past the range."""
    log, starts = bytearray(), [0]
    for number, size in enumerate(sizes):
        is_control = number % 5 == 4
        offset = sum(sizes[:number])
        log += build_batch([(None, b"x", (), 0)] * size, base_offset=offset, control=is_control)
        starts.append(len(log))
    if damage is not None:
        log[damage[0] % len(log)] ^= damage[1]
    view = memoryview(bytes(log[:-1] if bytes_max % 7 == 0 else log))

    at, following = 0, -1
    while header := check_stored(view, at, len(view)):
        if header.is_control or header.base_offset >= until or (at and at + header.size > bytes_max):
            break
        at, following = at + header.size, header.next_offset

    for walker in (PLAIN_WALKER, compiled_walker):
        assert walker.check_batches(view, 0, until, CONTROL, bytes_max, crc32c) == (at, following)
        found = walker.find_batches(view, until)
        if damage is None:
            whole = [start for start, end in pairwise(starts) if end <= len(view)]
            reaching = [start for start in whole if parse_header(view, start).last_offset >= until]
            ends = [end for end in starts if end <= len(view)]
            assert found == (reaching[0] if reaching else -1, ends[-1], reaching[-1] if reaching else -1)
        assert found == PLAIN_WALKER.find_batches(view, until)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    first=st.integers(0, 20),
    end=st.integers(0, 40),
    cut=st.booleans(),
)
def test_records_are_counted_by_headers(
    compiled_walker: ModuleType, sizes: list[int], first: int, end: int, cut: bool
) -> None:
    """S1: of batches within a range of offsets, up to the first that is not, or not whole."""
    log, next_offset, stopped = bytearray(), 0, False
    at = records = 0
    for number, size in enumerate(sizes):
        log += build_batch([(None, b"x", (), 0)] * size, base_offset=next_offset)
        next_offset += size
        stopped |= next_offset - size < first or next_offset > end or (cut and number == len(sizes) - 1)
        if not stopped:
            at, records = len(log), records + size
    view = bytes(log[:-1] if cut else log)

    for walker in (PLAIN_WALKER, compiled_walker):
        assert walker.count_records(view, 0, first, end) == (at, records)
        assert walker.count_records(b"", 0, first, end) == (0, 0)
