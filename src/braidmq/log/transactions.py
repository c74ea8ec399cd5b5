"""What a partition knows of transactions, from its batches and markers in the order of the log.

A transaction is open in a partition from its producer's first batch to the marker that ends it. The last
stable offset is where the first open one begins: read_committed consumers read up to there, and learn
which of the transactions they read through were aborted. A transaction that has ended still counts as open
as long as its marker is above the high watermark, where nobody may read it yet.

The producer's epoch guards all of it. A marker raises it (with transaction protocol 2 above the epoch of the
records it ends), so what a producer sent before cannot arrive after (KIP-890). The first batch of a
transaction must further be verified with the coordinator. Asking takes time in which the transaction may
end; so the one that asks takes a guard first, a marker withdraws it, and the batch is appended only if its
guard still holds.

Nothing here is read from disk: `append` and `end` are called for each batch in order, in a running log as in
recovery. `snapshot` spares the replay of what is older than a checkpoint.
"""

from __future__ import annotations

from enum import Enum
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple

from braidmq.log.aborted_transactions import ENTRY_BYTES, Aborted, AbortedList
from braidmq.wire.checksum import crc32c
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import BatchHeader, Buffer, build_batch, parse_header, records

COORDINATOR_EPOCH_UNKNOWN = -1
NO_EPOCH = -1
PROTOCOL_2 = 2
GUARDS_MAX = 1_000
"""Producers that may be asking the coordinator at once; the one that has waited longest loses its guard."""

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_MARKER_VERSION = 0

_MAGIC = b"braidtx2"
_HEAD = Struct(">8sqIIII")
_OPEN = Struct(">qhq")
_ENDED = Struct(">qhqq")
_PRODUCER = Struct(">qhi")
_CHECK = Struct(">I")


class MarkerType(Enum):
    """The type of an end-transaction marker, as its key has it."""

    ABORT = 0
    COMMIT = 1


class EndMarker(NamedTuple):
    """A control batch that ends a transaction."""

    producer_id: int
    producer_epoch: int
    outcome: MarkerType
    coordinator_epoch: int


def end_marker(marker: EndMarker, timestamp_ms: int) -> bytearray:
    """The control batch of a marker, to be given its place by the log."""
    key = _KEY.pack(_MARKER_VERSION, marker.outcome.value)
    value = _VALUE.pack(_MARKER_VERSION, marker.coordinator_epoch)
    return build_batch(
        [(key, value, (), timestamp_ms)],
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transactional=True,
        control=True,
    )


def parse_end_marker(batch: Buffer) -> EndMarker | None:
    """The marker that a control batch is, None if it is of another kind; ApiError if it cannot be read."""
    header = parse_header(batch)
    if not (header.is_control and header.is_transactional):
        return None
    first = next(iter(records(batch)), None)
    if first is None or first.key is None or len(first.key) < _KEY.size:
        raise ApiError(ErrorCode.INVALID_RECORD, f"control batch at {header.base_offset} has no key")
    version, kind = _KEY.unpack_from(first.key)
    if version < 0 or kind not in (MarkerType.ABORT.value, MarkerType.COMMIT.value):
        return None
    # Later versions may add fields, but these stay in front.
    epoch = COORDINATOR_EPOCH_UNKNOWN
    if first.value is not None and len(first.value) >= _VALUE.size:
        epoch = _VALUE.unpack_from(first.value)[1]
    return EndMarker(header.producer_id, header.producer_epoch, MarkerType(kind), epoch)


class Open(NamedTuple):
    """A transaction that has not ended in this partition."""

    producer_id: int
    producer_epoch: int
    first_offset: int


class _Ended(NamedTuple):
    opened: Open
    marker_offset: int


class _Producer(NamedTuple):
    epoch: int
    coordinator_epoch: int


