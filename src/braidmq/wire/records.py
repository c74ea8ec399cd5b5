"""RecordBatch v2, the unit that travels and is stored: its header, its checks, its records, its builder.

A batch is 61 bytes of header and then records, compressed together or not. The broker reads the header and
leaves the rest alone: what a producer sent is what lies on disk and what a consumer gets. The CRC (CRC-32C)
covers everything from the attributes on, so that the base offset and the leader epoch, which come before it,
can be stamped in place.

    base offset 8 | length 4 | leader epoch 4 | magic 1 | crc 4 | attributes 2 | last offset delta 4
    | base timestamp 8 | max timestamp 8 | producer id 8 | producer epoch 2 | base sequence 4 | record count 4

`check_produced` is what every batch from outside passes, once. `records` opens a batch for those who must
look inside: clients, filters, tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from struct import Struct
from typing import NamedTuple

from braidmq.wire import kernel
from braidmq.wire.checksum import crc32c
from braidmq.wire.compress import Codec, deflate, inflate
from braidmq.wire.errors import ApiError, ErrorCode, ProtocolError

Buffer = bytes | bytearray | memoryview
Headers = Sequence[tuple[str, bytes | None]]
NewRecord = tuple[bytes | None, bytes | None, Headers, int]

HEADER_BYTES = 61
LENGTH_END = 12
EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
CRC_FROM = 21
MAX_TIMESTAMP_AT = 35
MAGIC = 2
CODEC_MASK = 0x07
APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
NO_PRODUCER = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
INT32_MAX = 2**31 - 1
RECORD_BYTES_MIN = 7
# A compressed batch may open to this much; producers build batches of around a megabyte.
INFLATED_BYTES_MAX = 128 * 1024 * 1024
# Records decoded per call of the kernel: enough to amortise the call, few enough to stay lazy.
DECODED_AT_ONCE = 256

_HEADER = Struct(">qiibIhiqqqhii")
_INT64 = Struct(">q")
_INT32 = Struct(">i")
_INT16 = Struct(">h")
_UINT32 = Struct(">I")
_unpack_header = _HEADER.unpack_from
_CODEC_BY_BITS = {int(codec): codec for codec in Codec}


class BatchHeader(NamedTuple):
    """The 61 bytes in front of the records, field by field in their order on the wire."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch; the length field does not count itself and the base offset."""
        return self.length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """ApiError INVALID_RECORD for bits that name none."""
        bits = self.attributes & CODEC_MASK
        if bits not in _CODEC_BY_BITS:
            raise _invalid(f"compression codec {bits} is unknown")
        return _CODEC_BY_BITS[bits]

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def timestamp_type_append(self) -> bool:
        """Whether max_timestamp, set by the broker, is the timestamp of every record."""
        return self.attributes & APPEND_TIME != 0

    @property
    def last_sequence(self) -> int:
        """Sequences continue with 0 after 2^31-1; -1 when the batch has none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return self.base_sequence + self.last_offset_delta & INT32_MAX


class Record(NamedTuple):
    """One record of a batch, with its own offset and timestamp."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


_new_header = partial(tuple.__new__, BatchHeader)
_new_record = partial(tuple.__new__, Record)


def parse_header(view: Buffer, at: int = 0) -> BatchHeader:
    """The header at `at`, unchecked; ProtocolError when the view ends before it does."""
    if at < 0 or len(view) - at < HEADER_BYTES:
        raise ProtocolError(f"a batch header needs {HEADER_BYTES} bytes, {len(view) - at} are left")
    return _new_header(_unpack_header(view, at))


# Checks


