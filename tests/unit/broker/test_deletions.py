"""Deleting topics: at once for clients, later on disk, and for good."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from pathlib import Path

import pytest

from braidmq.broker import broker as broker_module
from braidmq.broker import housekeeping
from braidmq.broker.broker import Broker
from braidmq.broker.group_coordinator import Committer
from braidmq.group.offsets import Committed
from braidmq.platform.disk import DiskFile, RealDisk, RealFile, StrPath
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from unit.embedded import TurnedClock, append, embedded
from unit.faces.spoken import Speaker

DAY_MS = 86_400_000
NO_MEMBER = Committer("", None, -1, 8)


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are removed when a test says so."""
    monkeypatch.setattr(broker_module, "TIDY_S", 3600.0)


class StubbornDisk(RealDisk):
    """Refuses to rename or remove the directories of topics while told to, or lets removal wait."""

    __slots__ = ("may_remove", "refuses")

    def __init__(self) -> None:
        self.refuses = False
        self.may_remove = threading.Event()
        self.may_remove.set()

    def rename(self, source: StrPath, target: StrPath) -> None:
        self._refuse(target)
        super().rename(source, target)

    def remove_tree(self, path: StrPath) -> None:
        self._refuse(path)
        assert self.may_remove.wait(30)
        super().remove_tree(path)

    def _refuse(self, path: StrPath) -> None:
        if self.refuses and ".deleted" in str(path):
            raise OSError(errno.EACCES, "Permission denied", str(path))


def directories(data: Path) -> list[str]:
    return sorted(path.name for path in (data / "topics").iterdir() if not path.name.startswith("__"))


async def commit_offset(broker: Broker, topic: str, offset: int) -> None:
    entry = ((topic, 0), Committed(offset, -1, "", broker.clock.wall_ms()))
    await (await broker.groups.reach("g")).commit("g", NO_MEMBER, [entry])


def offsets(broker: Broker, topic: str) -> list[object]:
    return list(broker.groups.of("g").groups.offsets("g").of_topic(topic))


def test_a_deleted_topic_can_be_recreated_before_its_files_are_gone(tmp_path: Path) -> None:
    """F1 L1: clients wait for the record of the deletion, never for the removal of files."""

    async def run() -> None:
        disk = StubbornDisk()
        async with embedded(tmp_path, disk) as broker:
            old = await broker.topics.create("t", 3, {})
            append(old.held[1], b"old", broker.clock.wall_ms())
            disk.may_remove.clear()
            await broker.delete_topic("t")
            removing = asyncio.ensure_future(broker.topics.tidy())
            new = await broker.topics.create("t", 1, {})
            append(new.held[0], b"new", broker.clock.wall_ms())
            assert not removing.done()
            disk.may_remove.set()
            await removing
            assert directories(tmp_path) == [new.path.name]
            assert new.held[0].end_offset == 1

    asyncio.run(run())