class Guard:
    """Allows a producer to begin a transaction here, unless one ends first. Told apart by identity."""

    __slots__ = ("lowest_sequence", "producer_epoch")

    def __init__(self, producer_epoch: int, lowest_sequence: int) -> None:
        self.producer_epoch = producer_epoch
        self.lowest_sequence = lowest_sequence


class PartitionTransactions:
    """Open and aborted transactions of one partition."""

    __slots__ = (
        "_ended", "_guards", "_open", "_producers", "_start", "aborted", "settled_offset", "version",
    )  # fmt: skip

    def __init__(self) -> None:
        self.version = 0
        """Goes up with every change that a snapshot would show."""
        self._open: dict[int, Open] = {}
        """By producer, in the order in which they began, so the first is the oldest."""
        self._ended: list[_Ended] = []
        """Ended but not settled, in the order of their markers."""
        self.settled_offset = 0
        """Markers below this are there for ever: neither cut off nor above the high watermark."""
        self._start = 0
        self.aborted = AbortedList()
        self._producers: dict[int, _Producer] = {}
        self._guards: dict[int, Guard] = {}

    # -- what readers ask ------------------------------------------------------------------------

    def last_stable_offset(self, high_watermark: int) -> int:
        """Everything below is decided, and readable at read_committed; never before the log's start."""
        stable = high_watermark
        if self._open:
            stable = min(stable, next(iter(self._open.values())).first_offset)
        for ended in reversed(self._ended):
            if ended.marker_offset < high_watermark:
                break
            stable = min(stable, ended.opened.first_offset)
        return max(stable, self._start)

    def aborted_between(self, fetch_offset: int, upper_offset: int) -> list[Aborted]:
        """Aborted transactions with records in [fetch_offset, upper_offset), in the order they ended."""
        return self.aborted.between(fetch_offset, upper_offset)

    def open_transactions(self) -> list[Open]:
        """Oldest first; for DescribeProducers and for finding hanging transactions."""
        return list(self._open.values())

    def producer_epoch(self, producer_id: int) -> int:
        """The highest epoch seen of a producer, NO_EPOCH if none was."""
        known = self._producers.get(producer_id)
        return NO_EPOCH if known is None else known.epoch

    def coordinator_epoch(self, producer_id: int) -> int:
        """That of a producer's newest marker, COORDINATOR_EPOCH_UNKNOWN if there is none."""
        known = self._producers.get(producer_id)
        return COORDINATOR_EPOCH_UNKNOWN if known is None else known.coordinator_epoch

    def open_since(self, producer_id: int) -> int | None:
        """First offset of a producer's open transaction."""
        found = self._open.get(producer_id)
        return None if found is None else found.first_offset

    # -- what writers ask ------------------------------------------------------------------------

    def needs_verification(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the coordinator is to be asked before this producer's next transactional batch.

        A transaction of another epoch is the one before, whose marker is on its way.
        """
        opened = self._open.get(producer_id)
        return opened is None or opened.producer_epoch != producer_epoch

    def begin_verification(self, header: BatchHeader) -> Guard:
        """A guard for a batch that would begin a transaction. Batches sent together share one."""
        self._check_epoch(header)
        guard = self._guards.get(header.producer_id)
        if guard is None or guard.producer_epoch != header.producer_epoch:
            if len(self._guards) >= GUARDS_MAX:
                del self._guards[next(iter(self._guards))]
            guard = self._guards[header.producer_id] = Guard(header.producer_epoch, header.base_sequence)
        guard.lowest_sequence = min(guard.lowest_sequence, header.base_sequence)
        return guard

    def withdraw(self, producer_id: int, guard: Guard) -> None:
        """The coordinator said no, or cannot be asked: the guard is of no use any more."""
        if self._guards.get(producer_id) is guard:
            del self._guards[producer_id]

    def check(self, header: BatchHeader, guard: Guard | None) -> None:
        """Raises ApiError if a batch of a producer may not be appended."""
        self._check_epoch(header)
        opened = self._open.get(header.producer_id)
        if not header.is_transactional:
            if opened is not None:
                raise _invalid_state(header, "its transaction is open, and the batch is not part of one")
            return
        if opened is not None:
            if opened.producer_epoch != header.producer_epoch:
                raise _invalid_state(header, f"a transaction of epoch {opened.producer_epoch} has not ended")
            return
        current = self._guards.get(header.producer_id)
        if guard is None or guard is not current or guard.producer_epoch != header.producer_epoch:
            raise _invalid_state(header, "the batch was not verified as part of a transaction")
        if header.base_sequence > guard.lowest_sequence:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} begins with sequence {header.base_sequence}, but"
                f" {guard.lowest_sequence} was sent before",
            )

    def check_marker(self, marker: EndMarker, transaction_version: int) -> bool:
        """Whether the marker is to be appended, False if it is there already; ApiError if it comes late."""
        known = self._producers.get(marker.producer_id)
        if known is None:
            return True
        if marker.coordinator_epoch < known.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {marker.coordinator_epoch} is older than {known.coordinator_epoch}",
            )
        if marker.producer_epoch < known.epoch:
            raise _late_marker(marker, known.epoch)
        opened = self._open.get(marker.producer_id)
        raised = transaction_version >= PROTOCOL_2
        if opened is None:
            return not (raised and marker.producer_epoch == known.epoch)
        if raised and marker.producer_epoch == opened.producer_epoch:
            raise _late_marker(marker, opened.producer_epoch + 1)
        return True

    def _check_epoch(self, header: BatchHeader) -> None:
        known = self._producers.get(header.producer_id)
        if known is not None and header.producer_epoch < known.epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {header.producer_epoch}, a newer one with epoch"
                f" {known.epoch} has taken its place",
            )

    # -- what the log reports --------------------------------------------------------------------

    def append(self, header: BatchHeader, base_offset: int) -> None:
        """A batch of a producer, not a marker, was appended at `base_offset`."""
        producer_id = header.producer_id
        self._see(producer_id, header.producer_epoch, COORDINATOR_EPOCH_UNKNOWN)
        # A batch without records is what compaction left of a transaction that ended long ago.
        if header.is_transactional and header.record_count:
            self._guards.pop(producer_id, None)
            if producer_id not in self._open:
                self._open[producer_id] = Open(producer_id, header.producer_epoch, base_offset)
        self.version += 1

    def end(self, marker: EndMarker, offset: int) -> None:
        """A marker was appended at `offset`."""
        self._see(marker.producer_id, marker.producer_epoch, marker.coordinator_epoch)
        self._guards.pop(marker.producer_id, None)
        opened = self._open.pop(marker.producer_id, None)
        self.version += 1
        if opened is None:
            return
        self._ended.append(_Ended(opened, offset))
        if marker.outcome is MarkerType.ABORT:
            oldest = next(iter(self._open.values()), None)
            stable = offset + 1 if oldest is None else oldest.first_offset
            self.aborted.add(Aborted(marker.producer_id, opened.first_offset, offset, stable))

    def _see(self, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        known = self._producers.get(producer_id)
        if known is not None:
            epoch = max(epoch, known.epoch)
            coordinator_epoch = max(coordinator_epoch, known.coordinator_epoch)
        self._producers[producer_id] = _Producer(epoch, coordinator_epoch)

    def settle(self, offset: int) -> None:
        """Everything below is durable and below the high watermark, and will never be cut off."""
        self.settled_offset = max(self.settled_offset, offset)
        kept = 0
        while kept < len(self._ended) and self._ended[kept].marker_offset < offset:
            kept += 1
        del self._ended[:kept]

    def forget(self, producer_id: int) -> None:
        """Forgets a producer that has been silent for too long, unless its transaction is open."""
        if producer_id not in self._open and self._producers.pop(producer_id, None) is not None:
            self._guards.pop(producer_id, None)
            self.version += 1

    def begin_at(self, start_offset: int) -> None:
        """The log begins at `start_offset` now."""
        self._start = max(self._start, start_offset)

    def drop_aborted(self, offset: int) -> bool:
        """No record of a transaction that was aborted before `offset` will be read again; whether any was."""
        dropped = self.aborted.drop_below(offset)
        self.version += dropped
        return dropped

    def truncate_to(self, end_offset: int) -> None:
        """The log was cut off at `end_offset`: transactions that ended after it are open again."""
        if end_offset < self.settled_offset:
            raise ValueError(f"cannot cut to {end_offset}: it is settled up to {self.settled_offset}")
        reopened = [one.opened for one in self._ended if one.marker_offset >= end_offset]
        self._ended = [one for one in self._ended if one.marker_offset < end_offset]
        still_open = [one for one in (*reopened, *self._open.values()) if one.first_offset < end_offset]
        self._open = {one.producer_id: one for one in sorted(still_open, key=lambda one: one.first_offset)}
        self.aborted.cut_to(end_offset)
        # Epochs stay as high as they were seen: they never go down, wherever the log is cut.
        self._guards.clear()
        self.version += 1

    # -- snapshot --------------------------------------------------------------------------------

    def snapshot(self, end_offset: int) -> bytes:
        """The state of the log below `end_offset`, which must not be before what is settled."""
        if end_offset < self.settled_offset:
            raise ValueError(f"no snapshot at {end_offset}: it is settled up to {self.settled_offset}")
        reopened = [one.opened for one in self._ended if one.marker_offset >= end_offset]
        opened = [one for one in (*self._open.values(), *reopened) if one.first_offset < end_offset]
        opened.sort(key=lambda one: one.first_offset)
        ended = [one for one in self._ended if one.marker_offset < end_offset]
        aborted = self.aborted.packed(end_offset)
        count = len(aborted) // ENTRY_BYTES
        parts = [_HEAD.pack(_MAGIC, end_offset, len(opened), len(ended), count, len(self._producers))]
        parts += [_OPEN.pack(*one) for one in opened]
        parts += [_ENDED.pack(*one.opened, one.marker_offset) for one in ended]
        parts.append(aborted)
        parts += [_PRODUCER.pack(producer_id, *known) for producer_id, known in self._producers.items()]
        body = b"".join(parts)
        return body + _CHECK.pack(crc32c(body))

    def restore(self, content: bytes) -> int | None:
        """Takes the state from a snapshot; the offset to replay from, None if it is damaged."""
        body = content[: -_CHECK.size]
        if content[-_CHECK.size :] != _CHECK.pack(crc32c(body)):
            return None
        try:
            return self._restore(body)
        except (StructError, ValueError):
            return None

    def _restore(self, body: bytes) -> int | None:
        magic, offset, opened, ended, aborted, producers = _HEAD.unpack_from(body)
        sizes = (
            _OPEN.size * opened,
            _ENDED.size * ended,
            ENTRY_BYTES * aborted,
            _PRODUCER.size * producers,
        )
        if magic != _MAGIC or len(body) != _HEAD.size + sum(sizes):
            return None
        sections = []
        at = _HEAD.size
        for size in sizes:
            sections.append(body[at : at + size])
            at += size
        self._open = {row[0]: Open(*row) for row in _OPEN.iter_unpack(sections[0])}
        self._ended = [_Ended(Open(*row[:-1]), row[-1]) for row in _ENDED.iter_unpack(sections[1])]
        self.aborted = AbortedList(sections[2])
        rows = _PRODUCER.iter_unpack(sections[3])
        self._producers = {producer_id: _Producer(*rest) for producer_id, *rest in rows}
        self._guards = {}
        self.settled_offset = 0
        return int(offset)


def _late_marker(marker: EndMarker, least_epoch: int) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"a marker of producer {marker.producer_id} has epoch {marker.producer_epoch}, expected {least_epoch}"
        " or more",
    )


def _invalid_state(header: BatchHeader, why: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_TXN_STATE, f"producer {header.producer_id}: {why}")
