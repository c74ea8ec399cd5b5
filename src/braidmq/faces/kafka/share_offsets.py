"""Where a share group is on partitions that any broker may lead, and how much is left there.

Of a partition led here the window says it. Of another one the share coordinator says where the group is, and
the partition's leader where the log ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

from braidmq.broker.broker import Broker
from braidmq.broker.share_coordinator import StateSummary
from braidmq.broker.share_records import SharePartitionKey
from braidmq.net.peer import PeerUnavailable
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

LATEST = -1
EARLIEST = -2
NOBODY = -1

Place = tuple[str, int]
"""Topic and partition."""


class GroupOffset(NamedTuple):
    """Where a group begins on a partition, and how many readable records are not settled."""

    start_offset: int
    leader_epoch: int
    lag: int


class LogEnds(NamedTuple):
    """Where a log begins, and up to where it can be read."""

    start: int
    end: int


async def described_offsets(
    broker: Broker, group_id: str, asked_for: Mapping[str, Sequence[int]]
) -> dict[Place, GroupOffset | ApiError | None]:
    """Of each partition asked for; None where the group has not read yet."""
    found: dict[Place, GroupOffset | ApiError | None] = {}
    places: dict[SharePartitionKey, Place] = {}
    for name, indexes in asked_for.items():
        topic = broker.topics.find(name)
        for index in indexes:
            if topic is None or not 0 <= index < topic.partition_count:
                found[name, index] = ApiError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no such partition {index}"
                )
            else:
                places[SharePartitionKey(group_id, topic.id, index)] = (name, index)
    if not broker.share_state.exists:
        return {**found, **dict.fromkeys(places.values())}
    here: list[SharePartitionKey] = []
    elsewhere: dict[SharePartitionKey, StateSummary] = {}
    for key, summary in (await broker.share_persister.summarize(places)).items():
        if not isinstance(summary, StateSummary):
            found[places[key]] = summary
        elif broker.leader(key.topic_id, key.partition).node_id == broker.node_id:
            here.append(key)
        else:
            elsewhere[key] = summary
    failures = await broker.share_delivery.open(here) if here else {}
    for key in here:
        found[places[key]] = failures.get(key) or _of_window(broker, key)
    ends = await _ends(broker, {key: places[key] for key in elsewhere})
    for key, summary in elsewhere.items():
        found[places[key]] = _of_summary(summary, ends[key])
    return found


def _of_window(broker: Broker, key: SharePartitionKey) -> GroupOffset | ApiError | None:
    part = broker.share_delivery.find(key)
    if part is None:
        return None
    try:
        part.follow_log()
        return GroupOffset(part.window.start_offset, part.leader_epoch, part.lag)
    except ApiError as error:
        return error


def _of_summary(summary: StateSummary, ends: LogEnds | ApiError) -> GroupOffset | ApiError:
    if isinstance(ends, ApiError):
        return ends
    start = max(summary.start_offset, ends.start)
    settled = max(0, summary.settled - (start - summary.start_offset))
    return GroupOffset(start, summary.leader_epoch, max(0, ends.end - start - settled))


async def _ends(
    broker: Broker, places: Mapping[SharePartitionKey, Place]
) -> dict[SharePartitionKey, LogEnds | ApiError]:
    """Asks every leader for its partitions, twice: a request may name a partition once."""
    of_node: dict[int, list[SharePartitionKey]] = {}
    for key in places:
        of_node.setdefault(broker.leader(key.topic_id, key.partition).node_id, []).append(key)
    found: dict[SharePartitionKey, LogEnds | ApiError] = {}
    for node_id, keys in of_node.items():
        try:
            if node_id == NOBODY:
                raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, "the partition's leader does not run")
            starts = await _listed(broker, node_id, [places[key] for key in keys], EARLIEST)
            ends = await _listed(broker, node_id, [places[key] for key in keys], LATEST)
        except ApiError as error:
            found.update(dict.fromkeys(keys, error))
            continue
        for key in keys:
            start, end = starts[places[key]], ends[places[key]]
            if isinstance(start, ApiError):
                found[key] = start
            elif isinstance(end, ApiError):
                found[key] = end
            else:
                found[key] = LogEnds(start, end)
    return found


async def _listed(
    broker: Broker, node_id: int, places: Iterable[Place], timestamp: int
) -> dict[Place, int | ApiError]:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    found: dict[Place, int | ApiError] = {}
    for name, index in places:
        topics.setdefault(name, []).append(ListOffsetsPartition(partition_index=index, timestamp=timestamp))
        found[name, index] = ApiError(ErrorCode.LEADER_NOT_AVAILABLE, "the leader says nothing about it")
    request = ListOffsetsRequest(
        topics=[ListOffsetsTopic(name=name, partitions=each) for name, each in topics.items()]
    )
    try:
        answer = cast("ListOffsetsResponse", await broker.peers.call(node_id, request))
    except PeerUnavailable as error:
        raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"broker {node_id} does not answer: {error}") from None
    for topic in answer.topics:
        for each in topic.partitions:
            if each.error_code == ErrorCode.NONE:
                found[topic.name, each.partition_index] = each.offset
            else:
                found[topic.name, each.partition_index] = ApiError(
                    ErrorCode.LEADER_NOT_AVAILABLE, f"the leader answers with error {each.error_code}"
                )
    return found
