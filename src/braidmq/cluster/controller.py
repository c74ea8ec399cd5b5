"""The controller: the one broker that looks after what belongs to no broker in particular.

Every broker is eligible. One that finds the key `controller` missing creates it, bound to the lease of its
`alive`, so the key goes with the broker. Its create revision is the *controller epoch* and guards every
commit made here: a controller that was replaced cannot write, whether or not it has noticed.

Its duties: a `tick` every two seconds, by which a watch tells silence from a cut; partition keys without a
topic; records of old deletions; etcd's history, which etcd itself keeps for ever. What to do is decided in
`cluster/decisions.py`. A broker with a store of its own needs none of it and has no controller.

Without a controller nothing of that is done, and nothing else stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

from braidmq.cluster import records
from braidmq.cluster.decisions import History, Leftovers, Step, outdated_deletions, tick
from braidmq.cluster.image import Delta
from braidmq.cluster.image_feed import ImageFeed
from braidmq.cluster.metadata_store import (
    Compare,
    Conflict,
    CreateRevision,
    Expired,
    MetadataStore,
    ModRevision,
    Put,
    StoreClosed,
    StoreError,
    Unknown,
    absent,
)
from braidmq.cluster.records import NO_EPOCH, encode
from braidmq.cluster.settlement import Writer
from braidmq.platform.clock import Clock
from braidmq.platform.randomness import random_below

TICK_S = 2.0
JITTER_MS = 100
LEFTOVERS_EVERY_S = 10.0
DELETIONS_EVERY_S = 600.0
RESIGN_S_MAX = 1.0

log = logging.getLogger("braid.cluster")


class Registered(Protocol):
    """What a controller needs to know of its broker's membership."""

    @property
    def epoch(self) -> int: ...
    @property
    def lease_id(self) -> int: ...
    @property
    def isolated(self) -> bool: ...


