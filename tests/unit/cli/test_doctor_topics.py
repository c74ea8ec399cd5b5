"""`braid doctor` on topics that the metadata has lost: found, reported and brought back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from braidmq.broker.broker import Broker
from braidmq.broker.group_coordinator import Committer
from braidmq.cli import main
from braidmq.group.offsets import Committed
from unit.embedded import append, embedded

NO_MEMBER = Committer("", None, -1, 8)
Story = Callable[[Broker], Awaitable[None]]


def tell(data: Path, *stories: Story) -> None:
    """Runs each story on the same data, with a restart between them."""

    async def told() -> None:
        for story in stories:
            async with embedded(data) as broker:
                await story(broker)

    asyncio.run(told())


async def fill(broker: Broker) -> None:
    """A topic with five records, a group that has read three of them, and a producer id given out."""
    topic = await broker.topics.create("orders", 3, {"retention.ms": "-1"})
    append(topic.held[1], b"order", broker.clock.wall_ms(), 5)
    entry = (("orders", 1), Committed(3, -1, "", broker.clock.wall_ms()))
    await (await broker.groups.reach("g")).commit("g", NO_MEMBER, [entry])
    await broker.producer_ids.take()


async def find(broker: Broker) -> None:
    """All that `fill` wrote."""
    topic = broker.topics.get("orders")
    assert (topic.partition_count, topic.config.retention_ms) == (3, -1)
    assert topic.held[1].end_offset == 5
    assert list(broker.groups.of("g").groups.offsets("g").of_topic("orders")) == [("orders", 1)]


def examine(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> Any:
    capsys.readouterr()
    assert main(["doctor", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def journal(data: Path) -> Path:
    return data / "metadata.store"


def directory_of(data: Path, topic: str) -> str:
    return next(path.name for path in (data / "topics").iterdir() if path.name.startswith(f"{topic}."))


def test_topics_of_a_lost_journal_are_all_brought_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """O1 N4: records, options and offsets; and no producer gets an id that was in use."""
    ids: list[int] = []

    async def take(broker: Broker) -> None:
        ids.append(await broker.producer_ids.take())

    tell(tmp_path, fill, take)
    journal(tmp_path).unlink()
    assert main(["serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0"]) == 1
    said = capsys.readouterr().err
    assert "braid doctor DIR --adopt all" in said
    assert "Traceback" not in said
    journal(tmp_path).unlink()
    report = examine(capsys, 1, str(tmp_path))
    assert [row["file"] for row in report["left"]] == ["metadata.store"]
    assert not journal(tmp_path).exists()

    report = examine(capsys, 0, str(tmp_path), "--adopt", "all")
    assert sum("is back" in row["what"] for row in report["repaired"]) == 2
    assert examine(capsys, 0, str(tmp_path))["findings"] == []
    tell(tmp_path, find, take)
    assert ids[1] > ids[0]


def test_a_damaged_last_change_can_be_undone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """O1 N4: by a person who says so; the file is kept, and the topic of the change can be brought back."""

    async def create(broker: Broker) -> None:
        await broker.topics.create("young", 1, {})

    tell(tmp_path, fill, create)
    content = bytearray(journal(tmp_path).read_bytes())
    content[-20] ^= 1
    journal(tmp_path).write_bytes(content)
    assert main(["serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0"]) == 1
    assert "run braid doctor DIR --repair" in capsys.readouterr().err
    examine(capsys, 1, str(tmp_path))
    assert main(["doctor", str(tmp_path), "--adopt", "all"]) == 2
    assert journal(tmp_path).read_bytes() == content

    report = examine(capsys, 1, str(tmp_path), "--repair", "--yes")
    assert report["repaired"][0]["what"].startswith("metadata.store: the damaged last change is undone")
    assert (tmp_path / "metadata.store.damaged").read_bytes() == content
    assert [row["file"] for row in report["left"]] == [directory_of(tmp_path, "young")]
    examine(capsys, 0, str(tmp_path), "--adopt", "young")

    async def find_both(broker: Broker) -> None:
        await find(broker)
        assert broker.topics.find("young") is not None

    tell(tmp_path, find_both)


def test_a_topic_set_aside_is_reported_and_brought_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """O1 N4: after metadata from before the topic was restored, and a broker has run with it."""

    async def nothing(broker: Broker) -> None:
        assert broker.topics.find("orders") is None

    tell(tmp_path, nothing)
    backup = journal(tmp_path).read_bytes()
    tell(tmp_path, fill)
    journal(tmp_path).write_bytes(backup)
    tell(tmp_path, nothing)
    report = examine(capsys, 1, str(tmp_path))
    files = [row["file"] for row in report["findings"]]
    assert all(file.endswith(".unknown") for file in files)
    assert len(files) == 2
    assert main(["doctor", str(tmp_path)]) == 1
    assert "it holds topic orders, 3 partitions; --adopt orders." in capsys.readouterr().out
    examine(capsys, 1, str(tmp_path), "--adopt", "orders")
    examine(capsys, 0, str(tmp_path), "--adopt", directory_of(tmp_path, "__consumer_offsets"))
    tell(tmp_path, find)


def test_two_topics_of_one_name_can_change_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """O1 N4: as when a producer or the broker has recreated what was lost; nothing is removed either way."""

    async def nothing(broker: Broker) -> None:
        assert broker.topics.find("orders") is None

    async def recreate(broker: Broker) -> None:
        topic = await broker.topics.create("orders", 1, {})
        append(topic.held[0], b"new", broker.clock.wall_ms(), 2)
        await (await broker.groups.reach("h")).commit("h", NO_MEMBER, [(("x", 0), Committed(1, -1, "", 0))])

    async def find_new(broker: Broker) -> None:
        assert broker.topics.get("orders").held[0].end_offset == 2

    tell(tmp_path, nothing)
    backup = journal(tmp_path).read_bytes()
    tell(tmp_path, fill)
    journal(tmp_path).write_bytes(backup)
    old = directory_of(tmp_path, "orders")
    old_offsets = directory_of(tmp_path, "__consumer_offsets")
    tell(tmp_path, recreate)
    new = next(
        path.name
        for path in (tmp_path / "topics").iterdir()
        if path.name.startswith("orders.") and old not in path.name
    )
    assert main(["doctor", str(tmp_path), "--adopt", old]) == 2
    assert "--replace", "--yes" in capsys.readouterr().err
    assert main(["doctor", str(tmp_path), "--adopt", "all"]) == 1
    tell(tmp_path, find_new)
    examine(capsys, 1, str(tmp_path), "--adopt", old, "--adopt", old_offsets, "--replace", "--yes")
    tell(tmp_path, find)
    examine(capsys, 1, str(tmp_path), "--adopt", new, "--replace", "--yes")
    tell(tmp_path, find_new)
    examine(capsys, 1, str(tmp_path), "--adopt", old, "--adopt-as", "orders-before")

    async def find_both(broker: Broker) -> None:
        await find_new(broker)
        assert broker.topics.get("orders-before").held[1].end_offset == 5

    tell(tmp_path, find_both)


def test_a_topic_without_a_description_is_brought_back_and_nothing_of_it_expires(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """O1 N4: as earlier releases left it; the partitions are those that were written."""
    tell(tmp_path, fill)
    journal(tmp_path).unlink()
    for path in (tmp_path / "topics").glob("*/topic"):
        path.unlink()
    report = examine(capsys, 0, str(tmp_path), "--adopt", "all")
    assert any("guessed, as it is not described: 2 partitions" in row["what"] for row in report["repaired"])

    async def found(broker: Broker) -> None:
        topic = broker.topics.get("orders")
        assert topic.held[1].end_offset == 5
        assert (topic.config.retention_ms, topic.config.retention_bytes) == (-1, -1)
        assert list(broker.groups.of("g").groups.offsets("g").of_topic("orders")) == [("orders", 1)]
        assert broker.topics.get("__consumer_offsets").config.compacts

    tell(tmp_path, found)


def test_a_name_that_nothing_was_set_aside_of_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """O1: and nothing is changed."""
    tell(tmp_path, fill)
    before = journal(tmp_path).read_bytes()
    assert main(["doctor", str(tmp_path), "--adopt", "orders"]) == 2
    assert "no directory called orders is missing from the metadata" in capsys.readouterr().err
    assert journal(tmp_path).read_bytes() == before


def test_data_under_a_directory_that_is_called_deleted_are_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """O1 N4: what is passed over are the directories of deleted topics, not all below such a name."""
    data = tmp_path / "broker.deleted" / "data"
    data.mkdir(parents=True)
    tell(data, fill)
    assert examine(capsys, 0, str(data))["partitions"] == 2
