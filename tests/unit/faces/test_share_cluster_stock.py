"""Share groups of confluent-kafka over three brokers, one of which is restarted meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path

from confluent_kafka import Producer, ShareConsumer
from tests.cluster import Cluster, cluster

RECORDS = 600
PATIENCE_S = 60


class Worker:
    """A member in a thread of its own; counts what it was given and what was confirmed."""

    def __init__(self, bootstrap: str, done: threading.Event) -> None:
        self.given: Counter[bytes] = Counter()
        self.confirmed: set[bytes] = set()
        self._done = done
        self._consumer = ShareConsumer(
            {"bootstrap.servers": bootstrap, "group.id": "workers", "share.acknowledgement.mode": "explicit"}
        )
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        self._consumer.subscribe(["jobs"])
        while not self._done.is_set():
            messages = [one for one in self._consumer.poll(0.5) if one.error() is None]
            for message in messages:
                self.given[message.value()] += 1
                self._consumer.acknowledge(message)
            if messages:
                outcome = self._consumer.commit_sync(10)
                failed = {(one.topic, one.partition) for one, error in outcome.items() if error is not None}
                self.confirmed |= {
                    one.value() for one in messages if (one.topic(), one.partition()) not in failed
                }
        self._consumer.close()

    def join(self) -> None:
        self._thread.join()


def produce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce("jobs", str(number).encode(), partition=number % 6)
    assert producer.flush(30) == 0


def test_every_record_is_confirmed_once_whichever_broker_is_restarted(tmp_path: Path) -> None:
    """N4 C1: two members of a stock client; what was confirmed to one comes to nobody again."""

    async def run() -> None:
        async with cluster(tmp_path, 3, group_share_auto_offset_reset="earliest") as brokers:
            topic = await brokers[1].broker.topics.create("jobs", 6, {})
            await brokers.shown(topic.id)
            done = threading.Event()
            workers = [await asyncio.to_thread(Worker, brokers.bootstrap, done) for _ in range(2)]
            try:
                await asyncio.to_thread(produce, brokers.bootstrap)
                await brokers.restart(2)
                await brokers.complete(3)
                await until_confirmed(workers)
            finally:
                done.set()
                for worker in workers:
                    await asyncio.to_thread(worker.join)
            assert not workers[0].confirmed & workers[1].confirmed
            assert await left(brokers) == 0

    asyncio.run(run())


async def until_confirmed(workers: list[Worker]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(workers[0].confirmed | workers[1].confirmed) < RECORDS:
            await asyncio.sleep(0.1)


async def left(brokers: Cluster) -> int:
    """How many records of the group are not settled, as the leaders see it."""
    return sum(part.lag for node in brokers for part in node.broker.share_delivery)
