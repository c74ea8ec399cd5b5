"""One valid request of every verb of groups, share groups and transactions, to be damaged by tests.

Nobody they name exists, except the topic: the broker answers each of them at once, mostly with an error.
"""

from __future__ import annotations

from tests.hostile.raw import NO_TAGS, NULL_STRING, array, compact, i8, i16, i32, i64, string, uvarint

Bodies = dict[tuple[str, int, int], bytes]
TOPIC_ID = bytes(range(16))
NULL = b"\x00"


def several(*items: bytes) -> bytes:
    return uvarint(len(items) + 1) + b"".join(items)


def classic(topic: str) -> Bodies:
    """In versions with fixed-size lengths."""
    group, member, name = string("g"), string("m"), string(topic)
    protocol = string("range") + i32(3) + b"abc"
    assignment = member + i32(2) + b"xy"
    committed = i32(0) + i64(5) + string("note")
    producer = i64(1000) + i16(0)
    return {
        ("FindCoordinator", 10, 2): group + i8(0),
        ("JoinGroup", 11, 5): group + i32(10_000) + i32(10_000) + string("") + NULL_STRING
        + string("consumer") + array(protocol),
        ("SyncGroup", 14, 3): group + i32(1) + member + NULL_STRING + array(assignment),
        ("Heartbeat", 12, 3): group + i32(1) + member + NULL_STRING,
        ("LeaveGroup", 13, 3): group + array(member + NULL_STRING),
        ("OffsetCommit", 8, 5): group + i32(3) + member + array(name + array(committed)),
        ("OffsetFetch", 9, 5): group + array(name + array(i32(0))),
        ("OffsetDelete", 47, 0): group + array(name + array(i32(0))),
        ("DescribeGroups", 15, 3): array(group) + i8(0),
        ("ListGroups", 16, 2): b"",
        ("DeleteGroups", 42, 1): array(group),
        ("AddPartitionsToTxn", 24, 1): string("t") + producer + array(name + array(i32(0))),
        ("AddOffsetsToTxn", 25, 1): string("t") + producer + group,
        ("EndTxn", 26, 1): string("t") + producer + i8(1),
        ("TxnOffsetCommit", 28, 2): string("t") + group + producer
        + array(name + array(i32(0) + i64(5) + i32(-1) + string("note"))),
    }  # fmt: skip


def flexible(topic: str) -> Bodies:
    """In versions with varint lengths and tagged fields."""
    group, member, name = compact("g"), compact("m"), compact(topic)
    one_partition = name + several(i32(0)) + NO_TAGS
    settled = i64(0) + i64(4) + several(i8(1)) + NO_TAGS
    of_topic = TOPIC_ID + several(i32(0) + several(settled) + NO_TAGS) + NO_TAGS
    session = group + member + i32(1)
    producer = i64(1000) + i16(0)
    marker = producer + i8(0) + several(one_partition) + i32(0) + NO_TAGS
    task = compact("0") + several(i32(0)) + NO_TAGS
    internal = i32(0) + i16(0) + several(compact("cleanup.policy") + compact("compact") + NO_TAGS) + NO_TAGS
    joined = several(i16(0)) + several() + several(i16(0)) + NO_TAGS
    subtopology = (
        compact("0") + several(name) + several() + several(compact("changelog") + internal)
        + several(compact("sink")) + several(compact("sink") + internal) + several(joined) + NO_TAGS
    )  # fmt: skip
    return {
        ("JoinGroup", 11, 9): group + i32(10_000) + i32(10_000) + compact("") + NULL + compact("consumer")
        + several(compact("range") + several(b"a", b"b") + NO_TAGS) + NULL + NO_TAGS,
        ("OffsetCommit", 8, 9): group + i32(3) + member + NULL
        + several(name + several(i32(0) + i64(5) + i32(-1) + compact("note") + NO_TAGS) + NO_TAGS) + NO_TAGS,
        ("OffsetFetch", 9, 9): several(group + NULL + i32(-1) + several(one_partition) + NO_TAGS)
        + i8(0) + NO_TAGS,
        ("ConsumerGroupHeartbeat", 68, 1): group + member + i32(4) + NULL + NULL + i32(10_000)
        + several(name) + NULL + NULL + several(TOPIC_ID + several(i32(0)) + NO_TAGS) + NO_TAGS,
        ("ConsumerGroupDescribe", 69, 0): several(group) + i8(0) + NO_TAGS,
        ("ShareGroupHeartbeat", 76, 1): group + member + i32(4) + NULL + several(name) + NO_TAGS,
        ("ShareGroupDescribe", 77, 1): several(group) + i8(0) + NO_TAGS,
        ("ShareFetch", 78, 1): session + i32(0) + i32(1) + i32(1000) + i32(10) + i32(10)
        + several(of_topic) + several(TOPIC_ID + several(i32(0)) + NO_TAGS) + NO_TAGS,
        ("ShareAcknowledge", 79, 1): session + several(of_topic) + NO_TAGS,
        ("DescribeShareGroupOffsets", 90, 0): several(group + several(one_partition) + NO_TAGS) + NO_TAGS,
        ("AlterShareGroupOffsets", 91, 0): group
        + several(name + several(i32(0) + i64(0) + NO_TAGS) + NO_TAGS) + NO_TAGS,
        ("DeleteShareGroupOffsets", 92, 0): group + several(name + NO_TAGS) + NO_TAGS,
        ("StreamsGroupHeartbeat", 88, 0): group + member + i32(4) + i32(0) + NULL + NULL + i32(10_000)
        + i8(1) + i32(0) + several(subtopology) + NO_TAGS + several(task) + several() + several()
        + compact("process") + i8(1) + compact("host") + i16(80) + NO_TAGS
        + several(compact("tag") + compact("value") + NO_TAGS) + NULL + NULL + i8(0) + NO_TAGS,
        ("StreamsGroupDescribe", 89, 0): several(group) + i8(0) + NO_TAGS,
        ("AddPartitionsToTxn", 24, 4): several(
            compact("t") + producer + i8(0) + several(one_partition) + NO_TAGS
        ) + NO_TAGS,
        ("EndTxn", 26, 5): compact("t") + producer + i8(1) + NO_TAGS,
        ("WriteTxnMarkers", 27, 1): several(marker) + NO_TAGS,
        ("TxnOffsetCommit", 28, 5): compact("t") + group + producer + i32(-1) + member + NULL
        + several(name + several(i32(0) + i64(5) + i32(-1) + compact("note") + NO_TAGS) + NO_TAGS) + NO_TAGS,
        ("DescribeTransactions", 65, 0): several(compact("t")) + NO_TAGS,
        ("ListTransactions", 66, 2): several(compact("Ongoing")) + several(i64(7)) + i64(-1)
        + compact("a.*") + NO_TAGS,
    }  # fmt: skip
