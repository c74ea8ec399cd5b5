"""The load generator's verbs of groups, share groups and transactions, against a codec that is not ours."""

from __future__ import annotations

import io
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from bench import wire, wire_groups, wire_share, wire_txn
from bench.members import cooperative_shares, range_shares
from kio.schema.add_partitions_to_txn.v3 import request as add_request
from kio.schema.consumer_group_heartbeat.v1 import request as beat_request
from kio.schema.consumer_group_heartbeat.v1 import response as beat_response
from kio.schema.end_txn.v3 import request as end_request
from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4 import request as heartbeat_request
from kio.schema.init_producer_id.v4 import request as init_request
from kio.schema.join_group.v7 import request as join_request
from kio.schema.join_group.v7 import response as join_response
from kio.schema.leave_group.v4 import request as leave_request
from kio.schema.offset_commit.v9 import request as commit_request
from kio.schema.offset_commit.v9 import response as commit_response
from kio.schema.offset_fetch.v8 import request as fetch_request
from kio.schema.offset_fetch.v8 import response as fetch_response
from kio.schema.produce.v9 import request as produce_request
from kio.schema.share_fetch.v1 import request as share_request
from kio.schema.share_fetch.v1 import response as share_response
from kio.schema.share_group_heartbeat.v1 import request as share_beat_request
from kio.schema.sync_group.v5 import request as sync_request
from kio.schema.types import BrokerId
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32, i32Timedelta, i64

from braidmq.wire import records

REQUEST_HEADER_BYTES = 4 + 2 + 2 + 4 + 2 + len(wire.CLIENT_ID) + 1
TOPIC_ID = bytes(range(16))
_NO_TIME = i32Timedelta.parse(timedelta())
PRODUCER = wire_txn.Producer(77, 3)


def read(frame: bytes, schema: Any) -> Any:
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    assert int.from_bytes(frame[4:6]) == schema.__api_key__
    assert int.from_bytes(frame[6:8]) == schema.__version__
    message, size = entity_reader(schema)(frame, REQUEST_HEADER_BYTES)
    assert REQUEST_HEADER_BYTES + size == len(frame)
    return message


def written(message: Any) -> bytes:
    with io.BytesIO() as buffer:
        entity_writer(type(message))(buffer, message)
        return b"\0\0\0\7\0" + buffer.getvalue()


def test_a_join_carries_what_the_member_offers() -> None:
    metadata = wire_groups.subscription("t", frozenset({4, 2}))
    request = read(wire_groups.join_frame("g", "m", "range", metadata), join_request.JoinGroupRequest)
    (offered,) = request.protocols
    assert (request.group_id, request.member_id, request.protocol_type) == ("g", "m", "consumer")
    assert (offered.name, offered.metadata) == ("range", metadata)
    assert wire_groups.owned_of(metadata) == {2, 4}
    assert wire_groups.owned_of(wire_groups.subscription("t", frozenset())) == frozenset()
    assert wire_groups.owned_of(wire_groups.subscription("t", None)) == frozenset()


def test_the_leader_reads_who_has_joined() -> None:
    members = tuple(
        join_response.JoinGroupResponseMember(member_id=name, metadata=name.encode()) for name in ("a", "b")
    )
    answer = join_response.JoinGroupResponse(
        throttle_time=_NO_TIME,
        error_code=ErrorCode.none,
        generation_id=i32(5),
        protocol_type="consumer",
        protocol_name="range",
        leader="a",
        member_id="b",
        members=members,
    )
    assert wire_groups.joined(written(answer)) == (0, 5, "a", "b", {"a": b"a", "b": b"b"})


def test_a_sync_hands_every_member_its_partitions() -> None:
    plan = {
        "a": wire_groups.assignment("t", frozenset({1, 0})),
        "b": wire_groups.assignment("t", frozenset()),
    }
    request = read(wire_groups.sync_frame("g", 3, "a", "range", plan), sync_request.SyncGroupRequest)
    given = {each.member_id: wire_groups.assigned_of(each.assignment) for each in request.assignments}
    assert (request.generation_id, given) == (3, {"a": {0, 1}, "b": frozenset()})
    assert wire_groups.assigned_of(b"") == frozenset()


