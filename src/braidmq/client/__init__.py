"""A small blocking client, in the same bytes every Kafka client speaks.

    from braidmq.client import Admin, Consumer, Producer

    with Producer("127.0.0.1:9092") as producer:
        producer.send("orders", b"one coffee", key=b"table 7")

    with Consumer("127.0.0.1:9092") as consumer:
        consumer.assign("orders")
        for message in consumer.poll():
            print(message.offset, message.value)

It is what the `braid` command is written with, and enough for scripts. There is no background thread: things
happen when they are called, in the caller's thread, and an object belongs to one thread. For an application
with an event loop or consumer groups, take any Kafka client.
"""

from __future__ import annotations

from braidmq.client.admin import Admin
from braidmq.client.cluster import Cluster
from braidmq.client.connection import Connection
from braidmq.client.consumer import Consumer, Message, Start
from braidmq.client.errors import ClientError, DeliveryFailed, TimedOut, Unreachable
from braidmq.client.producer import Acks, Producer, Receipt

__all__ = [
    "Acks",
    "Admin",
    "ClientError",
    "Cluster",
    "Connection",
    "Consumer",
    "DeliveryFailed",
    "Message",
    "Producer",
    "Receipt",
    "Start",
    "TimedOut",
    "Unreachable",
]
