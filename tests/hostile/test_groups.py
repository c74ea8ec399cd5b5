"""Group coordination under attack: strangers, members from the past, floods, and metadata without measure."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from tests.hostile import group_calls, raw
from tests.hostile.conftest import FOREIGN_SERVER, MEBIBYTE, PEAK_BYTES_MAX, Victim, peak_bytes
from tests.hostile.group_calls import Joined
from tests.hostile.raw import Connection

from braidmq.testing import broker

MESSAGE_TOO_LARGE, OFFSET_METADATA_TOO_LARGE, UNKNOWN_TOPIC = 10, 12, 3
ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL, INVALID_GROUP_ID = 22, 23, 24
UNKNOWN_MEMBER_ID, INVALID_SESSION_TIMEOUT, UNSUPPORTED_VERSION, INVALID_REQUEST = 25, 26, 35, 42
NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, MEMBER_ID_REQUIRED, FENCED_INSTANCE_ID = 68, 69, 79, 82
FENCED_MEMBER_EPOCH, UNSUPPORTED_ASSIGNOR, INVALID_REGULAR_EXPRESSION = 110, 112, 128
UNKNOWN_SERVER_ERROR, POLICY_VIOLATION = -1, 44

Name = Callable[[], str]


@pytest.fixture
def group(new_name: Name) -> str:
    return new_name()


@pytest.fixture
def stable(connection: Connection, group: str) -> Joined:
    """The only member of a group that has settled."""
    joined = group_calls.member(connection, group)
    assert joined.code == 0
    assert group_calls.sync(connection, group, joined.generation, joined.member_id) == 0
    return joined


def test_strangers_are_told_apart_from_members(connection: Connection, group: str, stable: Joined) -> None:
    """C4: UNKNOWN_MEMBER_ID in every verb, in a group that is there and in one that is not."""
    for name in (group, f"{group}-missing"):
        assert group_calls.join(connection, name, "eve").code == UNKNOWN_MEMBER_ID
        assert group_calls.sync(connection, name, 1, "eve") == UNKNOWN_MEMBER_ID
        assert group_calls.heartbeat(connection, name, 1, "eve") == UNKNOWN_MEMBER_ID
        assert group_calls.leave(connection, name, "eve") == UNKNOWN_MEMBER_ID
    assert group_calls.heartbeat(connection, group, stable.generation, stable.member_id) == 0


@pytest.mark.parametrize("by", [-1, 1, 2**31 - 10])
def test_members_of_another_generation_are_refused(
    connection: Connection, group: str, topic: str, stable: Joined, by: int
) -> None:
    """C4 C6: ILLEGAL_GENERATION, and what they commit is not kept."""
    generation, member_id = stable.generation + by, stable.member_id
    assert group_calls.heartbeat(connection, group, generation, member_id) == ILLEGAL_GENERATION
    assert group_calls.sync(connection, group, generation, member_id) == ILLEGAL_GENERATION
    answer = group_calls.commit(connection, group, topic, {0: (7, "")}, generation, member_id)
    assert answer == {0: ILLEGAL_GENERATION}
    assert group_calls.committed(connection, group, topic) == -1


def test_only_members_commit_for_a_group_that_has_some(
    connection: Connection, group: str, topic: str, stable: Joined
) -> None:
    """C6: neither strangers nor those who say they are alone; and nobody deletes it."""
    wanted = {0: (7, "")}
    assert group_calls.commit(connection, group, topic, wanted, stable.generation, "eve") == {
        0: UNKNOWN_MEMBER_ID
    }
    assert group_calls.commit(connection, group, topic, wanted) == {0: UNKNOWN_MEMBER_ID}
    assert group_calls.commit(connection, f"{group}-none", topic, wanted, 3, "eve") == {0: ILLEGAL_GENERATION}
    assert group_calls.delete(connection, group) == NON_EMPTY_GROUP
    assert group_calls.delete(connection, f"{group}-none") == GROUP_ID_NOT_FOUND
    assert group_calls.committed(connection, group, topic) == -1


def test_a_static_member_that_was_replaced_is_fenced(connection: Connection, group: str) -> None:
    """C4: FENCED_INSTANCE_ID for the one before; another instance id is not known."""
    before = group_calls.member(connection, group, "till-1")
    after = group_calls.member(connection, group, "till-1")
    assert (before.code, after.code) == (0, 0)
    fenced = group_calls.heartbeat(connection, group, before.generation, before.member_id, "till-1")
    assert fenced == FENCED_INSTANCE_ID
    unknown = group_calls.heartbeat(connection, group, after.generation, after.member_id, "till-2")
    assert unknown == UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("request_of", "code"),
    [
        ({"group": ""}, INVALID_GROUP_ID),
        ({"session_ms": 10}, INVALID_SESSION_TIMEOUT),
        ({"session_ms": 2**31 - 1}, INVALID_SESSION_TIMEOUT),
        ({"session_ms": -1}, INVALID_SESSION_TIMEOUT),
        ({"protocols": {}}, INCONSISTENT_GROUP_PROTOCOL),
        ({"kind": ""}, INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_join_that_cannot_be_is_refused(
    connection: Connection, group: str, request_of: dict[str, Any], code: int
) -> None:
    """C4: with Kafka's code for what is wrong."""
    assert group_calls.join(connection, request_of.pop("group", group), **request_of).code == code


