"""The metadata store in a file: what was answered is there after any crash, and a broken disk does no
harm."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from braidmq.cluster import file_store
from braidmq.cluster.file_store import FileStore
from braidmq.cluster.metadata_store import (
    Expired,
    Item,
    Lost,
    Put,
    StoreClosed,
    StoreCorrupt,
    Unavailable,
    Unknown,
)
from braidmq.platform.clock import SystemClock
from braidmq.platform.disk import Disk, RealDisk
from sim.clock import SimClock
from sim.disk import Crash, SimDisk
from unit.cluster.old_metadata import OldJournal

DATA = Path("/data")
WRITER = """
import asyncio, sys
from pathlib import Path
from braidmq.cluster import file_store
from braidmq.cluster.metadata_store import Put
from braidmq.platform.clock import SystemClock
from braidmq.platform.disk import RealDisk
file_store.REWRITE_BYTES_MIN = 3000

async def main():
    store = file_store.FileStore(RealDisk(), Path(sys.argv[1]), SystemClock())
    await store.start()
    async def write(key):
        number = 0
        while True:
            number += 1
            revision = await store.commit(puts=[Put(key, b"%d" % number)])
            print(key, number, revision, flush=True)
    await asyncio.gather(*(write(key) for key in "abc"))

asyncio.run(main())
"""


async def inline(job: Callable[[], None]) -> None:
    """The disk's work in the order it is asked for, without threads."""
    job()


async def opened(
    disk: Disk, directory: Path = DATA, clock: SimClock | SystemClock | None = None
) -> FileStore:
    store = FileStore(disk, directory, clock or SystemClock(), inline)
    await store.start()
    return store


def data_disk() -> SimDisk:
    disk = SimDisk()
    disk.makedirs("/data")
    disk.sync_directory("/")
    return disk


def told(story: Callable[[], Awaitable[None]]) -> None:
    async def tell() -> None:
        await asyncio.wait_for(story(), 60)

    asyncio.run(tell())


async def value(store: FileStore, key: str) -> bytes | None:
    item = await store.get(key)
    return item and item.value


async def turns() -> None:
    """Lets every task go on as far as it can."""
    for _ in range(30):
        await asyncio.sleep(0)


def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    """N4: items with their revisions, the history, and the store's identity."""

    async def story() -> None:
        store = await opened(RealDisk(), tmp_path)
        first = await store.commit(puts=[Put("a", b"\xff"), Put("b", b"1")])
        second = await store.commit(puts=[Put("b", b"2")], deletes=["a"])
        identity = store.identity
        await store.close()
        with pytest.raises(StoreClosed):
            await store.get("a")
        again = await opened(RealDisk(), tmp_path)
        assert again.identity == identity
        found = await again.snapshot("")
        assert (found.revision, found.items) == (second, (Item("b", b"2", first, second),))
        watch = again.watch("", first)
        assert (await anext(watch)).revision == second
        assert await again.commit(puts=[Put("c", b"")]) == second + 1
        await again.close()

    told(story)


def test_a_lease_has_its_full_time_again_after_a_restart() -> None:
    """N4: once; its keys stay until then, and its number is not given away."""

    async def story() -> None:
        disk, clock = data_disk(), SimClock()
        store = await opened(disk, clock=clock)
        lease = await store.lease(10)
        await store.commit(puts=[Put("k", b"", lease.lease_id)])
        clock.advance_ms(9_000)
        await store.close()
        clock.advance_ms(60_000)
        again = await opened(disk, clock=clock)
        clock.advance_ms(9_000)
        assert await value(again, "k") == b""
        assert (await again.lease(10)).lease_id > lease.lease_id
        clock.advance_ms(1_000)
        assert await again.commit(puts=[Put("other", b"")]) > 0
        assert await again.get("k") is None
        with pytest.raises(Expired):
            await again.renew(lease.lease_id)
        await again.close()

    told(story)


