"""What a report says about topics whose story is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from braidmq.cli import main
from braidmq.client import Admin, Producer
from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.groups import GroupAdmin
from braidmq.spark.rescue.summary import ReportRequest, summarise, write

NewTopic = Callable[..., str]
START_MS = 1_794_700_800_000
PNG = b"\x89PNG\r\n\x1a\n"


def test_throughput_skew_hot_keys_lateness_and_lag(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """S7: as tables, as JSON and as plots, and what stands out said first."""
    topic = new_topic(partitions=2)
    with Producer(bootstrap) as producer:
        for number in range(20):
            late_ms = 700 if number == 10 else 0
            producer.send(
                topic,
                b"12345678",
                key=b"hot" if number % 4 else b"cold",
                partition=0 if number < 18 else 1,
                timestamp_ms=START_MS + 100 * number - late_ms,
            )
    with GroupAdmin(bootstrap) as groups:
        groups.commit("billing", {TopicPartition(topic, 0): 5})
    made = summarise(spark, ReportRequest(bootstrap, (topic,)))

    assert made.bucket_s == 1
    assert [(row["records"], row["bytes"]) for row in made.tables["throughput"]] == [(11, 124), (9, 101)]
    assert made.tables["throughput"][0]["time"] == datetime.fromtimestamp(START_MS // 1000, UTC)
    assert [(row["records"], row["skew"]) for row in made.tables["partitions"]] == [(18, 1.8), (2, 0.2)]
    keys = [(bytes(row["key"]), row["records"], row["share"]) for row in made.tables["hot_keys"]]
    assert keys == [(b"hot", 15, 0.75), (b"cold", 5, 0.25)]
    (late,) = made.tables["lateness"]
    assert (late["records"], late["late"], late["p50"], late["max"]) == (20, 1, 0, 600)
    assert made.tables["append_latency"] == []
    (lag,) = made.tables["lag"]
    assert (lag["group"], lag["lag"], lag["lost"]) == ("billing", 13, 0)
    assert lag["oldest_unread_ms"] == START_MS + 500
    assert f"key hot is 75% of {topic}" in made.findings

    files = write(made, tmp_path / "report")
    assert json.loads((tmp_path / "report" / "report.json").read_text())["tables"]["lag"][0]["lag"] == 13
    page = (tmp_path / "report" / "report.md").read_text()
    assert "message.timestamp.type=CreateTime, so the log has no append times" in page
    drawn = [path for path in files if path.suffix == ".png"]
    assert {path.stem for path in drawn} == {"throughput", "partitions", "hot_keys", "lateness", "lag"}
    assert all(path.read_bytes().startswith(PNG) and f"({path.name})" in page for path in drawn)


def test_empty_partitions_wild_times_and_what_lies_before_the_report(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic
) -> None:
    """S7: all in one of four is a skew; the oldest unread record is not known where it was not read."""
    topic = new_topic(partitions=4, **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    with Producer(bootstrap) as producer:
        for timestamp_ms in (START_MS, START_MS + 60_000, 10**15):
            producer.send(topic, b"v", partition=2, timestamp_ms=timestamp_ms)
    with GroupAdmin(bootstrap) as groups:
        groups.commit(f"{topic}-slow", {TopicPartition(topic, 2): 0})
    made = summarise(spark, ReportRequest(bootstrap, (topic,), from_ms=START_MS + 1))
    found = [(row["partition"], row["records"], row["skew"]) for row in made.tables["partitions"]]
    assert found == [(0, 0, 0.0), (1, 0, 0.0), (2, 2, 4.0), (3, 0, 0.0)]
    assert [row["records"] for row in made.tables["throughput"]] == [1]
    assert [row["oldest_unread_ms"] for row in made.tables["lag"]] == [None]
    assert made.findings == (
        f"{topic}-2 has 4.0 times the mean of its topic",
        f"group {topic}-slow in {topic}-2 is 3 records behind",
    )
    empty = summarise(spark, ReportRequest(bootstrap, (new_topic(partitions=1),)))
    assert [(row["records"], row["skew"]) for row in empty.tables["partitions"]] == [(0, None)]
    assert empty.findings == ()


def test_from_produce_to_append_is_known_where_the_broker_stamps(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic
) -> None:
    """S7: the header of a batch has the append, its first record the time of the producer."""
    topic = new_topic(partitions=1, **{"message.timestamp.type": "LogAppendTime"})
    with Cluster(bootstrap) as cluster, Producer(cluster) as producer:
        for ago_ms in (60_000, 1_000):
            sent = producer.send(topic, b"x", timestamp_ms=cluster.clock.wall_ms() - ago_ms)
            producer.send(topic, b"y")
            sent.result()
    made = summarise(spark, ReportRequest(bootstrap, (topic,)))
    (latency,) = made.tables["append_latency"]
    assert latency["batches"] == 2
    assert 60_000 <= latency["max"] < 120_000
    assert 1_000 <= latency["p50"] < 60_000
    assert made.tables["lateness"] == []
    assert [row["records_per_batch"] for row in made.tables["batches"]] == [2.0]


def test_what_a_group_lost_to_retention_is_told(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    """S7 O1: by the command, over the time asked for."""
    topic = new_topic(partitions=1)
    assert spark is not None
    with Producer(bootstrap) as producer:
        for number in range(9):
            producer.send(topic, b"v", timestamp_ms=START_MS + number)
    with Admin(bootstrap) as admin, GroupAdmin(bootstrap) as groups:
        groups.commit("slow", {TopicPartition(topic, 0): 2})
        admin.delete_records({TopicPartition(topic, 0): 5})
    words = ["topic", "report", topic, "-b", bootstrap, "--from", "2026-11-15T00:00:00.006Z"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tables"]["lag"][0]["lost"] == 3
    assert found["tables"]["partitions"][0]["records"] == 3
    assert main(words) == 0
    assert "lost 3 records to retention before it read them" in capsys.readouterr().out
