"""A partition as its readers and writers see it: a log, a high watermark, and those who wait for it to move.

The log is opened on first use, in a thread (`opening`): a broker with ten thousand partitions starts without
touching them, and serves those that are open while it opens others.

The high watermark is the offset below which records may be read. With flush=sync that is what has reached the
disk, because a record that was read must never come back with another value after a power loss; with
flush=async it is the end of the log. The last stable offset is at or before it: where the first transaction
begins that has not ended. Readers at read_committed get no further, and learn what was aborted before.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from braidmq.broker.append_queue import AppendQueue, Turn
from braidmq.broker.batch_preparation import BatchPreparer, Prepared
from braidmq.broker.group_commit import GroupCommit, Job
from braidmq.broker.opening import Opener
from braidmq.config import Flush, TopicConfig
from braidmq.log.aborted_transactions import Aborted
from braidmq.log.append_result import AppendResult
from braidmq.log.cold_read import Cold, ColdJob, ColdRead
from braidmq.log.compaction import CompactionJob, CompactionLimits, Compactor
from braidmq.log.files import FileSlice
from braidmq.log.log import FlushJob, Log
from braidmq.log.transactions import EndMarker, Guard
from braidmq.platform.disk import Disk
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import parse_header

LEADER_EPOCH = 0

logger = logging.getLogger("braid.partition")


class AdvanceWatcher(Protocol):
    """Somebody who waits for records to become readable."""

    def on_advanced(self, partition: Partition) -> None: ...


DurableCallback = Callable[[ErrorCode], None]


class NotReady(Exception):
    """What is to be read is being brought from the disk; who watches the partition hears when it is there."""


class Partition:
    """One partition of a topic on this broker."""

    __slots__ = (
        "_append_queue", "_cold_jobs", "_commit", "_compactor", "_config", "_directory", "_disk",
        "_durable_waits", "_log", "_on_dirty", "_open_waits", "_opener", "_preparer", "_refusal", "_watchers",
        "deleted", "dirty", "index", "leader_epoch", "ready", "syncs", "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        index: int,
        directory: Path,
        config: TopicConfig,
        opener: Opener,
        commit: GroupCommit,
        on_dirty: Callable[[Partition], None],
        disk: Disk,
    ) -> None:
        self.topic = topic
        self.index = index
        self.leader_epoch = 0
        """Set by whoever creates the partition, from its record in the metadata."""
        self._directory = directory
        self.dirty = False
        self._opener = opener
        self.deleted = False
        """Whether its topic was deleted: it is not opened again, and errors of its files are no news."""
        self._commit = commit
        self._on_dirty = on_dirty
        self._disk = disk
        self._compactor: Compactor | None = None
        self._log: Log | None = None
        self._open_waits: list[Callable[[], None]] | None = None
        self._refusal: ApiError | None = None
        """Why the log is not open, since somebody last waited for it."""
        self._cold_jobs: set[tuple[int, int]] | None = None
        self._append_queue: AppendQueue | None = None
        self.ready = False
        """Whether any batch can be appended at once; if not, ask `append_waits` about it."""
        self.syncs = True
        """Whether acks=all and reading wait for the disk."""
        self._watchers: dict[AdvanceWatcher, None] | None = None
        self._durable_waits: deque[tuple[int, DurableCallback]] | None = None
        self._set_config(config)

    def _set_config(self, config: TopicConfig) -> None:
        self._config = config
        self._preparer = BatchPreparer(config)
        self.syncs = config.flush == Flush.SYNC.value
        self._judge_ready()

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def config(self) -> TopicConfig:
        return self._config

    @property
    def path(self) -> Path:
        return self._directory / str(self.index)

    @property
    def is_open(self) -> bool:
        return self._log is not None

    @property
    def log(self) -> Log:
        """The log. Who serves clients waits for `when_open` first: here a closed one is opened at once."""
        if self._log is None:
            if self._refusal is None:
                outcome = self._opener.open_now(self)
                if isinstance(outcome, ApiError):
                    raise outcome
                self.adopt(outcome)
                return outcome
            raise self._refusal
        return self._log

    def when_open(self, then: Callable[[], None]) -> None:
        """Calls back when the log is open, or when `log` says why it is not; at once if there is no wait."""
        if self._log is not None or self.deleted:
            then()
            return
        if self._open_waits is None:
            self._open_waits = []
            self._refusal = None
            self._opener.request(self)
        self._open_waits.append(then)

    def prefer_open(self) -> None:
        """Somebody waits with a write: this log is opened before others."""
        self._opener.prefer(self)

    def opened(self, outcome: Log | ApiError) -> None:
        """What became of opening the log in a thread."""
        if isinstance(outcome, Log):
            if self.deleted:
                outcome.abandon()
            elif self._log is None:
                self.adopt(outcome)
        elif not self.deleted:
            self._refusal = outcome
        waits, self._open_waits = self._open_waits, None
        for then in waits or ():
            try:
                then()
            except Exception:
                logger.exception("%s: a callback that waited for the log failed", self)
        if self._watchers:
            self._notify()

    def adopt(self, log: Log) -> None:
        """Takes a log that was opened elsewhere, in a thread that recovered it."""
        assert self._log is None, f"{self} is open already"
        self._log = log
        # They may have changed while the log was opened.
        log.reconfigure(self._config)
        self._judge_ready()

    def _judge_ready(self) -> None:
        self.ready = self._log is not None and self._append_queue is None and self._preparer.plain

    @property
    def high_watermark(self) -> int:
        log = self.log
        return log.durable_offset if self.syncs else log.end_offset

    @property
    def last_stable_offset(self) -> int:
        return self.stable_below(self.high_watermark)

    def stable_below(self, high_watermark: int) -> int:
        """The last stable offset, for those who know the high watermark already."""
        transactions = self.log.producers.transactions
        return high_watermark if transactions is None else transactions.last_stable_offset(high_watermark)

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

    def append(
        self, batch: memoryview, now_ms: int, guard: Guard | None = None, prepared: Prepared | None = None
    ) -> tuple[AppendResult, int]:
        """Checks and appends one batch; the result, and the offset that must be durable for acks=all.

        A batch that begins a transaction needs the guard with which it was verified.
        """
        batch, header = self._preparer.prepare(self, batch, now_ms) if prepared is None else prepared
        log = self._log if self._log is not None else self.log
        appended = log.append(batch, header, LEADER_EPOCH, guard)
        self._grown(log)
        return appended, appended.base_offset + header.last_offset_delta + 1

    def append_own(self, batch: memoryview, guard: Guard | None = None) -> int:
        """Appends a batch the broker itself has built; the offset that must be durable for it to count."""
        header = parse_header(batch)
        appended = self.log.append(batch, header, LEADER_EPOCH, guard)
        self._grown(self.log)
        return appended.base_offset + header.last_offset_delta + 1

    def append_marker(self, marker: EndMarker, transaction_version: int) -> int:
        """Ends a producer's transaction here, unless that was done; the offset that must be durable."""
        log = self.log
        if log.producers.known_transactions().check_marker(marker, transaction_version):
            log.append_marker(marker, LEADER_EPOCH)
            self._grown(log)
        return log.end_offset

    def _grown(self, log: Log) -> None:
        if not self.dirty:
            self.dirty = True
            self._on_dirty(self)
        if self.syncs:
            self._commit.request(self)
        else:
            if log.unflushed_records >= self._config.flush_messages:
                self._commit.request(self)
            if self._watchers:
                self._notify()

    def when_durable(self, offset: int, callback: DurableCallback) -> None:
        """Calls back once everything below `offset` is on disk, or with an error when it never will be."""
        log = self.log
        if log.failed is not None:
            callback(ErrorCode.KAFKA_STORAGE_ERROR)
        elif log.durable_offset >= offset:
            callback(ErrorCode.NONE)
        else:
            if self._durable_waits is None:
                self._durable_waits = deque()
            self._durable_waits.append((offset, callback))
            self._commit.request(self)

    def flush_begin(self) -> Job | None:
        if self._log is None:
            return None
        job = self._log.flush_begin()
        if self._log.failed is not None:
            self._give_up(ErrorCode.KAFKA_STORAGE_ERROR)
        return job

    def flush_done(self, job: Job, error: BaseException | None) -> None:
        """A group commit ended: move the high watermark, answer those who waited."""
        assert isinstance(job, FlushJob)
        log = self._log
        if log is None:
            # The topic was deleted during the sync; those who waited have been answered.
            job.release()
            return
        log.flush_done(job)
        if error is not None and log.failed is None:
            log.fail(error if isinstance(error, Exception) else RuntimeError(str(error)))
        if log.failed is not None:
            self._give_up(ErrorCode.KAFKA_STORAGE_ERROR)
            return
        durable = log.durable_offset
        waits = self._durable_waits
        while waits and waits[0][0] <= durable:
            self._answer(waits.popleft()[1], ErrorCode.NONE)
        if waits:
            self._commit.request(self)
        if not self.dirty:
            # A checkpoint was written during the sync, and its recovery point is before what is durable now.
            self.dirty = True
            self._on_dirty(self)
        if self.syncs and self._watchers:
            self._notify()

    def fail(self, error: Exception) -> None:
        """Takes no more records, and answers those who wait for some to be durable."""
        if self._log is not None:
            self._log.fail(error)
        self._give_up(ErrorCode.KAFKA_STORAGE_ERROR)

    def _give_up(self, code: ErrorCode) -> None:
        waits, self._durable_waits = self._durable_waits, None
        for _, callback in waits or ():
            self._answer(callback, code)
        if self._watchers:
            self._notify()

    def _answer(self, callback: DurableCallback, code: ErrorCode) -> None:
        """Calls one who waited; the others are called whatever becomes of it."""
        try:
            callback(code)
        except Exception:
            logger.exception("%s: a callback that waited for the disk failed", self)

    # -- reading --------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, committed: bool = False) -> FileSlice | None:
        """Batches from `offset` up to the high watermark, as a file range; None if there are none yet.

        With `committed` only up to the last stable offset. NotReady if the disk must be waited for first.
        """
        log = self._log
        if log is None:
            raise self._not_open()
        limit = log.durable_offset if self.syncs else log.end_offset
        if committed and log.producers.transactions is not None:
            limit = log.producers.transactions.last_stable_offset(limit)
        if limit <= offset <= log.end_offset:
            return None
        try:
            found = log.read(offset, max_bytes, limit, Cold.RAISES)
        except ColdRead as cold:
            self._fetch_cold(cold.job)
            raise NotReady(f"{self}: offset {offset} is being read from the disk") from None
        except OSError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self}: cannot read the log: {error}") from error
        if found is not None:
            if log.files.is_one_too_many(found):
                # As if there were no records yet: writers need files, too.
                found.release()
                return None
            if not self.dirty:
                found.hot = False
        return found

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
            if self._watchers:
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

    def aborted(self, offset: int, found: FileSlice) -> list[Aborted]:
        """The aborted transactions among what `read` found from `offset` on."""
        transactions = self.log.producers.transactions
        if transactions is None:
            return []
        end = self.log.offset_after(offset, found)
        return transactions.aborted_between(offset, self.last_stable_offset if end is None else end)

    def watch(self, watcher: AdvanceWatcher) -> None:
        if self._watchers is None:
            self._watchers = {}
        self._watchers[watcher] = None

    def unwatch(self, watcher: AdvanceWatcher) -> None:
        if self._watchers is not None:
            self._watchers.pop(watcher, None)

    def _notify(self) -> None:
        for watcher in tuple(self._watchers or ()):
            try:
                watcher.on_advanced(self)
            except Exception:
                logger.exception("%s: a callback that waited for records failed", self)

    # -- keeping --------------------------------------------------------------------------------

    def reconfigure(self, config: TopicConfig) -> None:
        self._set_config(config)
        self._compactor = None
        if self._log is not None:
            self._log.reconfigure(config)
            self._commit.request(self)

    def begin_compaction(
        self, now_ms: int, pause: Callable[[], None] | None = None
    ) -> tuple[Compactor, CompactionJob] | None:
        """A round of compaction, if the topic asks for it and one is worth it.

        `pause` is called by its thread after every batch, and ends the round with an OSError.
        """
        if not self._config.compacts or self._log is None or self._log.failed is not None:
            return None
        if self._compactor is None:
            limits = CompactionLimits(
                dirty_ratio_min=self._config.min_cleanable_dirty_ratio,
                lag_min_ms=self._config.min_compaction_lag_ms,
                lag_max_ms=self._config.max_compaction_lag_ms,
            )
            self._compactor = Compactor(self._log, self._disk, str(self.path), limits, pause)
        if now_ms >= self._log.roll_at_ms:
            # Nobody writes here any more. After the next checkpoint the segment can be compacted.
            self._log.roll(now_ms)
            self._grown(self._log)
        job = self._compactor.begin(now_ms, self.last_stable_offset, self._config)
        return None if job is None else (self._compactor, job)

    def request_flush(self) -> None:
        self._commit.request(self)

    def delete_before(self, offset: int) -> None:
        """Moves the start of the log; -1 means the high watermark (DeleteRecords)."""
        high = self.high_watermark
        target = high if offset == -1 else offset
        if target < 0 or target > high:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self}: cannot delete before offset {offset}:"
                f" the log runs from {self.log.start_offset} to {high}",
            )
        self.log.delete_before(target)
        if self._watchers:
            self._notify()

    def release_log(self) -> Log | None:
        """Gives the log away to be closed, None if it is not open; nobody else can reach it any more."""
        log, self._log = self._log, None
        self._judge_ready()
        if log is not None:
            self._give_up(ErrorCode.KAFKA_STORAGE_ERROR)
        return log

    def discard(self) -> None:
        """Lets go of a deleted partition: nobody waits on, no handle stays, and nothing opens it again."""
        self.deleted = True
        self._refusal = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self}: the topic was deleted")
        self._give_up(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if self._log is not None:
            self._log.abandon()
            self._log = None
        self._judge_ready()


def _nothing() -> None:
    """For those who watch the partition anyway."""