def test_a_member_that_shares_no_protocol_is_refused(
    connection: Connection, group: str, stable: Joined
) -> None:
    """C4: INCONSISTENT_GROUP_PROTOCOL, and the group does not notice."""
    for odd in ({"protocols": {"mine": b""}}, {"kind": "connect"}):
        assert group_calls.join(connection, group, **odd).code == INCONSISTENT_GROUP_PROTOCOL
    assert group_calls.heartbeat(connection, group, stable.generation, stable.member_id) == 0


@pytest.mark.parametrize(
    ("request_of", "code"),
    [
        ({"group": "", "topics": ["t"]}, INVALID_REQUEST),
        ({"topics": None}, INVALID_REQUEST),
        ({"topics": ["t"], "owned": False}, INVALID_REQUEST),
        ({"topics": ["t"], "rebalance_ms": -1}, INVALID_REQUEST),
        ({"topics": ["t"], "instance": ""}, INVALID_REQUEST),
        ({"topics": ["t"], "member_id": ""}, INVALID_REQUEST),
        ({"topics": ["t"], "assignor": "mine"}, UNSUPPORTED_ASSIGNOR),
        ({"regex": "("}, INVALID_REGULAR_EXPRESSION),
        ({"epoch": 5, "topics": ["t"]}, GROUP_ID_NOT_FOUND),
    ],
)
def test_a_first_heartbeat_that_cannot_be_is_refused(
    connection: Connection, group: str, request_of: dict[str, Any], code: int
) -> None:
    """C4: KIP-848's checks and codes."""
    name, member_id = request_of.pop("group", group), request_of.pop("member_id", "m")
    assert group_calls.consumer_heartbeat(connection, name, member_id, **request_of)[0] == code


def test_members_with_another_epoch_are_fenced(connection: Connection, group: str, topic: str) -> None:
    """C4 C6: FENCED_MEMBER_EPOCH for heartbeats, and no commit in the words of the other protocol."""
    code, epoch = group_calls.consumer_heartbeat(connection, group, "m", topics=[topic])
    assert code == 0
    for wrong, answer in ((epoch + 97, FENCED_MEMBER_EPOCH), (-7, INVALID_REQUEST), (-2, INVALID_REQUEST)):
        assert group_calls.consumer_heartbeat(connection, group, "m", wrong)[0] == answer
    assert group_calls.consumer_heartbeat(connection, group, "eve", epoch)[0] == UNKNOWN_MEMBER_ID
    wanted = {0: (7, "")}
    assert group_calls.commit(connection, group, topic, wanted, epoch, "m") == {0: UNSUPPORTED_VERSION}
    assert group_calls.commit(connection, group, topic, wanted) == {0: UNKNOWN_MEMBER_ID}


