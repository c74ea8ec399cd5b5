"""Answers that send a client to another broker (KIP-951), against the generated codec."""

from __future__ import annotations

import pytest

from braidmq.wire import fetch, header, produce
from braidmq.wire.api import Api
from braidmq.wire.messages.fetch import FetchResponse
from braidmq.wire.messages.produce import NodeEndpoint, ProduceResponse
from braidmq.wire.moved import Moved, Node
from braidmq.wire.schema import decode

CODE = 6
NODES = [Node(2, "b.example.com", 9092, None), Node(3, "c" * 200, 9093, "rack 1")]
ENDPOINTS = [NodeEndpoint(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack) for one in NODES]


def body_of(api: Api, version: int, frame: bytes) -> bytes:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return frame[9 if header.has_response_tags(api, version) else 8 :]


@pytest.mark.parametrize("version", range(10, 14))
def test_produce_names_the_leader_and_where_it_is(version: int) -> None:
    """N2: a producer goes to the leader without asking for metadata."""
    topic = bytes(15) + b"\1"
    key = topic if version >= produce.TOPIC_IDS else "t"
    results = [
        produce.ProduceResult(0, 0, 7, -1, 0, None),
        produce.ProduceResult(1, CODE, -1, -1, -1, "elsewhere"),
        produce.ProduceResult(2, CODE, -1, -1, -1, "nobody"),
    ]
    moved = Moved({(key, 1): (3, 5)}, NODES)
    frame = produce.encode_response(version, 1, [("t", topic, results)], 9, moved)
    answer = decode(ProduceResponse, version, body_of(Api.PRODUCE, version, frame))
    found = [one.current_leader for one in answer.responses[0].partition_responses]
    assert [None if one is None else (one.leader_id, one.leader_epoch) for one in found] == [
        None,
        (3, 5),
        None,
    ]
    assert (answer.node_endpoints, answer.throttle_time_ms) == (ENDPOINTS, 9)


@pytest.mark.parametrize("version", range(12, 18))
def test_fetch_names_the_leader_and_where_it_is(version: int) -> None:
    """N2: the leader from version 12 on, its address from 16 on."""
    topic = bytes(15) + b"\1"
    key = topic if version >= fetch.TOPIC_IDS else "t"
    results = [
        fetch.FetchResult(0, 0, 1, 1, 0, None, -1, b"records"),
        fetch.FetchResult(1, CODE, -1, -1, -1, None, -1, b""),
    ]
    moved = Moved({(key, 1): (2, 7)}, NODES)
    parts = fetch.encode_response(version, 1, 0, 0, 0, [("t", topic, results)], moved)
    answer = decode(FetchResponse, version, body_of(Api.FETCH, version, b"".join(parts)))  # type: ignore[arg-type]
    first, second = answer.responses[0].partitions
    assert first.current_leader is None
    assert second.current_leader is not None
    assert (second.current_leader.leader_id, second.current_leader.leader_epoch) == (2, 7)
    assert answer.node_endpoints == (ENDPOINTS if version >= fetch.NODES_FROM else [])