def check_produced(view: Buffer, max_batch_bytes: int) -> BatchHeader:
    """The header of the one batch a producer sent as `view`, if all is as it must be; else ApiError.

    Compressed records are not opened here. Uncompressed ones are walked where the kernel is compiled, as
    Kafka does; elsewhere that would cost more than everything else together, and a reader finds it anyway.
    """
    size = len(view)
    if size < HEADER_BYTES:
        raise _refuse_short(view)
    header: BatchHeader = _new_header(_unpack_header(view, 0))
    (_, length, _, magic, crc, attributes, last_delta, _, _, producer_id, _, base_sequence, count) = header
    if magic != MAGIC or length + LENGTH_END != size or size > max_batch_bytes:
        raise _refuse_frame(header, size, max_batch_bytes)
    if crc32c(view[CRC_FROM:]) != crc:
        raise _corrupt(f"batch has CRC {crc:#010x}, its bytes have {crc32c(view[CRC_FROM:]):#010x}")
    if count <= 0 or last_delta != count - 1 or attributes & CONTROL or (producer_id >= 0 > base_sequence):
        raise _refuse_content(header)
    if attributes & CODEC_MASK:
        if attributes & CODEC_MASK > Codec.ZSTD or count > INFLATED_BYTES_MAX // RECORD_BYTES_MIN:
            raise _refuse_content(header)
    elif count > (size - HEADER_BYTES) // RECORD_BYTES_MIN:
        raise _invalid(f"{count} records cannot fit {size - HEADER_BYTES} bytes")
    elif kernel.COMPILED and (bad := kernel.walk_records(view, HEADER_BYTES, count)) >= 0:
        raise _refuse_record(bad, count)
    return header


def fault(view: Buffer, at: int, end: int) -> str | None:
    """What is wrong with the stored batch at `at`, in words, or None when it is sound and its CRC right.

    Nothing at or past `end` belongs to it. The bytes before the CRC's reach (base offset, length, epoch,
    magic) are only checked for sense: that offsets follow each other is for the caller to see.
    """
    if end - at < HEADER_BYTES:
        return f"{end - at} bytes are left, a batch header needs {HEADER_BYTES}"
    header = parse_header(view, at)
    if header.magic != MAGIC:
        return f"magic is {header.magic}, expected {MAGIC}"
    if header.length < HEADER_BYTES - LENGTH_END or header.size > end - at:
        return f"length says {header.size} bytes where {end - at} are left"
    computed = crc32c(memoryview(view)[at + CRC_FROM : at + header.size])
    if computed != header.crc:
        return f"CRC is {header.crc:#010x}, its bytes have {computed:#010x}"
    counted = 0 <= header.record_count <= header.last_offset_delta + 1
    if header.base_offset < 0 or not counted:
        return (
            f"base offset {header.base_offset}, last offset delta {header.last_offset_delta} and"
            f" record count {header.record_count} contradict each other"
        )
    if header.attributes & CODEC_MASK not in _CODEC_BY_BITS:
        return f"compression codec {header.attributes & CODEC_MASK} is unknown"
    return None


def check_stored(view: Buffer, at: int, end: int) -> BatchHeader | None:
    """The header of the stored batch at `at`, or None when it is not sound; `fault` says why."""
    return parse_header(view, at) if fault(view, at, end) is None else None


# Changes in place