def test_members_of_a_share_group_are_held_to_their_epochs(
    connection: Connection, group: str, topic: str
) -> None:
    """C3: the same codes, and nobody joins with another protocol."""
    assert group_calls.share_heartbeat(connection, group, "m", 4, [topic])[0] == GROUP_ID_NOT_FOUND
    code, epoch = group_calls.share_heartbeat(connection, group, "m", 0, [topic])
    assert code == 0
    assert group_calls.share_heartbeat(connection, group, "m", epoch + 8)[0] == FENCED_MEMBER_EPOCH
    assert group_calls.share_heartbeat(connection, group, "eve", epoch)[0] == UNKNOWN_MEMBER_ID
    assert group_calls.share_heartbeat(connection, group, "n", 0)[0] == INVALID_REQUEST
    assert group_calls.join(connection, group).code == INCONSISTENT_GROUP_PROTOCOL
    assert group_calls.consumer_heartbeat(connection, group, "m", topics=[topic])[0] == GROUP_ID_NOT_FOUND


def test_oversized_metadata_of_an_offset_is_refused_alone(
    connection: Connection, group: str, topic: str
) -> None:
    """C6: OFFSET_METADATA_TOO_LARGE past 4,096 characters, whatever they are; other partitions are kept."""
    assert group_calls.commit(connection, group, topic, {0: (1, "x" * 4097)}) == {
        0: OFFSET_METADATA_TOO_LARGE
    }
    assert group_calls.commit(connection, group, topic, {0: (2, "ü" * 4096)}) == {0: 0}
    codes = group_calls.commit(connection, group, topic, {0: (3, "x" * 30_000), 9: (1, "")})
    assert codes == {0: OFFSET_METADATA_TOO_LARGE, 9: UNKNOWN_TOPIC}
    assert group_calls.committed(connection, group, topic) == 2


@pytest.mark.parametrize("size", [600_000, 4 * MEBIBYTE])
def test_oversized_metadata_of_a_member_does_not_get_into_a_group(
    connection: Connection, group: str, size: int
) -> None:
    """C4 W5: refused when it joins; Kafka lets it in and cannot store the group then."""
    offered = {"range": group_calls.subscription("t", size)}
    joined = group_calls.join(connection, group, protocols=offered, version=3)
    if joined.code == 0:
        code = group_calls.sync(connection, group, joined.generation, joined.member_id)
        assert code in (0, UNKNOWN_SERVER_ERROR)
    else:
        assert joined.code == MESSAGE_TOO_LARGE


def test_an_oversized_assignment_is_not_stored(connection: Connection, group: str) -> None:
    """C4: the leader is told, and may do better."""
    leader = group_calls.member(connection, group)
    assignment = {leader.member_id: bytes(4 * MEBIBYTE)}
    code = group_calls.sync(connection, group, leader.generation, leader.member_id, assignment)
    assert code in (MESSAGE_TOO_LARGE, UNKNOWN_SERVER_ERROR)
    again = group_calls.join(connection, group, leader.member_id)
    assert again.generation >= leader.generation
    assert group_calls.sync(connection, group, again.generation, again.member_id) == 0


def test_a_subscription_to_a_flood_of_topics_is_refused(connection: Connection, group: str) -> None:
    """C4: MESSAGE_TOO_LARGE; Kafka tries to store it and fails."""
    topics = [f"topic-{number:060d}" for number in range(20_000)]
    code, _ = group_calls.consumer_heartbeat(connection, group, "m", topics=topics)
    assert code in (MESSAGE_TOO_LARGE, UNKNOWN_SERVER_ERROR)
    assert group_calls.consumer_heartbeat(connection, group, "m", topics=topics[:10])[0] == 0


