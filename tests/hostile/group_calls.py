"""Well-formed requests to a group coordinator, in classic versions where there are some."""

from __future__ import annotations

from typing import NamedTuple

from tests.hostile.raw import (
    NO_TAGS,
    NULL_STRING,
    Connection,
    Reader,
    array,
    compact,
    framed,
    i16,
    i32,
    i64,
    request,
    string,
    uvarint,
)

OFFSET_COMMIT, OFFSET_FETCH, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 8, 9, 11, 12, 13, 14
DESCRIBE_GROUPS, DELETE_GROUPS, CONSUMER_GROUP_HEARTBEAT, SHARE_GROUP_HEARTBEAT = 15, 42, 68, 76
CORRELATION = 77


class Joined(NamedTuple):
    code: int
    generation: int
    member_id: str


def subscription(topic: str, padding: int = 0) -> bytes:
    """What a consumer says in its JoinGroup, with as much of its own behind it as is wanted."""
    return i16(0) + array(string(topic)) + i32(padding) + bytes(padding)


def join(
    connection: Connection,
    group: str,
    member_id: str = "",
    *,
    session_ms: int = 10_000,
    rebalance_ms: int = 10_000,
    kind: str = "consumer",
    protocols: dict[str, bytes] | None = None,
    instance: str | None = None,
    version: int = 5,
) -> Joined:
    """JoinGroup; up to version 3 a newcomer is a member at once, from 4 on it is told its id first."""
    offered = {"range": subscription("t")} if protocols is None else protocols
    static = b"" if version < 5 else NULL_STRING if instance is None else string(instance)
    body = string(group) + i32(session_ms) + i32(rebalance_ms) + string(member_id) + static + string(kind)
    body += array(*(string(name) + i32(len(data)) + data for name, data in offered.items()))
    answer = connection.call(JOIN_GROUP, version, body)
    answer.i32()
    code, generation = answer.i16(), answer.i32()
    answer.string()
    answer.string()
    return Joined(code, generation, answer.string() or "")


def member(connection: Connection, group: str, instance: str | None = None) -> Joined:
    """Joins for good."""
    joined = join(connection, group, instance=instance)
    if joined.code == 79:
        joined = join(connection, group, joined.member_id, instance=instance)
    return joined


def sync(
    connection: Connection,
    group: str,
    generation: int,
    member_id: str,
    assignments: dict[str, bytes] | None = None,
) -> int:
    """SyncGroup v1: the code."""
    shares = array(*(string(name) + i32(len(data)) + data for name, data in (assignments or {}).items()))
    answer = connection.call(SYNC_GROUP, 1, string(group) + i32(generation) + string(member_id) + shares)
    answer.i32()
    return answer.i16()


def heartbeat(
    connection: Connection, group: str, generation: int, member_id: str, instance: str | None = None
) -> int:
    """Heartbeat v3: the code."""
    static = NULL_STRING if instance is None else string(instance)
    body = string(group) + i32(generation) + string(member_id) + static
    answer = connection.call(HEARTBEAT, 3, body)
    answer.i32()
    return answer.i16()


def leave(connection: Connection, group: str, member_id: str) -> int:
    """LeaveGroup v1: the code."""
    answer = connection.call(LEAVE_GROUP, 1, string(group) + string(member_id))
    answer.i32()
    return answer.i16()


def commit(
    connection: Connection,
    group: str,
    topic: str,
    offsets: dict[int, tuple[int, str]],
    generation: int = -1,
    member_id: str = "",
) -> dict[int, int]:
    """OffsetCommit v5 of {partition: (offset, metadata)}: the code of each partition."""
    parts = array(*(i32(index) + i64(offset) + string(text) for index, (offset, text) in offsets.items()))
    body = string(group) + i32(generation) + string(member_id) + array(string(topic) + parts)
    answer = connection.call(OFFSET_COMMIT, 5, body)
    answer.i32()
    assert answer.i32() == 1
    answer.string()
    return {answer.i32(): answer.i16() for _ in range(answer.i32())}


def committed(connection: Connection, group: str, topic: str, partition: int = 0) -> int:
    """OffsetFetch v3: the offset, -1 if there is none."""
    answer = connection.call(OFFSET_FETCH, 3, string(group) + array(string(topic) + array(i32(partition))))
    answer.i32()
    assert answer.i32() == 1
    answer.string()
    assert answer.i32() == 1
    answer.i32()
    return answer.i64()


def delete(connection: Connection, group: str) -> int:
    """DeleteGroups v1: the code."""
    answer = connection.call(DELETE_GROUPS, 1, array(string(group)))
    answer.i32()
    assert answer.i32() == 1
    answer.string()
    return answer.i16()


def consumer_heartbeat(
    connection: Connection,
    group: str,
    member_id: str,
    epoch: int = 0,
    *,
    instance: str | None = None,
    topics: list[str] | None = None,
    regex: str | None = None,
    assignor: str | None = None,
    owned: bool = True,
    rebalance_ms: int = 10_000,
) -> tuple[int, int]:
    """ConsumerGroupHeartbeat v1: (code, member epoch). By default somebody who joins."""
    names = b"\x00" if topics is None else uvarint(len(topics) + 1) + b"".join(compact(t) for t in topics)
    body = compact(group) + compact(member_id) + i32(epoch) + _nullable(instance) + _nullable(None)
    body += i32(rebalance_ms) + names + _nullable(regex) + _nullable(assignor)
    body += (b"\x01" if owned else b"\x00") + NO_TAGS
    answer = flexible(connection, CONSUMER_GROUP_HEARTBEAT, 1, body)
    return _heartbeat_answer(answer)


def share_heartbeat(
    connection: Connection, group: str, member_id: str, epoch: int = 0, topics: list[str] | None = None
) -> tuple[int, int]:
    """ShareGroupHeartbeat v1: (code, member epoch)."""
    names = b"\x00" if topics is None else uvarint(len(topics) + 1) + b"".join(compact(t) for t in topics)
    body = compact(group) + compact(member_id) + i32(epoch) + _nullable(None) + names + NO_TAGS
    return _heartbeat_answer(flexible(connection, SHARE_GROUP_HEARTBEAT, 1, body))


def _heartbeat_answer(answer: Reader) -> tuple[int, int]:
    answer.i32()
    code = answer.i16()
    for _ in range(2):
        answer.compact()
    return code, answer.i32()


def _nullable(text: str | None) -> bytes:
    return b"\x00" if text is None else compact(text)


def flexible(connection: Connection, api: int, version: int, body: bytes) -> Reader:
    connection.send(framed(request(api, version, body, flexible=True, correlation=CORRELATION)))
    answer = connection.frame()
    assert answer is not None, "the broker closed the connection on a valid request"
    reader = Reader(answer)
    assert reader.i32() == CORRELATION
    assert reader.i8() == 0
    return reader
