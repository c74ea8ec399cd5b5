"""What every metadata store does: the same tests against all of them."""

from __future__ import annotations

import asyncio

import pytest

from braidmq.cluster.metadata_store import (
    OPERATIONS_MAX,
    REQUEST_BYTES_MAX,
    Change,
    Compare,
    Conflict,
    CreateRevision,
    Event,
    Expired,
    Item,
    Lost,
    MetadataStore,
    ModRevision,
    Put,
    Refused,
    ValueIs,
    absent,
)
from conformance.places import Opener, run, take


def test_a_commit_is_read_back_with_its_revisions(place: Opener) -> None:
    """N4: items carry their value, when they were created and when last written."""

    async def story(store: MetadataStore) -> None:
        first = await store.commit(puts=[Put("a", b"1"), Put("b", b"\x00\xff\xc3")])
        second = await store.commit(puts=[Put("a", b"2")])
        assert second > first
        assert await store.get("a") == Item("a", b"2", first, second)
        assert await store.get("b") == Item("b", b"\x00\xff\xc3", first, first)
        assert await store.get("c") is None

    run(place, story)


def test_a_put_keeps_the_create_revision_and_a_deletion_ends_it(place: Opener) -> None:
    """N4: the create revision tells one life of a key from the next."""

    async def story(store: MetadataStore) -> None:
        born = await store.commit([absent("k")], [Put("k", b"1")])
        await store.commit(puts=[Put("k", b"2")])
        item = await store.get("k")
        assert item is not None
        assert item.create_revision == born
        await store.commit(deletes=["k"])
        again = await store.commit([absent("k")], [Put("k", b"3")])
        assert await store.get("k") == Item("k", b"3", again, again)

    run(place, story)


@pytest.mark.parametrize(
    "wrong",
    [
        ModRevision("k", 1),
        ModRevision("k", 0),
        ModRevision("none", 1),
        CreateRevision("k", 0),
        CreateRevision("none", 1),
        ValueIs("k", b"other"),
        ValueIs("none", b""),
    ],
)
def test_a_compare_that_does_not_hold_changes_nothing(place: Opener, wrong: Compare) -> None:
    """N4: all of a commit happens or none, and a conflict makes no revision."""

    async def story(store: MetadataStore) -> None:
        before = await store.commit(puts=[Put("k", b"1"), Put("x", b"")])
        holds = [ModRevision("k", before), CreateRevision("k", before), ValueIs("k", b"1"), absent("none")]
        with pytest.raises(Conflict):
            await store.commit([*holds, wrong], [Put("k", b"2"), Put("y", b"")], ["x"])
        found = await store.snapshot("")
        assert found.revision == before
        assert [(item.key, item.value) for item in found.items] == [("k", b"1"), ("x", b"")]
        after = await store.commit(holds, [Put("k", b"2"), Put("y", b"")], ["x"])
        assert [item.key for item in (await store.snapshot("")).items] == ["k", "y"]
        assert after == before + 1

    run(place, story)


def test_a_commit_that_changes_nothing_makes_no_revision(place: Opener) -> None:
    """N4: deleting what is not there is no change; writing the same value again is one."""

    async def story(store: MetadataStore) -> None:
        before = await store.commit(puts=[Put("k", b"1")])
        assert await store.commit(deletes=["none"]) == before
        assert await store.commit([absent("none")]) == before
        assert await store.commit(deletes=["none", "none"]) == before
        assert await store.commit(puts=[Put("k", b"1")]) == before + 1

    run(place, story)


