"""Brokers join a cluster, stay in it, and are refused where they do not belong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from braidmq.cluster import membership as membership_module
from braidmq.cluster import records
from braidmq.cluster.kv_store import KvStore
from braidmq.cluster.membership import FORMAT_LEVEL, Identity, JoinRefused, LeaseTimes, Membership
from braidmq.cluster.metadata_store import Item, Put, Unavailable, Unknown
from braidmq.cluster.records import Alive, Format, Listener, Node, State, decode, encode
from braidmq.platform.randomness import random_bytes

PREFIX = records.prefix("test")
FIRST = Identity(
    node_id=1,
    uuid="disk-1",
    run="run-1",
    former_run=None,
    cluster_id=None,
    host="a",
    boot_id="boot",
)
AT = (Listener("plain", "a", 9092),)
SECOND = replace(FIRST, node_id=2, uuid="disk-2", run="run-2")


class TurnedClock:
    """Moves when it is turned."""

    def __init__(self) -> None:
        self.now = 100.0

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now


class FaultyStore(KvStore):
    """Loses answers, or does not answer at all."""

    answers_lost = 0
    away = False

    async def commit(self, *arguments: object, **named: object) -> int:
        revision = await super().commit(*arguments, **named)  # type: ignore[arg-type]
        if self.answers_lost > 0:
            self.answers_lost -= 1
            raise Unknown("the answer was lost")
        return revision

    async def renew(self, lease_id: int) -> int:
        if self.away:
            raise Unavailable("away")
        return await super().renew(lease_id)


def story(tell: Callable[[FaultyStore, TurnedClock], Awaitable[None]]) -> None:
    """Runs with a store and a clock of its own."""

    async def run() -> None:
        clock = TurnedClock()
        store = FaultyStore(clock)
        await store.start()
        try:
            await asyncio.wait_for(tell(store, clock), 60)
        finally:
            await store.close()

    asyncio.run(run())


def member(store: KvStore, identity: Identity, clock: TurnedClock, renew_s: float = 0.001) -> Membership:
    times = LeaseTimes(ttl_s=3, renew_s=renew_s)
    return Membership(store, PREFIX, identity, clock.monotonic, random_bytes, times)


async def joined(membership: Membership) -> Membership:
    await membership.join()
    await membership.appear(AT)
    return membership


def isolated(membership: Membership) -> bool:
    return membership.isolated


async def alive(store: KvStore, node_id: int) -> tuple[Item, Alive] | None:
    item = await store.get(PREFIX + records.alive_key(node_id))
    return None if item is None else (item, decode(Alive, item.key, item.value))


def test_the_first_broker_founds_the_cluster_and_the_second_joins_it() -> None:
    """N4: one id and one secret for all; the epoch is the revision that created `alive`."""

    async def tell(store: FaultyStore, clock: TurnedClock) -> None:
        one, two = [await joined(member(store, who, clock)) for who in (FIRST, SECOND)]
        assert one.cluster_id == two.cluster_id
        assert len(one.secret) == 32
        assert one.secret == two.secret
        found = await alive(store, 2)
        assert found is not None
        assert (two.epoch, two.isolated) == (found[0].create_revision, False)
        await two.drain()
        found = await alive(store, 2)
        assert found is not None
        assert (found[1].state, found[0].create_revision) == (State.DRAINING, two.epoch)
        await two.leave()
        assert await alive(store, 2) is None
        await one.leave()

    story(tell)


@pytest.mark.parametrize(
    ("identity", "complaint"),
    [
        (replace(SECOND, cluster_id="elsewhere"), "belongs to cluster elsewhere.*new data directory"),
        (replace(FIRST, uuid="other-disk", run="x"), "another data directory.*--replace"),
    ],
    ids=["foreign cluster", "foreign directory"],
)
def test_a_broker_that_does_not_belong_here_is_refused(identity: Identity, complaint: str) -> None:
    """N4: with what to do, and without a trace in the store."""

    async def tell(store: FaultyStore, clock: TurnedClock) -> None:
        first = await joined(member(store, FIRST, clock))
        before = await store.get(PREFIX + records.node_key(identity.node_id))
        with pytest.raises(JoinRefused, match=complaint):
            await member(store, identity, clock).join()
        assert await store.get(PREFIX + records.node_key(identity.node_id)) == before
        await first.leave()

    story(tell)


def test_metadata_of_a_newer_version_is_refused() -> None:
    """N4: an old broker would write what the new ones do not understand."""

    async def tell(store: FaultyStore, clock: TurnedClock) -> None:
        await (await joined(member(store, FIRST, clock))).leave()
        newer = encode(Format(level=FORMAT_LEVEL + 1), "new")
        await store.commit((), [Put(PREFIX + records.FORMAT, newer)])
        with pytest.raises(JoinRefused, match="install the version that the other brokers run"):
            await member(store, FIRST, clock).join()

    story(tell)


def test_a_lost_directory_can_be_replaced_on_purpose() -> None:
    """N4: with --replace, and then the old directory is the foreign one."""

    async def tell(store: FaultyStore, clock: TurnedClock) -> None:
        await (await joined(member(store, FIRST, clock))).leave()
        new = replace(FIRST, uuid="new-disk", run="x", replace=True)
        await (await joined(member(store, new, clock))).leave()
        item = await store.get(PREFIX + records.node_key(1))
        assert item is not None
        assert decode(Node, item.key, item.value).uuid == "new-disk"
        with pytest.raises(JoinRefused):
            await member(store, FIRST, clock).join()

    story(tell)


def test_a_broker_that_crashed_is_back_at_once() -> None:
    """N4 R5: it does not sit out the lease of its earlier run."""

    async def tell(store: FaultyStore, clock: TurnedClock) -> None:
        crashed = member(store, FIRST, clock, renew_s=1000)
        await joined(crashed)
        again = await joined(member(store, replace(FIRST, run="run-2", former_run="run-1"), clock))
        assert again.epoch > crashed.epoch
        await again.leave()
        await crashed.leave()

    story(tell)


def test_two_running_brokers_cannot_share_a_node_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: the second waits as long as a dead one's lease may last, then says where the first runs."""

    monkeypatch.setattr(membership_module, "RETRY_S", 0.001)

    async def tell(store: FaultyStore, clock: TurnedClock) -> None:
        first = await joined(member(store, FIRST, clock))

        async def turn() -> None:
            while True:
                await asyncio.sleep(0.001)
                clock.now += 0.05

        turning = asyncio.ensure_future(turn())
        copy = member(store, replace(FIRST, run="copy"), clock)
        await copy.join()
        with pytest.raises(JoinRefused, match="node id 1 is running at a:9092"):
            await copy.appear(AT)
        turning.cancel()
        assert not first.isolated
        await first.leave()

    story(tell)


