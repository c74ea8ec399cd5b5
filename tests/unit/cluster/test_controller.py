"""The controller: one at a time, guarded by its epoch, and careful with what others may be creating."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from braidmq.cluster import controller as controller_module
from braidmq.cluster import records
from braidmq.cluster.changes import Changes, TopicExists
from braidmq.cluster.controller import Controller
from braidmq.cluster.decisions import (
    DELETED_KEPT_MS,
    HISTORY_S,
    LEFTOVER_S,
    History,
    Leftovers,
    outdated_deletions,
    tick,
)
from braidmq.cluster.image import Image
from braidmq.cluster.image_feed import ImageFeed
from braidmq.cluster.kv_store import KvStore
from braidmq.cluster.membership import Identity, LeaseTimes, Membership
from braidmq.cluster.metadata_store import Conflict, Item, Put, Snapshot, Unavailable, Unknown
from braidmq.cluster.records import NO_EPOCH, DeletedTopic, Listener, PartitionMeta, TopicMeta, encode
from braidmq.cluster.settlement import Writer
from braidmq.platform.clock import SystemClock
from braidmq.platform.randomness import random_bytes

PREFIX = records.prefix("test")
ID, OTHER_ID = b"\x01" * 16, b"\x02" * 16
FIRST = Identity(
    node_id=1, uuid="disk-1", run="run-1", former_run=None, cluster_id=None, host="a", boot_id="boot"
)


class FaultyStore(KvStore):
    """Loses answers, is away, and knows what was compacted."""

    answers_lost = 0
    away = False
    compacted = 0

    async def commit(self, *arguments: object, **named: object) -> int:
        if self.away:
            raise Unavailable("away")
        revision = await super().commit(*arguments, **named)  # type: ignore[arg-type]
        if self.answers_lost > 0:
            self.answers_lost -= 1
            raise Unknown("the answer was lost")
        return revision

    async def compact(self, revision: int) -> None:
        self.compacted = revision
        await super().compact(revision)


class Clock:
    """The controller's: real time, and as much more as the test adds. Leases do not notice."""

    def __init__(self) -> None:
        self.added_s = 0.0

    def monotonic(self) -> float:
        return SystemClock().monotonic() + self.added_s

    def boottime(self) -> float:
        return SystemClock().boottime() + self.added_s

    def wall_ms(self) -> int:
        return SystemClock().wall_ms() + int(self.added_s * 1000)


class Member:
    """A broker as far as the controller needs one."""

    def __init__(self, store: KvStore, node_id: int, clock: Clock) -> None:
        identity = replace(FIRST, node_id=node_id, uuid=f"disk-{node_id}", run=f"run-{node_id}")
        self.node_id = node_id
        self.image = Image(PREFIX)
        self.feed = ImageFeed(store, self.image, SystemClock())
        times = LeaseTimes(ttl_s=2, renew_s=0.3)
        self.membership = Membership(store, PREFIX, identity, SystemClock().monotonic, random_bytes, times)
        self.writer = Writer(f"{node_id}/run-{node_id}")
        self.changes = Changes(store, self.feed, node_id, self.writer)
        self.controller = Controller(
            store, self.feed, node_id, self.membership, self.writer, clock, compacts=True
        )

    async def start(self) -> Member:
        await self.membership.join()
        await self.feed.start()
        await self.membership.appear((Listener("kafka", "a", 9092),))
        self.controller.start()
        return self

    async def stop(self) -> None:
        await self.controller.stop()
        await self.membership.leave()
        await self.feed.stop()


