"""What a forwarding listener keeps of its clients, and what ends with them."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from uuid import uuid4

from braidmq.address import parse_address
from braidmq.client import Admin
from braidmq.client.connection import Connection
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from braidmq.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from braidmq.wire.messages.share_fetch import AcknowledgePartition, AcknowledgeTopic, ShareFetchRequest
from braidmq.wire.messages.transactions import WriteTxnMarkersRequest
from braidmq.wire.records import build_batch
from braidmq.wire.schema import Message, encode
from unit.forwarding.cluster import Front


def led_by(front: Front, node_id: int, topic: str) -> list[int]:
    broker = front[1].broker
    topic_id = broker.topics.get(topic).id
    return [at for at in range(6) if broker.leader(topic_id, at).node_id == node_id]


def made(front: Front, name: str = "t") -> None:
    with Admin(front.address) as admin:
        admin.create_topic(name, 6)


def connected(front: Front) -> Connection:
    return Connection(parse_address(front.address))


def produce(indexes: list[int], value: bytes, acks: int = -1) -> ProduceRequest:
    batch = build_batch([(None, value, [], 1_700_000_000_000)])
    data = [PartitionProduceData(index=at, records=batch) for at in indexes]
    return ProduceRequest(
        acks=acks, timeout_ms=5000, topic_data=[TopicProduceData(name="t", partition_data=data)]
    )


def fetch(positions: dict[int, int], **fields: int) -> FetchRequest:
    parts = [
        FetchPartition(partition=at, fetch_offset=offset, partition_max_bytes=1 << 20)
        for at, offset in positions.items()
    ]
    return FetchRequest(
        max_wait_ms=500, min_bytes=1, topics=[FetchTopic(topic="t", partitions=parts)], **fields
    )


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def counted(front: Front, node_id: int) -> int:
    return front[node_id].service._reactor.connection_count


def test_a_client_that_wants_no_answer_is_forwarded_too(front: Front) -> None:
    """N5: records with acks=0 arrive at their leaders, and the next answer is that of the next request."""
    made(front)
    with connected(front) as client:
        for _ in range(20):
            client.send(produce([0, 1, 2, 3, 4, 5], b"unasked", acks=0), 9)
        answer = client.call(produce([0, 1, 2, 3, 4, 5], b"asked"), ProduceResponse, 9)
        assert [part.base_offset for topic in answer.responses for part in topic.partition_responses] == [
            20
        ] * 6


def test_pipelined_requests_keep_their_order(front: Front) -> None:
    """N5: requests for several leaders and for this broker alone, sent at once, are taken in order."""
    made(front)
    own = led_by(front, 1, "t")[0]
    everywhere = [0, 1, 2, 3, 4, 5]
    asked = [everywhere, [own], [own], everywhere, [own], everywhere]
    with connected(front) as client:
        for indexes in asked:
            client.send(produce(indexes, b"x"), 9)
        found = []
        for _ in asked:
            answer = client.receive(ProduceResponse, 9)
            parts = [part for topic in answer.responses for part in topic.partition_responses]
            found += [part.base_offset for part in parts if part.index == own]
    assert found == list(range(len(asked)))


def test_a_fetch_of_all_leaders_names_every_partition_and_keeps_no_session(front: Front) -> None:
    """N5: a full answer each time, also of leaders that have nothing; an old session is unknown."""
    made(front)
    with connected(front) as client:
        client.call(produce([0], b"x"), ProduceResponse, 9)
        for _ in range(3):
            began = time.monotonic()
            answer = client.call(fetch(dict.fromkeys(range(6), 0), session_epoch=0), FetchResponse, 12)
            assert answer.session_id == 0
            parts = {part.partition_index: part for topic in answer.responses for part in topic.partitions}
            assert sorted(parts) == list(range(6))
            assert parts[0].records
            assert {part.error_code for part in parts.values()} == {0}
            assert time.monotonic() - began < 0.4, "the wait of the others was not waited for"
        lost = client.call(fetch({0: 0}, session_id=9, session_epoch=3), FetchResponse, 12)
        assert lost.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_connections_to_others_end_with_the_client(front: Front) -> None:
    """N5: nothing is kept of a client that is gone."""
    made(front)
    before = {node_id: counted(front, node_id) for node_id in (2, 3)}
    client = connected(front)
    client.call(produce([0, 1, 2, 3, 4, 5], b"x"), ProduceResponse, 9)
    assert all(counted(front, node_id) > before[node_id] for node_id in (2, 3))
    client.close()
    until(lambda: all(counted(front, node_id) <= before[node_id] for node_id in (2, 3)))


def test_a_client_that_sends_faster_than_leaders_take_is_not_read(front: Front) -> None:
    """N5: a leader that stands still stops its client, at some megabytes, and nobody else."""
    made(front)
    remote = led_by(front, 2, "t")[0]
    sent_bytes = 0
    with connected(front) as slow, connected(front) as other:
        slow.call(produce([remote], b"x"), ProduceResponse, 9)
        reactor = front[2].service._reactor
        stopped = list(reactor._connections)

        async def stand_still() -> None:
            for connection in stopped:
                connection._pause()

        front.run(stand_still())
        body = produce([remote], b"x" * 500_000)
        frame = slow.frame(body.api, 9, encode(body, 9))
        slow._socket.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            while sent_bytes < 100_000_000:
                sent_bytes += slow._socket.send(frame[sent_bytes % len(frame) :])
        assert sent_bytes < 40_000_000
        answer = other.call(produce(led_by(front, 3, "t")[:1], b"y"), ProduceResponse, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0


def test_a_client_does_not_become_a_broker_by_being_forwarded(front: Front) -> None:
    """N5: a verb between brokers is refused here as on any other listener."""
    with connected(front) as client, connected_to(front[2].address) as direct:
        request = WriteTxnMarkersRequest(markers=[])
        assert answered(client, request) == answered(direct, request)


def connected_to(address: str) -> Connection:
    return Connection(parse_address(address))


def answered(client: Connection, request: Message) -> bytes:
    version = client.version(type(request))
    client.send(request, version)
    return bytes(client.receive_frame()[4:])


def test_nonsense_closes_the_connection(front: Front) -> None:
    """N5: bytes that are no request end the connection, as on any listener."""
    address = parse_address(front.address)
    with socket.create_connection(address, 5) as sock:
        sock.sendall((20).to_bytes(4, "big") + b"\0\0\0\x09" + b"\xff" * 16)
        assert sock.recv(100) == b""


def test_a_share_fetch_ends_with_its_client(front: Front) -> None:
    """N5: nobody asks leaders on for a member that is gone, over connections that nobody would close."""
    made(front)
    topic_id = front[1].broker.topics.get("t").id
    lent = front[1].broker.peers._lent
    asked = [AcknowledgePartition(partition_index=at) for at in range(6)]
    for _ in range(5):
        client = connected(front)
        request = ShareFetchRequest(
            group_id="g", member_id=str(uuid4()), max_wait_ms=2**31 - 1, max_bytes=1000, max_records=10,
            topics=[AcknowledgeTopic(topic_id=topic_id, partitions=asked)],
        )  # fmt: skip
        client.send(request, 1)
        until(lambda: len(lent) == 3)
        time.sleep(0.3)
        client.close()
        until(lambda: not lent)
    time.sleep(0.3)
    assert not lent


def test_fetches_that_are_sent_at_once_do_not_pile_up_their_answers(front: Front) -> None:
    """N5: what leaders may send is held in memory here, so few fetches of a client are under way."""
    made(front)
    positions = dict.fromkeys([*led_by(front, 2, "t"), *led_by(front, 3, "t")], 0)
    with connected(front) as client:
        for number in range(100):
            request = fetch(positions, max_bytes=50_000_000 + number)
            request.max_wait_ms = 300
            client.send(request, 12)
        until(lambda: bool(front[1].broker.peers._lent))
        time.sleep(0.2)
        links = list(front[1].broker.peers._lent)
        owed = [0 if link._wire is None else len(link._wire.questions) for link in links]
        assert max(owed) <= 2