def test_a_topic_whose_files_cannot_be_removed_is_deleted_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F1 C6: the client gets its answer, offsets are forgotten, and the trouble is in the log."""

    async def run() -> None:
        disk = StubbornDisk()
        async with embedded(tmp_path, disk) as broker:
            await broker.topics.create("t", 1, {})
            await commit_offset(broker, "t", 17)
            disk.refuses = True
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
            answer = await Speaker(broker).ask(request, DeleteTopicsResponse)
            assert answer.responses[0].error_code == ErrorCode.NONE
            assert broker.topics.find("t") is None
            await broker.topics.tidy()
            await broker.topics.tidy()
            assert "topic t was deleted, and its files" in caplog.text
            assert "Permission denied" in caplog.text
            await broker.topics.create("t", 1, {})
            assert offsets(broker, "t") == []

    asyncio.run(run())


def test_files_are_removed_a_few_at_a_time(tmp_path: Path) -> None:
    """L1 L12: a sync or a stop waits for a few files, never for a whole topic."""

    class CountingDisk(RealDisk):
        __slots__ = ("left",)

        def remove_tree(self, path: StrPath) -> None:
            self.left = sum(each.is_file() for each in Path(path).rglob("*/*"))
            super().remove_tree(path)

    async def run() -> None:
        disk = CountingDisk()
        async with embedded(tmp_path, disk) as broker:
            topic = await broker.topics.create("t", 2, {"segment.bytes": "1048576"})
            append(topic.held[1], b"x", broker.clock.wall_ms())
            for number in range(100):
                (topic.path / "1" / f"{number:020}.log.deleted").touch()
            await broker.delete_topic("t")
            await broker.topics.tidy()
            assert directories(tmp_path) == []
            assert disk.left == 0

    asyncio.run(run())


def test_removal_is_continued_at_the_next_start(tmp_path: Path) -> None:
    """L1: what a stop came between is on record, and so is removed."""

    async def run() -> None:
        disk = StubbornDisk()
        async with embedded(tmp_path, disk) as broker:
            topic = await broker.topics.create("t", 2, {})
            append(topic.held[0], b"x", broker.clock.wall_ms())
            disk.refuses = True
            await broker.delete_topic("t")
            await broker.topics.tidy()
        assert directories(tmp_path) == [topic.path.name]
        async with embedded(tmp_path) as broker:
            assert [topic.name for topic in broker.topics] == []
            await broker.topics.tidy()
            assert directories(tmp_path) == []

    asyncio.run(run())


def test_offsets_are_forgotten_though_the_broker_died_after_the_deletion(tmp_path: Path) -> None:
    """C6: a recreated topic inherits nothing."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            await broker.topics.create("t", 1, {})
            await commit_offset(broker, "t", 17)
            await broker.topics.delete("t")  # and no more, as if the broker had been killed here
            assert offsets(broker, "t") != []
        async with embedded(tmp_path) as broker:
            assert offsets(broker, "t") == []
            await broker.topics.create("t", 1, {})
            await commit_offset(broker, "t", 3)
            await broker.topics.tidy()
        async with embedded(tmp_path) as broker:
            assert offsets(broker, "t") != []

    asyncio.run(run())


def test_offsets_of_a_recreated_topic_are_kept_by_the_next_start(tmp_path: Path) -> None:
    """C6: a deletion that is on record as unfinished says nothing of a topic that came after it."""

    async def run() -> None:
        disk = StubbornDisk()
        async with embedded(tmp_path, disk) as broker:
            await broker.topics.create("t", 1, {})
            disk.refuses = True
            await broker.delete_topic("t")
            await broker.topics.create("t", 1, {})
            await commit_offset(broker, "t", 3)
        async with embedded(tmp_path) as broker:
            assert offsets(broker, "t") != []

    asyncio.run(run())


def test_records_of_deletions_are_dropped_after_some_days(tmp_path: Path) -> None:
    """N4: the store does not grow with every topic there ever was."""

    async def run() -> None:
        clock = TurnedClock()
        async with embedded(tmp_path, clock=clock) as broker:

            async def delete_one() -> None:
                await broker.topics.create("t", 1, {})
                await broker.delete_topic("t")
                await broker.topics.tidy()

            await delete_one()
            await delete_one()
            assert len(broker.metadata.image.all_deleted()) == 2
            clock.now_ms += 8 * DAY_MS
            await delete_one()
            assert len(broker.metadata.image.all_deleted()) == 1

    asyncio.run(run())


