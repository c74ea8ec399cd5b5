"""What stories about share groups have in common: a broker with jobs in two partitions, and requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from braidmq.broker.broker import Broker
from braidmq.wire.messages.share_fetch import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
)
from braidmq.wire.messages.share_groups import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from unit.embedded import append
from unit.faces.spoken import Speaker, speaker

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
GROUP = 32
Story = Callable[[Speaker], Awaitable[None]]


def run_story(data: Path, story: Story, **options: object) -> None:
    """Runs a story against a broker with ten records in each of two partitions, and a member `ada`."""

    async def told() -> None:
        async with speaker(data, group_share_auto_offset_reset="earliest", **options) as one:
            topic = await one.broker.topics.create("jobs", 2, {"flush": "async"})
            for partition in topic.held.values():
                append(partition, b"job", one.broker.clock.wall_ms(), 10)
            await join(one)
            await story(one)

    asyncio.run(told())


async def join(one: Speaker, member: str = "ada", epoch: int = 0) -> ShareGroupHeartbeatResponse:
    return await one.ask(
        ShareGroupHeartbeatRequest(
            group_id="workers",
            member_id=member,
            member_epoch=epoch,
            subscribed_topic_names=["jobs"] if epoch == 0 else None,
        ),
        ShareGroupHeartbeatResponse,
    )


def topics(
    broker: Broker, *indexes: int, acks: tuple[AcknowledgementBatch, ...] = ()
) -> list[AcknowledgeTopic]:
    topic = broker.topics.get("jobs")
    parts = [AcknowledgePartition(partition_index=n, acknowledgement_batches=list(acks)) for n in indexes]
    return [AcknowledgeTopic(topic_id=topic.id, partitions=parts)]


def verdict(first: int, last: int, *kinds: int) -> AcknowledgementBatch:
    return AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(kinds))


async def fetch(
    one: Speaker, epoch: int, *indexes: int, acks: tuple[AcknowledgementBatch, ...] = (), **fields: object
) -> ShareFetchResponse:
    given = {"member_id": "ada", "max_records": 500, "max_wait_ms": 0, "group_id": "workers", **fields}
    wanted = topics(one.broker, *indexes, acks=acks) if indexes else []
    return await one.ask(
        ShareFetchRequest(share_session_epoch=epoch, topics=wanted, **given), ShareFetchResponse
    )


async def acknowledge(
    one: Speaker, epoch: int, *acks: AcknowledgementBatch, index: int = 0, **fields: object
) -> ShareAcknowledgeResponse:
    given = {"member_id": "ada", "group_id": "workers", **fields}
    wanted = topics(one.broker, index, acks=acks)
    return await one.ask(
        ShareAcknowledgeRequest(share_session_epoch=epoch, topics=wanted, **given), ShareAcknowledgeResponse
    )


def parts(answer: ShareFetchResponse) -> dict[int, ShareFetchPartitionData]:
    assert answer.error_code == 0, answer.error_message
    return {part.partition_index: part for topic in answer.responses for part in topic.partitions}


def acquired(answer: ShareFetchResponse) -> dict[int, list[tuple[int, int, int]]]:
    return {
        index: [(each.first_offset, each.last_offset, each.delivery_count) for each in part.acquired_records]
        for index, part in parts(answer).items()
        if part.acquired_records
    }


def code_of(answer: ShareAcknowledgeResponse) -> int:
    assert answer.error_code == 0, answer.error_message
    return answer.responses[0].partitions[0].error_code
