"""Record batches: header, the checks of a produced batch, changes in place, reading and building."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.wire import kernel, records
from braidmq.wire.compress import Codec
from braidmq.wire.errors import ApiError, ErrorCode, ProtocolError
from braidmq.wire.records import (
    HEADER_BYTES,
    INT32_MAX,
    BatchBuilder,
    NewRecord,
    build_batch,
    check_produced,
    check_stored,
    fault,
    parse_header,
    recompress,
    restamp_append_time,
    stamp,
)

BATCH_BYTES_MAX = 1 << 20
ROWS: list[NewRecord] = [
    (b"key", b"value", [("trace", b"1"), ("empty", b""), ("null", None)], 1_700_000_000_000),
    (None, b"no key", [], 1_700_000_000_005),
    (b"tombstone", None, [], 1_699_999_999_000),
    (b"", b"", [("schlüssel", b"\x00\xff")], 1_700_000_000_001),
]
# A batch of one record, written out by hand from the description of the format.
BY_HAND_BODY = bytes.fromhex(
    "0000 00000000 0000018bcfe56800 0000018bcfe56800 ffffffffffffffff ffff ffffffff 00000001"
    "1c 00 00 00 04 6b31 06 763131 02 02 68 01"
)
BY_HAND_CRC = crc32c(BY_HAND_BODY).to_bytes(4, "big")
BY_HAND = bytes.fromhex("0000000000000000 00000040 ffffffff 02") + BY_HAND_CRC + BY_HAND_BODY

optional_bytes = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=20), optional_bytes), max_size=5)
timestamps = st.integers(-1, 2**62)
row_lists = st.lists(
    st.tuples(optional_bytes, optional_bytes, header_lists, timestamps), min_size=1, max_size=40
)


def altered(batch: bytearray, **fields: int) -> memoryview:
    """The batch with header fields replaced and its CRC made right again."""
    header = parse_header(batch)._replace(**fields)
    out = bytearray(batch)
    struct.pack_into(">qiibIhiqqqhii", out, 0, *header)
    struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return memoryview(out)


def refusal(view: memoryview, max_batch_bytes: int = BATCH_BYTES_MAX) -> ApiError:
    with pytest.raises(ApiError) as refused:
        check_produced(view, max_batch_bytes)
    return refused.value


def content(view: bytes | bytearray | memoryview) -> list[tuple[object, ...]]:
    return [(record.key, record.value, record.headers, record.timestamp) for record in records.records(view)]


# The header


def test_a_batch_written_by_hand_parses_field_by_field() -> None:
    """L1: the layout is the documented one, whoever wrote it."""
    header = check_produced(memoryview(BY_HAND), BATCH_BYTES_MAX)
    assert header[:4] == (0, len(BY_HAND) - 12, -1, 2)
    assert header[5:] == (0, 0, 0x18BCFE56800, 0x18BCFE56800, -1, -1, -1, 1)
    assert list(records.records(BY_HAND)) == [(0, 0x18BCFE56800, b"k1", b"v11", [("h", None)])]


def test_our_builder_writes_that_same_batch() -> None:
    """L1: building gives the bytes written by hand."""
    assert build_batch([(b"k1", b"v11", [("h", None)], 0x18BCFE56800)]) == BY_HAND


def test_the_header_knows_offsets_flags_and_size() -> None:
    """L1: what is derived from the header's fields."""
    batch = build_batch(ROWS, Codec.LZ4, 7, 99, 3, transactional=True, control=True, base_offset=500)
    header = parse_header(bytes(9) + batch, 9)
    assert (header.size, header.last_offset, header.next_offset) == (len(batch), 503, 504)
    assert (header.codec, header.is_transactional, header.is_control) == (Codec.LZ4, True, True)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (99, 3, 7)
    assert (header.last_sequence, header.timestamp_type_append) == (10, False)
    assert (header.base_timestamp, header.max_timestamp) == (1_700_000_000_000, 1_700_000_000_005)


@pytest.mark.parametrize(
    ("base", "delta", "last"),
    [(-1, 5, -1), (0, 0, 0), (INT32_MAX - 1, 1, INT32_MAX), (INT32_MAX, 1, 0), (INT32_MAX, 4, 3)],
)
def test_sequences_start_over_at_zero_after_the_largest(base: int, delta: int, last: int) -> None:
    """P4: the last sequence of a batch, around the wrap and without one."""
    header = parse_header(build_batch(ROWS))._replace(base_sequence=base, last_offset_delta=delta)
    assert header.last_sequence == last