def test_the_limits_of_a_commit_are_the_same_everywhere(place: Opener) -> None:
    """N4: 128 compares, 128 changes and 1.5 MB pass; one more of any is refused, and nothing is done."""

    async def story(store: MetadataStore) -> None:
        keys = [f"k{number:03}" for number in range(OPERATIONS_MAX + 1)]
        puts = [Put(key, b"") for key in keys]
        compares = [absent(key) for key in keys]
        with pytest.raises(Refused, match="129 puts and deletes"):
            await store.commit(puts=puts)
        with pytest.raises(Refused, match="129 compares"):
            await store.commit(compares, puts[:-1])
        with pytest.raises(Refused, match="129 puts and deletes"):
            await store.commit(puts=puts[:100], deletes=keys[100:])
        assert not (await store.snapshot("")).items
        await store.commit(compares[:-1], puts[:-1])
        assert len((await store.snapshot("")).items) == OPERATIONS_MAX
        await store.commit(puts=[Put("large", bytes([200]) * (REQUEST_BYTES_MAX - 100))])
        with pytest.raises(Refused, match="bytes"):
            await store.commit(puts=[Put("larger", b"x" * REQUEST_BYTES_MAX)])
        assert len((await store.snapshot("large")).items) == 1

    run(place, story)


def test_one_key_is_changed_once_in_a_commit(place: Opener) -> None:
    """N4: put and delete, or two puts, of one key are refused; so is a key that cannot be one."""

    async def story(store: MetadataStore) -> None:
        with pytest.raises(Refused, match="put and deleted"):
            await store.commit(puts=[Put("k", b"")], deletes=["k"])
        with pytest.raises(Refused, match="twice"):
            await store.commit(puts=[Put("k", b"1"), Put("k", b"2")])
        with pytest.raises(Refused, match="empty"):
            await store.commit(puts=[Put("", b"")])
        with pytest.raises(Refused, match="UTF-8"):
            await store.commit(puts=[Put("\ud800", b"")])
        with pytest.raises(Refused, match="empty"):
            await store.get("")
        assert not (await store.snapshot("")).items

    run(place, story)


def test_a_prefix_ends_where_it_ends(place: Opener) -> None:
    """N4: keys around the ends of a prefix are told apart, also beside the last character there is."""

    async def story(store: MetadataStore) -> None:
        keys = [
            "a",
            "a\x00",
            "a/",
            "a/b",
            "a0",
            "b",
            "b/\U0010ffff",
            "b/\U0010ffffx",
            "b0",
            "é/1",
            "\U0010ffff",
        ]
        await store.commit(puts=[Put(key, key.encode()) for key in keys])
        for prefix in ["", "a", "a/", "b/", "b/\U0010ffff", "c", "é", "\U0010ffff"]:
            found = [item.key for item in (await store.snapshot(prefix)).items]
            assert found == [key for key in sorted(keys) if key.startswith(prefix)], prefix
        watch = store.watch("a/", 0)
        (change,) = await take(watch, 1)
        assert [event.key for event in change.events] == ["a/", "a/b"]
        await watch.close()

    run(place, story)


def test_a_snapshot_of_many_pages_is_of_one_revision(place: Opener) -> None:
    """N4: what is committed while a snapshot is read is in it whole or not at all."""

    async def story(store: MetadataStore) -> None:
        keys = [f"k{number:05}" for number in range(2_560)]
        for start in range(0, len(keys), OPERATIONS_MAX):
            await store.commit(puts=[Put(key, b"0") for key in keys[start : start + OPERATIONS_MAX]])

        async def write() -> None:
            for round_number in range(1, 40):
                ends = [Put(keys[0], b"%d" % round_number), Put(keys[-1], b"%d" % round_number)]
                await store.commit(puts=ends)

        writing = asyncio.create_task(write())
        seen = set()
        while not writing.done():
            found = await store.snapshot("k")
            assert [item.key for item in found.items] == keys
            assert found.items[0].value == found.items[-1].value
            assert max(item.mod_revision for item in found.items) <= found.revision
            seen.add(found.items[0].value)
        await writing
        assert (await store.snapshot("k")).items[-1].value == b"39"
        assert seen

    run(place, story)


