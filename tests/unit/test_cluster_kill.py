"""kill -9 of one of three brokers that `braid serve --brokers 3` runs: real processes, Braid's own client."""

from __future__ import annotations

import os
import signal
import threading
import time

from braidmq.client import Admin, Cluster, Consumer, Producer
from braidmq.client.cluster import TopicPartition
from braidmq.client.errors import Unreachable
from braidmq.testing.cluster import ClusterProcess, cluster
from braidmq.wire.errors import ApiError

PARTITIONS = 3
STOPPED_S = 2.0


def read_all(bootstrap: str) -> dict[int, list[int]]:
    """Every record, by partition, in the order of the log."""
    found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    with Cluster(bootstrap) as connected, Consumer(connected) as consumer:
        consumer.assign("t")
        while any(
            consumer.high_watermarks.get(at, -1) != consumer.position(*at)
            for at in (TopicPartition("t", index) for index in range(PARTITIONS))
        ):
            for message in consumer.poll(0.5):
                found[message.partition].append(int(message.value or b""))
    return found


class Sender:
    """Sends numbers to one partition, one after the other, and knows which were acknowledged."""

    def __init__(self, bootstrap: str, partition: int) -> None:
        self.acknowledged: list[int] = []
        self._stopping = threading.Event()
        self._bootstrap = bootstrap
        self._partition = partition
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with Producer(self._bootstrap) as producer:
            while not self._stopping.is_set():
                number = len(self.acknowledged)
                producer.send("t", b"%d" % number, partition=self._partition).result()
                self.acknowledged.append(number)

    def stop(self) -> list[int]:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.acknowledged


def leader_of(bootstrap: str) -> dict[int, int]:
    with Cluster(bootstrap) as connected:
        (topic,) = connected.refresh(["t"]).topics
        return {one.partition_index: one.leader_id for one in topic.partitions}


def kill_for_a_while(running: ClusterProcess, node_id: int) -> None:
    """Kills a broker again and again as soon as it is back, so that it is away for some time."""
    until = time.monotonic() + STOPPED_S
    pid = running.pid_of(node_id)
    while True:
        os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            return
        pid = running.await_broker(node_id, pid)


def test_a_killed_broker_takes_its_own_partitions_with_it_and_no_record() -> None:
    """R5 L6 W2: others do not wait for it; what was acknowledged is there once it is back, once, in order."""
    with cluster(3, flush="sync") as running:
        with Admin(running.bootstrap) as admin:
            admin.create_topic("t", PARTITIONS)
        leaders = leader_of(running.bootstrap)
        assert sorted(leaders.values()) == [1, 2, 3]
        (lost,) = (partition for partition, node_id in leaders.items() if node_id == 2)
        senders = {partition: Sender(running.bootstrap, partition) for partition in leaders}
        time.sleep(0.5)
        before = {partition: len(sender.acknowledged) for partition, sender in senders.items()}
        kill_for_a_while(running, 2)
        after = {partition: len(sender.acknowledged) for partition, sender in senders.items()}
        for partition in leaders:
            if partition != lost:
                assert after[partition] > before[partition] + 10
        deadline = time.monotonic() + 30
        while len(senders[lost].acknowledged) <= after[lost] + 20:
            assert time.monotonic() < deadline, running.stderr
            time.sleep(0.05)
        acknowledged = {partition: sender.stop() for partition, sender in senders.items()}
        assert read_all(running.bootstrap) == acknowledged


def test_a_cluster_whose_brokers_are_all_killed_comes_back_with_everything() -> None:
    """R5 L6: SIGKILL for all three at once."""
    with cluster(3, flush="sync") as running:
        with Admin(running.bootstrap) as admin:
            admin.create_topic("t", PARTITIONS)
        with Producer(running.bootstrap) as producer:
            for number in range(300):
                producer.send("t", b"%d" % number, partition=number % PARTITIONS)
        before = {node_id: running.pid_of(node_id) for node_id in (1, 2, 3)}
        for node_id in before:
            running.kill_broker(node_id)
        for node_id, pid in before.items():
            running.await_broker(node_id, pid)
        deadline = time.monotonic() + 30
        while True:
            try:
                found = read_all(running.bootstrap)
                break
            except (ApiError, Unreachable):
                assert time.monotonic() < deadline, running.stderr
                time.sleep(0.1)
        assert found == {
            partition: list(range(partition, 300, PARTITIONS)) for partition in range(PARTITIONS)
        }