@pytest.mark.parametrize(("size", "at"), [(0, 0), (60, 0), (61, 1), (200, 140), (61, -1)])
def test_a_header_that_is_not_all_there_is_a_protocol_error(size: int, at: int) -> None:
    """W5: parse_header never reads past the view."""
    with pytest.raises(ProtocolError):
        parse_header(bytes(size), at)


# A produced batch


@pytest.mark.parametrize("codec", Codec)
def test_a_sound_batch_passes_with_every_codec(codec: Codec) -> None:
    """P5: check_produced gives back the parsed header."""
    batch = build_batch(ROWS, codec, 0, 1, 0)
    assert check_produced(memoryview(batch), len(batch)) == parse_header(batch)


@pytest.mark.parametrize("codec", Codec)
def test_every_flipped_bit_is_refused_but_in_the_fields_the_broker_stamps(codec: Codec) -> None:
    """W5: base offset and leader epoch are overwritten on append; all other bits are guarded."""
    batch = build_batch(ROWS[:2], codec)
    for at in range(len(batch)):
        for bit in range(8):
            batch[at] ^= 1 << bit
            if at < 8 or 12 <= at < 16:
                check_produced(memoryview(batch), BATCH_BYTES_MAX)
            else:
                refusal(memoryview(batch))
            batch[at] ^= 1 << bit


def test_a_batch_cut_at_any_byte_is_refused() -> None:
    """W5: a torn batch is corrupt, an absent one invalid."""
    batch = memoryview(build_batch(ROWS))
    assert refusal(batch[:0]).code == ErrorCode.INVALID_RECORD
    for cut in range(1, len(batch)):
        assert refusal(batch[:cut]).code in (
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        )


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("size", [30, 34, 200])
def test_old_message_formats_are_refused_by_name(magic: int, size: int) -> None:
    """W5: formats v0 and v1 get Kafka's code for it, however short the message is."""
    message = bytearray(size)
    message[16] = magic
    error = refusal(memoryview(message))
    assert error.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert f"v{magic}" in error.message


def test_a_batch_over_the_limit_names_the_option_to_raise() -> None:
    """P5: the largest batch passes, one byte more does not."""
    batch = memoryview(build_batch(ROWS))
    check_produced(batch, len(batch))
    error = refusal(batch, len(batch) - 1)
    assert error.code == ErrorCode.MESSAGE_TOO_LARGE
    assert f"max.message.bytes={len(batch) - 1}" in error.message


def test_two_batches_in_one_view_are_refused() -> None:
    """W5: Kafka allows one batch per partition and request."""
    error = refusal(memoryview(build_batch(ROWS) + build_batch(ROWS)))
    assert error.code == ErrorCode.INVALID_RECORD
    assert "exactly one" in error.message


@pytest.mark.parametrize("length", [-1, 0, 48, INT32_MAX, -(2**31)])
def test_a_length_that_is_not_the_view_s_is_corrupt(length: int) -> None:
    """W5: negative, too small and huge lengths."""
    assert refusal(altered(build_batch(ROWS), length=length)).code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"record_count": 0, "last_offset_delta": -1}, "at least one record"),
        ({"record_count": -4}, "at least one record"),
        ({"record_count": 5}, "last offset delta"),
        ({"last_offset_delta": 2}, "last offset delta"),
        ({"last_offset_delta": -1}, "last offset delta"),
        ({"record_count": 10_000, "last_offset_delta": 9_999}, "cannot fit"),
        ({"record_count": INT32_MAX, "last_offset_delta": INT32_MAX - 1}, "cannot fit"),
        ({"attributes": 0x20}, "control"),
        ({"attributes": 5}, "codec 5 is unknown"),
        ({"attributes": 7}, "codec 7 is unknown"),
        ({"attributes": 1, "record_count": INT32_MAX, "last_offset_delta": INT32_MAX - 1}, "more than"),
        ({"producer_id": 5, "producer_epoch": 0, "base_sequence": -1}, "no sequence"),
    ],
)
def test_a_lying_header_is_an_invalid_record(fields: dict[str, int], words: str) -> None:
    """W5: the CRC is right and the content is not."""
    error = refusal(altered(build_batch(ROWS), **fields))
    assert error.code == ErrorCode.INVALID_RECORD
    assert words in error.message


