"""Changes of the metadata: in an order that a crash cannot harm, and never over the head of somebody else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from braidmq.cluster import records
from braidmq.cluster.changes import Changes, TopicExists
from braidmq.cluster.image import Image
from braidmq.cluster.image_feed import ImageFeed
from braidmq.cluster.kv_store import KvStore
from braidmq.cluster.metadata_store import OPERATIONS_MAX, Change, Conflict, Put, Unavailable, Unknown
from braidmq.cluster.records import Node, Options, encode
from braidmq.cluster.settlement import Writer
from braidmq.platform.clock import SystemClock

PREFIX = records.prefix("test")
ID, OTHER_ID = b"\x01" * 16, b"\x02" * 16


class FaultyStore(KvStore):
    """Loses answers, or refuses commits after some."""

    answers_lost = 0
    commits_left = 1 << 30

    async def commit(self, *arguments: object, **named: object) -> int:
        if self.commits_left == 0:
            raise Unavailable("no more of it")
        self.commits_left -= 1
        revision = await super().commit(*arguments, **named)  # type: ignore[arg-type]
        if self.answers_lost > 0:
            self.answers_lost -= 1
            raise Unknown("the answer was lost")
        return revision


class Member:
    """Somebody who sees and changes the metadata; there is one broker that takes partitions."""

    def __init__(self, store: KvStore, run: str) -> None:
        self.image = Image(PREFIX)
        self.feed = ImageFeed(store, self.image, SystemClock())
        self.changes = Changes(store, self.feed, 1, Writer(run))

    async def create(self, name: str, partitions: int, topic_id: bytes = ID) -> None:
        await self.changes.create_topic(name, topic_id, self.changes.place(partitions), {"a": "1"})


Story = Callable[[FaultyStore, Member, Member], Awaitable[None]]


def story(tell: Story) -> None:
    """Runs with a store and two members, the second of which sees nothing before it is told to."""

    async def run() -> None:
        store = FaultyStore(SystemClock())
        await store.start()
        members = [Member(store, run) for run in ("one", "two")]
        node = encode(Node(uuid="disk", host="a"), "test")
        await KvStore.commit(store, puts=[Put(PREFIX + records.node_key(1), node)])
        await members[0].feed.start()
        try:
            await asyncio.wait_for(tell(store, *members), 60)
        finally:
            for member in members:
                await member.feed.stop()
            await store.close()

    asyncio.run(run())


async def history(store: KvStore) -> list[Change]:
    watch = store.watch(PREFIX, 0)
    newest = (await store.snapshot("")).revision
    found = []
    while not found or found[-1].revision < newest:
        found.append(await anext(watch))
    await watch.close()
    return found


def test_a_topic_comes_with_its_last_commit_and_its_partitions_before() -> None:
    """N4: whoever follows the store never sees a topic without its partitions."""

    async def tell(store: FaultyStore, one: Member, _: Member) -> None:
        await one.create("orders", 300)
        topic = one.image.find("orders")
        assert topic is not None
        assert (topic.meta.record.partitions, topic.meta.record.options) == (300, {"a": "1"})
        assert {part.record.replicas for part in topic.partitions if part is not None} == {(1,)}
        *before, last = await history(store)
        assert [event.key for event in last.events] == [
            PREFIX + records.name_key("orders"),
            PREFIX + records.topic_key(ID),
        ]
        assert all(len(change.events) < OPERATIONS_MAX for change in before)
        assert sum("partitions/" in event.key for change in before for event in change.events) == 300

    story(tell)


def test_a_name_is_given_once() -> None:
    """N4: also if the second broker has not seen the first topic yet."""

    async def tell(store: FaultyStore, one: Member, two: Member) -> None:
        await two.feed.start()
        await two.feed.stop()  # it sees nothing from here on
        await one.create("orders", 1)
        with pytest.raises(TopicExists):
            await two.create("orders", 1, OTHER_ID)
        found = await store.get(PREFIX + records.topic_key(OTHER_ID))
        assert found is None
        with pytest.raises(TopicExists):
            await one.create("orders", 1, OTHER_ID)

    story(tell)


def test_a_change_of_what_somebody_else_has_changed_is_a_conflict() -> None:
    """N4: growth, options and deletion; nothing of the other's change is lost."""

    async def tell(_: FaultyStore, one: Member, two: Member) -> None:
        await one.create("orders", 1)
        await two.feed.start()
        await two.feed.stop()
        topic = one.image.find("orders")
        assert topic is not None
        await one.changes.reconfigure_topic(topic, {"b": "2"})
        await one.changes.set_options(records.OF_GROUPS, "g", {"x": "1"})
        seen = two.image.find("orders")
        assert seen is not None
        for change in (
            two.changes.reconfigure_topic(seen, {}),
            two.changes.grow_topic(seen, [(1,)]),
            two.changes.delete_topic(seen, 0, []),
            two.changes.set_options(records.OF_GROUPS, "g", {"x": "2"}),
        ):
            with pytest.raises(Conflict):
                await change
        now = one.image.find("orders")
        assert now is not None
        assert (now.meta.record.options, len(now.partitions)) == ({"b": "2"}, 1)

    story(tell)