class Cluster:
    """A store and the brokers that were started on it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = FaultyStore(SystemClock())
        self.members: list[Member] = []

    async def start(self, node_id: int) -> Member:
        member = await Member(self.store, node_id, self.clock).start()
        self.members.append(member)
        return member

    @property
    def leading(self) -> list[Member]:
        return [member for member in self.members if member.controller.epoch != NO_EPOCH]

    async def put(self, key: str, record: records.Record) -> None:
        await KvStore.commit(self.store, puts=[Put(PREFIX + key, encode(record, "test"))])

    async def keys(self, start: str) -> list[str]:
        found = await self.store.snapshot(PREFIX + start)
        return [item.key.removeprefix(PREFIX) for item in found.items]


Story = Callable[[Cluster], Awaitable[None]]


def story(tell: Story) -> None:
    async def run() -> None:
        cluster = Cluster()
        await cluster.store.start()
        try:
            await asyncio.wait_for(tell(cluster), 60)
        finally:
            for member in cluster.members:
                await member.stop()
            await cluster.store.close()

    asyncio.run(run())


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = SystemClock().monotonic() + seconds
    while not condition():
        assert SystemClock().monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "TICK_S", 0.05)
    monkeypatch.setattr(controller_module, "LEFTOVERS_EVERY_S", 0.1)


PARTITION = PartitionMeta(leader=1, epoch=0, replicas=(1,), isr=(1,))


def test_one_broker_is_the_controller_and_ticks() -> None:
    """N4: all campaign, one wins, and its ticks are seen by all."""

    async def tell(cluster: Cluster) -> None:
        for node_id in (1, 2, 3):
            await cluster.start(node_id)
        await until(lambda: bool(cluster.leading))
        (leader,) = cluster.leading
        await until(lambda: all(member.image.tick >= 3 for member in cluster.members))
        assert cluster.leading == [leader]
        for member in cluster.members:
            held = member.image.controller
            assert held is not None
            assert (held.record.node_id, held.create_revision) == (leader.node_id, leader.controller.epoch)
            assert held.lease == leader.membership.lease_id

    story(tell)


def test_another_broker_takes_over_when_the_controller_leaves() -> None:
    """N4: with a higher epoch."""

    async def tell(cluster: Cluster) -> None:
        first, second = await cluster.start(1), await cluster.start(2)
        await until(lambda: bool(cluster.leading))
        (leader,) = cluster.leading
        epoch = leader.controller.epoch
        await leader.stop()
        other = second if leader is first else first
        await until(lambda: cluster.leading == [other])
        assert other.controller.epoch > epoch

    story(tell)


def test_a_replaced_controller_writes_nothing() -> None:
    """N4: its lease is gone and it has not noticed; the guard refuses all it does."""

    async def tell(cluster: Cluster) -> None:
        first = await cluster.start(1)
        await until(lambda: first.controller.epoch != NO_EPOCH)
        await first.feed.stop()  # it sees nothing from here on
        await cluster.store.revoke(first.membership.lease_id)
        second = await cluster.start(2)
        await until(lambda: second.controller.epoch != NO_EPOCH)
        await until(lambda: first.controller.epoch == NO_EPOCH)
        ticks = second.image.tick
        await until(lambda: second.image.tick > ticks + 2)
        held = second.image.controller
        assert held is not None
        assert held.record.node_id == 2

    story(tell)


def test_the_epoch_guards_what_is_as_it_was_seen() -> None:
    """N4: nothing else has changed, so only the guard can refuse a controller of the past."""

    async def tell(cluster: Cluster) -> None:
        first, second = await cluster.start(1), await cluster.start(2)
        await until(lambda: bool(cluster.leading))
        (leader,) = cluster.leading
        epoch = leader.controller.epoch
        other = second if leader is first else first
        await leader.controller.stop()
        await until(lambda: other.controller.epoch > epoch)
        assert other.controller._task is not None
        other.controller._task.cancel()
        await asyncio.sleep(0.3)  # a commit of it that was under way is made by now
        revision = (await cluster.store.snapshot(PREFIX)).revision
        await leader.feed.reached(revision)
        leader.controller.epoch = epoch
        assert not await leader.controller._commit(tick(leader.image))
        assert leader.controller.epoch == NO_EPOCH
        assert (await cluster.store.snapshot(PREFIX)).revision == revision

    story(tell)


def test_an_election_whose_answer_was_lost_counts() -> None:
    """N4: the broker finds out that it is the controller."""

    async def tell(cluster: Cluster) -> None:
        member = Member(cluster.store, 1, cluster.clock)
        cluster.members.append(member)
        await member.membership.join()
        await member.feed.start()
        await member.membership.appear((Listener("kafka", "a", 9092),))
        cluster.store.answers_lost = 1
        member.controller.start()
        await until(lambda: member.image.tick > 1)
        held = member.image.controller
        assert held is not None
        assert held.create_revision == member.controller.epoch

    story(tell)


def test_work_continues_after_the_store_was_away(caplog: pytest.LogCaptureFixture) -> None:
    """N4: one line in the log, however long it takes."""

    async def tell(cluster: Cluster) -> None:
        member = await cluster.start(1)
        await until(lambda: member.image.tick > 1)
        cluster.store.away = True
        await asyncio.sleep(0.5)
        cluster.store.away = False
        ticks = member.image.tick
        await until(lambda: member.image.tick > ticks + 1)

    story(tell)
    assert caplog.text.count("has to wait") == 1


def test_partition_keys_without_a_topic_are_swept_after_a_minute() -> None:
    """N4: those of a creation that ended with its broker."""

    async def tell(cluster: Cluster) -> None:
        member = await cluster.start(1)
        for index in range(300):
            await cluster.put(records.partition_key(ID, index), PARTITION)
        await asyncio.sleep(0.5)
        assert len(await cluster.keys(records.PARTITIONS)) == 300
        cluster.clock.added_s = LEFTOVER_S + 1
        await until(lambda: not list(member.image.leftovers()))
        assert await cluster.keys(records.PARTITIONS) == []
        assert await cluster.keys(records.TOPICS) == []

    story(tell)


def test_a_creation_that_was_swept_fails_and_leaves_no_broken_topic() -> None:
    """N4: its broker stood still for more than a minute between the partitions and the topic."""

    async def tell(cluster: Cluster) -> None:
        await cluster.start(1)
        slow = await cluster.start(2)
        held = asyncio.Event()
        put_partitions = slow.changes._put_partitions

        async def then_stand_still(*arguments: object) -> None:
            await put_partitions(*arguments)  # type: ignore[arg-type]
            await held.wait()

        slow.changes._put_partitions = then_stand_still  # type: ignore[method-assign,assignment]
        creation = asyncio.ensure_future(slow.changes.create_topic("orders", ID, slow.changes.place(200), {}))
        await until(lambda: len(list(slow.image.leftovers())) == 200)
        await asyncio.sleep(0.5)
        cluster.clock.added_s = LEFTOVER_S + 1
        await until(lambda: not list(slow.image.leftovers()))
        held.set()
        with pytest.raises(TopicExists):
            await creation
        assert await cluster.keys(records.TOPICS) == await cluster.keys(records.NAMES) == []

    story(tell)


def test_a_growth_that_was_swept_fails_and_the_topic_stays_as_it_was() -> None:
    """N4: likewise for partitions that are added."""

    async def tell(cluster: Cluster) -> None:
        await cluster.start(1)
        slow = await cluster.start(2)
        await slow.changes.create_topic("orders", ID, slow.changes.place(2), {"a": "1"})
        topic = slow.image.topics[ID]
        seen = slow.changes._see([records.topic_key(ID)])
        for index in range(2, 202):
            await cluster.put(records.partition_key(ID, index), PARTITION)
        await until(lambda: len(list(slow.image.leftovers())) == 200)
        await asyncio.sleep(0.5)
        cluster.clock.added_s = LEFTOVER_S + 1
        await until(lambda: not list(slow.image.leftovers()))
        with pytest.raises(Conflict):
            await slow.changes._commit_values(
                {records.topic_key(ID): encode(replace(topic.meta.record, partitions=202), "slow/1")},
                (),
                seen,  # before it stood still
            )
        assert len(await cluster.keys(records.PARTITIONS)) == 2
        assert slow.image.topics[ID].meta.record == TopicMeta(name="orders", partitions=2, options={"a": "1"})

    story(tell)


def test_partitions_of_a_deleted_topic_go_at_once() -> None:
    """N4: its deletion is on record, nobody can be creating it."""

    async def tell(cluster: Cluster) -> None:
        member = await cluster.start(1)
        await member.changes.create_topic("orders", ID, member.changes.place(3), {})
        await member.changes.delete_topic(member.image.topics[ID], cluster.clock.wall_ms(), [])
        await until(lambda: not list(member.image.leftovers()))
        record = member.image.deleted(ID)
        assert record is not None
        assert (record.name, record.done) == ("orders", False)

    story(tell)


def test_history_of_more_than_an_hour_is_compacted() -> None:
    """N4: etcd compacts nothing by itself."""

    async def tell(cluster: Cluster) -> None:
        member = await cluster.start(1)
        await until(lambda: member.image.tick > 1)
        assert cluster.store.compacted == 0
        seen = member.image.revision
        cluster.clock.added_s = HISTORY_S + 1
        await until(lambda: cluster.store.compacted > 0)
        assert cluster.store.compacted <= seen
        ticks = member.image.tick
        await until(lambda: member.image.tick > ticks)

    story(tell)


def image_of(*records_by_key: tuple[str, records.Record]) -> Image:
    image = Image(PREFIX)
    items = [
        Item(PREFIX + key, encode(record, "test"), at, at)
        for at, (key, record) in enumerate(records_by_key, 1)
    ]
    image.load(Snapshot(len(items), tuple(items)))
    return image


def test_leftovers_that_still_grow_are_young() -> None:
    """N4: a creation of many partitions takes its time; each new key starts the minute again."""
    leftovers = Leftovers()
    first = (records.partition_key(ID, 0), PARTITION)
    assert leftovers.due(image_of(first), 0.0, 0) == []
    grown = image_of(first, (records.partition_key(ID, 1), PARTITION))
    assert leftovers.due(grown, LEFTOVER_S - 1, 0) == []
    assert leftovers.due(grown, LEFTOVER_S + 1, 0) == []
    (steps,) = leftovers.due(grown, 2 * LEFTOVER_S, 7)
    assert [step.deletes for step in steps] == [(records.partition_key(ID, 0), records.partition_key(ID, 1))]
    assert steps[0].puts == {records.deleted_key(ID): DeletedTopic(at_ms=7, done=True)}


def test_records_of_deletions_end_after_a_week() -> None:
    """N4: unless partition keys of the topic are still there."""
    old, young = DeletedTopic(name="a", at_ms=0), DeletedTopic(name="b", at_ms=DELETED_KEPT_MS)
    image = image_of((records.deleted_key(ID), old), (records.deleted_key(OTHER_ID), young))
    (step,) = outdated_deletions(image, DELETED_KEPT_MS + 1)
    assert step.deletes == (records.deleted_key(ID),)
    assert step.compares[0].revision == 1
    unswept = image_of((records.deleted_key(ID), old), (records.partition_key(ID, 0), PARTITION))
    assert outdated_deletions(unswept, DELETED_KEPT_MS + 1) == []


def test_history_is_an_hour_of_revisions() -> None:
    """N4: what is compacted is at least that old, and once is enough."""
    history = History()
    for minute in range(200):
        history.note(minute * 60.0, 10 * minute)
        compacted = history.due(minute * 60.0)
        assert compacted == (10 * (minute - 60) if minute > 60 else None)