def test_the_compiled_kernel_makes_the_check_look_into_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """W5: where the walk is cheap, records out of sequence and left-over bytes are refused too."""
    monkeypatch.setattr(kernel, "COMPILED", True)
    batch = build_batch(ROWS)
    check_produced(memoryview(batch), BATCH_BYTES_MAX)
    assert "bytes are left" in refusal(altered(batch, record_count=3, last_offset_delta=2)).message
    batch[HEADER_BYTES + 3] = 2
    assert "record 0 of 4" in refusal(altered(batch)).message


# A stored batch


def test_a_stored_batch_is_sound_where_it_lies() -> None:
    """L6: recovery checks batches in the middle of a segment."""
    batch = build_batch(ROWS, base_offset=40)
    segment = bytes(100) + batch + bytes(50)
    assert check_stored(segment, 100, len(segment)) == parse_header(batch)
    assert fault(memoryview(segment), 100, 100 + len(batch)) is None


def test_a_torn_stored_batch_is_found_at_every_byte() -> None:
    """L6: the tail a crash left behind is never taken for a batch."""
    batch = build_batch(ROWS)
    for end in range(len(batch)):
        assert check_stored(batch, 0, end) is None
        assert check_stored(batch[:end], 0, end) is None
    assert check_stored(bytes(4096), 0, 4096) is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"magic": 1}, "magic is 1"),
        ({"length": 20}, "length says 32"),
        ({"length": 10_000}, "length says 10012"),
        ({"base_offset": -1}, "contradict"),
        ({"record_count": -1}, "contradict"),
        ({"record_count": 9}, "contradict"),
        ({"attributes": 6}, "codec 6"),
    ],
)
def test_a_stored_batch_that_is_not_sound_has_its_fault_named(fields: dict[str, int], words: str) -> None:
    """L6: doctor says what is wrong."""
    batch = altered(build_batch(ROWS), **fields)
    assert words in str(fault(batch, 0, len(batch)))
    assert check_stored(batch, 0, len(batch)) is None


def test_a_stored_batch_with_gaps_is_sound() -> None:
    """L9: compaction leaves fewer records than offsets."""
    batch = altered(build_batch(ROWS), last_offset_delta=9)
    assert fault(batch, 0, len(batch)) is None


def test_a_flipped_bit_under_the_crc_names_both_sums() -> None:
    """L6: what the CRC covers is guarded bit by bit."""
    batch = build_batch(ROWS)
    for at in range(21, len(batch)):
        batch[at] ^= 0x10
        assert "CRC" in str(fault(batch, 0, len(batch)))
        batch[at] ^= 0x10


# Changes in place


def test_stamping_moves_the_batch_and_leaves_its_crc_right() -> None:
    """L1: offsets are given by the broker, in place."""
    batch = build_batch(ROWS)
    stamp(memoryview(batch), 2**40, 17)
    header = check_produced(memoryview(batch), BATCH_BYTES_MAX)
    assert (header.base_offset, header.leader_epoch, header.length) == (2**40, 17, len(batch) - 12)
    assert [record.offset for record in records.records(batch)] == [2**40 + delta for delta in range(4)]


@pytest.mark.parametrize("codec", Codec)
def test_append_time_rules_every_record(codec: Codec) -> None:
    """P5: message.timestamp.type=LogAppendTime."""
    batch = build_batch(ROWS, codec)
    restamp_append_time(memoryview(batch), 1_800_000_000_000)
    header = check_produced(memoryview(batch), BATCH_BYTES_MAX)
    assert (header.timestamp_type_append, header.max_timestamp) == (True, 1_800_000_000_000)
    assert header.codec == codec
    assert [record.timestamp for record in records.records(batch)] == [1_800_000_000_000] * 4


@pytest.mark.parametrize("before", Codec)
@pytest.mark.parametrize("after", Codec)
def test_recompressing_changes_the_codec_and_nothing_else(before: Codec, after: Codec) -> None:
    """L2: compression.type of the topic wins over the producer's."""
    batch = build_batch(ROWS * 50, before, 5, 77, 2, transactional=True, base_offset=12)
    changed = recompress(memoryview(batch), after)
    header = check_produced(memoryview(changed), BATCH_BYTES_MAX)
    assert header.codec == after
    kept = (
        "base_offset",
        "last_offset_delta",
        "producer_id",
        "base_sequence",
        "is_transactional",
        "max_timestamp",
    )
    assert all(getattr(header, name) == getattr(parse_header(batch), name) for name in kept)
    assert list(records.records(changed)) == list(records.records(batch))


