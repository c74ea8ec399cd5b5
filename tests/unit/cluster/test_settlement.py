"""Commits whose answers are lost are settled: told apart by who wrote what."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from braidmq.cluster import settlement
from braidmq.cluster.kv_store import KvStore
from braidmq.cluster.metadata_store import (
    Compare,
    Conflict,
    CreateRevision,
    Expired,
    ModRevision,
    Put,
    Refused,
    StoreError,
    Unavailable,
    Unknown,
    absent,
)
from braidmq.cluster.settlement import Writer, commit_settled, encode_value, signed_by
from braidmq.platform.clock import SystemClock

Deed = Callable[[], Awaitable[object]]


class Forgetful(KvStore):
    """Loses answers as it is told: for each commit, whether it happens, and what happens then."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.losses: list[tuple[bool, Deed | None]] = []
        self.commits = 0

    async def commit(
        self, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        if not self.losses:
            return await super().commit(compares, puts, deletes)
        self.commits += 1
        does_it, then = self.losses.pop(0)
        if does_it:
            await super().commit(compares, puts, deletes)
        losses, self.losses = self.losses, []
        if then is not None:
            await then()
        self.losses = losses
        raise Unknown("planted")


def told(story: Callable[[Forgetful], Awaitable[None]]) -> None:
    async def tell() -> None:
        store = Forgetful()
        await store.start()
        await asyncio.wait_for(story(store), 30)
        await store.close()

    asyncio.run(tell())


def value(by: str) -> bytes:
    return encode_value({"n": 1}, by)


def test_a_commit_that_happened_is_found_by_its_signature() -> None:
    """N4: and is not made a second time."""

    async def story(store: Forgetful) -> None:
        store.losses = [(True, None)]
        put = Put("k", value(Writer("me").sign()))
        revision = await commit_settled(store, 1, [absent("k")], [put])
        item = await store.get("k")
        assert item is not None
        assert (item.mod_revision, item.create_revision, store.commits) == (revision, revision, 1)

    told(story)


def test_a_commit_that_did_not_happen_is_made_again() -> None:
    """N4: as often as it is lost, up to a limit."""

    async def story(store: Forgetful) -> None:
        store.losses = [(False, None)] * 3
        writer = Writer("me")
        first = await commit_settled(store, 1, [absent("k")], [Put("k", value(writer.sign()))])
        assert first == 2
        store.losses = [(False, None)] * 9
        with pytest.raises(Unknown):
            await commit_settled(store, first, [ModRevision("k", first)], [Put("k", value(writer.sign()))])
        store.losses = []
        assert (await store.snapshot("")).revision == first

    told(story)


@pytest.mark.parametrize("did_happen", [True, False])
@pytest.mark.parametrize("then_deleted", [True, False])
def test_a_commit_that_was_overwritten_is_told_from_one_that_lost(
    did_happen: bool, then_deleted: bool
) -> None:
    """N4: the newest value alone would say the same of both."""

    async def story(store: Forgetful) -> None:
        base = await store.commit(puts=[Put("k", value("first")), Put("k2", value("neighbour"))])

        async def somebody_else() -> None:
            await store.commit(puts=[Put("k2", value("other"))])
            await store.commit(puts=[Put("k", value("other"))])
            if then_deleted:
                await store.commit(deletes=["k"])

        store.losses = [(did_happen, somebody_else)]
        settling = commit_settled(store, base, [ModRevision("k", base)], [Put("k", value("me/1"))])
        if did_happen:
            assert await settling == base + 1
        else:
            with pytest.raises(Conflict):
                await settling

    told(story)


def test_what_the_history_does_not_tell_stays_unknown() -> None:
    """N4: never a guess."""

    async def story(store: Forgetful) -> None:
        base = await store.commit(puts=[Put("k", value("first"))])

        async def somebody_else() -> None:
            await store.compact(await store.commit(puts=[Put("k", value("other"))]))

        store.losses = [(True, somebody_else)]
        with pytest.raises(Unknown):
            await commit_settled(store, base, [ModRevision("k", base)], [Put("k", value("me/1"))])

    told(story)


def test_a_first_attempt_that_comes_late_is_not_taken_for_somebody_elses() -> None:
    """N4: it is applied between looking and trying again, and is in its own way."""

    async def story(store: Forgetful) -> None:
        base = await store.commit(puts=[Put("k", value("first"))])
        put = Put("k", value("me/1"))
        late: list[asyncio.Task[int]] = []
        plain_get = store.get

        async def get_then_late(key: str) -> object:
            item = await plain_get(key)
            if not late:
                late.append(asyncio.ensure_future(KvStore.commit(store, [ModRevision("k", base)], [put])))
                await late[0]
            return item

        store.get = get_then_late  # type: ignore[method-assign,assignment]
        store.losses = [(False, None)]
        assert await commit_settled(store, base, [ModRevision("k", base)], [put]) == base + 1

    told(story)


def test_a_plain_conflict_and_an_unreachable_store_stay_what_they_are() -> None:
    """N4: only Unknown is looked into."""

    async def story(store: Forgetful) -> None:
        base = await store.commit(puts=[Put("k", value("first"))])
        with pytest.raises(Conflict):
            await commit_settled(store, base, [absent("k")], [Put("k", value("me/1"))])

        async def unreachable(*_: object) -> int:
            raise Unavailable("planted")

        store.commit = unreachable  # type: ignore[method-assign,assignment]
        with pytest.raises(Unavailable):
            await commit_settled(store, base, [absent("n")], [Put("n", value("me/1"))])

    told(story)


@pytest.mark.parametrize(
    ("compares", "puts"),
    [
        ([], [Put("k", value("me/1"))]),
        ([CreateRevision("k", 5)], [Put("k", value("me/1"))]),
        ([absent("other")], [Put("k", value("me/1"))]),
        ([absent("k")], [Put("k", b"unsigned")]),
        ([absent("k")], []),
    ],
)
def test_a_commit_that_could_not_be_settled_is_not_begun(compares: list[Compare], puts: list[Put]) -> None:
    """N4: a mistake of the caller, found before the network is ever slow."""

    async def story(store: Forgetful) -> None:
        with pytest.raises(ValueError, match="must be signed"):
            await commit_settled(store, 1, compares, puts)
        assert (await store.snapshot("")).revision == 1

    told(story)


def test_signatures_do_not_repeat() -> None:
    """N4: a writer counts; a value tells who wrote it, whatever it is."""
    writer = Writer("me-7f")
    assert [writer.sign(), writer.sign()] == ["me-7f/1", "me-7f/2"]
    assert signed_by(encode_value({"leader": 3}, "me-7f/1")) == "me-7f/1"
    assert [signed_by(found) for found in (b"", b"[]", b"{}", b'{"by":3}', b"\xff")] == [None] * 5


def test_a_commit_that_happened_before_its_lease_ended_is_found() -> None:
    """N4: the end of the lease takes its own keys, not what was committed with them."""

    async def story(store: Forgetful) -> None:
        base = await store.commit(puts=[Put("k", value("first"))])
        lease = await store.lease(5)

        async def later() -> None:
            await store.revoke(lease.lease_id)

        puts = [Put("k", value("me/1")), Put("bound", b"", lease.lease_id)]
        store.losses = [(True, later)]
        assert await commit_settled(store, base, [ModRevision("k", base)], puts) == base + 1

    told(story)


@pytest.mark.parametrize(("refusal", "known"), [(Expired, Expired), (Refused, Unknown)])
def test_a_second_attempt_that_is_refused(refusal: type[StoreError], known: type[StoreError]) -> None:
    """N4: without its lease the first one cannot happen any more; without rights it may be under way."""

    async def story(store: Forgetful) -> None:
        base = await store.commit(puts=[Put("k", value("first"))])
        attempts: list[StoreError] = [Unknown("planted"), *[refusal("planted")] * 10]

        async def refuse(*_: object) -> int:
            raise attempts.pop(0)

        store.commit = refuse  # type: ignore[method-assign,assignment]
        with pytest.raises(known):
            await commit_settled(store, base, [ModRevision("k", base)], [Put("k", value("me/1"))])

    told(story)


class Muddled(KvStore):
    """Loses answers by a seed: of commits that happen, that never do, and that do so later."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(SystemClock())
        self._chance = chance
        self.later: list[asyncio.Task[int]] = []

    async def commit(
        self, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        drawn = self._chance.random()
        if drawn < 0.15:
            raise Unavailable("planted")
        if drawn < 0.3:
            self.later.append(asyncio.ensure_future(self._late(compares, puts)))
        elif drawn < 0.45:
            await super().commit(compares, puts, deletes)
        elif drawn > 0.6:
            return await super().commit(compares, puts, deletes)
        raise Unknown("planted")

    async def _late(self, compares: Sequence[Compare], puts: Sequence[Put]) -> int:
        for _ in range(self._chance.randint(0, 30)):
            await asyncio.sleep(0)
        return await super().commit(compares, puts)


@pytest.mark.parametrize("seed", range(30))
def test_several_writers_know_what_became_of_their_commits(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N4: what is said to have happened did so once; what is said not to have happened never does."""
    monkeypatch.setattr(settlement, "PAUSE_S", 0.0)
    chance = random.Random(seed)

    async def story() -> None:
        store = Muddled(chance)
        await store.start()
        watch = store.watch("", 1)
        outcomes: dict[str, int | type[StoreError]] = {}

        async def write(name: str) -> None:
            writer = Writer(name)
            for _ in range(15):
                seen = await store.snapshot("")
                key = chance.choice("ab")
                item = next((item for item in seen.items if item.key == key), None)
                by = writer.sign()
                compare = ModRevision(key, item.mod_revision if item else 0)
                try:
                    outcomes[by] = await commit_settled(
                        store, seen.revision, [compare], [Put(key, value(by))]
                    )
                except (Conflict, Unavailable, Unknown) as error:
                    outcomes[by] = type(error)

        await asyncio.gather(*(write(name) for name in "xyz"))
        await asyncio.gather(*store.later, return_exceptions=True)
        end = await KvStore.commit(store, puts=[Put("end", b"")])
        happened: dict[str, int] = {}
        async for change in watch:
            if change.revision == end:
                break
            for event in change.events:
                assert event.item is not None
                by = str(signed_by(event.item.value))
                assert by not in happened
                happened[by] = change.revision
        await watch.close()
        await store.close()
        assert any(outcome is Conflict for outcome in outcomes.values())
        for by, outcome in outcomes.items():
            if outcome is not Unknown:
                assert happened.get(by) == (outcome if isinstance(outcome, int) else None), (by, outcome)

    asyncio.run(asyncio.wait_for(story(), 60))
