"""Opening logs off the loop: in threads, some partitions to a job, one open for each partition.

A partition that nobody has used since the start has no log yet. Opening one reads its directory and its
checkpoint, and after a crash checks what follows it; the loop does none of that. Those who need the log wait
(`Partition.when_open`), and everything else is served meanwhile. A partition that was never written has no
directory, so opening it finds nothing to read.

Writers come first: a consumer of ten thousand partitions must not hold up a producer of one more.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from braidmq.broker.group_commit import DiskThreads
from braidmq.broker.serial_executor import SerialExecutor
from braidmq.config import TopicConfig
from braidmq.log.log import Log
from braidmq.wire.errors import ApiError, ErrorCode

# More threads at once would take the interpreter from the loop without opening more.
JOBS_MAX = 2
PARTITIONS_PER_JOB = 32

log = logging.getLogger("braid.disk")

OpenLog = Callable[[Path, TopicConfig], Log]


class Openable(Protocol):
    """What opening needs of a partition."""

    @property
    def path(self) -> Path: ...
    @property
    def config(self) -> TopicConfig: ...
    @property
    def is_open(self) -> bool: ...
    def when_open(self, then: Callable[[], None]) -> None: ...
    def opened(self, outcome: Log | ApiError) -> None:
        """The log, or why there is none; on the loop."""


class _Opening:
    """One partition's open, from the request to the outcome."""

    __slots__ = ("done", "outcome")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.outcome: Log | ApiError | None = None


class Opener:
    """Opens the logs of a broker's partitions."""

    def __init__(self, threads: DiskThreads, open_log: OpenLog) -> None:
        self.threads = threads
        self.inflating = SerialExecutor(threads)
        """For batches that a topic has to see opened."""
        self._open_log = open_log
        self._queue: OrderedDict[Openable, None] = OrderedDict()
        self._under_way: dict[Openable, _Opening] = {}
        self._jobs = 0
        self._stopped = False

    def request(self, partition: Openable) -> None:
        """Opens `partition` in a thread and calls its `opened` on the loop; it must not be under way."""
        self._queue[partition] = None
        self._start()

    def prefer(self, partition: Openable) -> None:
        """Somebody wants to write to `partition`: it is opened before those that are only read."""
        if partition in self._queue:
            self._queue.move_to_end(partition, last=False)

    def stop(self) -> None:
        """The logs of the broker are being closed: none is handed out any more."""
        self._stopped = True

    def open_now(self, partition: Openable) -> Log | ApiError:
        """Opens `partition` on this thread, or waits here for the thread that does."""
        opening = self._under_way.get(partition)
        if opening is None:
            outcome = self._outcome(partition)
            if partition in self._queue:
                del self._queue[partition]
                self.threads.submit(lambda: None, lambda _: partition.opened(outcome))
            return outcome
        opening.done.wait()
        assert opening.outcome is not None
        return opening.outcome

    def _start(self) -> None:
        while self._queue and self._jobs < JOBS_MAX:
            some: dict[Openable, _Opening] = {}
            while self._queue and len(some) < PARTITIONS_PER_JOB:
                some[self._queue.popitem(last=False)[0]] = _Opening()
            self._under_way.update(some)
            self._jobs += 1
            self._submit(some)

    def _submit(self, some: dict[Openable, _Opening]) -> None:
        def run() -> None:
            for partition, opening in some.items():
                opening.outcome = self._outcome(partition)
                opening.done.set()

        def done(_: BaseException | None) -> None:
            self._jobs -= 1
            for partition in some:
                del self._under_way[partition]
            self._start()
            for partition, opening in some.items():
                outcome = opening.outcome
                assert outcome is not None
                if self._stopped and isinstance(outcome, Log) and not partition.is_open:
                    outcome.abandon()
                    outcome = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition}: the broker is stopping")
                partition.opened(outcome)

        self.threads.submit(run, done)

    def _outcome(self, partition: Openable) -> Log | ApiError:
        try:
            return self._open_log(partition.path, partition.config)
        except ApiError as error:
            return error
        except Exception as error:
            if not isinstance(error, OSError):
                log.exception("%s: cannot open the log", partition)
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition}: cannot open the log: {error}")


async def opened(partitions: Iterable[Openable]) -> None:
    """Returns when each of these is open, or its `log` says why it is not."""
    closed = [partition for partition in partitions if not partition.is_open]
    if not closed:
        return
    left = len(closed)
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def one_more() -> None:
        nonlocal left
        left -= 1
        if left == 0 and not ready.done():
            ready.set_result(None)

    for partition in closed:
        partition.when_open(one_more)
    await ready
