"""What a partition remembers of idempotent producers, so that a retry is not written twice.

A producer numbers its batches. For each producer id the last five batches are kept, as many as a client may
have in flight, with the offsets they got. A batch that repeats one of them is a retry and gets the same
answer; one that follows the newest is appended; anything else means that something was lost on the way, and
is refused (KIP-98; the codes are those Kafka gives).

A producer may also write in transactions; what the partition knows of those is kept by
`braidmq.log.transactions`, made when the first of them appears, so that other partitions pay nothing for it.

The state is written beside the log at checkpoints, only with batches that are durable there: a snapshot that
remembered a batch the disk then lost would answer its retry as if it were stored. What came after is
replayed from the batches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple

from braidmq.log.transactions import EndMarker, Guard, PartitionTransactions, parse_end_marker
from braidmq.wire.checksum import crc32c
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import NO_SEQUENCE, TRANSACTIONAL, BatchHeader, Buffer

BATCHES_KEPT = 5
SEQUENCE_MAX = 2**31 - 1
SNAPSHOT_NAME = "producers"

_MAGIC = b"braidpr2"
_HEAD = Struct(">8sqII")
_PRODUCER = Struct(">qhqB")
_BATCH = Struct(">iiqqq")
_CHECK = Struct(">I")
_RAISED = 0x80
"""Set in the count of batches of a producer whose epoch a marker has raised."""


class ProducerLimits(NamedTuple):
    """How long and how many producers a partition remembers."""

    expiration_ms: int
    ids_max: int


class KeptBatch(NamedTuple):
    """A batch of a producer: its sequences and where it went."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    append_time_ms: int


