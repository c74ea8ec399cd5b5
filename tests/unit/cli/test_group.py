"""`braid group`, against a real broker and a real client's group."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer as StockConsumer

from braidmq.client import Producer
from braidmq.client.cluster import Cluster
from braidmq.wire.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from braidmq.wire.messages.streams_groups import (
    HeartbeatSubtopology,
    HeartbeatTopology,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from unit.cli.conftest import Braid


def fill(bootstrap: str, topic: str, count: int) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"v%d" % number, partition=number % 2, timestamp_ms=1000 + number)


def offsets(answer: Any) -> list[tuple[int, int | None, int]]:
    return [(row["partition"], row["from"], row["to"]) for row in answer["offsets"]]


def test_a_group_is_reset_in_every_way_and_never_outside_of_its_partitions(
    braid: Braid, bootstrap: str, new_topic: Any
) -> None:
    """C7 O1: by offset, by time, by shift, to the ends; a dry run changes nothing."""
    topic = new_topic(2)
    fill(bootstrap, topic, 20)

    def reset(*how: str) -> list[tuple[int, int | None, int]]:
        return offsets(braid.json("group", "reset", f"of-{topic}", "--topic", topic, *how, "--yes"))

    assert reset("--to-latest", "--dry-run") == [(0, None, 10), (1, None, 10)]
    assert reset("--to-latest") == [(0, None, 10), (1, None, 10)]
    assert reset("--shift", "-3") == [(0, 10, 7), (1, 10, 7)]
    assert reset("--shift", "-100") == [(0, 7, 0), (1, 7, 0)]
    assert reset("--to-offset", "4") == [(0, 0, 4), (1, 0, 4)]
    assert reset("--to-offset", "999") == [(0, 4, 10), (1, 4, 10)]
    assert reset("--to-time", "1970-01-01T00:00:01.005+00:00") == [(0, 10, 3), (1, 10, 2)]
    assert reset("--to-earliest") == [(0, 3, 0), (1, 2, 0)]
    described = braid.json("group", "describe", f"of-{topic}")
    assert (described["state"], described["lag"]) == ("Empty", 20)
    assert "lag 20" in braid("group", "describe", f"of-{topic}")[0]
    assert f"of-{topic}" in braid("group", "list")[0]
    assert braid.json("group", "delete", f"of-{topic}", "--yes") == {"deleted": [f"of-{topic}"]}
    assert f"of-{topic}" not in braid("group", "list")[0]


def test_a_group_with_members_is_shown_and_not_reset(braid: Braid, bootstrap: str, new_topic: Any) -> None:
    """O1: who is in a group, and why its offsets cannot be changed now."""
    topic = new_topic(2)
    fill(bootstrap, topic, 4)
    consumer = StockConsumer(
        {"bootstrap.servers": bootstrap, "group.id": f"live-{topic}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    seen = 0
    while seen < 4:
        message = consumer.poll(30)
        seen += message is not None and message.error() is None
    consumer.commit(asynchronous=False)
    try:
        described = braid.json("group", "describe", f"live-{topic}")
        assert (described["state"], len(described["members"]), described["lag"]) == ("Stable", 1, 0)
        _, refusal = braid("group", "reset", f"live-{topic}", "--to-earliest", "--yes", code=1)
        assert "has members; stop them" in refusal
        _, refusal = braid("group", "delete", f"live-{topic}", "--yes", code=1)
        assert "NON_EMPTY_GROUP" in refusal
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (("group", "reset", "g"), "give one of --to-earliest", 2),
        (("group", "reset", "g", "--to-latest", "--shift", "1"), "give one of --to-earliest", 2),
        (("group", "reset", "g", "--to-latest", "--yes"), "committed nothing", 2),
        (("group", "reset", "g", "--to-time", "soon", "--topic", "t", "--dry-run"), "is not a time", 2),
        (("group", "describe", "nobody"), "no group 'nobody'", 1),
        (("group", "delete", "nobody", "--yes"), "GROUP_ID_NOT_FOUND", 1),
    ],
)
def test_mistakes_are_told_in_a_line(
    braid: Braid, new_topic: Any, arguments: tuple[str, ...], words: str, code: int
) -> None:
    """O1: user mistakes never show a traceback."""
    topic = new_topic(1)
    _, refusal = braid(*(topic if word == "t" else word for word in arguments), code=code)
    assert words in refusal
    assert refusal.count("\n") == 1


def test_a_group_of_kafka_streams_is_shown_with_its_tasks(
    braid: Braid, bootstrap: str, new_topic: Any
) -> None:
    """C4 O1: which task each thread of an application has."""
    topic = new_topic(2)
    group = f"app-{topic}"
    at_once = IncrementalAlterableConfig(
        name="streams.initial.rebalance.delay.ms", config_operation=0, value="0"
    )
    option = IncrementalAlterConfigsResource(resource_type=32, resource_name=group, configs=[at_once])
    joining = StreamsGroupHeartbeatRequest(
        group_id=group,
        member_id="m-1",
        rebalance_timeout_ms=1_000,
        topology=HeartbeatTopology(
            subtopologies=[HeartbeatSubtopology(subtopology_id="0", source_topics=[topic])]
        ),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="p",
    )
    with Cluster(bootstrap) as cluster:
        cluster.refresh([])
        connection = cluster.connection(next(iter(cluster.brokers)))
        connection.call(IncrementalAlterConfigsRequest(resources=[option]), IncrementalAlterConfigsResponse)
        assert connection.call(joining, StreamsGroupHeartbeatResponse).error_code == 0
        leaving = StreamsGroupHeartbeatRequest(group_id=group, member_id="m-1", member_epoch=-1)
        listed = {row["group"]: row["type"] for row in braid.json("group", "list")}
        assert listed[group] == "streams"
        shown = braid.json("group", "describe", group)
        assert (shown["state"], shown["kind"]) == ("Stable", "streams")
        assert [member["tasks"] for member in shown["members"]] == [["0_0", "0_1"]]
        assert "0_0 0_1" in braid("group", "describe", group)[0]
        assert connection.call(leaving, StreamsGroupHeartbeatResponse).error_code == 0
    assert braid.json("group", "delete", group, "--yes") == {"deleted": [group]}
