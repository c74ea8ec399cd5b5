"""A partition's log as the broker keeps it: opened on first use, made durable, compacted, given away.

The log is opened in a thread (`opening`): a broker with ten thousand partitions starts without touching them,
and serves those that are open while it opens others.

The high watermark is the offset below which records are committed and may be read. With flush=sync that is
what has reached the disk, because a record that was read must never come back with another value after a
power loss; with flush=async it is the end of the log. It is decided here and nowhere else, and those who wait
for it are kept here: a broker alone is an in-sync set of one.

This is what the broker's own upkeep works with. Who serves clients uses the door in front of it, `replica`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from braidmq.broker.append_queue import AppendQueue
from braidmq.broker.batch_preparation import BatchPreparer
from braidmq.broker.group_commit import GroupCommit, Job
from braidmq.broker.opening import Opener
from braidmq.config import Flush, TopicConfig
from braidmq.log.compaction import CompactionJob, CompactionLimits, Compactor
from braidmq.log.log import FlushJob, Log
from braidmq.log.transactions import EndMarker
from braidmq.platform.disk import Disk
from braidmq.wire.errors import ApiError, ErrorCode

logger = logging.getLogger("braid.partition")


P_contra = TypeVar("P_contra", contravariant=True)


class AdvanceWatcher(Protocol[P_contra]):
    """Somebody who waits for a partition's end or its high watermark to move."""

    def on_advanced(self, partition: P_contra) -> None: ...


CommittedCallback = Callable[[ErrorCode], None]


class Partition:
    """One partition of a topic on this broker."""

    __slots__ = (
        "_append_queue", "_cold_jobs", "_commit", "_committed_waits", "_compactor", "_config", "_directory",
        "_disk", "_end_watchers", "_high_watchers", "_log", "_on_dirty", "_open_waits", "_opener",
        "_preparer", "_refusal", "deleted", "dirty", "index", "leader_epoch", "leads", "on_marker", "ready",
        "syncs", "topic",
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
        leader_epoch: int = 0,
    ) -> None:
        self.topic = topic
        self.index = index
        self.leader_epoch = leader_epoch
        """Under which this broker leads the partition; every batch appended here carries it."""
        self.leads = True
        """Whether this broker leads the partition, as far as it knows."""
        self.on_marker: Callable[[EndMarker, int], None] | None = None
        """Called with every end of a transaction that is appended here, and the offset after it."""
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
        """Whether a record is committed only when it is on disk."""
        self._end_watchers: dict[AdvanceWatcher[Any], None] | None = None
        self._high_watchers: dict[AdvanceWatcher[Any], None] | None = None
        self._committed_waits: deque[tuple[int, CommittedCallback]] | None = None
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
    def failed(self) -> bool:
        """Whether the log takes no more records until the broker is started again."""
        return self._log is not None and self._log.failed is not None

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
    def size_bytes(self) -> int:
        """Of the log; -1 while it is not open."""
        return -1 if self._log is None else self._log.size_bytes

    @property
    def high_watermark(self) -> int:
        log = self.log
        return log.durable_offset if self.syncs else log.end_offset

    @property
    def last_stable_offset(self) -> int:
        """Where the first transaction begins that has not ended; else the high watermark."""
        high, transactions = self.high_watermark, self.log.producers.transactions
        return high if transactions is None else transactions.last_stable_offset(high)

    # -- durability -----------------------------------------------------------------------------

    def _grown(self, log: Log) -> None:
        """Records were appended: the end has moved, and with flush=async the high watermark with it."""
        if not self.dirty:
            self.dirty = True
            self._on_dirty(self)
        if self.syncs:
            self._commit.request(self)
        else:
            if log.unflushed_records >= self._config.flush_messages:
                self._commit.request(self)
            if self._high_watchers:
                self._call(self._high_watchers)
        if self._end_watchers:
            self._call(self._end_watchers)

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
        high = log.durable_offset if self.syncs else log.end_offset
        waits = self._committed_waits
        while waits and waits[0][0] <= high:
            self._answer(waits.popleft()[1], ErrorCode.NONE)
        if waits:
            self._commit.request(self)
        if not self.dirty:
            # A checkpoint was written during the sync, and its recovery point is before what is durable now.
            self.dirty = True
            self._on_dirty(self)
        if self.syncs and self._high_watchers:
            self._call(self._high_watchers)

    def fail(self, error: Exception) -> None:
        """Takes no more records, and answers those who wait for some to be committed."""
        if self._log is not None:
            self._log.fail(error)
        self._give_up(ErrorCode.KAFKA_STORAGE_ERROR)

    def _give_up(self, code: ErrorCode) -> None:
        waits, self._committed_waits = self._committed_waits, None
        for _, callback in waits or ():
            self._answer(callback, code)
        self._notify()

    def _answer(self, callback: CommittedCallback, code: ErrorCode) -> None:
        """Calls one who waited; the others are called whatever becomes of it."""
        try:
            callback(code)
        except Exception:
            logger.exception("%s: a callback that waited for a commit failed", self)

    def _notify(self) -> None:
        """Something other than an append or a commit has changed: everybody who watches looks again."""
        for watchers in (self._end_watchers, self._high_watchers):
            if watchers:
                self._call(watchers)

    def _call(self, watchers: Mapping[AdvanceWatcher[Any], None]) -> None:
        for watcher in tuple(watchers):
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