# Reading


@settings(max_examples=100, deadline=None)
@given(rows=row_lists, codec=st.sampled_from(Codec))
def test_what_is_built_is_read_back(rows: list[NewRecord], codec: Codec) -> None:
    """P5: keys, values, nulls, headers and timestamps survive, whatever they are."""
    batch = build_batch(rows, codec)
    header = check_produced(memoryview(batch), len(batch))
    assert content(batch) == [tuple(row) for row in rows]
    assert header.record_count == len(rows)
    assert header.max_timestamp == max(row[3] for row in rows)


def test_records_are_decoded_as_they_are_asked_for() -> None:
    """L2: a reader of the first record does not pay for, or stumble over, the last."""
    batch = build_batch([(b"k", b"v", [], 0)] * 1000)
    batch[-1] = 0x7F
    reader = records.records(batch)
    assert next(reader).offset == 0
    with pytest.raises(ApiError) as refused:
        list(reader)
    assert refused.value.code == ErrorCode.INVALID_RECORD


def test_a_header_name_that_is_not_utf8_survives_a_round_trip() -> None:
    """F5: what another client wrote is kept byte for byte."""
    batch = build_batch([(None, None, [("ab", b"")], 0)])
    batch[batch.index(b"ab")] = 0xFF
    ((_, _, headers, timestamp),) = content(batch)
    rebuilt = build_batch([(None, None, headers, timestamp)])  # type: ignore[list-item]
    assert rebuilt[HEADER_BYTES:] == batch[HEADER_BYTES:]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"record_count": 5}, ErrorCode.INVALID_RECORD),
        ({"record_count": 3}, ErrorCode.INVALID_RECORD),
        ({"record_count": -1}, ErrorCode.INVALID_RECORD),
        ({"record_count": INT32_MAX}, ErrorCode.INVALID_RECORD),
        ({"base_timestamp": 2**63 - 1}, ErrorCode.INVALID_RECORD),
        ({"base_offset": 2**63 - 1}, ErrorCode.INVALID_RECORD),
        ({"attributes": 6}, ErrorCode.INVALID_RECORD),
        ({"attributes": 4}, ErrorCode.CORRUPT_MESSAGE),
        ({"length": 10_000}, ErrorCode.CORRUPT_MESSAGE),
        ({"length": 5}, ErrorCode.CORRUPT_MESSAGE),
        ({"magic": 1}, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        ({"magic": 9}, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_a_batch_that_lies_is_not_read(fields: dict[str, int], code: ErrorCode) -> None:
    """W5: counts, codecs, lengths and wild timestamps."""
    with pytest.raises(ApiError) as refused:
        list(records.records(altered(build_batch(ROWS), **fields)))
    assert refused.value.code == code


def test_a_batch_that_opens_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """W5: records() and recompress() inflate under one cap."""
    monkeypatch.setattr(records, "INFLATED_BYTES_MAX", 10_000)
    batch = build_batch([(None, bytes(20_000), [], 0)], Codec.ZSTD)
    for attempt in (lambda: list(records.records(batch)), lambda: recompress(batch, Codec.NONE)):
        with pytest.raises(ApiError) as refused:
            attempt()
        assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


# Building


@settings(max_examples=100, deadline=None)
@given(rows=row_lists)
def test_the_builder_knows_its_size_before_and_after_a_record(rows: list[NewRecord]) -> None:
    """P3: an accumulator can close a batch before it grows over its limit."""
    builder = BatchBuilder()
    for key, value, headers, timestamp in rows:
        before = builder.size
        builder.append(key, value, headers, timestamp)
        assert before < builder.size <= before + BatchBuilder.record_bytes_max(key, value, headers)
    assert builder.count == len(rows)
    assert builder.size == len(builder.finish())


def test_an_empty_batch_cannot_be_built() -> None:
    """P5: a batch has at least one record."""
    with pytest.raises(ValueError, match="at least one record"):
        build_batch([])
