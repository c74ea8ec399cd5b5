"""The shell around `kv` that makes it a metadata store: order, durability, watches, ends of leases.

One task decides all requests, in the order they came, in batches. A batch's steps are written by `_write`
and its requests answered when that is done: nobody learns of a change, or of a conflict with one, that a
crash could take back. Requests that come meanwhile are the next batch. So the state is ahead of the journal
only while a batch is written; a batch that cannot be written is taken back by `_reload`.

Watches have no queues. Each has a position in the shared history and reads on when a batch is done; one
that falls out of the history is `Lost`.

Here `_write` does nothing: a store in memory, for tests and simulations. `FileStore` adds the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from braidmq.cluster.kv import KeyValues, Step
from braidmq.cluster.metadata_store import (
    Change,
    Compare,
    Item,
    Lease,
    Put,
    Snapshot,
    StoreClosed,
    StoreError,
    Unavailable,
    Unknown,
    Watch,
    check_commit,
    check_key,
    check_prefix,
)
from braidmq.platform.clock import Clock

WAITING_MAX = 10_000
WAITING_BYTES_MAX = 64 * 1024 * 1024
BATCH_STEPS_MAX = 256
BATCH_REQUESTS_MAX = 1024
BATCH_BYTES_MAX = 4 * 1024 * 1024
"""Of commits; an entry of the journal has room for them in their longest form."""
RETRY_S = 1.0
"""How long ends of leases wait after a write that failed."""

log = logging.getLogger("braid.store")
Answer = TypeVar("Answer")


class _Waiting:
    """A request: what decides its step, what answers it once the step is taken, and who waits."""

    __slots__ = ("answer", "decide", "future", "outcome", "size", "stepped", "unsure")

    def __init__(
        self,
        decide: Callable[[], Step | None],
        answer: Callable[[], object],
        future: asyncio.Future[object],
        size: int,
        unsure: type[StoreError],
    ) -> None:
        self.decide = decide
        self.answer = answer
        self.future = future
        self.size = size
        self.unsure = unsure
        """The error it gets if nobody knows whether its step is on disk."""
        self.stepped = False
        self.outcome: object = None

    def tell(self, error: StoreError | None = None) -> None:
        if self.future.done():
            return
        if error is None and isinstance(self.outcome, StoreError):
            error = self.outcome
        if error is None:
            self.future.set_result(self.outcome)
        else:
            self.future.set_exception(error)


class KvStore:
    """A metadata store in this process. `start` it before use; `close` it at the end."""

    kind = "memory"

    def __init__(self, clock: Clock, kv: KeyValues | None = None) -> None:
        self._clock = clock
        self._kv = KeyValues() if kv is None else kv
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._watches: dict[KvWatch, None] = {}
        self._shown = self._kv.revision
        """The newest revision that watches may see: everything up to it is durable."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failed: StoreError | None = None
        self._closing = False
        self._leases_wait_until = 0.0

    async def start(self) -> None:
        self._shown = self._kv.revision
        self._task = asyncio.get_running_loop().create_task(self._work(), name="metadata-store")

    async def close(self) -> None:
        """Finishes what is being written; what still waits is refused."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            # Not awaited itself: a caller that gives up would cancel it in the middle of a write.
            await asyncio.wait([self._task])
        self._fail(StoreClosed("the metadata store is closed"))

    # -- the interface --------------------------------------------------------------------------

    async def get(self, key: str) -> Item | None:
        check_key(key)
        return await self._ask(lambda: None, lambda: self._kv.get(key))

    async def snapshot(self, prefix: str) -> Snapshot:
        check_prefix(prefix)
        return await self._ask(lambda: None, lambda: Snapshot(self._kv.revision, self._kv.items(prefix)))

    async def commit(
        self, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        size = check_commit(compares, puts, deletes)
        return await self._ask(
            lambda: self._kv.commit(compares, puts, deletes), lambda: self._kv.revision, size, Unknown
        )

    def watch(self, prefix: str, after_revision: int) -> Watch:
        check_prefix(prefix)
        return KvWatch(self, prefix, after_revision)

    async def lease(self, ttl_s: int) -> Lease:
        granted: list[Lease] = []

        def decide() -> Step:
            step = self._kv.grant(ttl_s)
            granted.append(Lease(*step))
            return step

        return await self._ask(decide, lambda: granted[-1])

    async def renew(self, lease_id: int) -> int:
        # At once and not in turn: a renewal behind a slow disk would come too late.
        self._check_open()
        return self._kv.renew(lease_id, self._clock.monotonic())

    async def revoke(self, lease_id: int) -> None:
        await self._ask(lambda: self._kv.revoke(lease_id), lambda: None)

    async def compact(self, revision: int) -> None:
        await self._ask(lambda: self._kv.compact(revision), lambda: None)

    # -- the task -------------------------------------------------------------------------------

    async def _ask(
        self,
        decide: Callable[[], Step | None],
        answer: Callable[[], Answer],
        size: int = 0,
        unsure: type[StoreError] = Unavailable,
    ) -> Answer:
        self._check_open()
        if len(self._waiting) >= WAITING_MAX:
            raise Unavailable(f"{WAITING_MAX} requests wait for the metadata store already")
        if size and self._waiting_bytes + size > WAITING_BYTES_MAX:
            raise Unavailable(f"{self._waiting_bytes:,} bytes wait for the metadata store already")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(decide, answer, future, size, unsure))  # type: ignore[arg-type]
        self._waiting_bytes += size
        self._wake.set()
        return await future

    def _check_open(self) -> None:
        if self._failed is not None:
            raise type(self._failed)(*self._failed.args)
        if self._closing:
            raise StoreClosed("the metadata store is closing")

    async def _work(self) -> None:
        try:
            while not (self._closing or self._failed):
                await self._until_due()
                await self._batch()
        except Exception as error:
            log.exception("the metadata store has failed")
            self._fail(Unavailable(f"the metadata store has failed: {error}"))

    async def _until_due(self) -> None:
        """Waits for a request or the end of a lease."""
        if not self._waiting and not self._closing:
            self._wake.clear()
            deadline = self._kv.next_deadline()
            pause = None
            if deadline is not None:
                pause = max(0.0, max(deadline, self._leases_wait_until) - self._clock.monotonic())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _batch(self) -> None:
        deadlines = self._kv.deadlines()
        taken: list[_Waiting] = []
        try:
            steps = self._end_leases()
            self._decide(taken, steps)
            if steps:
                await self._write(steps)
        except OSError as error:
            await self._take_back(taken, deadlines, error)
            return
        except Exception as error:
            # A mistake of ours ends the store; those who wait for this batch must hear of it.
            for request in taken:
                request.tell(request.unsure(f"the metadata store has failed: {error}"))
            raise
        self._shown = self._kv.revision
        for request in taken:
            request.tell()
        if steps:
            for watch in self._watches:
                watch.wake()

    def _decide(self, taken: list[_Waiting], steps: list[Step]) -> None:
        """Takes requests and their steps, as many as fit into a batch."""
        size = 0
        while (
            self._waiting
            and len(steps) < BATCH_STEPS_MAX
            and len(taken) < BATCH_REQUESTS_MAX
            and size < BATCH_BYTES_MAX
        ):
            request = self._waiting.popleft()
            self._waiting_bytes -= request.size
            taken.append(request)
            size += request.size
            try:
                step = request.decide()
                if step is not None:
                    self._kv.apply(step, self._clock.monotonic())
                    steps.append(step)
                    request.stepped = True
                request.outcome = request.answer()
            except StoreError as error:
                request.outcome = error

    def _end_leases(self) -> list[Step]:
        steps: list[Step] = []
        now = self._clock.monotonic()
        if now >= self._leases_wait_until:
            for lease_id in self._kv.due(now)[:BATCH_STEPS_MAX]:
                step = self._kv.revoke(lease_id)
                assert step is not None
                self._kv.apply(step, now)
                steps.append(step)
        return steps

    async def _take_back(
        self, taken: Sequence[_Waiting], deadlines: dict[int, float], error: OSError
    ) -> None:
        """A batch could not be written: the state is again what the journal holds, if that is known.

        Leases have the deadlines they had before the batch, or the later ones of renewals since.
        """
        try:
            kv = await self._reload()
        except (OSError, StoreError) as unreadable:
            for request in taken:
                request.tell(request.unsure(f"the metadata store could not be written: {error}"))
            self._fail(Unavailable(f"the metadata store is out of order: {unreadable}"))
            return
        kv.keep_deadlines(deadlines | self._kv.deadlines())
        self._kv = kv
        self._leases_wait_until = self._clock.monotonic() + RETRY_S
        for request in reversed(taken):
            if request.stepped:
                request.tell(Unavailable(f"the metadata store could not be written: {error}"))
            else:
                # It wanted to change nothing, or was refused because of what is taken back: decided again.
                self._waiting.appendleft(request)
                self._waiting_bytes += request.size

    def _fail(self, error: StoreError) -> None:
        self._failed = self._failed or error
        while self._waiting:
            self._waiting.popleft().tell(error)
        for watch in self._watches:
            watch.wake()

    # -- the journal ----------------------------------------------------------------------------

    async def _write(self, steps: Sequence[Step]) -> None:
        """Makes steps durable. OSError: they are not there, and `_reload` tells what is."""

    async def _reload(self) -> KeyValues:
        """The state as of the last write that went well."""
        raise Unavailable("a store in memory cannot be read again")


class KvWatch:
    """A position in the history of a store."""

    def __init__(self, store: KvStore, prefix: str, after_revision: int) -> None:
        self._store = store
        self._prefix = prefix
        self._position = after_revision
        self._event = asyncio.Event()
        self._closed = False
        store._watches[self] = None

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    async def __anext__(self) -> Change:
        store = self._store
        while not self._closed:
            store._check_open()
            self._position, change = store._kv.change_after(self._position, self._prefix, store._shown)
            if change is not None:
                return change
            self._event.clear()
            await self._event.wait()
        raise StopAsyncIteration

    def wake(self) -> None:
        self._event.set()

    async def close(self) -> None:
        self._closed = True
        self._store._watches.pop(self, None)
        self._event.set()
