"""The controller on every store: elected once, replaced when its lease ends, guarded by its epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from braidmq.cluster import controller as controller_module
from braidmq.cluster import records
from braidmq.cluster.controller import Controller
from braidmq.cluster.image import Image
from braidmq.cluster.image_feed import ImageFeed
from braidmq.cluster.membership import Identity, LeaseTimes, Membership
from braidmq.cluster.metadata_store import Conflict, CreateRevision, MetadataStore, Put
from braidmq.cluster.records import NO_EPOCH, Listener
from braidmq.cluster.settlement import Writer
from braidmq.platform.clock import SystemClock
from braidmq.platform.randomness import random_bytes
from conformance.places import Opener, run

PREFIX = records.prefix("test")


class Member:
    """A broker as far as the controller needs one."""

    def __init__(self, store: MetadataStore, node_id: int) -> None:
        clock, run_id = SystemClock(), f"run-{node_id}"
        identity = Identity(
            node_id=node_id, uuid=f"disk-{node_id}", run=run_id, former_run=None, cluster_id=None, host="a",
            boot_id="boot",
        )  # fmt: skip
        self.node_id = node_id
        self.feed = ImageFeed(store, Image(PREFIX), clock)
        times = LeaseTimes(ttl_s=3, renew_s=0.5)
        self.membership = Membership(store, PREFIX, identity, clock.monotonic, random_bytes, times)
        self.controller = Controller(store, self.feed, node_id, self.membership, Writer(run_id), clock)

    async def start(self) -> None:
        await self.membership.join()
        await self.feed.start()
        await self.membership.appear((Listener("kafka", "a", 9092),))
        self.controller.start()

    async def stop(self) -> None:
        await self.controller.stop()
        await self.membership.leave()
        await self.feed.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.02)


def test_one_controller_ticks_and_another_follows_it(place: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: with a higher epoch, under which the first can write nothing."""
    monkeypatch.setattr(controller_module, "TICK_S", 0.1)

    async def story(store: MetadataStore) -> None:
        members = [Member(store, node_id) for node_id in (1, 2)]
        try:
            for member in members:
                await member.start()
            await until(lambda: all(member.feed.image.tick > 2 for member in members))
            (first,) = [one for one in members if one.controller.epoch != NO_EPOCH]
            other = members[0] if first is members[1] else members[1]
            epoch = first.controller.epoch
            await store.revoke(first.membership.lease_id)
            await until(lambda: epoch not in (one.controller.epoch for one in members))
            await until(lambda: any(one.controller.epoch > epoch for one in members))
            key = PREFIX + records.CONTROLLER
            with pytest.raises(Conflict):
                await store.commit([CreateRevision(key, epoch)], [Put(PREFIX + records.TICK, b"")])
            ticks = other.feed.image.tick
            await until(lambda: other.feed.image.tick > ticks + 2)
        finally:
            for member in members:
                await member.stop()

    run(place, story)