def test_renewals_do_not_wait_for_the_disk() -> None:
    """N4: a slow sync must not end leases whose holders are alive."""

    async def story() -> None:
        gate = asyncio.Event()
        gate.set()

        async def gated(job: Callable[[], None]) -> None:
            await gate.wait()
            job()

        clock = SimClock()
        store = FileStore(data_disk(), DATA, clock, gated)
        await store.start()
        lease = await store.lease(10)
        gate.clear()
        commit = asyncio.ensure_future(store.commit(puts=[Put("k", b"", lease.lease_id)]))
        for _ in range(5):
            clock.advance_ms(6_000)
            assert await store.renew(lease.lease_id) == 10
        await turns()
        reading = asyncio.ensure_future(store.get("k"))
        watch = asyncio.ensure_future(anext(store.watch("k", 0)))
        await turns()
        # Nobody hears of what is not on disk yet.
        assert [task.done() for task in (commit, reading, watch)] == [False] * 3
        gate.set()
        item = await reading
        assert item is not None
        assert (await commit, (await watch).revision) == (item.mod_revision, item.mod_revision)
        await store.close()

    told(story)


def test_commits_that_come_together_share_a_sync() -> None:
    """N4: a hundred commits at once are not a hundred syncs."""

    async def story() -> None:
        disk = data_disk()
        store = await opened(disk)
        before = disk.syncs
        revisions = await asyncio.gather(*(store.commit(puts=[Put(f"k{n}", b"")]) for n in range(100)))
        assert disk.syncs - before <= 2
        assert revisions == list(range(revisions[0], revisions[0] + 100))
        again = await opened(disk.crash(Crash.LOST, random.Random(1)))
        assert len((await again.snapshot("k")).items) == 100

    told(story)


def test_a_torn_tail_is_cut_and_damage_is_refused(tmp_path: Path) -> None:
    """L6 N4: at any byte of the last entry; nothing before it is given up."""

    async def story() -> None:
        path = tmp_path / file_store.FILE_NAME
        store = await opened(RealDisk(), tmp_path)
        await store.commit(puts=[Put("a", b"1")])
        whole = path.stat().st_size
        await store.commit(puts=[Put("b", b"2")])
        await store.close()
        content = path.read_bytes()
        for cut in range(whole, len(content)):
            path.write_bytes(content[:cut])
            again = await opened(RealDisk(), tmp_path)
            assert [item.key for item in (await again.snapshot("")).items] == ["a"]
            assert await again.commit(puts=[Put("c", b"")]) == 3
            await again.close()
        for at in (0, 5, 20, whole + 1, whole + 9, len(content) - 3):
            damaged = bytearray(content)
            damaged[at] ^= 4
            path.write_bytes(damaged)
            with pytest.raises(StoreCorrupt, match="damaged"):
                await opened(RealDisk(), tmp_path)
            assert path.read_bytes() == damaged
        path.write_bytes(b"")
        with pytest.raises(StoreCorrupt, match="does not begin like a metadata store"):
            await opened(RealDisk(), tmp_path)

    told(story)


