"""The metadata store of a simulated cluster: `cluster/kv.py`, a connection for each node, and faults.

A request takes time to arrive and its answer takes time to come back. In between a store may be away for
seconds, an answer may be lost after the commit, and a commit may happen long after its sender was told that
nobody knows. Watches of a node may lag, break, and find their past compacted. A lease ends late by up to its
own time, never early. Whatever is drawn comes from the seed; without faults this is a store like the others,
and passes `tests/conformance`.

Nothing here belongs to a node: a request that is under way arrives after its sender has died.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from braidmq.cluster.kv import KeyValues, Step
from braidmq.cluster.metadata_store import (
    LEASE_TTL_MIN_S,
    Change,
    Compare,
    Item,
    Lease,
    MetadataStore,
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

Answer = TypeVar("Answer")
Later = Callable[[float, Callable[[], None]], object]
"""Calls something after so many seconds, whatever becomes of the node that asked for it."""

TRIP_S = 0.0005
TIME_OUT_S = 1.0
"""After which a request without an answer counts as lost."""
LATE_S = (0.01, 0.2, 1.5, 3.0)
"""How long after its sender gave up a late commit happens."""


@dataclass
class Moods:
    """What goes wrong at present."""

    away_until_s: float = 0.0
    lost_answers: float = 0.0
    """How likely an answer is lost after the commit."""
    late_commits: float = 0.0
    """How likely a commit happens late, after its sender was told that nobody knows."""
    late_leases: bool = False


class SimStore:
    """The one store; `connect` gives each life of a node its own end of it."""

    def __init__(self, now: Callable[[], float], later: Later, chance: random.Random | None = None) -> None:
        self.kv = KeyValues()
        self.moods = Moods()
        self.changes: list[Change] = []
        """All there ever were, compacted or not."""
        self.on_change: list[Callable[[Change], None]] = []
        self._now = now
        self._later = later
        self._chance = chance
        self._ends: dict[StoreEnd, None] = {}

    def connect(self) -> StoreEnd:
        end = StoreEnd(self)
        self._ends[end] = None
        return end

    def forget(self, end: StoreEnd) -> None:
        self._ends.pop(end, None)

    @property
    def ends(self) -> list[StoreEnd]:
        return list(self._ends)

    def is_likely(self, likelihood: float) -> bool:
        return self._chance is not None and likelihood > 0 and self._chance.random() < likelihood

    def draw_s(self, choices: Sequence[float]) -> float:
        return self._chance.choice(choices) if self._chance is not None else 0.0

    def trip(self, call: Callable[[], None], extra_s: float = 0.0) -> None:
        """One way between a node and the store."""
        spread = 1.0 if self._chance is None else self._chance.uniform(0.5, 3.0)
        self._later(TRIP_S * spread + extra_s, call)

    @property
    def is_away(self) -> bool:
        return self._now() < self.moods.away_until_s

    def now(self) -> float:
        return self._now()

    def take(self, step: Step | None) -> None:
        """Makes a change, and shows it to every watch in its time."""
        if step is None:
            return
        change = self.kv.apply(step, self._now())
        if change is not None:
            self.changes.append(change)
            for look in self.on_change:
                look(change)
            for end in list(self._ends):
                end.will_see(change.revision)

    def compact(self, revision: int | None = None) -> None:
        """Forgets history, under the eyes of whoever watches."""
        self.take(self.kv.compact(self.kv.revision if revision is None else revision))
        for end in list(self._ends):
            end.wake()

    def restore(self, kv: KeyValues) -> None:
        """Puts another state in the place of this one, as from a backup."""
        self.kv = kv
        for lease_id in kv.deadlines():
            self.lease_begins(Lease(lease_id, LEASE_TTL_MIN_S))

    # -- leases ---------------------------------------------------------------------------------

    def lease_begins(self, lease: Lease) -> None:
        self._later(lease.ttl_s, lambda: self._lease_may_be_over(lease))

    def _lease_may_be_over(self, lease: Lease) -> None:
        deadline = self.kv.deadlines().get(lease.lease_id)
        if deadline is None:
            return
        left_s = deadline - self._now()
        if left_s > 0:
            self._later(max(0.001, left_s), lambda: self._lease_may_be_over(lease))
            return
        late = self.moods.late_leases and self._chance is not None
        late_s = self._chance.uniform(0.0, lease.ttl_s) if late and self._chance is not None else 0.0
        self._later(late_s, lambda: self.take(self.kv.revoke(lease.lease_id)))


class StoreEnd:
    """A node's connection: a `MetadataStore`."""

    def __init__(self, store: SimStore) -> None:
        self._store = store
        self._watches: dict[_Watch, None] = {}
        self._closed = False
        self.lag_s = 0.0
        """How late this node's watches are."""
        self.shown = store.kv.revision
        """The newest revision that they may see."""

    # -- the interface --------------------------------------------------------------------------

    async def start(self) -> None:
        """It is connected."""

    async def get(self, key: str) -> Item | None:
        check_key(key)
        return await self._ask(lambda: None, lambda: self._store.kv.get(key))

    async def snapshot(self, prefix: str) -> Snapshot:
        check_prefix(prefix)
        store = self._store
        return await self._ask(lambda: None, lambda: Snapshot(store.kv.revision, store.kv.items(prefix)))

    async def commit(
        self, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        check_commit(compares, puts, deletes)
        store = self._store
        return await self._ask(
            lambda: store.kv.commit(compares, puts, deletes), lambda: store.kv.revision, Unknown
        )

    def watch(self, prefix: str, after_revision: int) -> Watch:
        check_prefix(prefix)
        watch = _Watch(self, self._store.kv, prefix, after_revision)
        self._watches[watch] = None
        return watch

    async def lease(self, ttl_s: int) -> Lease:
        granted: list[Lease] = []

        def decide() -> Step:
            step = self._store.kv.grant(ttl_s)
            granted.append(Lease(*step))
            return step

        def answer() -> Lease:
            self._store.lease_begins(granted[-1])
            return granted[-1]

        return await self._ask(decide, answer)

    async def renew(self, lease_id: int) -> int:
        return await self._ask(lambda: None, lambda: self._store.kv.renew(lease_id, self._store.now()))

    async def revoke(self, lease_id: int) -> None:
        await self._ask(lambda: self._store.kv.revoke(lease_id), lambda: None)

    async def compact(self, revision: int) -> None:
        def compact() -> None:
            self._store.compact(revision)

        await self._ask(lambda: None, compact)

    async def close(self) -> None:
        self.drop()
        self.wake()

    # -- what the store does --------------------------------------------------------------------

    def drop(self) -> None:
        """Nobody is at this end any more."""
        self._closed = True
        self._store.forget(self)

    def will_see(self, revision: int) -> None:
        self._store.trip(lambda: self._see(revision), self.lag_s)

    def _see(self, revision: int) -> None:
        self.shown = max(self.shown, revision)
        self.wake()

    def wake(self) -> None:
        for watch in list(self._watches):
            watch.wake()

    def break_watches(self) -> None:
        for watch in list(self._watches):
            watch.broken = True
            watch.wake()

    def check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the metadata store is closed")

    def forget(self, watch: _Watch) -> None:
        self._watches.pop(watch, None)

    async def _ask(
        self,
        decide: Callable[[], Step | None],
        answer: Callable[[], Answer],
        unsure: type[StoreError] = Unavailable,
    ) -> Answer:
        self.check_open()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._store.trip(lambda: self._arrive(decide, answer, unsure, future))
        return await future

    def _arrive(
        self,
        decide: Callable[[], Step | None],
        answer: Callable[[], Answer],
        unsure: type[StoreError],
        future: asyncio.Future[Answer],
    ) -> None:
        store = self._store

        def happen() -> Answer | StoreError:
            try:
                store.take(decide())
                return answer()
            except StoreError as error:
                return error

        if store.is_away:
            late = unsure is Unknown and store.is_likely(0.3)
            if late:
                back_s = store.moods.away_until_s - store.now()
                store.trip(lambda: _ignore(happen()), back_s + store.draw_s(LATE_S))
            error = Unknown("no answer") if late else Unavailable("the store is away")
            store.trip(lambda: _tell(future, error), store.draw_s((0.0, 0.1, TIME_OUT_S)))
        elif unsure is Unknown and store.is_likely(store.moods.late_commits):
            store.trip(lambda: _ignore(happen()), TIME_OUT_S + store.draw_s(LATE_S))
            store.trip(lambda: _tell(future, Unknown("no answer in time")), TIME_OUT_S)
        else:
            outcome = happen()
            if store.is_likely(store.moods.lost_answers):
                store.trip(
                    lambda: _tell(future, unsure("the answer is lost")), store.draw_s((0.0, TIME_OUT_S))
                )
            else:
                store.trip(lambda: _tell(future, outcome))


def _ignore(_: object) -> None:
    """An outcome that nobody waits for."""


def _tell(future: asyncio.Future[Answer], outcome: Answer | StoreError) -> None:
    if future.done():
        return
    if isinstance(outcome, StoreError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class _Watch:
    """A position in the history, read no further than its node may see."""

    def __init__(self, end: StoreEnd, kv: KeyValues, prefix: str, after_revision: int) -> None:
        self._end = end
        self._kv = kv
        self._prefix = prefix
        self._position = after_revision
        self._event = asyncio.Event()
        self._closed = False
        self.broken = False

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    async def __anext__(self) -> Change:
        while not self._closed:
            self._end.check_open()
            if self.broken:
                raise Unavailable("the connection of a watch is lost")
            self._position, change = self._kv.change_after(self._position, self._prefix, self._end.shown)
            if change is not None:
                return change
            self._event.clear()
            await self._event.wait()
        raise StopAsyncIteration

    def wake(self) -> None:
        self._event.set()

    async def close(self) -> None:
        self._closed = True
        self._end.forget(self)
        self._event.set()


def _is_a_store(end: StoreEnd) -> MetadataStore:
    return end