@pytest.mark.parametrize("length", [1_001, 30_000])
def test_names_that_nobody_needs_are_refused(connection: Connection, topic: str, length: int) -> None:
    """C4 W5: ids of groups and members end at a thousand bytes; Kafka keeps what the protocol can carry."""
    name = "n" * length
    assert group_calls.join(connection, name).code in (INVALID_GROUP_ID, MEMBER_ID_REQUIRED)
    assert group_calls.commit(connection, name, topic, {0: (1, "")})[0] in (INVALID_GROUP_ID, 0)
    for where in ({"group": name, "member_id": "m"}, {"group": "g", "member_id": name}):
        code, _ = group_calls.consumer_heartbeat(connection, **where, topics=[topic])
        assert code in (INVALID_REQUEST, 0)


@pytest.mark.parametrize("field", ["group", "member_id", "regex"])
def test_a_string_past_what_kafka_reads_ends_the_connection(
    connection: Connection, group: str, field: str
) -> None:
    """W5: compact lengths could say more than 32,767 bytes; no string may."""
    fields: dict[str, Any] = {"group": group, "member_id": "m", "regex": "a"} | {field: "n" * 40_000}
    with pytest.raises(AssertionError, match="closed the connection"):
        group_calls.consumer_heartbeat(connection, **fields)


def test_a_client_id_as_long_as_it_gets_does_no_harm(bootstrap: str, group: str) -> None:
    """W5 C4: member ids are made from it, and have to fit where they are stored."""
    with Connection(bootstrap) as connection:
        body = raw.string(group) + raw.i32(10_000) + raw.i32(10_000) + raw.string("")
        body += raw.string("consumer") + raw.array(raw.string("range") + raw.i32(1) + b"m")
        head = raw.i16(group_calls.JOIN_GROUP) + raw.i16(3) + raw.i32(1) + raw.string("c" * 32_760)
        connection.send(raw.framed(head + body))
        answer = connection.frame()
        assert answer is not None
        assert int.from_bytes(answer[8:10], "big", signed=True) in (INVALID_REQUEST, UNKNOWN_SERVER_ERROR)


def test_a_flood_of_groups_is_bounded(victim: Victim, connection: Connection, topic: str) -> None:
    """W5 C4: three thousand groups that somebody commits to once cost a few megabytes."""
    codes = {
        group_calls.commit(connection, f"{topic}-{number}", topic, {0: (1, "x" * 100)})[0]
        for number in range(3_000)
    }
    assert codes == {0}
    assert victim.growth_bytes < 64 * MEBIBYTE


def test_a_flood_of_members_is_bounded(victim: Victim, connection: Connection, group: str) -> None:
    """W5 C4: thousands of ids are given out and never used, thousands of members join one group."""
    for _ in range(3_000):
        assert group_calls.join(connection, group).code == MEMBER_ID_REQUIRED
    for number in range(300):
        code, _ = group_calls.consumer_heartbeat(connection, f"{group}-s", f"m{number}", topics=["t"])
        assert code == 0
    assert victim.growth_bytes < 64 * MEBIBYTE


@pytest.mark.skipif(FOREIGN_SERVER in os.environ, reason="a limit of ours")
def test_members_with_all_they_may_bring_do_not_use_up_the_memory() -> None:
    """W5 C4: newcomers are refused when all members together weigh too much, and nobody waits in vain."""
    offered = raw.array(raw.string("range") + raw.i32(500_000) + bytes(500_000))
    rest = raw.i32(10_000) + raw.i32(10_000) + raw.string("") + raw.string("consumer") + offered
    with broker() as server, Connection(server.bootstrap) as connection:
        for number in range(350):
            body = raw.string(f"heavy-{number}") + rest
            connection.send(raw.framed(raw.request(group_calls.JOIN_GROUP, 3, body, correlation=number)))
            if number % 10 == 9:
                assert peak_bytes(server.pid) < PEAK_BYTES_MAX
        codes = [raw.Reader(connection.frame() or b"").view[8:10] for _ in range(350)]
        found = [int.from_bytes(code, "big", signed=True) for code in codes]
        assert set(found) == {0, POLICY_VIOLATION}
        assert 220 < found.count(0) < 300
        assert peak_bytes(server.pid) < PEAK_BYTES_MAX
