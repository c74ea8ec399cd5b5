"""The broker's own topics wait for the disk, whatever the others do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.broker.share_records import STATE_TOPIC as SHARE_TOPIC
from braidmq.broker.topic import INTERNAL_TOPICS
from braidmq.broker.txn_coordinator import STATE_TOPIC as TRANSACTIONS_TOPIC
from braidmq.group.records import OFFSETS_TOPIC
from braidmq.txn.events import Init
from braidmq.wire.errors import ApiError, ErrorCode
from unit.embedded import embedded


def test_internal_topics_are_flush_sync_on_a_broker_that_is_not(tmp_path: Path) -> None:
    """L4 T2: else a power loss could undo the offsets of a transaction that was answered as committed."""

    async def run() -> None:
        async with embedded(tmp_path, flush="async") as broker:
            await broker.groups.ensure()
            await (await broker.transactions.reach("mine")).init(Init("mine", 60_000))
            await broker.share_state.ensure()
            ordinary = await broker.topics.create("ordinary", 1, {})
            assert not ordinary.held[0].syncs
            assert {topic.name for topic in broker.topics if topic.held[0].syncs} == INTERNAL_TOPICS
            assert {OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_TOPIC} == INTERNAL_TOPICS

    asyncio.run(run())


def test_an_internal_topic_made_with_flush_async_waits_for_the_disk_after_the_next_start(
    tmp_path: Path,
) -> None:
    """L4 T2: one that an earlier version made, or that was altered then."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            await broker.topics.create_own(OFFSETS_TOPIC, {"cleanup.policy": "compact", "flush": "async"})
        async with embedded(tmp_path, flush="async") as broker:
            assert broker.topics.get(OFFSETS_TOPIC).held[0].syncs

    asyncio.run(run())


def test_an_internal_topic_cannot_be_made_flush_async(tmp_path: Path) -> None:
    """L4 F1: said, not ignored."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            await broker.groups.ensure()
            with pytest.raises(ApiError, match="kept flush=sync") as caught:
                await broker.topics.reconfigure(OFFSETS_TOPIC, {"flush": "async"})
            assert caught.value.code is ErrorCode.INVALID_CONFIG
            await broker.topics.reconfigure(OFFSETS_TOPIC, {"flush": "sync", "cleanup.policy": "compact"})
            assert broker.topics.get(OFFSETS_TOPIC).held[0].syncs

    asyncio.run(run())


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_an_internal_topic_cannot_be_made_to_lose_records_by_age(tmp_path: Path, policy: str) -> None:
    """C6: also by tools that replace all options, and name only the one that they change."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            await broker.groups.ensure()
            with pytest.raises(ApiError, match=r"kept cleanup\.policy=compact") as caught:
                await broker.topics.reconfigure(OFFSETS_TOPIC, {"cleanup.policy": policy})
            assert caught.value.code is ErrorCode.INVALID_CONFIG
            await broker.topics.reconfigure(OFFSETS_TOPIC, {"segment.bytes": "1048576"})
            assert broker.topics.get(OFFSETS_TOPIC).config.cleanup_policy == ("compact",)

    asyncio.run(run())
