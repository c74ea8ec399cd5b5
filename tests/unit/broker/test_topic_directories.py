"""Directories that the metadata does not know: set aside, reported, and back when they are known again."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from braidmq.broker import broker as broker_module
from braidmq.broker.broker import Broker
from braidmq.broker.topic_directories import description, survey
from braidmq.cluster.metadata_store import StoreCorrupt, Unavailable
from braidmq.config import configure
from braidmq.platform.disk import RealDisk
from braidmq.platform.host import Host
from sim.disk import Crash, SimDisk
from unit.embedded import append, embedded


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are removed when a test says so."""
    monkeypatch.setattr(broker_module, "TIDY_S", 3600.0)


def directories(data: Path) -> list[str]:
    return sorted(path.name for path in (data / "topics").iterdir())


def bytes_of(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


async def create_and_fill(broker: Broker, name: str) -> Path:
    topic = await broker.topics.create(name, 1, {})
    append(topic.held[0], b"x", broker.clock.wall_ms(), 5)
    return topic.path


@pytest.mark.parametrize("left", [None, b""])
def test_without_its_metadata_a_broker_does_not_start_and_removes_nothing(
    tmp_path: Path, left: bytes | None
) -> None:
    """N4 L6: producers would recreate topics, and the old ones could not come back under their names."""
    journal = tmp_path / "metadata.store"

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            path = await create_and_fill(broker, "orders")
        before, metadata = bytes_of(path), journal.read_bytes()
        journal.unlink()
        if left is not None:
            journal.write_bytes(left)
        for _ in range(2):
            with pytest.raises(StoreCorrupt, match=r"backup, or .*run braid doctor DIR --adopt all"):
                await Broker(configure({}), tmp_path).start()
        assert bytes_of(path) == before
        journal.write_bytes(metadata)
        async with embedded(tmp_path) as broker:
            assert broker.topics.get("orders").held[0].end_offset == 5

    asyncio.run(run())


def test_older_metadata_sets_newer_topics_aside_and_newer_metadata_brings_them_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """N4 L6: a journal restored from a backup costs no records, and restoring the right one heals it."""
    journal = tmp_path / "metadata.store"

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            old = await create_and_fill(broker, "old")
            gone = await create_and_fill(broker, "gone")
        backup = journal.read_bytes()
        async with embedded(tmp_path) as broker:
            young = await create_and_fill(broker, "young")
            await broker.delete_topic("gone")
            await broker.topics.tidy()
        before, newest = bytes_of(young), journal.read_bytes()

        journal.write_bytes(backup)
        for _ in range(2):
            caplog.clear()
            async with embedded(tmp_path) as broker:
                assert sorted(topic.name for topic in broker.topics) == ["gone", "old"]
                assert broker.topics.get("old").held[0].end_offset == 5
                assert directories(tmp_path) == [old.name, young.name + ".unknown"]
                assert f"does not know the directory topics/{young.name}: it is set aside" in caplog.text
                assert f"topic gone: its directory {gone.name} is missing" in caplog.text
        async with embedded(tmp_path) as broker:
            assert broker.topics.get("gone").held[0].end_offset == 0

        journal.write_bytes(newest)
        caplog.clear()
        async with embedded(tmp_path) as broker:
            assert sorted(topic.name for topic in broker.topics) == ["old", "young"]
            assert f"its directory {young.name} had been set aside and is back in use" in caplog.text
            await broker.topics.tidy()
            assert directories(tmp_path) == [old.name, young.name]
            assert bytes_of(young) == before
            assert broker.topics.get("young").held[0].end_offset == 5

    asyncio.run(run())


def test_what_is_no_topics_directory_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """L6: a broker touches nothing that is not its own."""

    async def run() -> None:
        (tmp_path / "topics" / "lost+found").mkdir(parents=True)
        (tmp_path / "topics" / "notes.txt").write_text("mine")
        async with embedded(tmp_path):
            pass
        assert directories(tmp_path) == ["lost+found", "notes.txt"]
        assert "topics/" not in caplog.text

    asyncio.run(run())


def test_a_directory_marked_as_deleted_without_a_record_is_set_aside() -> None:
    """L6: the name alone is no proof; an earlier release gave it to whatever it did not know."""
    present = ["a.0123456789ab.deleted", "b.0123456789ab.deleted", "c.0123456789ab"]
    found = survey(present, set(), deleted={"b.0123456789ab", "c.0123456789ab"})
    assert found.unknown == ["a.0123456789ab.deleted"]
    assert found.trash == ["b.0123456789ab.deleted", "c.0123456789ab"]


def test_every_directory_describes_its_topic(tmp_path: Path) -> None:
    """O1 N4: name, id, partitions, options; also after changes, and where an upgrade finds none."""

    async def run() -> None:
        disk = RealDisk()
        async with embedded(tmp_path) as broker:
            topic = await broker.topics.create("orders", 2, {"retention.ms": "-1"})
            assert description(disk, topic.path) == topic.record
            await broker.topics.grow("orders", 7)
            await broker.topics.reconfigure("orders", {"retention.bytes": "1000"})
            await broker.topics.tidy()
            assert description(disk, topic.path) == topic.record
            assert topic.record.partition_count == 7
        for left in (None, b"", b"00000000 {}\n"):
            (topic.path / "topic").unlink()
            if left is not None:
                (topic.path / "topic").write_bytes(left)
            assert description(disk, topic.path) is None
            async with embedded(tmp_path) as broker:
                await broker.topics.tidy()
            assert description(disk, topic.path) == topic.record

    asyncio.run(run())


def test_a_topic_that_could_not_be_stored_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1: else the next start would report it as lost."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:

            async def refuse(*_: object, **__: object) -> None:
                raise Unavailable("No space left on device")

            with monkeypatch.context() as planted:
                planted.setattr(broker.metadata.store, "commit", refuse)
                with pytest.raises(Exception, match="No space left"):
                    await broker.topics.create("t", 1, {})
            assert directories(tmp_path) == []

    asyncio.run(run())


def test_no_power_loss_makes_a_start_remove_a_topic(tmp_path: Path) -> None:
    """L6 N4: after a crash at any operation, what was created and not deleted is known, or set aside."""

    async def run() -> None:
        disk = SimDisk()
        chance = random.Random(5)
        images: list[tuple[SimDisk, tuple[str, ...], tuple[str, ...]]] = []
        created: tuple[str, ...] = ()
        deleting: tuple[str, ...] = ()

        def crashed(_: str) -> None:
            images.append((disk.crash(chance.choice(list(Crash)), chance), created, deleting))

        broker = Broker(configure({}), tmp_path, Host(disk=disk))
        await broker.start()
        disk.on_operation = crashed
        try:
            for name in ("a", "b", "c"):
                await broker.topics.create(name, 1, {})
                created += (name,)
            deleting = ("b",)
            await broker.delete_topic("b")
            await broker.topics.tidy()
        finally:
            await broker.stop()
        assert len(images) > 20
        for image, must, may_be_gone in images:
            again = Broker(configure({}), tmp_path, Host(disk=image))
            await again.start()
            try:
                await again.topics.tidy()
                found = {topic.name for topic in again.topics}
                assert set(must) - set(may_be_gone) <= found
            finally:
                await again.stop()

    asyncio.run(run())