def test_what_a_failed_change_leaves_is_swept_and_in_nobodys_way() -> None:
    """N4: partition keys without a topic count for nothing; a later growth writes over them."""

    async def tell(store: FaultyStore, one: Member, _: Member) -> None:
        store.commits_left = 2
        with pytest.raises(Unavailable):
            await one.create("orders", 300)
        store.commits_left = 1 << 30
        assert one.image.find("orders") is None
        await one.feed.reached((await store.snapshot("")).revision)
        assert len(list(one.image.leftovers())) == 254
        await one.changes.sweep()
        assert (await store.snapshot(PREFIX + records.PARTITIONS)).items == ()

        await one.create("orders", 1)
        topic = one.image.find("orders")
        assert topic is not None
        store.commits_left = 1
        with pytest.raises(Unavailable):
            await one.changes.grow_topic(topic, [(1,)] * 3)
        store.commits_left = 1 << 30
        await one.feed.reached((await store.snapshot("")).revision)
        await one.changes.grow_topic(topic, [(1,)] * 2)
        grown = one.image.find("orders")
        assert grown is not None
        assert len(grown.partitions) == 3
        assert [which.partition for which in one.image.leftovers()] == [3]

    story(tell)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_answer_is_not_taken_for_failure(lost: int) -> None:
    """N4: creation, options in both directions, producer ids, deletion."""

    async def tell(store: FaultyStore, one: Member, _: Member) -> None:
        store.answers_lost = lost
        await one.create("orders", 1)
        for options in ({"x": "1"}, {}):
            store.answers_lost = lost
            await one.changes.set_options(records.OF_GROUPS, "g", options)
            held = one.image.options(records.OF_GROUPS, "g")
            assert ({} if held is None else held.record.options) == options
        given = []
        for _ in range(2):
            store.answers_lost = lost
            given.append(await one.changes.reserve_producer_ids(0, 10))
        assert given == [0, 10]
        topic = one.image.find("orders")
        assert topic is not None
        store.answers_lost = lost
        await one.changes.delete_topic(topic, 5, [])
        assert one.image.find("orders") is None
        assert one.image.was_deleted(ID)

    story(tell)


def test_producer_ids_are_given_once_whoever_asks() -> None:
    """P4 N4: by compare-and-set on what the store holds, not on what a broker has seen."""

    async def tell(_: FaultyStore, one: Member, two: Member) -> None:
        await two.feed.start()
        await two.feed.stop()
        given = await asyncio.gather(
            *(member.changes.reserve_producer_ids(50, 10) for member in (one, two, one, two))
        )
        assert sorted(given) == [50, 60, 70, 80]

    story(tell)


def test_fields_of_a_newer_version_are_kept() -> None:
    """N4: a broker that does not know them writes them again."""

    async def tell(store: FaultyStore, one: Member, _: Member) -> None:
        key = records.config_key(records.OF_GROUPS, "g")
        newer = Options(options={"x": "1"}, rest={"since": 7})
        await one.feed.reached(await store.commit(puts=[Put(PREFIX + key, encode(newer, "newer"))]))
        await one.changes.set_options(records.OF_GROUPS, "g", {"x": "2"})
        held = one.image.options(records.OF_GROUPS, "g")
        assert held is not None
        assert (held.record.options, held.record.rest) == ({"x": "2"}, {"since": 7})

    story(tell)


class StoreInTheMiddle(FaultyStore):
    """Lets somebody else act after the partitions of a topic are written."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def commit(self, *arguments: object, **named: object) -> int:
        revision = await super().commit(*arguments, **named)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return revision


@pytest.mark.parametrize("grows", [False, True])
def test_what_somebody_else_does_while_partitions_are_written_is_not_overwritten(grows: bool) -> None:
    """N4: a change compares what it was decided from, although the image has moved since."""

    async def run() -> None:
        store = StoreInTheMiddle(SystemClock())
        await store.start()
        one, two = (Member(store, run) for run in ("one", "two"))
        node = encode(Node(uuid="disk", host="a"), "test")
        await store.commit(puts=[Put(PREFIX + records.node_key(1), node)])
        await one.feed.start()
        await two.feed.start()
        if grows:
            await two.create("orders", 1, OTHER_ID)
            await one.feed.reached(two.image.revision)
            seen = one.image.find("orders")
            assert seen is not None

        async def meanwhile() -> None:
            found = two.image.find("orders")
            if found is None:
                await two.create("orders", 1, OTHER_ID)
            else:
                await two.changes.reconfigure_topic(found, {"a": "2"})
            await one.feed.reached(two.image.revision)

        store.meanwhile = meanwhile
        try:
            if grows:
                with pytest.raises(Conflict):
                    await one.changes.grow_topic(seen, one.changes.place(1, 1))
            else:
                with pytest.raises(TopicExists):
                    await one.create("orders", 1)
            found = two.image.find("orders")
            assert found is not None
            assert (found.id, len(found.partitions)) == (OTHER_ID, 1)
            assert found.meta.record.options == {"a": "2" if grows else "1"}
        finally:
            for member in (one, two):
                await member.feed.stop()
            await store.close()

    asyncio.run(asyncio.wait_for(run(), 60))
