"""What a stock client reads at read_committed, from the beginning to the end of a topic."""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import Consumer, Message, TopicPartition

from braidmq.client import Cluster
from braidmq.client.transactions import TransactionAdmin

BEING_ENDED = ("PrepareCommit", "PrepareAbort")
WAIT_S = 20


def committed(bootstrap: str, topic: str, partitions: int) -> Iterator[Message]:
    """Every committed message; transactions that are being ended are waited for, open ones are not."""
    with Cluster(bootstrap) as cluster:
        while TransactionAdmin(cluster).all(states=BEING_ENDED):
            cluster.clock.sleep(0.01)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    ended = 0
    while ended < partitions:
        message = consumer.poll(WAIT_S)
        assert message is not None, f"nothing came for {WAIT_S} s"
        if message.error() is None:
            yield message
        else:
            ended += 1
    consumer.close()
