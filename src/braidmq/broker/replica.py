"""The one door to a partition: faces and coordinators ask it for outcomes and never see the log behind it.

    append_leader   a producer's batch in; what must be committed before it is answered
    when_committed  calls back when the high watermark has reached an offset
    read            one value: a range of a file, both watermarks, the start, what was aborted
    watch_end, watch_high   for those who wait for records that are appended, or that may be read

Which records are committed, when a producer is answered, and whether a client talks to the leader it thinks
it talks to is decided here. A request costs one call: a read is not followed by questions about the log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

from braidmq.broker.append_queue import AppendQueue, Turn
from braidmq.broker.batch_preparation import Prepared
from braidmq.broker.outcomes import (
    NOTHING,
    Acks,
    Appended,
    Isolation,
    ListedOffset,
    NotReady,
    OpenTransaction,
    Place,
    ProducerSummary,
    ReadResult,
)
from braidmq.broker.partition import AdvanceWatcher, CommittedCallback, Partition
from braidmq.log.aborted_transactions import Aborted
from braidmq.log.cold_read import Cold, ColdJob, ColdRead
from braidmq.log.producer_state import ProducerEntry
from braidmq.log.transactions import EndMarker, Guard, PartitionTransactions
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import HEADER_BYTES, BatchHeader, parse_header

LOAD_BYTES = 4 * 1024 * 1024
NOWHERE = ListedOffset(NOTHING, NOTHING, NOTHING)

# What every request passes: an enum's member is slow to find, and so is the constructor of a named tuple.
_new = tuple.__new__
_ALL = Acks.ALL
_COMMITTED = Isolation.COMMITTED
_NONE_ABORTED: tuple[Aborted, ...] = ()


class Replica(Partition):
    """A partition on this broker, as those see it who serve clients."""

    __slots__ = ()

    # -- writing --------------------------------------------------------------------------------

    def append_waits(self, batch: memoryview) -> bool:
        """Whether a batch must be enqueued: the log is closed, others wait, or preparing it takes long."""
        return self._log is None or self._append_queue is not None or self._preparer.takes_long(batch)

    def enqueue(self, batch: bytearray, now_ms: int, turn: Turn) -> None:
        """Calls `turn` when the batch may be appended, after those that came before it."""
        if self._append_queue is None:
            self._append_queue = AppendQueue(self, self._opener.inflating, self._leave_queue)
            self._judge_ready()
        self._append_queue.join(batch, now_ms, turn)

    def _leave_queue(self) -> None:
        self._append_queue = None
        self._judge_ready()

    def takes_long(self, batch: bytearray) -> bool:
        """Whether preparing a batch may take longer than the event loop may block."""
        return self._preparer.takes_long(batch)

    def prepare(self, batch: memoryview, now_ms: int) -> Prepared:
        """The batch, checked, as the topic wants it; may run in any thread."""
        return self._preparer.prepare(self, batch, now_ms)

    def append_leader(
        self,
        batch: memoryview,
        now_ms: int,
        acks: Acks,
        guard: Guard | None = None,
        prepared: Prepared | None = None,
    ) -> Appended:
        """Checks and appends one batch; where it is, and what to wait for before its producer is answered.

        A batch that begins a transaction needs the guard with which it was verified.
        """
        batch, header = self._preparer.prepare(self, batch, now_ms) if prepared is None else prepared
        log = self._log if self._log is not None else self.log
        base_offset, append_time_ms, _ = log.append(batch, header, self.leader_epoch, guard)
        self._grown(log)
        end = base_offset + header.last_offset_delta + 1
        wait = end if acks is _ALL and self.syncs and log.durable_offset < end else None
        return _new(Appended, (base_offset, append_time_ms, log.start_offset, wait))

    def append_own(self, batch: memoryview, guard: Guard | None = None) -> int:
        """Appends a batch the broker itself has built; the offset that must be committed for it to count."""
        header = parse_header(batch)
        log = self.log
        appended = log.append(batch, header, self.leader_epoch, guard)
        self._grown(log)
        return appended.base_offset + header.last_offset_delta + 1

    def append_marker(self, marker: EndMarker, transaction_version: int) -> int:
        """Ends a producer's transaction here, unless that was done; the offset that must be committed."""
        log = self.log
        if log.producers.known_transactions().check_marker(marker, transaction_version):
            log.append_marker(marker, self.leader_epoch)
            self._grown(log)
            if self.on_marker is not None:
                self.on_marker(marker, log.end_offset)
        return log.end_offset

    # -- waiting --------------------------------------------------------------------------------

    def when_committed(self, offset: int, callback: CommittedCallback) -> None:
        """Calls back once everything below `offset` is committed, or with an error when it never will be."""
        log = self.log
        if log.failed is not None:
            callback(ErrorCode.KAFKA_STORAGE_ERROR)
        elif (log.durable_offset if self.syncs else log.end_offset) >= offset:
            callback(ErrorCode.NONE)
        else:
            if self._committed_waits is None:
                self._committed_waits = deque()
            self._committed_waits.append((offset, callback))
            self._commit.request(self)

    async def settled(self) -> None:
        """Returns when what was appended before is committed, or never will be.

        What a client wrote before it asks for the end must be counted.
        """
        log = self.log
        if self.high_watermark == log.end_offset or log.failed is not None:
            return
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_committed(_: ErrorCode) -> None:
            if not settled.done():
                settled.set_result(None)

        self.when_committed(log.end_offset, on_committed)
        await settled

    def watch_end(self, watcher: AdvanceWatcher[Replica]) -> None:
        """Has `watcher` called when records are appended, committed or not."""
        if self._end_watchers is None:
            self._end_watchers = {}
        self._end_watchers[watcher] = None

    def watch_high(self, watcher: AdvanceWatcher[Replica]) -> None:
        """Has `watcher` called when records are committed, and so may be read."""
        if self._high_watchers is None:
            self._high_watchers = {}
        self._high_watchers[watcher] = None

    def unwatch(self, watcher: AdvanceWatcher[Replica]) -> None:
        for watchers in (self._end_watchers, self._high_watchers):
            if watchers is not None:
                watchers.pop(watcher, None)

    # -- reading --------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        isolation: Isolation = Isolation.UNCOMMITTED,
        leader_epoch: int = NOTHING,
    ) -> ReadResult:
        """Batches from `offset` on, as far as the isolation allows, and where the partition stands.

        At least one whole batch if there is one, even if it is larger than `max_bytes`; none if `max_bytes`
        is 0. ApiError if the client takes another leader for the present one, or the offset is outside the
        log; NotReady if the log has to be opened first.
        """
        if leader_epoch >= 0 and leader_epoch != self.leader_epoch:
            raise self._other_leader(leader_epoch)
        log = self._log
        if log is None:
            raise self._not_open()
        high = log.durable_offset if self.syncs else log.end_offset
        transactions = log.producers.transactions
        stable = high if transactions is None else transactions.last_stable_offset(high)
        limit = stable if isolation is _COMMITTED else high
        records = None
        aborted: Sequence[Aborted] = _NONE_ABORTED
        is_cold = False
        if max_bytes > 0 and not limit <= offset <= log.end_offset:
            try:
                records = log.read(offset, max_bytes, limit, Cold.RAISES)
            except ColdRead as cold:
                self._fetch_cold(cold.job)
                is_cold = True
            except OSError as error:
                raise ApiError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"{self}: cannot read the log: {error}"
                ) from error
            if records is not None:
                if log.files.is_one_too_many(records):
                    # As if there were no records yet: writers need files, too.
                    records.release()
                    records = None
                else:
                    if not self.dirty:
                        records.hot = False
                    if isolation is _COMMITTED and transactions is not None:
                        end = log.offset_after(offset, records)
                        aborted = transactions.aborted_between(offset, stable if end is None else end)
        values = (records, high, stable, log.start_offset, aborted, self.leader_epoch, is_cold)
        return _new(ReadResult, values)

    def _fetch_cold(self, job: ColdJob) -> None:
        """Has a job done in a thread, once however many readers need it; then they try again."""
        under_way = self._cold_jobs
        if under_way is None:
            under_way = self._cold_jobs = set()
        if job.key in under_way:
            return
        under_way.add(job.key)

        def done(_: BaseException | None) -> None:
            under_way.discard(job.key)
            job.done()
            self._notify()

        self._opener.threads.submit(job.run, done)

    def _not_open(self) -> Exception:
        refusal = self._refusal
        if refusal is None:
            self.when_open(_nothing)
            return NotReady(f"{self} is being opened")
        if not self.deleted:
            # Reported once; the next read tries again.
            self._refusal = None
        return refusal

    def stored_batches(
        self, end_offset: int | None = None, read_bytes: int = LOAD_BYTES
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch of the log, committed or not, oldest first; blocks. For a coordinator that starts."""
        log = self.log
        offset = log.start_offset
        limit = log.end_offset if end_offset is None else end_offset
        while offset < limit and (found := log.read(offset, read_bytes, limit)) is not None:
            content = memoryview(found.read())
            found.release()
            at = 0
            while len(content) - at >= HEADER_BYTES:
                header = parse_header(content, at)
                if header.size > len(content) - at:
                    break
                yield header, content[at : at + header.size]
                at += header.size
                offset = header.next_offset

    # -- offsets --------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def end_offset(self) -> int:
        """Of all records, committed or not."""
        return self.log.end_offset

    def check_leader(self, leader_epoch: int) -> None:
        """Raises ApiError if a client takes another leader for the present one; NOTHING is no opinion."""
        if leader_epoch >= 0 and leader_epoch != self.leader_epoch:
            raise self._other_leader(leader_epoch)

    def _other_leader(self, leader_epoch: int) -> ApiError:
        if leader_epoch > self.leader_epoch:
            code, how = ErrorCode.UNKNOWN_LEADER_EPOCH, "newer"
        else:
            code, how = ErrorCode.FENCED_LEADER_EPOCH, "older"
        return ApiError(code, f"{self}: leader epoch {leader_epoch} is {how} than {self.leader_epoch} here")

    async def list_offset(
        self, wanted: Place | int, isolation: Isolation, leader_epoch: int = NOTHING
    ) -> ListedOffset:
        """The offset of a place, or of the first record that is not before a time in ms.

        Nothing past what the isolation lets a reader see is shown.
        """
        self.check_leader(leader_epoch)
        if wanted is Place.EARLIEST:
            return ListedOffset(NOTHING, self.start_offset, self.leader_epoch)
        await self.settled()
        limit = self.last_stable_offset if isolation is _COMMITTED else self.high_watermark
        if wanted is Place.LATEST:
            return ListedOffset(NOTHING, limit, self.leader_epoch)
        found = self.log.max_timestamp() if wanted is Place.NEWEST else self.log.offset_for_time(wanted)
        if found is None or (isolation is _COMMITTED and found[1] >= limit):
            return NOWHERE
        return ListedOffset(*found, self.leader_epoch)

    def epoch_end(self, epoch: int, leader_epoch: int = NOTHING) -> tuple[int, int]:
        """The largest epoch not above `epoch`, and where its committed records end; NOTHING if unknown."""
        self.check_leader(leader_epoch)
        found, end_offset = self.log.end_offset_for_epoch(epoch)
        return found, min(end_offset, self.high_watermark)

    def delete_before(self, offset: int) -> None:
        """Moves the start of the log; NOTHING means the high watermark (DeleteRecords)."""
        high = self.high_watermark
        target = high if offset == NOTHING else offset
        if target < 0 or target > high:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self}: cannot delete before offset {offset}:"
                f" the log runs from {self.log.start_offset} to {high}",
            )
        self.log.delete_before(target)
        self._notify()

    # -- producers and transactions -------------------------------------------------------------

    def producers(self) -> list[ProducerSummary]:
        """The producers that the partition remembers."""
        known = self.log.producers
        return [_summary(entry, known.transactions) for entry in known]

    def open_transactions(self) -> list[OpenTransaction]:
        """Those without an end so far, oldest first."""
        known = self.log.producers.transactions
        if known is None:
            return []
        return [
            OpenTransaction(producer_id, known.producer_epoch(producer_id), first_offset)
            for producer_id, _, first_offset in known.open_transactions()
        ]

    def coordinator_epoch(self, producer_id: int) -> int:
        """That of the producer's newest marker here; 0 if there is none."""
        known = self.log.producers.transactions
        return 0 if known is None else max(known.coordinator_epoch(producer_id), 0)

    def is_in_transaction(self, producer_id: int) -> bool:
        """Whether the producer has an open transaction here, so that its next batch needs no question."""
        known = self.log.producers.transactions
        return known is not None and not known.needs_verification(producer_id)

    def begin_verification(self, header: BatchHeader) -> Guard:
        """A guard for a batch that begins a transaction. ApiError if its producer's epoch is over."""
        return self.log.producers.known_transactions().begin_verification(header)

    def end_verification(self, producer_id: int, guard: Guard) -> None:
        """The coordinator said no: the guard is of no use any more."""
        if self._log is not None:
            self._log.producers.known_transactions().withdraw(producer_id, guard)


def _summary(entry: ProducerEntry, transactions: PartitionTransactions | None) -> ProducerSummary:
    coordinator_epoch = open_since = NOTHING
    if transactions is not None:
        coordinator_epoch = transactions.coordinator_epoch(entry.producer_id)
        since = transactions.open_since(entry.producer_id)
        open_since = NOTHING if since is None else since
    return ProducerSummary(
        entry.producer_id,
        entry.epoch,
        entry.last_sequence,
        entry.last_timestamp,
        coordinator_epoch,
        open_since,
    )


def _nothing() -> None:
    """For those who watch the partition anyway."""
