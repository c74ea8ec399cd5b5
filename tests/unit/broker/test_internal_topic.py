"""Records of several who wait are written together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.broker import internal_topic
from braidmq.broker.internal_topic import InternalTopic
from braidmq.wire.errors import ApiError, ErrorCode
from unit.embedded import embedded

OPTIONS = {"cleanup.policy": "compact"}


def key(number: int) -> bytes:
    return b"key%d" % number


def run(tmp_path: Path, story: object) -> None:
    async def told() -> None:
        async with embedded(tmp_path) as broker:
            topic = InternalTopic(broker.topics, broker.clock, "__kept", OPTIONS)
            await topic.open()
            await story(topic)  # type: ignore[operator]

    asyncio.run(told())


def test_what_is_handed_in_in_one_turn_becomes_one_batch_in_its_order(tmp_path: Path) -> None:
    """C6: commits that come together cost one write."""

    async def story(topic: InternalTopic) -> None:
        waits = [topic.written([(key(number), b"v"), (key(number), None)]) for number in range(3)]
        await asyncio.gather(*waits)
        ((header, _),) = topic.batches()
        assert header.record_count == 6
        assert list(topic.stored()) == [
            record for number in range(3) for record in ((key(number), b"v"), (key(number), None))
        ]
        await topic.written([(key(9), b"later")])
        assert len(list(topic.batches())) == 2

    run(tmp_path, story)


def test_a_batch_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: many commits at once do not become one huge batch."""
    monkeypatch.setattr(internal_topic, "TOGETHER_RECORDS_MAX", 3)

    async def story(topic: InternalTopic) -> None:
        await asyncio.gather(*(topic.written([(key(number), b"v")]) for number in range(9)))
        assert [header.record_count for header, _ in topic.batches()] == [3, 3, 3]
        assert [found for found, _ in topic.stored()] == [key(number) for number in range(9)]

    run(tmp_path, story)


def test_everybody_is_told_when_nothing_can_be_written(tmp_path: Path) -> None:
    """C6: a commit that is not on disk is not confirmed, whoever it was written with."""

    async def story(topic: InternalTopic) -> None:
        topic.partition.log.fail(OSError("no disk"))
        waits = [topic.written([(key(number), b"v")]) for number in range(2)]
        answers = await asyncio.gather(*waits, return_exceptions=True)
        assert [answer.code for answer in answers if isinstance(answer, ApiError)] == [
            ErrorCode.KAFKA_STORAGE_ERROR
        ] * 2

    run(tmp_path, story)
