"""A data directory of a release before this one goes on working, and there is a way back."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from braidmq.cluster.file_store import FILE_NAME, FileStore
from braidmq.cluster.metadata_store import Lost, Put, StoreCorrupt
from braidmq.platform.clock import SystemClock
from braidmq.platform.disk import Disk, RealDisk
from sim.disk import Crash, SimDisk
from unit.cluster.old_metadata import OldJournal

OLD = "metadata.journal"
CONTENT = {"cluster/id": "x", "topics/é": {"partitions": 4, "options": {"a": None}}, "producer-ids": 2000}


def write_old(disk: Disk, directory: Path) -> int:
    store = OldJournal(disk, directory)
    store.commit({"gone": 1, "cluster/id": "first"})
    for key, value in CONTENT.items():
        store.commit({key: value})
    store.commit({}, deletes=["gone"])
    store.close()
    return store.newest_revision


async def opened(disk: Disk, directory: Path) -> FileStore:
    store = FileStore(disk, directory, SystemClock(), inline)
    await store.start()
    return store


async def inline(job: object) -> None:
    assert callable(job)
    job()


async def read(disk: Disk, directory: Path) -> tuple[int, dict[str, object]]:
    store = await opened(disk, directory)
    found = await store.snapshot("")
    await store.close()
    return found.revision, {item.key: json.loads(item.value) for item in found.items}


def test_the_old_metadata_is_carried_over_whole_and_kept(tmp_path: Path) -> None:
    """N4: values and revisions; the old file is set aside as it was, and a second start changes nothing."""
    revision = write_old(RealDisk(), tmp_path)
    content = (tmp_path / OLD).read_bytes()
    assert asyncio.run(read(RealDisk(), tmp_path)) == (revision, CONTENT)
    assert not (tmp_path / OLD).exists()
    assert (tmp_path / f"{OLD}.old").read_bytes() == content
    assert asyncio.run(read(RealDisk(), tmp_path)) == (revision, CONTENT)

    async def write() -> None:
        store = await opened(RealDisk(), tmp_path)
        item = await store.get("producer-ids")
        assert item is not None
        assert item.mod_revision == revision - 1
        assert await store.commit(puts=[Put("new", b"1")]) == revision + 1
        await store.close()

    asyncio.run(write())


def test_an_empty_or_torn_old_journal_is_carried_over(tmp_path: Path) -> None:
    """L6 N4: what a crash cut off was never reported; the old file keeps even that."""
    (tmp_path / OLD).write_bytes(b"")
    assert asyncio.run(read(RealDisk(), tmp_path)) == (1, {})
    (tmp_path / FILE_NAME).unlink()
    revision = write_old(RealDisk(), tmp_path)
    torn = (tmp_path / OLD).read_bytes() + b"\x00\x00\x01\x00torn"
    (tmp_path / OLD).write_bytes(torn)
    assert asyncio.run(read(RealDisk(), tmp_path)) == (revision, CONTENT)
    assert (tmp_path / f"{OLD}.old").read_bytes() == torn


def test_a_damaged_old_journal_is_refused_and_left_alone(tmp_path: Path) -> None:
    """L6 N4: nothing is written before all of it was read."""
    write_old(RealDisk(), tmp_path)
    damaged = bytearray((tmp_path / OLD).read_bytes())
    damaged[20] ^= 1
    (tmp_path / OLD).write_bytes(damaged)
    with pytest.raises(StoreCorrupt, match="damaged"):
        asyncio.run(read(RealDisk(), tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [OLD]


@pytest.mark.parametrize("crash", Crash)
def test_a_power_loss_while_carrying_over_loses_nothing(crash: Crash) -> None:
    """L6 N4: after each operation of the disk the next start finds everything."""
    disk = SimDisk()
    disk.makedirs("/data")
    disk.sync_directory("/")
    revision = write_old(disk, Path("/data"))
    disk.sync_directory("/data")
    images: list[SimDisk] = []
    disk.on_operation = lambda _: images.append(disk.crash(crash, random.Random(5)))
    assert asyncio.run(read(disk, Path("/data"))) == (revision, CONTENT)
    assert len(images) >= 4
    for image in images:
        assert asyncio.run(read(image, Path("/data"))) == (revision, CONTENT)


def test_going_back_to_the_old_file_is_a_choice_that_must_be_clear(tmp_path: Path) -> None:
    """N4: with both files there, and changes in the new one, only a person knows which one is right."""
    revision = write_old(RealDisk(), tmp_path)

    async def write() -> None:
        store = await opened(RealDisk(), tmp_path)
        await store.commit(puts=[Put("new", b"1")])
        await store.close()

    asyncio.run(write())
    (tmp_path / f"{OLD}.old").rename(tmp_path / OLD)
    with pytest.raises(StoreCorrupt, match="keep the right one"):
        asyncio.run(read(RealDisk(), tmp_path))
    (tmp_path / FILE_NAME).unlink()
    assert asyncio.run(read(RealDisk(), tmp_path)) == (revision, CONTENT)


def test_a_watch_from_the_beginning_does_not_pass_over_what_was_carried(tmp_path: Path) -> None:
    """N4: the history of the old file is gone, so the watch is lost, even after a single old commit."""
    old = OldJournal(RealDisk(), tmp_path)
    old.commit({"a": 1})
    old.close()

    async def story() -> None:
        store = await opened(RealDisk(), tmp_path)
        watch = store.watch("", 0)
        with pytest.raises(Lost):
            await asyncio.wait_for(anext(watch), 10)
        await watch.close()
        await store.close()

    asyncio.run(story())
