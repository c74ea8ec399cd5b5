"""What compaction does to one batch: which records stay, and how the batch is written without the others.

A record stays while it is the newest of its key. A tombstone (a key without a value) goes some time after:
`delete.retention.ms` after the first cleaning that met it, so that every reader on its way sees it. That
time is noted in the batch itself, as Kafka does (KIP-534): attribute bit 6 says that the base timestamp is
the time after which tombstones go; the records' timestamp deltas count from it, so readers need not know.

Offsets never change. A batch that lost records keeps its first and last offset. One that lost all goes,
unless it is the newest of an idempotent producer: then it stays without records, for its sequence number.
What goes leaves a gap, and neighbouring gaps become one empty batch over all their offsets. Kafka leaves the
offsets out instead; here every offset stays covered, because that is how the log notices a flipped bit in a
base offset. A batch that cannot be opened (a producer may have compressed anything) stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from struct import Struct

from braidmq.log.aborted_transactions import AbortedRanges
from braidmq.log.key_map import KeyMap
from braidmq.wire import kernel
from braidmq.wire.checksum import crc32c
from braidmq.wire.compress import deflate
from braidmq.wire.errors import ApiError
from braidmq.wire.records import (
    APPEND_TIME,
    CODEC_MASK,
    CRC_AT,
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    BatchHeader,
    Buffer,
    Record,
    records,
)

DELETE_HORIZON = 0x40
NO_TIMESTAMP = -1

_HEADER = Struct(">qiibIhiqqqhii")
_UINT32 = Struct(">I")


class Fate(Enum):
    """What becomes of a batch."""

    KEPT = "as it is"
    REWRITTEN = "with fewer records"
    GONE = "its offsets become a gap"


@dataclass(slots=True)
class CleaningSurvey:
    """What must be known of the whole range before the first batch is cleaned."""

    newest: KeyMap
    end_offset: int
    """Batches from here on stay as they are: their keys are not in the map."""
    cleaned_offset: int
    """Before it an earlier round has removed what was aborted, and that is known for good."""
    aborted: AbortedRanges
    """All that the log knows, since the marker of a transaction may lie in a later segment."""
    sequences: frozenset[int]
    """Last offsets of the newest batches of the producers that the log remembers."""

    def is_aborted(self, header: BatchHeader) -> bool:
        return header.is_transactional and self.aborted.hold(header.producer_id, header.base_offset)


def opened(batch: memoryview) -> list[Record] | None:
    """The records of a batch, None if they cannot be read."""
    try:
        return list(records(batch))
    except ApiError:
        return None


class BatchCleaner:
    """Cleans batches one by one, in the order of the log."""

    __slots__ = ("_now_ms", "_retention_ms", "_survey", "_with_records")

    def __init__(self, survey: CleaningSurvey, now_ms: int, delete_retention_ms: int) -> None:
        self._survey = survey
        self._now_ms = now_ms
        self._retention_ms = delete_retention_ms
        self._with_records: set[int] = set()
        """Producers whose open transaction still has records."""

    def clean(self, header: BatchHeader, batch: memoryview) -> tuple[Fate, memoryview | bytearray]:
        """What becomes of a batch, and its new bytes; those of one that is gone mean nothing."""
        if header.base_offset >= self._survey.end_offset:
            return Fate.KEPT, batch
        if header.is_control:
            return self._clean_marker(header, batch)
        all_records = [] if self._survey.is_aborted(header) else opened(batch)
        if all_records is None:
            return Fate.KEPT, batch
        kept = [record for record in all_records if self._stays(record, header)]
        if not kept:
            return self._emptied(header, batch)
        if header.is_transactional:
            self._with_records.add(header.producer_id)
        sets_horizon = not _has_horizon(header) and any(record.value is None for record in kept)
        if len(kept) == header.record_count and not sets_horizon:
            return Fate.KEPT, batch
        horizon_ms = self._now_ms + self._retention_ms if sets_horizon else None
        return Fate.REWRITTEN, rewrite(header, kept, horizon_ms)

    def _stays(self, record: Record, header: BatchHeader) -> bool:
        if record.key is None or self._survey.newest.get(record.key) > record.offset:
            return False
        return record.value is not None or not self._is_past_horizon(header)

    def _is_past_horizon(self, header: BatchHeader) -> bool:
        return _has_horizon(header) and header.base_timestamp <= self._now_ms

    def _clean_marker(self, header: BatchHeader, batch: memoryview) -> tuple[Fate, memoryview | bytearray]:
        """A marker is needed as long as its transaction has records, and then as long as a tombstone.

        It stays for one more round, so that even after a crash no abort is named without it.
        """
        if header.producer_id in self._with_records:
            self._with_records.discard(header.producer_id)
            return Fate.KEPT, batch
        if self._is_past_horizon(header) and header.base_offset < self._survey.cleaned_offset:
            return self._emptied(header, batch)
        if _has_horizon(header):
            return Fate.KEPT, batch
        found = opened(batch)
        if found is None:
            return Fate.KEPT, batch
        return Fate.REWRITTEN, rewrite(header, found, self._now_ms + self._retention_ms)

    def _emptied(self, header: BatchHeader, batch: memoryview) -> tuple[Fate, memoryview | bytearray]:
        if header.producer_id < 0 or header.last_offset not in self._survey.sequences:
            return Fate.GONE, batch
        if not header.record_count:
            return Fate.KEPT, batch
        return Fate.REWRITTEN, rewrite(header, [], None)


def rewrite(header: BatchHeader, kept: list[Record], horizon_ms: int | None) -> bytearray:
    """The batch with these of its records; with a delete horizon if one is given."""
    attributes, base_ms = header.attributes, header.base_timestamp
    if not kept:
        attributes &= ~CODEC_MASK
    if horizon_ms is not None:
        attributes, base_ms = attributes | DELETE_HORIZON, horizon_ms
    max_ms = max((record.timestamp for record in kept), default=NO_TIMESTAMP)
    payload = bytearray()
    for offset, timestamp_ms, key, value, headers in kept:
        delta_ms = 0 if attributes & APPEND_TIME else timestamp_ms - base_ms
        kernel.append_record(payload, offset - header.base_offset, delta_ms, key, value, headers)
    content = deflate(header.codec, bytes(payload)) if kept else b""
    changed = header._replace(
        attributes=attributes, base_timestamp=base_ms, max_timestamp=max_ms, record_count=len(kept)
    )
    return _sealed(changed, content)


def gap(first: int, last: int, leader_epoch: int) -> bytearray:
    """An empty batch over offsets that have no records any more."""
    header = BatchHeader(
        first, 0, leader_epoch, MAGIC, 0, 0, last - first, NO_TIMESTAMP, NO_TIMESTAMP, -1, -1, -1, 0
    )
    return _sealed(header, b"")


def without_gaps(
    cleaned: Iterable[tuple[BatchHeader, Fate, memoryview | bytearray]],
) -> Iterator[memoryview | bytearray]:
    """The bytes to write: what stays, and one empty batch for every row of batches that go."""
    first, last, leader_epoch = -1, -1, 0
    for header, fate, batch in cleaned:
        if fate is Fate.GONE:
            if first < 0:
                first, leader_epoch = header.base_offset, header.leader_epoch
            last = header.last_offset
            continue
        if first >= 0:
            yield gap(first, last, leader_epoch)
            first = -1
        yield batch
    if first >= 0:
        yield gap(first, last, leader_epoch)


def _has_horizon(header: BatchHeader) -> bool:
    return header.attributes & DELETE_HORIZON != 0


def _sealed(header: BatchHeader, content: Buffer) -> bytearray:
    out = bytearray(HEADER_BYTES)
    out += content
    _HEADER.pack_into(out, 0, *header._replace(length=len(out) - LENGTH_END, crc=0))
    _UINT32.pack_into(out, CRC_AT, crc32c(memoryview(out)[CRC_FROM:]))
    return out