def test_a_broker_without_its_store_is_isolated_and_comes_back_under_a_new_epoch() -> None:
    """N4: from when the last good renewal was sent; the clock decides, not an answer."""

    async def tell(store: FaultyStore, clock: TurnedClock) -> None:
        epochs: list[int] = []
        membership = member(store, FIRST, clock)
        membership.on_epoch(epochs.append)
        await joined(membership)
        store.away = True
        clock.now += 2.9
        assert isolated(membership) is False
        clock.now += 0.1
        assert isolated(membership) is True
        # Nobody asks the store while it is away; when it is back, it finds that the lease has ended.
        store.away = False
        while len(epochs) < 2:
            await asyncio.sleep(0.001)
        assert isolated(membership) is False
        assert epochs[1] == membership.epoch > epochs[0]
        found = await alive(store, 1)
        assert found is not None
        assert found[0].create_revision == membership.epoch
        await membership.leave()

    story(tell)


def test_lost_answers_are_settled_by_looking() -> None:
    """N4: a commit whose answer was lost has happened; nothing is made twice."""

    async def tell(store: FaultyStore, clock: TurnedClock) -> None:
        store.answers_lost = 3
        membership = await joined(member(store, FIRST, clock))
        assert store.answers_lost == 0
        found = await alive(store, 1)
        assert found is not None
        assert (found[0].create_revision, found[0].lease) == (membership.epoch, membership.lease_id)
        await membership.leave()

    story(tell)


def test_damaged_metadata_is_named() -> None:
    """N4: the key, and that nothing is guessed."""

    async def tell(store: FaultyStore, clock: TurnedClock) -> None:
        await store.commit((), [Put(PREFIX + records.CLUSTER_ID, b"?")])
        with pytest.raises(JoinRefused, match=r"damaged or newer.*/id"):
            await member(store, FIRST, clock).join()

    story(tell)