def test_a_copy_of_a_deleted_topic_that_comes_back_is_removed_on_its_record(tmp_path: Path) -> None:
    """L1: such as from a backup of the directory that is older than the metadata."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            topic = await broker.topics.create("t", 1, {})
            await broker.delete_topic("t")
            await broker.topics.tidy()
            assert directories(tmp_path) == []
        (topic.path / "0").mkdir(parents=True)
        async with embedded(tmp_path) as broker:
            await broker.topics.tidy()
            assert directories(tmp_path) == []

    asyncio.run(run())


def test_a_partition_of_a_deleted_topic_is_not_opened_again(tmp_path: Path) -> None:
    """L1: one who still holds it would make its directory again."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            partition = (await broker.topics.create("t", 1, {})).held[0]
            append(partition, b"x", broker.clock.wall_ms())
            await broker.delete_topic("t")
            await broker.topics.tidy()
            with pytest.raises(ApiError) as caught:
                append(partition, b"y", broker.clock.wall_ms())
            assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert directories(tmp_path) == []

    asyncio.run(run())


# -- races with recurring work ------------------------------------------------------------------


class SlowDisk(RealDisk):
    """Holds syncs of directories and writes of checkpoints until a test lets them go on."""

    __slots__ = ("begun", "may_go_on")

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def open(self, path: StrPath, create: bool = False) -> DiskFile:
        file = super().open(path, create)
        return SlowFile(file.fileno(), self) if str(path).endswith(".log") else file

    def write_atomically(self, path: StrPath, content: bytes) -> None:
        self.hold()
        super().write_atomically(path, content)

    def hold(self) -> None:
        self.begun.set()
        assert self.may_go_on.wait(30)


class SlowFile(RealFile):
    __slots__ = ("_disk",)

    def __init__(self, fd: int, disk: SlowDisk) -> None:
        super().__init__(fd)
        self._disk = disk

    def fdatasync(self) -> None:
        self._disk.hold()
        super().fdatasync()


async def held(disk: SlowDisk) -> None:
    """Returns when a thread is held by the disk."""
    assert await asyncio.to_thread(disk.begun.wait, 30)


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_sync_that_a_deletion_takes_the_files_from_is_no_alarm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """L4 O2: the one who waited is answered, and nothing is logged."""

    async def run() -> None:
        disk = SlowDisk()
        async with embedded(tmp_path, disk) as broker:
            partition = (await broker.topics.create("t", 1, {})).held[0]
            disk.may_go_on.clear()
            disk.begun.clear()
            append(partition, b"x", broker.clock.wall_ms())
            answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
            partition.when_committed(1, answer.set_result)
            await held(disk)
            await broker.topics.delete("t")
            assert await answer is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await broker.topics.tidy()
            assert directories(tmp_path) == []
            disk.may_go_on.set()
        assert complaints(caplog) == []

    asyncio.run(run())


def test_a_checkpoint_that_a_deletion_takes_the_files_from_is_no_alarm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """L6 O2: there is nothing left to recover."""

    async def run() -> None:
        disk = SlowDisk()
        async with embedded(tmp_path, disk) as broker:
            partition = (await broker.topics.create("t", 1, {})).held[0]
            append(partition, b"x", broker.clock.wall_ms())
            answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
            partition.when_committed(1, answer.set_result)
            assert await answer is ErrorCode.NONE
            disk.begun.clear()
            disk.may_go_on.clear()
            checkpoint = asyncio.ensure_future(broker.housekeeping.checkpoint())
            await held(disk)
            await broker.topics.delete("t")
            await broker.topics.tidy()
            assert directories(tmp_path) == []
            disk.may_go_on.set()
            await checkpoint
        assert complaints(caplog) == []

    asyncio.run(run())


def test_retention_leaves_a_topic_alone_that_is_deleted_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L7 O2: neither an error in the log nor a log that is opened again."""
    monkeypatch.setattr(housekeeping, "PARTITIONS_PER_TURN", 1)

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            topic = await broker.topics.create("t", 4, {})
            for partition in topic.held.values():
                append(partition, b"x", broker.clock.wall_ms())
            cleaning = asyncio.ensure_future(broker.housekeeping.clean())
            await asyncio.sleep(0)  # it looks at the first partition
            for partition in topic.held.values():
                partition.discard()
            await cleaning
            assert not any(partition.is_open for partition in topic.held.values())
        assert complaints(caplog) == []

    asyncio.run(run())
