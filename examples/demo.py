"""Shows a broker, a stock Kafka client, throughput, a kill -9 that loses nothing, and a pipeline on Spark."""

from __future__ import annotations

import argparse
import time

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from braidmq.testing import BrokerProcess, broker

PARTITIONS = 4
RECORD_BYTES = 100
KILL_RECORDS = 20_000
POLL_S = 1.0
IDLE_POLLS_MAX = 30

console = Console(width=100)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument(
        "--records",
        type=int,
        default=1_000_000,
        metavar="N",
        help="records to send and read (default 1000000)",
    )
    parser.add_argument(
        "--orders",
        type=int,
        default=20_000,
        metavar="N",
        help="orders for the pipeline; 0: skip Spark (default 20000)",
    )
    arguments = parser.parse_args()
    count = arguments.records
    console.rule("Braid")
    before_s = time.perf_counter()
    with broker() as running:
        took_ms = (time.perf_counter() - before_s) * 1000
        console.print(f"braid serve: a broker is ready at {running.bootstrap} after {took_ms:.0f} ms.")
        hello(running)
        move(running, count)
        survive(running)
        if arguments.orders:
            # Imported here: without it the demo needs no Spark.
            from demo_pipeline import show as show_pipeline

            show_pipeline(running.bootstrap, arguments.orders)
    console.rule("Next")
    console.print(
        "  .venv/bin/braid serve                     a broker on 127.0.0.1:9092, data in ./braid-data\n"
        "  echo hello | .venv/bin/braid send hi      then: .venv/bin/braid tail hi\n"
        "  .venv/bin/braid perf produce              how fast it is on this machine\n"
        "  .venv/bin/braid pipeline init             your own pipeline: docs/use/pipelines.md\n"
        "  README.md                                 code for other clients, tests and Spark",
        highlight=False,
    )


def hello(running: BrokerProcess) -> None:
    """One record, there and back, with confluent-kafka from PyPI."""
    producer = Producer({"bootstrap.servers": running.bootstrap})
    producer.produce("greetings", key="demo", value="hello, braid")
    producer.flush()
    consumer = reader(running, "greetings", partitions=PARTITIONS)
    message = next_message(consumer)
    console.print(
        f"confluent-kafka sent one record and read it back: {message.key()!r} -> {message.value()!r},"
        f" partition {message.partition()}, offset {message.offset()}."
    )
    consumer.close()


def move(running: BrokerProcess, count: int) -> None:
    """Many records in and out, acks=all: each is on disk before it is acknowledged."""
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    admin.create_topics([NewTopic("load", PARTITIONS)])["load"].result()
    console.print(f"\n{count:,} records of {RECORD_BYTES} bytes, each on disk before it is acknowledged:")
    with progress() as bars:
        produce(running, count, bars)
        consume(running, count, bars)


def produce(running: BrokerProcess, count: int, bars: Progress) -> None:
    failed: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": running.bootstrap,
            "acks": "all",
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "batch.num.messages": 10_000,
            "queue.buffering.max.messages": 500_000,
            "on_delivery": on_delivery,
        }
    )
    value = bytes(RECORD_BYTES)
    task = bars.add_task("producing", total=count, rate="")
    for number in range(count):
        while True:
            try:
                producer.produce("load", value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 10_000 == 0:
            producer.poll(0)
            show(bars, task, number)
    producer.flush()
    if failed:
        raise SystemExit(f"{len(failed)} records were not delivered: {failed[0]}")
    show(bars, task, count)


def consume(running: BrokerProcess, count: int, bars: Progress) -> None:
    consumer = reader(running, "load", PARTITIONS)
    task = bars.add_task("consuming", total=count, rate="")
    left = count
    idle_polls = 0
    while left and idle_polls < IDLE_POLLS_MAX:
        messages = consumer.consume(num_messages=10_000, timeout=POLL_S)
        idle_polls = 0 if messages else idle_polls + 1
        left -= sum(1 for message in messages if message.error() is None)
        show(bars, task, count - left)
    consumer.close()
    if left:
        raise SystemExit(f"{left} records did not come back")


def survive(running: BrokerProcess) -> None:
    """kill -9 while a client sends; every acknowledged record must be there after the restart."""
    console.print("\nkill -9 of the broker while a client sends, then a restart:")
    acked: set[int] = set()

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is None:
            acked.add(int(message.value() or b""))

    config = {"bootstrap.servers": running.bootstrap, "acks": "all", "linger.ms": 5, "log_level": 0}
    producer = Producer({**config, "enable.idempotence": True})
    for number in range(KILL_RECORDS):
        producer.produce("survivors", str(number), partition=0, on_delivery=on_delivery)
        if number == KILL_RECORDS // 4:
            producer.flush()
        if number == KILL_RECORDS // 2:
            running.kill()
            producer.poll(0)
            sent_at_kill, acked_at_kill = number + 1, len(acked)
            running.restart()
    producer.flush()
    found = read_numbers(running)
    console.print(f"  at the kill: {sent_at_kill:,} records sent, {acked_at_kill:,} acknowledged")
    console.print(f"  after the restart, same client: {len(acked):,} acknowledged, {len(found):,} stored")
    lost, doubled = acked - set(found), len(found) - len(set(found))
    if lost or doubled or found != sorted(found):
        raise SystemExit(f"{len(lost)} records lost, {doubled} stored twice, or the order is wrong")
    console.print("  Nothing acknowledged is missing, nothing is stored twice, everything is in order.")


def read_numbers(running: BrokerProcess) -> list[int]:
    consumer = reader(running, "survivors", 1)
    _, end = consumer.get_watermark_offsets(TopicPartition("survivors", 0))
    numbers: list[int] = []
    while len(numbers) < end:
        messages = consumer.consume(num_messages=10_000, timeout=POLL_S)
        numbers += [int(message.value() or b"") for message in messages if message.error() is None]
    consumer.close()
    return numbers


def reader(running: BrokerProcess, topic: str, partitions: int) -> Consumer:
    config = {"bootstrap.servers": running.bootstrap, "group.id": "demo", "enable.auto.commit": False}
    consumer = Consumer(config)
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    return consumer


def next_message(consumer: Consumer) -> Message:
    for _ in range(IDLE_POLLS_MAX):
        message = consumer.poll(POLL_S)
        if message is not None and message.error() is None:
            return message
    raise SystemExit("the record did not come back")


def progress() -> Progress:
    words, rates = TextColumn("  {task.description}"), TextColumn("{task.fields[rate]}")
    return Progress(words, BarColumn(30), MofNCompleteColumn(), rates, console=console)


def show(bars: Progress, task: TaskID, done: int) -> None:
    elapsed_s = bars.tasks[task].elapsed or 0.0
    rate = done / elapsed_s if elapsed_s else 0.0
    megabytes = rate * RECORD_BYTES / 1e6
    bars.update(task, completed=done, rate=f"{rate:,.0f} records/s, {megabytes:,.0f} MB/s")


if __name__ == "__main__":
    main()
