"""Shows three brokers as one cluster: a transaction over all of them, and a kill -9 that loses nothing."""

from __future__ import annotations

import argparse
import time
from collections import Counter

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from braidmq.testing import ClusterProcess, cluster

BROKERS = 3
PARTITIONS = 12
POLL_S = 1.0
READ_S_MAX = 60.0

console = Console(width=100)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/demo --cluster", description=__doc__)
    parser.add_argument(
        "--records", type=int, default=60_000, metavar="N", help="records to send (default 60000)"
    )
    count = parser.parse_args().records
    console.rule(f"Braid, {BROKERS} brokers")
    before_s = time.perf_counter()
    with cluster(BROKERS) as running:
        took_ms = (time.perf_counter() - before_s) * 1000
        console.print(
            f"braid serve --brokers {BROKERS}: ready at {running.bootstrap} after {took_ms:.0f} ms, each"
            " broker a process of its own."
        )
        spread(running)
        transact(running)
        survive(running, count)
    console.rule("Next")
    console.print(
        f"  .venv/bin/braid serve --brokers {BROKERS}           brokers on ports 9092 to {9091 + BROKERS}\n"
        "  .venv/bin/braid cluster status              who is there, who leads what\n"
        "  docs/operate/cluster.md                     from one broker to three machines",
        highlight=False,
    )


def spread(running: ClusterProcess) -> None:
    """Partitions of one topic, led by different brokers."""
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    admin.create_topics([NewTopic("orders", PARTITIONS)])["orders"].result()
    deadline_s = time.monotonic() + READ_S_MAX
    while True:
        seen = admin.list_topics(timeout=READ_S_MAX)
        shown = seen.topics.get("orders")  # the broker that was asked may be a moment late
        leads = Counter(one.leader for one in shown.partitions.values()) if shown else Counter()
        if len(leads) == BROKERS or time.monotonic() > deadline_s:
            break
        time.sleep(POLL_S / 10)
    table = Table("broker", "address", f"leads, of {PARTITIONS} partitions of orders")
    for node_id, one in sorted(seen.brokers.items()):
        table.add_row(str(node_id), f"{one.host}:{one.port}", str(leads[node_id]))
    console.print(table)


def transact(running: ClusterProcess) -> None:
    """One transaction with a record in every partition; its coordinator is on one of the brokers."""
    producer = Producer({"bootstrap.servers": running.bootstrap, "transactional.id": "demo"})
    producer.init_transactions()
    for outcome in ("aborted", "committed"):
        producer.begin_transaction()
        for index in range(PARTITIONS):
            producer.produce("orders", outcome, partition=index)
        producer.flush()
        if outcome == "committed":
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    found = Counter(value for _, value in read(running, "orders", PARTITIONS))
    if found != {b"committed": PARTITIONS}:
        raise SystemExit(f"the transactions left {dict(found)}")
    console.print(
        f"A transaction over {PARTITIONS} partitions on {BROKERS} brokers was aborted, another committed:"
        f" a reader sees {PARTITIONS} committed records, none of the others."
    )


def survive(running: ClusterProcess, count: int) -> None:
    """kill -9 of one broker while a client sends to all of them."""
    console.print("\nkill -9 of broker 2 while a client sends to all partitions:")
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    admin.create_topics([NewTopic("survivors", PARTITIONS)])["survivors"].result()
    acked: list[int] = []
    failed: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is None:
            acked.append(int(message.value() or b""))
        else:
            failed.append(error)

    producer = Producer(
        {"bootstrap.servers": running.bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
    )
    away_s = 0.0
    with Progress(
        TextColumn("  {task.description}"), BarColumn(30), MofNCompleteColumn(), console=console
    ) as bars:
        task = bars.add_task("acknowledged", total=count)
        for number in range(count):
            while True:
                try:
                    producer.produce(
                        "survivors", str(number), partition=number % PARTITIONS, on_delivery=on_delivery
                    )
                    break
                except BufferError:
                    producer.poll(0.05)
            if number % 1000 == 0:
                producer.poll(0)
                bars.update(task, completed=len(acked))
            if number == count // 2:
                away_s = kill_one(running, 2)
        producer.flush()
        bars.update(task, completed=len(acked))
    if failed:
        raise SystemExit(f"{len(failed)} records were not delivered: {failed[0]}")
    console.print(f"  the supervisor had broker 2 running again after {away_s * 1000:.0f} ms")
    judge(read(running, "survivors", PARTITIONS), acked)


def kill_one(running: ClusterProcess, node_id: int) -> float:
    """How long it took until another process was there."""
    pid = running.pid_of(node_id)
    killed_s = time.perf_counter()
    running.kill_broker(node_id)
    running.await_broker(node_id, other_than=pid)
    return time.perf_counter() - killed_s


def judge(found: list[tuple[int, bytes]], acked: list[int]) -> None:
    of_partition: dict[int, list[int]] = {}
    for partition, value in found:
        of_partition.setdefault(partition, []).append(int(value))
    stored = [number for numbers in of_partition.values() for number in numbers]
    lost, doubled = set(acked) - set(stored), len(stored) - len(set(stored))
    disordered = [index for index, numbers in of_partition.items() if numbers != sorted(numbers)]
    if lost or doubled or disordered:
        raise SystemExit(
            f"{len(lost)} records lost, {doubled} stored twice, or partitions {disordered} out of order"
        )
    console.print(
        f"  {len(acked):,} acknowledged, {len(stored):,} stored: none is missing, none is there twice,"
    )
    console.print("  and every partition is in order.")


def read(running: ClusterProcess, topic: str, partitions: int) -> list[tuple[int, bytes]]:
    """Every record that a reader of committed transactions sees: partition and value."""
    consumer = Consumer(
        {"bootstrap.servers": running.bootstrap, "group.id": "demo", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: list[tuple[int, bytes]] = []
    at_end: set[int] = set()
    deadline_s = time.monotonic() + READ_S_MAX
    while len(at_end) < partitions and time.monotonic() < deadline_s:
        for message in consumer.consume(num_messages=10_000, timeout=POLL_S):
            error = message.error()
            if error is None:
                found.append((message.partition() or 0, message.value() or b""))
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition() or 0)
    consumer.close()
    if len(at_end) < partitions:
        raise SystemExit(f"{partitions - len(at_end)} partitions of {topic} could not be read to their end")
    return found


if __name__ == "__main__":
    main()