class Controller:
    """Campaigns for one broker, and does the controller's work while it is the one."""

    def __init__(
        self,
        store: MetadataStore,
        feed: ImageFeed,
        node_id: int,
        membership: Registered,
        writer: Writer,
        clock: Clock,
        compacts: bool = False,
    ) -> None:
        self._store = store
        self._image = feed.image
        self._node_id = node_id
        self._membership = membership
        self._writer = writer
        self._clock = clock
        self._compacts = compacts
        """Whether the store keeps all its history unless it is compacted, and we may do so."""
        self._lease_id = 0
        self._leftovers = Leftovers()
        self._history = History()
        self._leftovers_at = self._deletions_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._complaint = ""
        self.epoch = NO_EPOCH
        """The controller epoch while this broker is the controller, else -1."""
        feed.listen(self._follow)

    def start(self) -> None:
        """Begins to campaign; the broker is registered by now."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="controller")
        self._task.add_done_callback(_say_why)

    async def stop(self) -> None:
        """Gives the office up at once, if the store can be reached; else it goes with the lease."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        if self.epoch != NO_EPOCH:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(RESIGN_S_MAX):
                    await self._store.commit([self._guard()], deletes=[self._key(records.CONTROLLER)])
            self.epoch = NO_EPOCH

    def _follow(self, delta: Delta) -> None:
        if delta.controller:
            self._changed.set()

    # -- being elected --------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            self._history.note(self._clock.monotonic(), self._image.revision)
            try:
                await (self._campaign() if self.epoch == NO_EPOCH else self._lead())
                self._complaint = ""
            except StoreClosed:
                return
            except StoreError as error:
                # Every two seconds for as long as the store is away: said once.
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    log.warning("the controller's work has to wait: %s", error)
            except Exception:
                log.exception("the controller's work failed, it is tried again in %.0f s", TICK_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._changed.wait()

    async def _campaign(self) -> None:
        """Takes the office if nobody holds it."""
        if self._holds_by_image():
            return
        if not self._may_campaign():
            return
        await asyncio.sleep(random_below(JITTER_MS) / 1000)
        if not self._may_campaign():
            return
        lease_id, epoch = self._membership.lease_id, self._membership.epoch
        key, alive = self._key(records.CONTROLLER), self._key(records.alive_key(self._node_id))
        value = encode(records.Controller(node_id=self._node_id), self._writer.sign())
        try:
            revision = await self._store.commit(
                [absent(key), CreateRevision(alive, epoch)], [Put(key, value, lease_id)]
            )
        except (Conflict, Expired):
            return
        except Unknown:
            found = await self._store.get(key)
            if found is None or found.value != value:
                raise
            revision = found.create_revision
        self._take(revision, lease_id)

    def _may_campaign(self) -> bool:
        membership = self._membership
        return self._image.controller is None and bool(membership.lease_id) and not membership.isolated

    def _holds_by_image(self) -> bool:
        """Takes an office that is ours without our knowledge: the answer to the commit was lost."""
        held = self._image.controller
        if held is None or not held.lease or held.lease != self._membership.lease_id:
            return False
        self._take(held.create_revision, held.lease)
        return True

    def _take(self, epoch: int, lease_id: int) -> None:
        self.epoch, self._lease_id = epoch, lease_id
        self._leftovers = Leftovers()
        now = self._clock.monotonic()
        self._leftovers_at, self._deletions_at = now, now + LEFTOVERS_EVERY_S
        # Its work begins with the next turn.
        self._changed.set()
        log.info("this broker is the controller, epoch %d", epoch)

    def _step_down(self) -> None:
        log.info("this broker is no longer the controller, its epoch was %d", self.epoch)
        self.epoch = NO_EPOCH
        self._changed.set()

    def _is_replaced(self) -> bool:
        if self._membership.lease_id != self._lease_id:
            return True
        # An image from before the election says nothing.
        held = self._image.controller
        return self._image.revision >= self.epoch and (held is None or held.create_revision != self.epoch)

    # -- the office -----------------------------------------------------------------------------

    async def _lead(self) -> None:
        if self._is_replaced():
            self._step_down()
            return
        now = self._clock.monotonic()
        if not await self._commit(tick(self._image)):
            return
        if now >= self._leftovers_at:
            self._leftovers_at = now + LEFTOVERS_EVERY_S
            for steps in self._leftovers.due(self._image, now, self._clock.wall_ms()):
                await self._commit_all(steps)
        if now >= self._deletions_at:
            self._deletions_at = now + DELETIONS_EVERY_S
            await self._commit_all(outdated_deletions(self._image, self._clock.wall_ms()))
        if self._compacts and (revision := self._history.due(now)) is not None:
            # Nothing guards it, and nothing has to: nobody needs what is an hour old.
            await self._store.compact(revision)

    async def _commit_all(self, steps: list[Step]) -> None:
        for step in steps:
            if self.epoch == NO_EPOCH or not await self._commit(step):
                return

    async def _commit(self, step: Step) -> bool:
        """Makes a step; False if something is not as it was seen, or the office is gone."""
        by = self._writer.sign()
        compares: list[Compare] = [self._guard()]
        compares += [ModRevision(self._key(each.key), each.revision) for each in step.compares]
        puts = [Put(self._key(name), encode(record, by)) for name, record in step.puts.items()]
        try:
            await self._store.commit(compares, puts, [self._key(name) for name in step.deletes])
        except Conflict:
            held = await self._store.get(self._key(records.CONTROLLER))
            if held is None or held.create_revision != self.epoch:
                self._step_down()
            return False
        except Unknown as error:
            # It may have happened. The image will tell, and what is still to do is decided from that.
            log.info("the outcome of a step of the controller is unknown: %s", error)
            return False
        return True

    def _guard(self) -> CreateRevision:
        return CreateRevision(self._key(records.CONTROLLER), self.epoch)

    def _key(self, name: str) -> str:
        return self._image.key(name)


def _say_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("the controller's work has ended", exc_info=error)