def stamp(view: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Give the batch at the start of `view` its place in the log; the CRC covers neither field."""
    _INT64.pack_into(view, 0, base_offset)
    _INT32.pack_into(view, EPOCH_AT, leader_epoch)


def restamp_append_time(view: bytearray | memoryview, now_ms: int) -> None:
    """Make `now_ms` the timestamp of every record, as message.timestamp.type=LogAppendTime asks.

    As in Kafka the attribute bit says that max_timestamp rules; the records themselves are not touched.
    """
    (attributes,) = _INT16.unpack_from(view, CRC_FROM)
    _INT16.pack_into(view, CRC_FROM, attributes | APPEND_TIME)
    _INT64.pack_into(view, MAX_TIMESTAMP_AT, now_ms)
    _seal(view)


def recompress(view: Buffer, codec: Codec, inflated_bytes_max: int | None = None) -> bytearray:
    """The batch with its records under another codec, all else equal; ApiError when it cannot be opened."""
    header = parse_header(view)
    records_part = deflate(codec, _inflated(header, view, inflated_bytes_max))
    out = bytearray(view[:HEADER_BYTES])
    out += records_part
    _INT32.pack_into(out, LENGTH_END - 4, len(out) - LENGTH_END)
    _INT16.pack_into(out, CRC_FROM, header.attributes & ~CODEC_MASK | codec)
    _seal(out)
    return out


def _seal(view: bytearray | memoryview) -> None:
    with memoryview(view) as whole:
        _UINT32.pack_into(view, CRC_AT, crc32c(whole[CRC_FROM:]))


# Reading records


def records(view: Buffer) -> Iterator[Record]:
    """The records of the batch at the start of `view`, decoded as they are asked for.

    ApiError when the batch cannot be opened (CORRUPT_MESSAGE, MESSAGE_TOO_LARGE) or a record does not parse
    (INVALID_RECORD). The CRC is not checked again: the log or the connection has done so.
    """
    header = parse_header(view)
    if header.magic != MAGIC:
        raise _refuse_magic(header.magic)
    payload = bytes(_inflated(header, view))
    fixed = header.timestamp_type_append
    timestamp = header.max_timestamp if fixed else header.base_timestamp
    left = header.record_count
    at = 0
    while left > 0:
        take = min(left, DECODED_AT_ONCE)
        try:
            rows, at = kernel.decode_records(payload, at, take, header.base_offset, timestamp, fixed)
        except ValueError as error:
            raise _invalid(str(error)) from None
        yield from map(_new_record, rows)
        left -= take
    if at != len(payload):
        raise _invalid(f"{len(payload) - at} bytes are left after the last of {header.record_count} records")


def _inflated(header: BatchHeader, view: Buffer, bytes_max: int | None = None) -> Buffer:
    if header.length < HEADER_BYTES - LENGTH_END or header.size > len(view):
        raise _corrupt(f"batch says it has {header.size} bytes, {len(view)} are there")
    payload = memoryview(view)[HEADER_BYTES : header.size]
    return inflate(header.codec, payload, bytes_max or INFLATED_BYTES_MAX)


# Building


def build_batch(
    rows: Sequence[NewRecord],
    codec: Codec = Codec.NONE,
    base_sequence: int = NO_SEQUENCE,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    transactional: bool = False,
    control: bool = False,
    base_offset: int = 0,
) -> bytearray:
    """A batch of (key, value, headers, timestamp) rows, ready to be sent or stored; at least one row."""
    builder = BatchBuilder(codec)
    builder.extend(rows)
    return builder.finish(base_sequence, producer_id, producer_epoch, transactional, control, base_offset)


class BatchBuilder:
    """Collects records for one batch and knows how large it has become.

    `size` counts what is written so far, uncompressed: an upper bound of the finished batch for all but
    incompressible records, which a codec may lengthen by some bytes per block.
    """

    __slots__ = ("_base_timestamp", "_max_timestamp", "_out", "codec", "count")

    def __init__(self, codec: Codec = Codec.NONE) -> None:
        self.codec = codec
        self.count = 0
        self._out = bytearray(HEADER_BYTES)
        self._base_timestamp = NO_TIMESTAMP
        self._max_timestamp = NO_TIMESTAMP

    @property
    def size(self) -> int:
        return len(self._out)

    @staticmethod
    def record_bytes_max(key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
        """What a record adds to `size` at most, for deciding before appending."""
        size = 36 + len(key or b"") + len(value or b"")
        for name, content in headers:
            size += 10 + 4 * len(name) + len(content or b"")
        return size

    def append(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp: int) -> None:
        if not self.count:
            self._base_timestamp = self._max_timestamp = timestamp
        elif timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        kernel.append_record(self._out, self.count, timestamp - self._base_timestamp, key, value, headers)
        self.count += 1

    def extend(self, rows: Iterable[NewRecord]) -> None:
        for key, value, headers, timestamp in rows:
            self.append(key, value, headers, timestamp)

    def finish(
        self,
        base_sequence: int = NO_SEQUENCE,
        producer_id: int = NO_PRODUCER,
        producer_epoch: int = -1,
        transactional: bool = False,
        control: bool = False,
        base_offset: int = 0,
    ) -> bytearray:
        """The batch, its CRC set; the builder must not be used again."""
        return seal_batch(
            self._out,
            self.count,
            self._base_timestamp,
            self._max_timestamp,
            codec=self.codec,
            base_sequence=base_sequence,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=transactional,
            control=control,
            base_offset=base_offset,
        )


def seal_batch(
    out: bytearray,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    *,
    codec: Codec = Codec.NONE,
    base_sequence: int = NO_SEQUENCE,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    transactional: bool = False,
    control: bool = False,
    base_offset: int = 0,
) -> bytearray:
    """A batch of the `count` records that `out` holds after room for a header; `out` itself if no codec."""
    if not count:
        raise ValueError("a batch has at least one record")
    if codec:
        with memoryview(out) as whole:
            packed = deflate(codec, whole[HEADER_BYTES:])
        out = bytearray(HEADER_BYTES)
        out += packed
    attributes = codec | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    _HEADER.pack_into(
        out, 0, base_offset, len(out) - LENGTH_END, -1, MAGIC, 0, attributes, count - 1,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count,
    )  # fmt: skip
    _seal(out)
    return out


# Refusals: out of the way of the hot path, each with the code Kafka gives and what would be right


def _invalid(why: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_RECORD, why)


def _corrupt(why: str) -> ApiError:
    return ApiError(ErrorCode.CORRUPT_MESSAGE, why)


def _refuse_magic(magic: int) -> ApiError:
    if magic in (0, 1):
        return ApiError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"message format v{magic} is not supported; use a client that writes v2 (Kafka 0.11 or newer)",
        )
    return _corrupt(f"magic is {magic}, expected {MAGIC}")


def _refuse_short(view: Buffer) -> ApiError:
    if len(view) == 0:
        return _invalid("no record batch was sent; exactly one is expected per partition")
    if len(view) > MAGIC_AT and view[MAGIC_AT] in (0, 1):
        return _refuse_magic(view[MAGIC_AT])
    return _corrupt(f"a record batch has at least {HEADER_BYTES} bytes, {len(view)} were sent")


def _refuse_frame(header: BatchHeader, size: int, max_batch_bytes: int) -> ApiError:
    if header.magic != MAGIC:
        return _refuse_magic(header.magic)
    if size > max_batch_bytes:
        return ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"batch of {size} bytes is larger than max.message.bytes={max_batch_bytes};"
            " send smaller batches or raise max.message.bytes of the topic",
        )
    if HEADER_BYTES <= header.size < size:
        return _invalid(
            f"{size - header.size} bytes follow a batch of {header.size};"
            " exactly one batch is expected per partition"
        )
    return _corrupt(f"batch says it has {header.size} bytes, {size} were sent")


def _refuse_content(header: BatchHeader) -> ApiError:
    if header.attributes & CONTROL:
        return _invalid("control batches are written by brokers only")
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        return _invalid(f"compression codec {header.attributes & CODEC_MASK} is unknown; use one of 0 to 4")
    if header.record_count <= 0 or header.last_offset_delta != header.record_count - 1:
        return _invalid(
            f"batch of {header.record_count} records has last offset delta {header.last_offset_delta},"
            f" expected {header.record_count - 1} and at least one record"
        )
    if header.producer_id >= 0 > header.base_sequence:
        return _invalid(f"batch of producer {header.producer_id} has no sequence number")
    return _invalid(f"{header.record_count} records are more than a batch can hold")


def _refuse_record(bad: int, count: int) -> ApiError:
    if bad == count:
        return _invalid(f"bytes are left after the last of {count} records")
    return _invalid(f"record {bad} of {count} is malformed, or its offset delta is not {bad}")