def test_a_watch_sees_every_revision_once_in_order_and_whole(place: Opener) -> None:
    """N4: those of the past first, then new ones, without a gap between them."""

    async def story(store: MetadataStore) -> None:
        base = await store.commit(puts=[Put("p/a", b"0"), Put("q", b"0")])
        await store.commit(puts=[Put("p/a", b"1"), Put("p/b", b"1"), Put("q", b"1")])
        await store.commit(puts=[Put("q", b"2")])
        watch = store.watch("p/", base)
        past = await take(watch, 1)
        await store.commit(puts=[Put("p/c", b"2")], deletes=["p/a", "none"])
        new = await take(watch, 1)
        await watch.close()
        assert past == [
            Change(
                base + 1,
                (
                    Event("p/a", Item("p/a", b"1", base, base + 1)),
                    Event("p/b", Item("p/b", b"1", base + 1, base + 1)),
                ),
            )
        ]
        assert new == [
            Change(base + 3, (Event("p/a", None), Event("p/c", Item("p/c", b"2", base + 3, base + 3))))
        ]

    run(place, story)


def test_a_watch_from_the_past_replays_everything(place: Opener) -> None:
    """N4: also more than one answer holds, while more is written."""

    async def story(store: MetadataStore) -> None:
        base = (await store.snapshot("")).revision
        for number in range(150):
            await store.commit(puts=[Put("k", b"%d" % number), Put(f"n{number}", b"")])
        watch = store.watch("", base)
        writing = asyncio.create_task(write_more(store, 150, 300))
        found = await take(watch, 300)
        await writing
        await watch.close()
        assert [change.revision for change in found] == list(range(base + 1, base + 301))
        values = [
            event.item.value for change in found for event in change.events if event.item and event.key == "k"
        ]
        assert values == [b"%d" % number for number in range(300)]

    run(place, story)


async def write_more(store: MetadataStore, start: int, stop: int) -> None:
    for number in range(start, stop):
        await store.commit(puts=[Put("k", b"%d" % number), Put(f"n{number}", b"")])


def test_a_watch_waits_for_a_revision_to_come(place: Opener) -> None:
    """N4: a watch from a revision that is not there yet shows only what comes after it."""

    async def story(store: MetadataStore) -> None:
        base = await store.commit(puts=[Put("k", b"0")])
        watch = store.watch("k", base + 1)
        await store.commit(puts=[Put("k", b"1")])
        await store.commit(puts=[Put("k", b"2")])
        (change,) = await take(watch, 1)
        await watch.close()
        assert change.revision == base + 2

    run(place, story)


def test_giving_up_waiting_for_a_change_loses_none(place: Opener) -> None:
    """N4: a reader may wait with a time-out, as often as it likes."""

    async def story(store: MetadataStore) -> None:
        base = await store.commit(puts=[Put("k", b"0")])
        watch = store.watch("k", base)
        for number in range(1, 4):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(watch), 0.05)
            await store.commit(puts=[Put("k", b"%d" % number)])
            assert [change.revision for change in await take(watch, 1)] == [base + number]
        await watch.close()

    run(place, story)


def test_closing_a_watch_ends_whoever_waits_for_it(place: Opener) -> None:
    """N4: the iteration ends; it does not hang."""

    async def story(store: MetadataStore) -> list[Change]:
        watch = store.watch("k", 0)

        async def read() -> list[Change]:
            return [change async for change in watch]

        reading = asyncio.create_task(read())
        await store.commit(puts=[Put("k", b"")])
        while not reading.done():
            await asyncio.sleep(0.01)
            await watch.close()
        return await reading

    assert len(run(place, story)) <= 1


def test_a_watch_behind_a_compaction_is_lost(place: Opener) -> None:
    """N4: a gap is reported, never jumped over; at the compacted revision itself there is none."""

    async def story(store: MetadataStore) -> None:
        revisions = [await store.commit(puts=[Put("k", b"%d" % number)]) for number in range(5)]
        await store.commit(deletes=["k"])
        await store.compact(revisions[3])
        for behind in (0, revisions[0], revisions[2]):
            watch = store.watch("k", behind)
            with pytest.raises(Lost) as lost:
                await take(watch, 1)
            await watch.close()
            assert lost.value.compact_revision >= revisions[3]
        watch = store.watch("k", revisions[3])
        found = await take(watch, 2)
        await watch.close()
        assert [change.revision for change in found] == [revisions[4], revisions[4] + 1]
        assert found[1].events == (Event("k", None),)

    run(place, story)