def test_heartbeats_and_leaving_name_the_member() -> None:
    request = read(wire_groups.heartbeat_frame("g", 3, "m"), heartbeat_request.HeartbeatRequest)
    assert (request.group_id, request.generation_id, request.member_id) == ("g", 3, "m")
    request = read(wire_groups.leave_frame("g", "m"), leave_request.LeaveGroupRequest)
    assert [each.member_id for each in request.members] == ["m"]


def test_a_commit_carries_the_offset_of_each_partition_and_its_first_error_is_found() -> None:
    frame = wire_groups.commit_frame("g", 3, "m", "t", {0: 10, 7: 2**40})
    request = read(frame, commit_request.OffsetCommitRequest)
    (topic,) = request.topics
    assert [(each.partition_index, each.committed_offset) for each in topic.partitions] == [
        (0, 10),
        (7, 2**40),
    ]
    codes = (ErrorCode.none, ErrorCode.illegal_generation, ErrorCode.none)
    parts = tuple(
        commit_response.OffsetCommitResponsePartition(partition_index=i32(index), error_code=code)
        for index, code in enumerate(codes)
    )
    topics = (commit_response.OffsetCommitResponseTopic(name="t", partitions=parts),)
    answer = commit_response.OffsetCommitResponse(throttle_time=_NO_TIME, topics=topics)
    assert wire_groups.commit_error(written(answer)) == 22
    assert wire_groups.commit_error(written(replace(answer, topics=()))) == 0


def test_offsets_are_asked_for_and_read() -> None:
    request = read(wire_groups.offset_fetch_frame("g", "t", [3, 1]), fetch_request.OffsetFetchRequest)
    assert request.groups[0].topics[0].partition_indexes == (3, 1)
    parts = tuple(
        fetch_response.OffsetFetchResponsePartitions(
            partition_index=i32(index), committed_offset=i64(at), metadata=None, error_code=ErrorCode.none
        )
        for index, at in ((3, 30), (1, -1))
    )
    topic = fetch_response.OffsetFetchResponseTopics(name="t", partitions=parts)
    group = fetch_response.OffsetFetchResponseGroup(group_id="g", topics=(topic,), error_code=ErrorCode.none)
    answer = fetch_response.OffsetFetchResponse(throttle_time=_NO_TIME, groups=(group,))
    assert wire_groups.fetched_offsets(written(answer)) == {3: 30, 1: -1}


def test_a_server_assigned_member_tells_what_it_owns_and_reads_what_it_gets() -> None:
    frame = wire_groups.consumer_heartbeat_frame("g", "m", 4, "t", (TOPIC_ID, frozenset({2, 1})))
    request = read(frame, beat_request.ConsumerGroupHeartbeatRequest)
    assert request.subscribed_topic_names == ("t",)
    assert [(each.topic_id.bytes, each.partitions) for each in request.topic_partitions] == [
        (TOPIC_ID, (1, 2))
    ]
    frame = wire_groups.consumer_heartbeat_frame("g", "m", 4)
    request = read(frame, beat_request.ConsumerGroupHeartbeatRequest)
    assert (request.subscribed_topic_names, request.topic_partitions) == (None, None)
    parts = beat_response.TopicPartitions(topic_id=uuid.UUID(bytes=TOPIC_ID), partitions=(i32(1), i32(2)))
    answer = beat_response.ConsumerGroupHeartbeatResponse(
        throttle_time=_NO_TIME,
        error_code=ErrorCode.none,
        member_id="m",
        member_epoch=i32(6),
        heartbeat_interval=i32Timedelta.parse(timedelta(seconds=5)),
        assignment=beat_response.Assignment(topic_partitions=(parts,)),
    )
    assert wire_groups.beat(written(answer)) == (0, "m", 6, 5.0, frozenset({1, 2}))
    assert wire_groups.beat(written(replace(answer, assignment=None))).assigned is None


