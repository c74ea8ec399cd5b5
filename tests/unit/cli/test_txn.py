"""`braid txn`, against a real broker and a real client's transactions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import Producer as StockProducer
from tests.patience import wait_until

from unit.cli.conftest import Braid

NewTopic = Callable[..., str]


def opened(bootstrap: str, topic: str, *partitions: int) -> StockProducer:
    """A producer whose open transaction has written to these partitions; its id is `of-` and the topic."""
    producer = StockProducer({"bootstrap.servers": bootstrap, "transactional.id": f"of-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in partitions:
        producer.produce(topic, b"undecided", partition=partition)
    assert producer.flush(30) == 0
    return producer


def committed_values(bootstrap: str, topic: str) -> list[bytes]:
    """What a reader at read_committed gets of a topic with one partition, to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"readers-{topic}",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([topic])
    values = []
    while True:
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            consumer.close()
            return values
        values.append(message.value())


def test_an_open_transaction_is_listed_by_every_filter(
    braid: Braid, bootstrap: str, new_topic: NewTopic
) -> None:
    """T2 O1: by state, by producer, by how long it has been open, by a pattern of ids."""
    topic = new_topic(2)
    producer = opened(bootstrap, topic, 0)
    name = f"of-{topic}"

    def listed(*filters: str) -> bool:
        return name in {row["transactional_id"] for row in braid.json("txn", "list", *filters)}

    (mine,) = [row for row in braid.json("txn", "list") if row["transactional_id"] == name]
    assert mine["state"] == "Ongoing"
    assert listed("--state", "Ongoing")
    assert listed("--state", "ongoing", "--state", "PrepareAbort")
    assert not listed("--state", "CompleteCommit")
    assert listed("--producer-id", str(mine["producer_id"]))
    assert not listed("--producer-id", str(mine["producer_id"] + 1))
    assert listed("--longer-than", "0ms")
    assert not listed("--longer-than", "1d")
    assert listed("--pattern", f"of-.*{topic[-1]}")
    assert not listed("--pattern", "of")
    assert name in braid("txn", "list")[0]
    assert "no transactional id matches" in braid("txn", "list", "--pattern", "nobody")[0]
    producer.abort_transaction(30)
    assert listed("--state", "CompleteAbort")


def test_a_transaction_is_described_with_where_it_begins(
    braid: Braid, bootstrap: str, new_topic: NewTopic
) -> None:
    """T2 O1: whose it is, since when it is open, and from which offset on it holds readers back."""
    topic = new_topic(2)
    before = StockProducer({"bootstrap.servers": bootstrap})
    for _ in range(3):
        before.produce(topic, b"plain", partition=1)
    assert before.flush(30) == 0
    producer = opened(bootstrap, topic, 0, 1, 1)
    found = braid.json("txn", "describe", f"of-{topic}")
    assert (found["state"], found["timeout_ms"], found["producer_epoch"]) == ("Ongoing", 60_000, 0)
    assert found["open_ms"] >= 0
    assert found["partitions"] == [
        {"topic": topic, "partition": 0, "start_offset": 0},
        {"topic": topic, "partition": 1, "start_offset": 3},
    ]
    shown, _ = braid("txn", "describe", f"of-{topic}")
    assert "Ongoing, open for" in shown
    assert "time-out 1m" in shown
    producer.commit_transaction(30)
    # It is answered when it is decided; the markers in its partitions are written right after that.
    wait_until(lambda: braid.json("txn", "describe", f"of-{topic}")["state"] != "PrepareCommit")
    after = braid.json("txn", "describe", f"of-{topic}")
    assert (after["state"], after["open_ms"], after["partitions"]) == ("CompleteCommit", None, [])


def test_an_open_transaction_is_aborted_and_its_producer_fenced(
    braid: Braid, bootstrap: str, new_topic: NewTopic
) -> None:
    """T2 O1: nobody reads what it wrote, readers are no longer held back, and it cannot go on."""
    topic = new_topic(1)
    producer = opened(bootstrap, topic, 0)
    plain = StockProducer({"bootstrap.servers": bootstrap})
    plain.produce(topic, b"behind it", partition=0)
    assert plain.flush(30) == 0
    aborted = braid.json("txn", "abort", f"of-{topic}", "--yes")["aborted"]
    assert (aborted["transactional_id"], aborted["state"]) == (f"of-{topic}", "Ongoing")
    assert committed_values(bootstrap, topic) == [b"behind it"]
    with pytest.raises(KafkaException, match="fenced"):
        producer.commit_transaction(30)
    _, refusal = braid("txn", "abort", f"of-{topic}", "--yes", code=1)
    assert "no open transaction to abort" in refusal


def test_a_marker_for_one_partition_is_refused_and_another_way_shown(
    braid: Braid, bootstrap: str, new_topic: NewTopic
) -> None:
    """T2 O1: only the broker writes markers; the transaction of a partition is found by where it begins."""
    topic = new_topic(1)
    producer = opened(bootstrap, topic, 0)
    assert braid.json("txn", "hanging", "--topic", topic) == []
    place = ("--topic", topic, "--partition", "0", "--start-offset")
    _, refusal = braid("txn", "abort", *place, "7", "--yes", code=1)
    assert "no open transaction begins at offset 7; those there are begin at 0" in refusal
    _, refusal = braid("txn", "abort", *place, "0", "--yes", code=1)
    assert "ends hanging transactions itself" in refusal
    assert "braid txn abort ID" in refusal
    producer.commit_transaction(30)
    assert len(committed_values(bootstrap, topic)) == 1
    _, refusal = braid("txn", "abort", *place, "0", "--yes", code=1)
    assert "no transaction is open" in refusal


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (("txn", "list", "--state", "Open"), "the states are Empty, Ongoing", 2),
        (("txn", "list", "--longer-than", "long"), "is not a duration", 2),
        (("txn", "list", "--pattern", "("), "is not a regular expression", 2),
        (("txn", "describe", "nobody"), "no transactional id 'nobody'", 1),
        (("txn", "abort", "nobody", "--yes"), "no transactional id 'nobody'", 1),
        (("txn", "abort"), "give an ID", 2),
        (("txn", "abort", "nobody", "--partition", "1"), "give an ID", 2),
        (("txn", "abort", "--topic", "t", "--partition", "1"), "give an ID", 2),
        (
            ("txn", "abort", "-t", "t", "--partition", "9", "--start-offset", "0", "--yes"),
            "t-9 does not exist",
            1,
        ),
        (
            ("txn", "abort", "-t", "missing", "--partition", "0", "--start-offset", "0", "--yes"),
            "missing-0 does not exist",
            1,
        ),
        (("txn", "hanging", "-t", "missing"), "there is no topic 'missing' (UNKNOWN_TOPIC_OR_PARTITION)", 1),
    ],
)
def test_mistakes_are_told_in_a_line(
    braid: Braid, new_topic: NewTopic, arguments: tuple[str, ...], words: str, code: int
) -> None:
    """O1: user mistakes never show a traceback, and asking makes no topic."""
    topic = new_topic(1)
    _, refusal = braid(*(topic if word == "t" else word for word in arguments), code=code)
    assert words.replace("t-9", f"{topic}-9") in refusal
    assert refusal.count("\n") == 1
    assert "missing" not in braid("topic", "list")[0]