def test_compacting_again_does_nothing_and_the_future_cannot_be(place: Opener) -> None:
    """N4: compaction may be asked for twice; items stay as they are."""

    async def story(store: MetadataStore) -> None:
        first = await store.commit(puts=[Put("k", b"1")])
        second = await store.commit(puts=[Put("k", b"2")])
        await store.compact(second)
        await store.compact(second)
        await store.compact(first)
        with pytest.raises(Refused):
            await store.compact(second + 1000)
        assert await store.get("k") == Item("k", b"2", first, second)
        third = await store.commit([ModRevision("k", second)], [Put("k", b"3")])
        assert third == second + 1

    run(place, story)


def test_a_lease_ends_with_its_keys_in_one_revision_unless_it_is_renewed(place: Opener) -> None:
    """N4: not before its time, seen by watchers; keys of others, and one that was bound anew, stay."""

    async def story(store: MetadataStore) -> None:
        now = asyncio.get_running_loop().time
        started = now()
        lease, kept, bare = await store.lease(1), await store.lease(2), await store.lease(2)
        granted = now()
        assert (lease.ttl_s, kept.ttl_s) == (2, 2)
        await store.commit(puts=[Put("mine/b", b"", lease.lease_id), Put("mine/a", b"", lease.lease_id)])
        await store.commit(puts=[Put("rebound", b"", lease.lease_id), Put("kept", b"", kept.lease_id)])
        item = await store.get("mine/a")
        assert item is not None
        assert item.lease == lease.lease_id
        base = await store.commit(puts=[Put("rebound", b""), Put("other", b"")])
        watch = store.watch("", base)
        ending = asyncio.create_task(take(watch, 1))
        while not ending.done():
            assert await store.renew(kept.lease_id) == 2
            await asyncio.wait([ending], timeout=0.5)
        (change,) = await ending
        await watch.close()
        assert change == Change(base + 1, (Event("mine/a", None), Event("mine/b", None)))
        assert now() - started >= lease.ttl_s
        with pytest.raises(Expired):
            await store.renew(lease.lease_id)
        with pytest.raises(Expired):
            await store.commit(puts=[Put("other", b"1"), Put("late", b"", lease.lease_id)])
        await asyncio.sleep(granted + bare.ttl_s + 0.1 - now())
        with pytest.raises(Expired):
            await store.renew(bare.lease_id)
        assert await store.renew(kept.lease_id) == 2
        found = await store.snapshot("")
        assert found.revision == change.revision
        assert [item.key for item in found.items] == ["kept", "other", "rebound"]
        await store.revoke(kept.lease_id)

    run(place, story)


def test_revoking_a_lease_deletes_its_keys_at_once(place: Opener) -> None:
    """N4: in one revision; once more does nothing; a lease that never was has ended."""

    async def story(store: MetadataStore) -> None:
        lease = await store.lease(60)
        base = await store.commit(puts=[Put("a", b"", lease.lease_id), Put("b", b"", lease.lease_id)])
        await store.revoke(lease.lease_id)
        watch = store.watch("", base)
        assert await take(watch, 1) == [Change(base + 1, (Event("a", None), Event("b", None)))]
        await watch.close()
        await store.revoke(lease.lease_id)
        assert (await store.snapshot("")).revision == base + 1
        with pytest.raises(Expired):
            await store.renew(lease.lease_id)
        with pytest.raises(Expired):
            await store.renew(123456789)
        with pytest.raises(Refused):
            await store.lease(0)

    run(place, story)


def test_of_many_that_race_for_a_key_one_wins(place: Opener) -> None:
    """N4: compare and set holds under concurrency."""

    async def story(store: MetadataStore) -> None:
        async def increment(times: int) -> int:
            conflicts = 0
            while times:
                item = await store.get("n")
                count = int(item.value) if item else 0
                try:
                    guard = ModRevision("n", item.mod_revision if item else 0)
                    await store.commit([guard], [Put("n", b"%d" % (count + 1))])
                    times -= 1
                except Conflict:
                    conflicts += 1
            return conflicts

        await asyncio.gather(*(increment(10) for _ in range(5)))
        item = await store.get("n")
        assert item is not None
        assert item.value == b"50"
        assert item.mod_revision - item.create_revision == 49

    run(place, story)