def test_a_share_consumer_accepts_ranges_and_asks_for_more() -> None:
    frame = wire_share.share_fetch_frame("g", "m", 9, TOPIC_ID, [(5, 7), (9, 9)], 500, 100)
    request = read(frame, share_request.ShareFetchRequest)
    part = request.topics[0].partitions[0]
    given = [
        (one.first_offset, one.last_offset, one.acknowledge_types) for one in part.acknowledgement_batches
    ]
    assert (request.max_records, request.share_session_epoch, given) == (500, 9, [(5, 7, (1,)), (9, 9, (1,))])
    request = read(
        wire_share.share_heartbeat_frame("g", "m", 0, "t"), share_beat_request.ShareGroupHeartbeatRequest
    )
    assert (request.member_id, request.subscribed_topic_names) == ("m", ("t",))


def test_acquired_ranges_of_a_share_fetch_are_read() -> None:
    part = share_response.PartitionData(
        partition_index=i32(0),
        error_code=ErrorCode.none,
        acknowledge_error_code=ErrorCode.none,
        current_leader=share_response.LeaderIdAndEpoch(leader_id=BrokerId(1), leader_epoch=i32(0)),
        records=b"x" * 300,
        acquired_records=(
            share_response.AcquiredRecords(first_offset=i64(4), last_offset=i64(9), delivery_count=i16(1)),
        ),
    )
    topic = share_response.ShareFetchableTopicResponse(topic_id=uuid.UUID(bytes=TOPIC_ID), partitions=(part,))
    answer = share_response.ShareFetchResponse(
        throttle_time=_NO_TIME,
        error_code=ErrorCode.none,
        acquisition_lock_timeout=_NO_TIME,
        responses=(topic,),
        node_endpoints=(),
    )
    assert wire_share.share_fetched(written(answer)) == (0, [(4, 9)], 300)


def test_the_verbs_of_a_transaction_name_its_producer() -> None:
    request = read(wire_txn.init_producer_frame("x"), init_request.InitProducerIdRequest)
    assert (request.transactional_id, request.producer_id) == ("x", -1)
    frame = wire_txn.add_partitions_frame("x", PRODUCER, "t", range(2, 4))
    request = read(frame, add_request.AddPartitionsToTxnRequest)
    topic = request.v3_and_below_topics[0]
    assert (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch) == PRODUCER
    assert (topic.name, topic.partitions) == ("t", (2, 3))
    request = read(wire_txn.end_frame("x", PRODUCER), end_request.EndTxnRequest)
    assert (request.producer_id, request.producer_epoch, request.committed) == (77, 3, True)


def test_a_transactional_batch_is_one_a_broker_accepts() -> None:
    batch = wire_txn.transactional_batch(wire.record_batch(b"v", 3), PRODUCER, 12)
    header = records.check_produced(memoryview(bytearray(batch)), 1_000_000)
    assert header.attributes & records.TRANSACTIONAL
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 12)
    frame = wire_txn.transactional_produce_frame("x", "t", 4, batch)
    request = read(frame, produce_request.ProduceRequest)
    part = request.topic_data[0].partition_data[0]
    assert (request.transactional_id, part.index, bytes(part.records)) == ("x", 4, batch)


def test_markers_are_passed_over_and_their_offsets_are_not_records() -> None:
    marker = bytearray(wire.record_batch(b"", 1))
    marker[wire.ATTRIBUTES_AT + 1] |= wire.CONTROL
    view = memoryview(wire.record_batch(b"v", 3) + bytes(marker))
    assert list(wire.data_batches(view, 0, len(view))) == [(3, 3), (1, 0)]


@pytest.mark.parametrize("members", [1, 3, 10, 11])
def test_range_shares_are_even_and_cover_every_partition(members: int) -> None:
    shares = range_shares([f"m{number}" for number in range(members)], 44)
    assert sorted(partition for share in shares.values() for partition in share) == list(range(44))
    assert max(map(len, shares.values())) - min(map(len, shares.values())) <= 1


def test_cooperative_shares_take_away_first_and_give_when_it_was_let_go() -> None:
    before = cooperative_shares({f"m{number}": frozenset() for number in range(3)}, 7)
    assert sorted(map(len, before.values())) == [2, 2, 3]
    first = cooperative_shares(before | {"new": frozenset()}, 7)
    assert first["new"] == frozenset()
    assert all(first[name] <= before[name] for name in before)
    second = cooperative_shares(first, 7)
    assert sorted(map(len, second.values())) == [1, 2, 2, 2]
    assert all(first[name] <= second[name] for name in first)