class ProducerEntry:
    """One producer id: its epoch, its newest batches, when it was last heard of."""

    __slots__ = ("batches", "epoch", "last_seen_ms", "producer_id", "raised")

    def __init__(self, producer_id: int, epoch: int, last_seen_ms: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.last_seen_ms = last_seen_ms
        self.batches: list[KeptBatch] = []
        self.raised = False
        """Whether a marker gave it this epoch: then its first batch has sequence 0."""

    @property
    def last_sequence(self) -> int:
        """Sequence of the newest record, -1 when none is known."""
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def last_timestamp(self) -> int:
        return self.last_seen_ms


class ProducerState:
    """The producers of one partition, longest silent first."""

    __slots__ = ("_producers", "limits", "newest_offset", "transactions", "version")

    def __init__(self, limits: ProducerLimits) -> None:
        self.limits = limits
        self._producers: OrderedDict[int, ProducerEntry] = OrderedDict()
        self.version = 0
        """Goes up with every change."""
        self.newest_offset = -1
        """Last offset of the newest batch remembered; a snapshot before it is not the whole state."""
        self.transactions: PartitionTransactions | None = None
        """None as long as the partition has seen no transaction."""

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[ProducerEntry]:
        return iter(self._producers.values())

    def check(self, header: BatchHeader, guard: Guard | None = None) -> KeptBatch | None:
        """The batch that `header` repeats, None if it is new and in order; ApiError if it must be refused."""
        entry = self._producers.get(header.producer_id)
        kept = None if entry is None else _check_sequence(entry, header)
        if kept is None and (self.transactions is not None or header.attributes & TRANSACTIONAL):
            self.known_transactions().check(header, guard)
        return kept

    def known_transactions(self) -> PartitionTransactions:
        """What is known of transactions, for those who are about to change it."""
        if self.transactions is None:
            self.transactions = PartitionTransactions()
        return self.transactions

    def record(self, header: BatchHeader, base_offset: int, now_ms: int, append_time_ms: int = -1) -> None:
        """Remembers a batch that was appended at `base_offset`."""
        entry = self._producers.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            entry = self._seen(header.producer_id, header.producer_epoch, now_ms)
        else:
            entry.last_seen_ms = now_ms
            self._producers.move_to_end(header.producer_id)
        last_offset = base_offset + header.last_offset_delta
        if header.base_sequence != NO_SEQUENCE:
            batches, first, last = entry.batches, header.base_sequence, header.last_sequence
            batches.append(KeptBatch(first, last, base_offset, last_offset, append_time_ms))
            if len(batches) > BATCHES_KEPT:
                del batches[0]
        self.newest_offset = last_offset
        self.version += 1
        if self.transactions is not None or header.attributes & TRANSACTIONAL:
            self.known_transactions().append(header, base_offset)

    def end(self, marker: EndMarker, offset: int, now_ms: int) -> None:
        """Remembers a marker that was appended at `offset`."""
        known = self._producers.get(marker.producer_id)
        raises = known is not None and marker.producer_epoch > known.epoch
        entry = self._seen(marker.producer_id, marker.producer_epoch, now_ms)
        entry.raised = entry.raised or raises
        self.newest_offset = offset
        self.version += 1
        self.known_transactions().end(marker, offset)

    def replay(self, header: BatchHeader, batch: Buffer | None, now_ms: int) -> None:
        """Takes in a stored batch in the order of the log; `batch` is all of it if it is a control batch."""
        if batch is None:
            self.record(header, header.base_offset, now_ms)
        elif (marker := parse_end_marker(batch)) is not None:
            self.end(marker, header.base_offset, now_ms)

    def _seen(self, producer_id: int, epoch: int, now_ms: int) -> ProducerEntry:
        entry = self._producers.get(producer_id)
        if entry is None:
            if len(self._producers) >= self.limits.ids_max:
                self._forget(next(iter(self._producers)))
            entry = self._producers[producer_id] = ProducerEntry(producer_id, epoch, now_ms)
        elif entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
            entry.raised = False
        entry.last_seen_ms = now_ms
        self._producers.move_to_end(producer_id)
        return entry

    def _forget(self, producer_id: int) -> None:
        del self._producers[producer_id]
        if self.transactions is not None:
            self.transactions.forget(producer_id)

    def expire(self, now_ms: int) -> None:
        """Forgets producers that have been silent for too long."""
        oldest_ms = now_ms - self.limits.expiration_ms
        while self._producers:
            producer_id, entry = next(iter(self._producers.items()))
            if entry.last_seen_ms > oldest_ms:
                return
            self._forget(producer_id)
            self.version += 1

    def cut_to(self, end_offset: int) -> bool:
        """Forgets what is at or past `end_offset`, which the log has lost or cut off.

        False if transactions settled there have been forgotten already: then all has to be replayed.
        """
        if self.transactions is not None and end_offset < self.transactions.settled_offset:
            return False
        for entry in self._producers.values():
            if entry.batches and entry.batches[-1].last_offset >= end_offset:
                entry.batches = [kept for kept in entry.batches if kept.last_offset < end_offset]
                self.version += 1
        if self.transactions is not None:
            self.transactions.truncate_to(end_offset)
            self.version += 1
        return True

    def settle(self, durable_offset: int) -> None:
        """Everything below is on disk and readable: markers there will not be cut off again."""
        if self.transactions is not None:
            self.transactions.settle(durable_offset)

    def begin_at(self, start_offset: int) -> None:
        """The log begins at `start_offset` now."""
        if self.transactions is not None:
            self.transactions.begin_at(start_offset)

    def drop_aborted(self, offset: int) -> None:
        """Nobody will read a record again of what was aborted before `offset`: deleted, or compacted."""
        if self.transactions is not None:
            self.version += self.transactions.drop_aborted(offset)

    # -- snapshot -------------------------------------------------------------------------------

    def snapshot(self, durable_offset: int) -> bytes:
        """The state as of `durable_offset`, for a file."""
        transactions = b"" if self.transactions is None else self.transactions.snapshot(durable_offset)
        parts = [_HEAD.pack(_MAGIC, durable_offset, len(self._producers), len(transactions))]
        for entry in self._producers.values():
            kept = [batch for batch in entry.batches if batch.last_offset < durable_offset]
            count = len(kept) | (_RAISED if entry.raised else 0)
            parts.append(_PRODUCER.pack(entry.producer_id, entry.epoch, entry.last_seen_ms, count))
            parts += [_BATCH.pack(*batch) for batch in kept]
        body = b"".join([*parts, transactions])
        return body + _CHECK.pack(crc32c(body))

    def restore(self, content: bytes) -> int | None:
        """Takes the state from a snapshot; the offset it is good for, None if it is damaged."""
        body = content[: -_CHECK.size]
        if content[-_CHECK.size :] != _CHECK.pack(crc32c(body)):
            return None
        try:
            return self._restore(body)
        except StructError:
            return None

    def _restore(self, body: bytes) -> int | None:
        magic, offset, count, transactions_bytes = _HEAD.unpack_from(body)
        if magic != _MAGIC:
            return None
        at = _HEAD.size
        restored: OrderedDict[int, ProducerEntry] = OrderedDict()
        for _ in range(count):
            producer_id, epoch, last_seen_ms, batch_count = _PRODUCER.unpack_from(body, at)
            at += _PRODUCER.size
            entry = restored[producer_id] = ProducerEntry(producer_id, epoch, last_seen_ms)
            entry.raised = bool(batch_count & _RAISED)
            for _ in range(batch_count & ~_RAISED):
                entry.batches.append(KeptBatch(*_BATCH.unpack_from(body, at)))
                at += _BATCH.size
        transactions = None
        if transactions_bytes:
            transactions = PartitionTransactions()
            if transactions.restore(body[at : at + transactions_bytes]) != offset:
                return None
        self._producers, self.transactions = restored, transactions
        return int(offset)


def _check_sequence(entry: ProducerEntry, header: BatchHeader) -> KeptBatch | None:
    if header.producer_epoch < entry.epoch:
        raise ApiError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {header.producer_id} has epoch {header.producer_epoch}, a newer one with epoch"
            f" {entry.epoch} has taken its place",
        )
    base, last = header.base_sequence, header.last_sequence
    if base == NO_SEQUENCE:
        return None  # the broker's own writing for a producer: offsets of a transaction
    if header.producer_epoch > entry.epoch or (entry.raised and not entry.batches):
        if base != 0:
            raise _out_of_order(header, f"the first sequence of epoch {header.producer_epoch} must be 0")
        return None
    if not entry.batches or base == _next_sequence(entry.batches[-1].last_sequence):
        return None
    for kept in entry.batches:
        if kept.base_sequence == base and kept.last_sequence == last:
            return kept
    raise _out_of_order(header, f"expected {_next_sequence(entry.batches[-1].last_sequence)}")


def _next_sequence(sequence: int) -> int:
    return 0 if sequence == SEQUENCE_MAX else sequence + 1


def _out_of_order(header: BatchHeader, why: str) -> ApiError:
    return ApiError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence {header.base_sequence}; {why}",
    )
