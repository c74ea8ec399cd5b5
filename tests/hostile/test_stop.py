"""A broker that is told to stop."""

from __future__ import annotations

import threading

from braidmq.address import parse_address
from braidmq.client import Producer
from braidmq.client.connection import Connection
from braidmq.testing import broker
from braidmq.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

NAMES_UP_TO = 12


def test_a_stopping_broker_answers_those_who_wait_and_ends_cleanly() -> None:
    """W2 L6: on SIGTERM waiting fetches get what there is, and the next start has nothing to recover."""
    with broker() as running:
        with Producer(running.bootstrap) as producer:
            producer.send("t", b"x", partition=0)
        connection = Connection(parse_address(running.bootstrap), timeout_s=30)
        wanted = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1000)
        request = FetchRequest(
            max_wait_ms=60_000,
            min_bytes=1,
            max_bytes=1000,
            topics=[FetchTopic(topic="t", partitions=[wanted])],
        )
        answers: list[FetchResponse] = []
        waiting = threading.Thread(
            target=lambda: answers.append(connection.call(request, FetchResponse, NAMES_UP_TO))
        )
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        running.stop()
        waiting.join(10)
        assert [answer.error_code for answer in answers] == [0]
        assert answers[0].responses[0].partitions[0].high_watermark == 1
        connection.close()
        running.restart()
        assert "recovering" not in running.stderr
