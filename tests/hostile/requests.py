"""One valid request of every API the broker serves, classic and flexible, to be damaged by tests."""

from __future__ import annotations

from typing import NamedTuple

from tests.hostile import batches, calls, group_requests, raw
from tests.hostile.raw import NO_TAGS, array, compact, i8, i16, i32, i64, string, uvarint


class Valid(NamedTuple):
    name: str
    api: int
    version: int
    flexible: bool
    body: bytes

    def framed(self, body: bytes | None = None) -> bytes:
        whole = self.body if body is None else body
        return raw.framed(raw.request(self.api, self.version, whole, flexible=self.flexible))


def compact_array(*items: bytes) -> bytes:
    return uvarint(len(items) + 1) + b"".join(items)


def _classic(topic: str) -> list[Valid]:
    name = string(topic)
    option = string("retention.ms")
    bodies = {
        ("ApiVersions", raw.API_VERSIONS, 0): b"",
        ("Metadata", raw.METADATA, 4): array(name) + i8(1),
        ("Produce", raw.PRODUCE, 7): calls.produce_body(topic, batches.simple(b"v")),
        ("Fetch", raw.FETCH, 11): calls.fetch_body(topic, 0),
        ("ListOffsets", raw.LIST_OFFSETS, 1): i32(-1) + array(name + array(i32(0) + i64(-1))),
        ("InitProducerId", raw.INIT_PRODUCER_ID, 1): raw.NULL_STRING + i32(60_000),
        ("OffsetForLeaderEpoch", raw.OFFSET_FOR_LEADER_EPOCH, 2): array(
            name + array(i32(0) + i32(-1) + i32(0))
        ),
        ("CreateTopics", raw.CREATE_TOPICS, 4): array(
            string(topic + "-new") + i32(1) + i16(1) + array() + array(option + string("1000000"))
        )
        + i32(1000)
        + i8(0),
        ("DeleteTopics", raw.DELETE_TOPICS, 3): array(string(topic + "-new")) + i32(1000),
        ("CreatePartitions", raw.CREATE_PARTITIONS, 1): array(name + i32(2) + i32(-1)) + i32(1000) + i8(1),
        ("DeleteRecords", raw.DELETE_RECORDS, 1): array(name + array(i32(0) + i64(0))) + i32(1000),
        ("DescribeConfigs", raw.DESCRIBE_CONFIGS, 1): array(i8(2) + name + i32(-1)) + i8(1),
        ("AlterConfigs", raw.ALTER_CONFIGS, 1): array(i8(2) + name + array(option + string("900000")))
        + i8(0),
        ("IncrementalAlterConfigs", raw.INCREMENTAL_ALTER_CONFIGS, 0): array(
            i8(2) + name + array(option + i8(0) + string("800000"))
        )
        + i8(0),
        ("DescribeLogDirs", raw.DESCRIBE_LOG_DIRS, 1): array(name + array(i32(0))),
        ("AlterReplicaLogDirs", raw.ALTER_REPLICA_LOG_DIRS, 1): array(
            string("/etc") + array(name + array(i32(0)))
        ),
        ("ElectLeaders", raw.ELECT_LEADERS, 1): i8(0) + array(name + array(i32(0))) + i32(1000),
    }
    return [Valid(label, api, version, False, body) for (label, api, version), body in bodies.items()]


def _flexible(topic: str) -> list[Valid]:
    name = compact(topic)
    records = batches.simple(b"v")
    piece = i32(0) + uvarint(len(records) + 1) + records + NO_TAGS
    home = i32(0) + i32(-1) + i64(0) + i32(-1) + i64(-1) + i32(1000) + NO_TAGS
    limits = i32(-1) + i32(0) + i32(1) + i32(1000) + i8(0) + i32(0) + i32(-1)
    bodies = {
        ("ApiVersions", raw.API_VERSIONS, 3): compact("hostile") + compact("1.0") + NO_TAGS,
        ("Metadata", raw.METADATA, 9): compact_array(name + NO_TAGS) + i8(1) + i8(0) + i8(0) + NO_TAGS,
        ("Produce", raw.PRODUCE, 9): b"\x00"
        + i16(-1)
        + i32(1000)
        + compact_array(name + compact_array(piece) + NO_TAGS)
        + NO_TAGS,
        ("Fetch", raw.FETCH, 12): limits
        + compact_array(name + compact_array(home) + NO_TAGS)
        + compact_array()
        + compact("")
        + NO_TAGS,
        ("ListOffsets", raw.LIST_OFFSETS, 6): i32(-1)
        + i8(0)
        + compact_array(name + compact_array(i32(0) + i32(-1) + i64(-1) + NO_TAGS) + NO_TAGS)
        + NO_TAGS,
        ("InitProducerId", raw.INIT_PRODUCER_ID, 2): b"\x00" + i32(60_000) + NO_TAGS,
        ("DescribeCluster", raw.DESCRIBE_CLUSTER, 0): i8(0) + NO_TAGS,
        ("DescribeProducers", raw.DESCRIBE_PRODUCERS, 0): compact_array(
            name + compact_array(i32(0)) + NO_TAGS
        )
        + NO_TAGS,
        ("DescribeTopicPartitions", raw.DESCRIBE_TOPIC_PARTITIONS, 0): compact_array(name + NO_TAGS)
        + i32(100)
        + b"\xff"
        + NO_TAGS,
        **_of_administration(name),
    }
    return [Valid(label, api, version, True, body) for (label, api, version), body in bodies.items()]


def _of_administration(name: bytes) -> dict[tuple[str, int, int], bytes]:
    metadata = compact("__cluster_metadata")
    return {
        ("ListPartitionReassignments", raw.LIST_PARTITION_REASSIGNMENTS, 0): i32(1000)
        + compact_array(name + compact_array(i32(0)) + NO_TAGS)
        + NO_TAGS,
        ("DescribeQuorum", raw.DESCRIBE_QUORUM, 2): compact_array(
            metadata + compact_array(i32(0) + NO_TAGS) + NO_TAGS
        )
        + NO_TAGS,
        ("UpdateFeatures", raw.UPDATE_FEATURES, 1): i32(1000)
        + compact_array(compact("share.version") + i16(1) + i8(1) + NO_TAGS)
        + i8(1)
        + NO_TAGS,
        ("ListConfigResources", raw.LIST_CONFIG_RESOURCES, 1): compact_array(i8(2), i8(4)) + NO_TAGS,
    }


def _of_groups(topic: str) -> list[Valid]:
    tables = ((False, group_requests.classic(topic)), (True, group_requests.flexible(topic)))
    return [
        Valid(label, api, version, flexible, body)
        for flexible, bodies in tables
        for (label, api, version), body in bodies.items()
    ]


def valid_requests(topic: str) -> list[Valid]:
    return _classic(topic) + _flexible(topic) + _of_groups(topic)


NAMES = [f"{valid.name} v{valid.version}" for valid in valid_requests("t")]
