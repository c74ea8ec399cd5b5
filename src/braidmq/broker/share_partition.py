"""One partition as a share group reads it: the delivery window over the log.

What is acquired is cut from the log batch by batch, as ranges of its files that are sent without being read.
A client gets whole batches, those that hold a record it has acquired, and the offsets that are its
own. Batches that lie between and belong to others are not sent. A limit on records is rounded up to the end
of a batch, unless it is to be kept exactly. A limit on bytes is kept, except for the first batch of an
answer: one that is larger than the limit must be readable.

A group at read_committed reads up to the last stable offset. To it, batches of aborted transactions are no
messages, as markers are none: they are passed over and never sent.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from braidmq.broker.outcomes import Isolation, NotReady
from braidmq.broker.replica import Replica
from braidmq.broker.share_coordinator import StateChange
from braidmq.broker.share_records import DELTAS_MAX, SharePartitionKey, StoredWindow
from braidmq.delivery import window_codec
from braidmq.delivery.status import (
    SETTLED,
    Acknowledgement,
    Acquired,
    Archived,
    DeliveryLimits,
    LogRange,
    NotHeld,
)
from braidmq.delivery.window import DeliveryWindow, joined
from braidmq.delivery.window_codec import BadState
from braidmq.log.aborted_transactions import Aborted
from braidmq.log.files import FileSlice
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import HEADER_BYTES, BatchHeader, parse_header

log = logging.getLogger("braid.share")

READ_BYTES = 256 * 1024
HEADERS_BYTES = 16 * 1024


class AvailabilityWatcher(Protocol):
    """Somebody who waits for records that can be acquired."""

    def on_available(self) -> None: ...


class AnswerLimits(NamedTuple):
    """How much more an answer may hold."""

    records_max: int
    bytes_max: int
    exact: bool = False
    """Whether `records_max` holds to the record, not to the end of its batch."""
    first: bool = True
    """Whether the answer is empty so far, so that one batch may exceed `bytes_max`."""


class Delivered(NamedTuple):
    """Batches as ranges of files, to be sent or released, and which offsets in them were acquired."""

    records: list[FileSlice]
    acquired: list[Acquired]


class LogBatch(NamedTuple):
    """A batch of the log, and where it lies in what was found."""

    first: int
    last: int
    begin: int
    end: int
    has_messages: bool
    """Unlike a marker, or what was aborted."""


class SharePartition:
    """Delivery of one partition to one group; the owner stores what changes."""

    __slots__ = ("_slot", "_watchers", "committed", "coordinator_key", "key", "leader_epoch", "partition",
                 "state_epoch", "window")  # fmt: skip

    def __init__(
        self,
        key: SharePartitionKey,
        partition: Replica,
        stored: StoredWindow,
        limits: DeliveryLimits,
        now_ms: int,
        committed: bool = False,
    ) -> None:
        """Goes on where the stored window ends, under the partition's leader epoch."""
        self.key = key
        self.coordinator_key = key.coordinator_key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state_epoch = stored.state_epoch
        self.committed = committed
        """Whether records of transactions are handed out only when they are committed; may change."""
        self._slot: int | None = len(stored.deltas)
        """Changes since the last snapshot; None: a snapshot is due."""
        self._watchers: dict[AvailabilityWatcher, None] = {}
        try:
            self.window = DeliveryWindow.restore(stored.snapshot, stored.deltas, limits, now_ms)
        except BadState as error:
            # Batches have checksums, so this is a mistake of ours; a group that reads again loses nothing.
            log.error("group %s: cannot read its delivery state, starting over: %s", key.group_id, error)
            self.window = DeliveryWindow(0, limits)
            self._slot = None

    @property
    def is_led(self) -> bool:
        """Whether the partition is still led under the epoch in which the window was read."""
        return self.partition.leader_epoch == self.leader_epoch

    # -- handing out ----------------------------------------------------------------------------

    def acquire(self, member_id: str, now_ms: int, limits: AnswerLimits) -> Delivered:
        """Hands out what is available, up to the high watermark and (whole batches) the limits.

        NotReady if the disk has to be waited for before there is anything.
        """
        self.follow_log()
        acquired: list[Acquired] = []
        records: list[FileSlice] = []
        left, bytes_left = limits.records_max, limits.bytes_max
        while left > 0 and bytes_left > 0:
            offset = self.window.fetch_offset(now_ms)
            if offset is None:
                break
            try:
                found = self._read(offset, bytes_left, limits.first and not records)
            except (ApiError, NotReady):
                if acquired:
                    break  # they are handed out; what is wrong after them is reported next time
                raise
            if found is None:
                break
            whole, batches = found
            try:
                taken = self._take(member_id, now_ms, left, offset, batches, limits.exact)
                held = _slices(whole, _holding(batches, taken))
            finally:
                whole.release()
            records += held
            bytes_left -= sum(one.size for one in held)
            acquired += taken
            left -= sum(last - first + 1 for first, last, _ in taken)
            if not taken and self.window.fetch_offset(now_ms) == offset:
                break
        return Delivered(records, joined(acquired))

    def _read(self, offset: int, bytes_max: int, first: bool) -> tuple[FileSlice, list[LogBatch]] | None:
        """At most `bytes_max` from the batch at `offset` on; the first batch of an answer may be larger."""
        isolation = Isolation.COMMITTED if self.committed else Isolation.UNCOMMITTED
        read = self.partition.read(offset, min(READ_BYTES, bytes_max), isolation)
        if read.is_cold:
            raise NotReady(f"{self.partition}: offset {offset} is being read from the disk")
        found = read.records
        if found is None:
            return None
        try:
            if found.size > bytes_max and not first:
                return None
            return found.shared(), _batches(found, read.aborted)
        except OSError as error:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.partition}: cannot read the log: {error}"
            ) from error
        finally:
            found.release()

    def _take(
        self, member_id: str, now_ms: int, records_max: int, offset: int, batches: list[LogBatch], exact: bool
    ) -> list[Acquired]:
        if not batches:
            return []
        messages = tuple((batch.first, batch.last) for batch in batches if batch.has_messages)
        reading = LogRange(offset, batches[-1].last, messages)
        taken = self.window.acquire(member_id, now_ms, records_max, reading)
        if taken and not exact:
            reached = taken[-1].last
            ending = next(last for _, last in messages if last >= reached)
            if ending > reached:
                rest = LogRange(reached + 1, ending, ((reached + 1, ending),))
                taken += self.window.acquire(member_id, now_ms, ending - reached, rest)
        return taken

    def follow_log(self) -> None:
        """Lets go of what the log has lost at its start, or did not bring over a crash at its end."""
        log_start, log_end = self.partition.start_offset, self.partition.end_offset
        if log_start > self.window.start_offset:
            self.window.skip_to(log_start)
        if log_end < self.window.end_offset:
            # Without flush=sync a power loss may cost the newest records. Others will take their offsets,
            # and must not be taken for those that were settled.
            start, runs = window_codec.decode(self.window.snapshot())
            kept = [run._replace(last=min(run.last, log_end - 1)) for run in runs if run.first < log_end]
            content = window_codec.encode(min(start, log_end), kept)
            self.window = DeliveryWindow.restore(content, (), self.window.limits, 0)
            self._slot = None

    # -- verdicts -------------------------------------------------------------------------------

    def acknowledge(self, member_id: str, now_ms: int, given: list[Acknowledgement]) -> None:
        """Takes all of a member's verdicts, or none and ApiError."""
        try:
            self.window.acknowledge(member_id, now_ms, given)
        except NotHeld as refusal:
            raise ApiError(ErrorCode.INVALID_RECORD_STATE, str(refusal)) from None
        except ValueError as mistake:
            raise ApiError(ErrorCode.INVALID_REQUEST, str(mistake)) from None

    def take_archived(self) -> list[Archived]:
        return self.window.take_archived()

    @property
    def lag(self) -> int:
        """Records that are readable and not settled."""
        settled = sum(
            last - first + 1 for first, last, status in self.window.runs() if status.state in SETTLED
        )
        return max(0, self.partition.high_watermark - self.window.start_offset - settled)

    # -- storing --------------------------------------------------------------------------------

    def take_change(self) -> StateChange | None:
        """What has to be written so that a restart continues here; None if nothing changed."""
        if self._slot is None or self._slot >= DELTAS_MAX:
            self._slot = 0
            return StateChange(self.state_epoch, self.leader_epoch, self.window.snapshot(), is_whole=True)
        delta = self.window.take_delta()
        if delta is None:
            return None
        self._slot += 1
        return StateChange(self.state_epoch, self.leader_epoch, delta, is_whole=False)

    def rewrite(self) -> None:
        """What was taken could not be written, or nobody knows: the next change has to say everything."""
        self._slot = None

    # -- waiting --------------------------------------------------------------------------------

    def watch(self, watcher: AvailabilityWatcher) -> None:
        self._watchers[watcher] = None

    def unwatch(self, watcher: AvailabilityWatcher) -> None:
        self._watchers.pop(watcher, None)

    def notify(self) -> None:
        """Something may have become available, or the window has room."""
        for watcher in tuple(self._watchers):
            try:
                watcher.on_available()
            except Exception:
                log.exception("%s: a callback that waited for records failed", self.partition)