@pytest.mark.parametrize("crash", Crash)
def test_a_power_loss_at_any_moment_loses_nothing_that_was_answered(
    crash: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L6 N4: creation, batches and rewrites cut off after each operation of the disk."""
    monkeypatch.setattr(file_store, "REWRITE_BYTES_MIN", 1500)

    async def story() -> None:
        disk = data_disk()
        chance = random.Random(7)
        images: list[tuple[SimDisk, dict[str, int], int]] = []
        done: dict[str, int] = {}
        newest = 0
        disk.on_operation = lambda _: images.append((disk.crash(crash, chance), dict(done), newest))
        store = await opened(disk)

        async def write(key: str, number: int) -> None:
            nonlocal newest
            newest = max(newest, await store.commit(puts=[Put(key, b"%d" % number)]))
            done[key] = number

        for number in range(1, 40):
            await asyncio.gather(*(write(key, number) for key in "abc"[: chance.randint(1, 3)]))
        await store.close()
        assert len(images) > 80
        for image, known, revision in images:
            again = await opened(image)
            found = await again.snapshot("")
            values = {item.key: int(item.value) for item in found.items}
            assert found.revision >= revision
            assert all(values[key] >= number for key, number in known.items())
            await again.commit(puts=[Put("d", b"")])
            await again.close()

    told(story)


def test_a_full_disk_refuses_a_commit_and_the_store_goes_on() -> None:
    """N4: nothing of it remains; reads, leases and later commits work."""

    async def story() -> None:
        disk, clock = data_disk(), SimClock()
        store = await opened(disk, clock=clock)
        lease = await store.lease(10)
        before = await store.commit(puts=[Put("a", b"1", lease.lease_id)])
        watch = asyncio.ensure_future(anext(store.watch("", before)))
        clock.advance_ms(5_000)
        disk.room_bytes = 10
        with pytest.raises(Unavailable, match="no space"):
            await store.commit(puts=[Put("b", b"x" * 100)])
        assert (await store.snapshot("")).revision == before
        disk.room_bytes = None
        assert await store.commit(puts=[Put("c", b"")]) == before + 1
        assert [event.key for event in (await watch).events] == ["c"]
        clock.advance_ms(5_000)  # the lease did not gain time by this
        await store.commit(puts=[Put("c", b"")])
        assert await store.get("a") is None
        await store.close()

    told(story)


def test_a_lease_that_cannot_be_ended_on_a_full_disk_is_tried_again_later() -> None:
    """N4: with a pause, and it ends when there is room."""

    async def story() -> None:
        disk, clock = data_disk(), SimClock()
        store = await opened(disk, clock=clock)
        lease = await store.lease(2)
        await store.commit(puts=[Put("k", b"", lease.lease_id)])
        operations: list[str] = []
        disk.on_operation = operations.append
        disk.room_bytes = 1
        clock.advance_ms(2_000)
        for _ in range(20):
            await store.get("k")
        assert 0 < len(operations) < 8
        disk.room_bytes = None
        clock.advance_ms(1_000)
        await store.commit(puts=[Put("other", b"")])
        assert await store.get("k") is None
        await store.close()

    told(story)


def test_a_sync_that_fails_leaves_the_commit_unknown_and_ends_the_store() -> None:
    """N4: no later sync can be believed; the message says what to do."""

    async def story() -> None:
        disk = data_disk()
        store = await opened(disk)
        await store.commit(puts=[Put("a", b"1")])
        watch = asyncio.ensure_future(anext(store.watch("", 2)))
        disk.failing_sync = disk.syncs + 1
        with pytest.raises(Unknown):
            await store.commit(puts=[Put("a", b"2")])
        for _ in range(2):
            with pytest.raises(Unavailable, match="restart the broker"):
                await store.commit(puts=[Put("a", b"3")])
        with pytest.raises(Unavailable, match="restart the broker"):
            await store.get("a")
        with pytest.raises(Unavailable):
            await watch
        await store.close()
        again = await opened(disk.crash(Crash.LOST, random.Random(1)))
        assert await value(again, "a") == b"1"
        await again.close()

    told(story)


def test_the_file_is_rewritten_when_it_has_outgrown_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N4: its size follows what it holds; revisions, leases and running watches do not notice."""
    monkeypatch.setattr(file_store, "REWRITE_BYTES_MIN", 4096)

    async def story() -> None:
        store = await opened(RealDisk(), tmp_path)
        lease = await store.lease(60)
        first = await store.commit(puts=[Put("old", b"", lease.lease_id)])
        watch = store.watch("", first)
        for number in range(400):
            await store.commit(puts=[Put("counter", b"%d" % number), Put(f"key/{number % 10}", b"x" * 20)])
        newest = (await store.snapshot("")).revision
        assert [(await anext(watch)).revision for _ in range(400)] == list(range(first + 1, newest + 1))
        await store.close()
        assert (tmp_path / file_store.FILE_NAME).stat().st_size < 10_000
        again = await opened(RealDisk(), tmp_path)
        assert await again.get("old") == Item("old", b"", first, first, lease.lease_id)
        assert (await again.snapshot("")).revision == newest
        assert await value(again, "counter") == b"399"
        assert await again.renew(lease.lease_id) == 60
        with pytest.raises(Lost):
            await anext(again.watch("", first))
        await again.close()

    told(story)


def test_kill_9_at_any_moment_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    """L6 N4: a real process on a real disk; revisions never go back."""
    chance = random.Random(3)
    newest = 0
    for _ in range(6):
        answered = answers_of_a_killed_writer(tmp_path, chance.randint(1, 150))

        async def look(newest: int = newest, answered: dict[str, tuple[int, int]] = answered) -> int:
            store = await opened(RealDisk(), tmp_path)
            found = await store.snapshot("")
            await store.close()
            values = {item.key: (int(item.value), item.mod_revision) for item in found.items}
            assert found.revision >= newest
            for key, (number, revision) in answered.items():
                assert newest < revision <= found.revision
                assert values[key] == (number, revision) or values[key] > (number, revision)
            return found.revision

        newest = asyncio.run(look())
    assert newest > 10


def answers_of_a_killed_writer(directory: Path, after: int) -> dict[str, tuple[int, int]]:
    """The last number and revision that a writer was told for each key before it was killed."""
    command = [sys.executable, "-c", WRITER, str(directory)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(after)]
    os.kill(writer.pid, signal.SIGKILL)
    lines += writer.stdout.readlines()
    writer.stdout.close()
    writer.wait()
    told_whole = [line.split() for line in lines if line.endswith("\n")]
    return {key: (int(number), int(revision)) for key, number, revision in told_whole}


class Killed(Exception):
    """The process ends; the page cache stays."""


async def live_until(disk: SimDisk, operation: int) -> bool:
    """Carries over, commits and rewrites, killed after so many changes of the disk; whether it was."""
    changes = 0

    def kill(_: str) -> None:
        nonlocal changes
        changes += 1
        if changes >= operation:
            raise Killed

    disk.on_operation = kill
    try:
        store = await opened(disk)
        for number in range(12):
            with contextlib.suppress(Unavailable, Unknown):
                await asyncio.wait_for(store.commit(puts=[Put("a", b"%d" % number * 50)]), 10)
        await store.close()
    except Killed:
        pass
    disk.on_operation = None
    return changes >= operation


def test_what_is_shown_after_a_kill_outlives_a_power_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """L6 N4: a start makes durable what the killed process had only written, names of files included."""
    monkeypatch.setattr(file_store, "REWRITE_BYTES_MIN", 1500)

    async def story() -> None:
        for operation in itertools.count(1):
            disk = data_disk()
            old = OldJournal(disk, DATA)
            old.commit({"b": 1})
            old.close()
            disk.sync_directory(DATA)
            if not await live_until(disk, operation):
                break
            again = await opened(disk)
            shown = await again.snapshot("")
            after = disk.crash(Crash.LOST, random.Random(1))
            committed = await again.commit(puts=[Put("c", b"")])
            later = disk.crash(Crash.LOST, random.Random(1))
            await again.close()
            found = await opened(after)
            assert await found.snapshot("") == shown, operation
            await found.close()
            found = await opened(later)
            assert (await found.snapshot("")).revision == committed, operation
            await found.close()
        assert operation > 30

    told(story)


def test_many_large_commits_are_refused_before_they_fill_the_memory() -> None:
    """N4: none of those was made; deletes count as well as puts, so no batch outgrows the journal."""

    async def story() -> None:
        store = await opened(data_disk())
        keys = [f"{number:03}" + "k" * 1_400_000 for number in range(60)]
        for key in keys:
            await store.commit(puts=[Put(key, b"")])
        outcomes = await asyncio.gather(
            *(store.commit(deletes=[key]) for key in keys), return_exceptions=True
        )
        made = [outcome for outcome in outcomes if isinstance(outcome, int)]
        assert 0 < len(made) < len(keys)
        assert all(isinstance(outcome, int | Unavailable) for outcome in outcomes)
        assert len((await store.snapshot("")).items) == len(keys) - len(made)
        await store.close()

    told(story)


def test_a_store_that_fails_for_an_unforeseen_reason_tells_everybody() -> None:
    """N4: a commit under way is Unknown; nobody waits for ever."""

    class Mistaken(FileStore):
        async def _write(self, _: object) -> None:
            raise RuntimeError("a mistake")

    async def story() -> None:
        store = Mistaken(data_disk(), DATA, SystemClock(), inline)
        await store.start()
        first = asyncio.ensure_future(store.commit(puts=[Put("a", b"")]))
        second = asyncio.ensure_future(store.get("a"))
        with pytest.raises(Unknown):
            await first
        with pytest.raises(Unavailable):
            await second
        with pytest.raises(Unavailable):
            await store.get("a")
        await store.close()

    told(story)
