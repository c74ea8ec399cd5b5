"""From the options of a query to partitions and offsets, with the answers of the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.consumer import Start
from braidmq.client.offsets import list_offsets
from braidmq.client.security import parse_security
from braidmq.spark.java.pattern import compile_java
from braidmq.spark.options import Isolation, OptionError
from braidmq.spark.source.query import Bound, ReadQuery, Subscription
from braidmq.wire.errors import ApiError, ErrorCode

Offsets = dict[TopicPartition, int]
CLIENT_ID = "braid-spark"


class Missing(Enum):
    """How to treat a topic or partition that a query names and the cluster does not have."""

    IS_AN_ERROR = "an error"
    IS_LEFT_OUT = "left out"


class TopicMissing(OptionError):
    """A topic or partition that the query names does not exist."""


def connect(query: ReadQuery) -> Cluster:
    """The cluster of a query; it connects on first use."""
    client_id = query.client_settings.get("client.id", CLIENT_ID)
    security = parse_security(query.client_settings)
    return Cluster(
        query.bootstrap,
        client_id=client_id,
        timeout_s=query.timeout_s,
        security=security,
        creates_topics=False,
    )


class PartitionMap(NamedTuple):
    """The partitions that a query reads now, their leaders, and the ids of topics."""

    leaders: dict[TopicPartition, int]
    topic_ids: dict[str, bytes]

    @property
    def partitions(self) -> list[TopicPartition]:
        return list(self.leaders)


def topology(cluster: Cluster, query: ReadQuery, missing: Missing = Missing.IS_AN_ERROR) -> PartitionMap:
    """Looks up what the query subscribes to; TopicMissing if a name does not exist."""
    subscription = query.subscription
    if subscription.pattern is not None:
        # Anywhere in the name, as in Spark's Kafka source.
        is_named = compile_java(subscription.pattern).search
        answer = cluster.refresh(None)
        chosen = [topic for topic in answer.topics if not topic.is_internal and is_named(topic.name or "")]
    else:
        answer = cluster.refresh(list(subscription.topics or subscription.assigned))
        chosen = answer.topics
    found: dict[TopicPartition, int] = {}
    ids: dict[str, bytes] = {}
    for topic in chosen:
        code = ErrorCode(topic.error_code)
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or code is ErrorCode.INVALID_TOPIC_EXCEPTION:
            if missing is Missing.IS_LEFT_OUT:
                continue
            raise TopicMissing(f"there is no topic {topic.name!r} at {query.bootstrap}; create it first")
        if code is not ErrorCode.NONE:
            raise ApiError(code, f"topic {topic.name}: {code.name.lower().replace('_', ' ')}")
        ids[topic.name or ""] = topic.topic_id
        for each in topic.partitions:
            found[TopicPartition(topic.name or "", each.partition_index)] = each.leader_id
    chosen_at = _assigned(subscription.assigned, found, missing) if subscription.assigned else sorted(found)
    return PartitionMap(
        {at: found[at] for at in chosen_at}, {name: each for name, each in ids.items() if any(each)}
    )


def _assigned(
    assigned: Mapping[str, tuple[int, ...]], existing: Mapping[TopicPartition, int], missing: Missing
) -> list[TopicPartition]:
    asked = [TopicPartition(topic, number) for topic, numbers in assigned.items() for number in numbers]
    if missing is Missing.IS_LEFT_OUT:
        return [at for at in asked if at in existing]
    for at in asked:
        if at not in existing:
            count = sum(each.topic == at.topic for each in existing)
            raise TopicMissing(f"option assign: {at} does not exist; topic {at.topic} has {count} partitions")
    return asked


def edges(cluster: Cluster, some: Iterable[TopicPartition], edge: Start, isolation: Isolation) -> Offsets:
    """The first offset of each partition, or the one after its last readable record."""
    level = int(isolation is Isolation.READ_COMMITTED)
    found = list_offsets(cluster, dict.fromkeys(some, int(edge)), level)
    return {at: spot.offset for at, spot in found.items()}


def earliest(cluster: Cluster, at: TopicPartition) -> int:
    """The first offset of a partition."""
    return list_offsets(cluster, {at: int(Start.EARLIEST)})[at].offset


def resolve(
    cluster: Cluster, query: ReadQuery, some: list[TopicPartition], bound: Bound, side: str
) -> Offsets:
    """Where each partition begins or ends for this query."""
    if bound.edge is not None:
        return edges(cluster, some, bound.edge, query.isolation)
    if bound.timestamp_ms is not None:
        return _at_times(cluster, query, dict.fromkeys(some, bound.timestamp_ms), side)
    by_partition = bound.timestamps or bound.offsets
    asked = {
        TopicPartition(topic, number): value
        for topic, rows in by_partition.items()
        for number, value in rows.items()
    }
    option = f"{side}OffsetsByTimestamp" if bound.timestamps else f"{side}Offsets"
    if missing := [at for at in some if at not in asked]:
        names = ", ".join(map(str, missing[:5]))
        raise OptionError(f"option {option} must have every partition, and {names} is missing")
    if surplus := [at for at in asked if at not in some]:
        names = ", ".join(map(str, surplus[:5]))
        raise OptionError(f"option {option} has {names}, which the query does not read")
    if bound.timestamps:
        return _at_times(cluster, query, asked, side)
    found = {at: offset for at, offset in asked.items() if offset >= 0}
    if side == "ending" and found:
        _refuse_beyond(found, edges(cluster, found, Start.LATEST, query.isolation))
    for edge in Start:
        at_edge = [at for at, offset in asked.items() if offset == edge]
        found |= edges(cluster, at_edge, edge, query.isolation) if at_edge else {}
    return found


def between(starts: Offsets, ends: Offsets) -> dict[str, str]:
    """The options of a read from `starts` to `ends`."""
    return {
        "assign": json.dumps({topic: [*offsets] for topic, offsets in _by_topic(starts).items()}),
        "startingOffsets": offsets_json(starts),
        "endingOffsets": offsets_json(ends),
    }


def settled(query: ReadQuery, starts: Offsets, ends: Offsets) -> ReadQuery:
    """The same query with these offsets."""
    first, end = _by_topic(starts), _by_topic(ends)
    partitions = {topic: tuple(offsets) for topic, offsets in first.items()}
    chosen = Subscription(assigned=partitions)
    return replace(query, subscription=chosen, start=Bound(offsets=first), end=Bound(offsets=end))


def offsets_json(offsets: Mapping[TopicPartition, int]) -> str:
    """Offsets as the options of Spark's Kafka source take them."""
    return json.dumps(_by_topic(offsets))


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    topics: dict[str, dict[int, int]] = {}
    for at, offset in offsets.items():
        topics.setdefault(at.topic, {})[at.partition] = offset
    return topics


def _refuse_beyond(asked: Offsets, ends: Offsets) -> None:
    for at, offset in asked.items():
        if offset > ends[at]:
            raise OptionError(f"option endingOffsets is {offset} for {at}, which ends at {ends[at]}")


def _at_times(cluster: Cluster, query: ReadQuery, times: Mapping[TopicPartition, int], side: str) -> Offsets:
    """The first record at or after a time; if there is none, the end or an error, as the query says."""
    level = int(query.isolation is Isolation.READ_COMMITTED)
    spots = list_offsets(cluster, times, level)
    late = [at for at, spot in spots.items() if spot.offset < 0]
    if late and side == "starting" and not query.late_start_is_latest:
        raise OptionError(
            f"{late[0]} has no record at or after {times[late[0]]} ms; to begin at its end, add"
            ' .option("startingOffsetsByTimestampStrategy", "latest")'
        )
    ends = edges(cluster, late, Start.LATEST, query.isolation) if late else {}
    return {at: ends.get(at, spot.offset) for at, spot in spots.items()}