def _batches(found: FileSlice, aborted: Sequence[Aborted]) -> list[LogBatch]:
    """The whole batches at the start of `found`; the last one may be cut, and is left out then.

    Only headers are needed, so what lies past the end of a piece that was read is not read.
    """
    batches = []
    at = piece_at = 0
    piece = b""
    while found.size - at >= HEADER_BYTES:
        if at + HEADER_BYTES > piece_at + len(piece):
            piece_at, piece = at, found.read_part(at, HEADERS_BYTES)
        header = parse_header(piece, at - piece_at)
        end = at + header.size
        if end > found.size:
            break
        has_messages = not header.is_control and not _was_aborted(header, aborted)
        batches.append(LogBatch(header.base_offset, header.last_offset, at, end, has_messages))
        at = end
    return batches


def _slices(found: FileSlice, batches: list[LogBatch]) -> list[FileSlice]:
    """The batches as ranges of the file; those that follow each other are one."""
    ranges: list[tuple[int, int]] = []
    for batch in batches:
        if ranges and ranges[-1][1] == batch.begin:
            ranges[-1] = (ranges[-1][0], batch.end)
        else:
            ranges.append((batch.begin, batch.end))
    return [found.part(begin, end - begin) for begin, end in ranges]


def _was_aborted(header: BatchHeader, aborted: Sequence[Aborted]) -> bool:
    return header.is_transactional and any(
        one.producer_id == header.producer_id and one.first_offset <= header.base_offset < one.last_offset
        for one in aborted
    )


def _holding(batches: list[LogBatch], taken: list[Acquired]) -> list[LogBatch]:
    """The batches in which something was acquired; both lists ascend."""
    found = []
    number = 0
    for batch in batches:
        while number < len(taken) and taken[number].last < batch.first:
            number += 1
        if number < len(taken) and taken[number].first <= batch.last and batch.has_messages:
            found.append(batch)
    return found
