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
from braidmq.cluster.metadata_store import Item, Lease, Put, StoreFull, Unavailable, Unknown
from braidmq.cluster.records import Alive, Format, Listener, Node, State, decode, encode
from braidmq.cluster.transfer import MARKER
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

    def boottime(self) -> float:
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
        (replace(FIRST, uuid="other-disk", run="x"), "another data directory.*-o replace=true"),
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


def test_a_store_whose_import_did_not_finish_is_not_joined() -> None:
    """N4: topics that are not there yet would pass for deleted ones."""

    async def tell(store: FaultyStore, clock: TurnedClock) -> None:
        await member(store, FIRST, clock).join()
        await store.commit((), [Put(MARKER, b"")])
        with pytest.raises(JoinRefused, match="did not finish"):
            await member(store, SECOND, clock).join()

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


def test_a_lease_that_was_revoked_isolates_at_once() -> None:
    """N4: somebody else may have its place already; how long the lease would have lasted does not matter."""

    async def tell(store: FaultyStore, clock: TurnedClock) -> None:
        membership = await joined(member(store, FIRST, clock, renew_s=0.02))
        epoch = membership.epoch
        await store.revoke(membership.lease_id)
        # Another broker under this id keeps it from registering again.
        other = await store.lease(1000)
        theirs = encode(Alive(listeners=(), boot_id="", run="other"), "other")
        await store.commit((), [Put(PREFIX + records.alive_key(1), theirs, other.lease_id)])
        while not isolated(membership):
            await asyncio.sleep(0.001)
        assert clock.now == 100.0
        await store.revoke(other.lease_id)
        while isolated(membership):
            await asyncio.sleep(0.001)
        assert membership.epoch > epoch
        await membership.leave()

    story(tell)


def test_a_listener_that_fails_does_not_end_the_renewals() -> None:
    """N4: the others are called, too, and the lease lives."""

    async def tell(store: FaultyStore, clock: TurnedClock) -> None:
        epochs: list[int] = []

        def fail(_: int) -> None:
            raise RuntimeError("a listener's mistake")

        membership = member(store, FIRST, clock)
        membership.on_epoch(fail)
        membership.on_epoch(epochs.append)
        await joined(membership)
        for _ in range(10):
            await asyncio.sleep(0.005)
            clock.now += 1
        assert not membership.isolated
        await store.revoke(membership.lease_id)
        while len(epochs) < 2:
            await asyncio.sleep(0.001)
        await membership.leave()

    story(tell)


class SlowToAnswer(FaultyStore):
    """Commits at once and answers when it is told to."""

    answers: asyncio.Event | None = None

    async def commit(self, *arguments: object, **named: object) -> int:
        revision = await super().commit(*arguments, **named)
        if self.answers is not None:
            await self.answers.wait()
        return revision


@pytest.mark.parametrize("again", [False, True], ids=["at first", "again"])
def test_a_broker_that_leaves_while_it_registers_leaves_nothing(again: bool) -> None:
    """N4: the lease it has just got goes, too; nobody waits for its end."""

    async def run() -> None:
        clock = TurnedClock()
        store = SlowToAnswer(clock)
        await store.start()
        membership = member(store, FIRST, clock)
        await membership.join()
        if again:
            await membership.appear(AT)
            await store.revoke(membership.lease_id)
        store.answers = asyncio.Event()
        appearing = None if again else asyncio.ensure_future(membership.appear(AT))
        while await alive(store, 1) is None:
            await asyncio.sleep(0.001)
        await membership.leave()
        store.answers.set()
        if appearing is not None:
            with pytest.raises(JoinRefused, match="has left"):
                await appearing
        await asyncio.sleep(0.01)
        assert await alive(store, 1) is None
        assert membership.isolated
        await store.close()

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("secret", [None, "", "00" * 8, "no hex"], ids=["none", "empty", "short", "no hex"])
def test_a_cluster_without_a_secret_is_not_joined(secret: str | None) -> None:
    """N4: with an empty one, anybody could prove to be a broker."""

    async def tell(store: FaultyStore, clock: TurnedClock) -> None:
        await member(store, FIRST, clock).join()
        key = PREFIX + records.SECRET
        if secret is None:
            await store.commit(deletes=[key])
        else:
            await store.commit((), [Put(key, encode(records.Secret(hex=secret), "x"))])
        with pytest.raises(JoinRefused, match="secret"):
            await member(store, SECOND, clock).join()

    story(tell)


def test_a_running_broker_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: its directory keeps the node id, or it would be refused at its own next start."""

    monkeypatch.setattr(membership_module, "RETRY_S", 0.001)

    async def tell(store: FaultyStore, clock: TurnedClock) -> None:
        first = await joined(member(store, FIRST, clock))

        async def turn() -> None:
            while True:
                await asyncio.sleep(0.001)
                clock.now += 0.05

        turning = asyncio.ensure_future(turn())
        new = replace(FIRST, uuid="new-disk", run="x", replace=True)
        with pytest.raises(JoinRefused, match="node id 1 is running at a:9092"):
            await member(store, new, clock).join()
        turning.cancel()
        await first.leave()
        await (await joined(member(store, replace(FIRST, run="y", former_run="run-1"), clock))).leave()

    story(tell)


class Full(KvStore):
    """Takes nothing more."""

    async def commit(self, *_: object, **__: object) -> int:
        raise StoreFull("the store is full")


def test_a_full_store_is_not_taken_for_a_rival() -> None:
    """N4: joining says what is wrong."""

    async def run() -> None:
        clock = TurnedClock()
        store = Full(clock)
        await store.start()
        with pytest.raises(StoreFull):
            await member(store, FIRST, clock).join()
        await store.close()

    asyncio.run(run())


def test_a_mistake_in_a_store_does_not_end_the_renewals(caplog: pytest.LogCaptureFixture) -> None:
    """N4: it is logged, and the next renewal is tried; so is the next registration."""

    class Mistaken(FaultyStore):
        mistakes: list[str]

        async def renew(self, lease_id: int) -> int:
            if "renew" in self.mistakes:
                self.mistakes.remove("renew")
                raise ZeroDivisionError("a mistake")
            return await super().renew(lease_id)

        async def lease(self, ttl_s: int) -> Lease:
            if "lease" in self.mistakes:
                self.mistakes.remove("lease")
                raise ZeroDivisionError("another mistake")
            return await super().lease(ttl_s)

    async def run() -> None:
        clock = TurnedClock()
        store = Mistaken(clock)
        store.mistakes = []
        await store.start()
        membership = await joined(member(store, FIRST, clock))
        epoch = membership.epoch
        store.mistakes = ["renew", "lease"]
        while "renew" in store.mistakes:
            await asyncio.sleep(0.001)
        await store.revoke(membership.lease_id)
        while membership.epoch == epoch:
            await asyncio.sleep(0.001)
        await membership.leave()
        await store.close()

    asyncio.run(asyncio.wait_for(run(), 20))
    assert "a mistake" in caplog.text
    assert "another mistake" in caplog.text
