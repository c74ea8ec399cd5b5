"""The broker's own topics are its own: no client creates them, or deletes what they hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from braidmq.broker.group_coordinator import Committer
from braidmq.broker.topic import INTERNAL_TOPICS
from braidmq.group.offsets import Committed
from braidmq.group.records import OFFSETS_TOPIC
from braidmq.txn.events import Init
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from braidmq.wire.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from braidmq.wire.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from unit.faces.spoken import Speaker, speaker

OUTSIDER = Committer("", None, -1, 9)
PLACE = ("t", 0)
Story = Callable[[Speaker], Awaitable[None]]


def tell(data: Path, *stories: Story) -> None:
    """Runs stories one after the other, each on a broker that was started again."""

    async def told() -> None:
        for story in stories:
            async with speaker(data) as one:
                await story(one)

    asyncio.run(told())


async def commit(one: Speaker, offset: int) -> None:
    coordinator = await one.broker.groups.reach("g")
    await coordinator.commit("g", OUTSIDER, [(PLACE, Committed(offset, -1, "", 0))])


async def works(one: Speaker) -> None:
    """Groups and transactions have their topics, kept as the broker keeps them."""
    await commit(one, 5)
    await (await one.broker.transactions.reach("mine")).init(Init("mine", 60_000))
    for topic in one.broker.topics:
        assert (topic.partition_count, topic.config.compacts) == (1, True)


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_asking_for_an_internal_topic_does_not_create_it(tmp_path: Path, name: str) -> None:
    """C1 T1: a reader of __consumer_offsets on a new broker must not leave it without groups."""

    async def story(one: Speaker) -> None:
        wanted = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
        answer = await one.ask(wanted, MetadataResponse)
        assert [each.error_code for each in answer.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert one.broker.topics.find(name) is None
        await works(one)

    tell(tmp_path, story, works)


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
@pytest.mark.parametrize("validate_only", [False, True])
def test_a_client_cannot_create_an_internal_topic(tmp_path: Path, name: str, validate_only: bool) -> None:
    """C1 T1: with options of its own, records that the broker relies on would go by age."""

    async def story(one: Speaker) -> None:
        wanted = CreatableTopic(name=name, num_partitions=3, replication_factor=1)
        request = CreateTopicsRequest(topics=[wanted], validate_only=validate_only)
        answer = await one.ask(request, CreateTopicsResponse)
        assert [each.error_code for each in answer.topics] == [ErrorCode.INVALID_TOPIC_EXCEPTION]
        await works(one)

    tell(tmp_path, story, works)


def test_an_internal_topic_that_a_client_created_before_is_used_all_the_same(tmp_path: Path) -> None:
    """C1: earlier releases let clients create it; groups work on such a broker, too."""

    async def made_by_a_client(one: Speaker) -> None:
        topics = one.broker.topics
        await topics.create_own(OFFSETS_TOPIC, {})
        await commit(one, 5)
        assert topics.get(OFFSETS_TOPIC).config.compacts

    async def found_again(one: Speaker) -> None:
        kept = one.broker.groups.of("g").groups.offsets("g").find(*PLACE)
        assert kept is not None
        assert kept.offset == 5

    tell(tmp_path, made_by_a_client, found_again)


def test_records_of_an_internal_topic_cannot_be_deleted(tmp_path: Path) -> None:
    """C6: DeleteRecords on __consumer_offsets would take back every commit at the next start."""

    async def refused(one: Speaker) -> None:
        await commit(one, 5)
        part = DeleteRecordsPartition(partition_index=0, offset=-1)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=OFFSETS_TOPIC, partitions=[part])])
        answer = await one.ask(request, DeleteRecordsResponse)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    async def kept(one: Speaker) -> None:
        found = one.broker.groups.of("g").groups.offsets("g").find(*PLACE)
        assert found is not None
        assert found.offset == 5

    tell(tmp_path, refused, kept)
