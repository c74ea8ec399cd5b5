"""What an audit of two copies finds, each fault planted by hand, and nothing where nothing is wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from braidmq.cli import main
from braidmq.client import Admin, Producer
from braidmq.client.cluster import TopicPartition
from braidmq.spark.lake import Archive, Lake, archive
from braidmq.spark.rescue import Audit, audit

SCHEMA = (
    "topic string, partition int, offset long, key binary, value binary, timestamp timestamp,"
    " headers array<struct<key:string,value:binary>>"
)
Row = tuple[Any, ...]
MOMENT = datetime(2026, 11, 15, 21, 0, tzinfo=UTC)


def row(partition: int, offset: int, key: bytes | None, value: bytes | None, **more: Any) -> Row:
    return (
        more.get("topic", "a"),
        partition,
        offset,
        key,
        value,
        more.get("timestamp", MOMENT),
        more.get("headers", []),
    )


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame(rows, SCHEMA)


def found(spark: SparkSession, left: list[Row], right: list[Row], **options: Any) -> Audit:
    return audit(frame(spark, left), frame(spark, right), **options)


def orders(count: int, keys: int = 3, partitions: int = 2) -> list[Row]:
    """Messages of a few keys, each key in one partition."""
    return [
        row(index % keys % partitions, index, b"k%d" % (index % keys), b"v%d" % index)
        for index in range(count)
    ]


def test_copies_with_other_offsets_and_partitions_are_equal(spark: SparkSession) -> None:
    """S6: what a reshard makes of a topic is the same messages in the same order per key."""
    left = orders(30)
    right = [row(int(each[3][1:]) + 5, 1000 + each[2], each[3], each[4]) for each in left]
    result = found(spark, left, right)
    assert result.equal
    assert (result.left_rows, result.right_rows) == (30, 30)
    assert result.examples == ()


def test_missing_extra_and_duplicated_messages_are_told_apart(spark: SparkSession) -> None:
    """S6: each kind counted, each with its place."""
    left = orders(10)
    right = [each for each in left if each[2] != 4]
    right += [row(0, 100, b"k0", b"never sent"), row(1, 101, b"k1", b"v1")]
    result = found(spark, left, right)
    assert not result.equal
    assert (result.missing, result.extra, result.duplicated) == (1, 1, 1)
    assert (result.reordered, result.scattered) == (0, 0)
    places = {each.kind: (each.partition, each.offset, each.key) for each in result.examples}
    assert places == {"missing": (1, 4, b"k1"), "extra": (0, 100, b"k0"), "duplicated": (1, 101, b"k1")}


def test_a_message_sent_twice_on_purpose_is_no_duplicate(spark: SparkSession) -> None:
    """S6: counts are compared, not presence."""
    left = [row(0, 0, b"k", b"tick"), row(0, 1, b"k", b"tick")]
    left += [row(0, 2, b"k", b"tock"), row(0, 3, b"l", b"tock"), row(0, 4, b"l", b"tock")]
    right = [*left[:3], row(0, 3, b"k", b"tock"), row(0, 4, b"l", b"tock")]
    result = found(spark, left, right)
    assert (result.missing, result.extra, result.duplicated) == (1, 0, 1)


def test_a_swap_within_a_key_is_a_reordering_and_between_keys_is_none(spark: SparkSession) -> None:
    """S6: order is promised per key."""
    within = [row(0, 0, b"a", b"3"), row(0, 1, b"b", b"2"), row(0, 2, b"a", b"1")]
    between = [row(1, 0, b"d", b"5"), row(1, 1, b"c", b"4"), row(1, 2, b"c", b"6")]
    left = [row(0, 0, b"a", b"1"), row(0, 1, b"b", b"2"), row(0, 2, b"a", b"3")]
    left += [row(1, 0, b"c", b"4"), row(1, 1, b"d", b"5"), row(1, 2, b"c", b"6")]
    result = found(spark, left, within + between)
    assert (result.missing, result.extra, result.reordered) == (0, 0, 1)
    assert [(each.kind, each.partition, each.offset, each.key) for each in result.examples] == [
        ("reordered", 0, 0, b"a")
    ]


def test_a_key_that_lies_in_two_partitions_of_the_copy_is_scattered(spark: SparkSession) -> None:
    """S6: as when partitions were added half way."""
    left = orders(12, keys=2)
    right = [row(each[1] if each[2] < 8 else 9, each[2], each[3], each[4]) for each in left]
    result = found(spark, left, right)
    assert (result.missing, result.extra, result.reordered, result.scattered) == (0, 0, 0, 2)


def test_nulls_empty_values_and_run_together_bytes_are_different_messages(spark: SparkSession) -> None:
    """S6: null is not empty, and ("ab", "c") is not ("a", "bc")."""
    left = [(None, b""), (b"", b""), (b"ab", b"c"), (b"1:a", b"")]
    right = [(b"", None), (None, None), (b"a", b"bc"), (b"1", b"a")]
    result = found(
        spark,
        [row(0, offset, *pair) for offset, pair in enumerate(left)],
        [row(0, offset, *pair) for offset, pair in enumerate(right)],
    )
    assert (result.missing, result.extra, result.duplicated) == (4, 4, 0)


def test_headers_count_but_not_those_that_say_where_a_record_came_from(spark: SparkSession) -> None:
    """S6: a redriven or resharded record carries braid.… headers and is still the same message."""
    trace: list[tuple[str, bytes | None]] = [("trace", b"1"), ("empty", None)]
    left = [row(0, 0, b"k", b"same", headers=trace), row(0, 1, b"k", b"other", headers=trace)]
    right = [
        row(0, 0, b"k", b"same", headers=[*trace, ("braid.origin", b"a-0@0")]),
        row(0, 1, b"k", b"other", headers=[("trace", b"2"), ("empty", None)]),
    ]
    result = found(spark, left, right)
    assert (result.missing, result.extra) == (1, 1)
    assert found(spark, left, right, compare=["key", "value"]).equal


def test_comparing_by_time_and_place_is_a_choice(spark: SparkSession) -> None:
    """S6: a lake keeps both, a copy to another topic need not."""
    later = datetime(2026, 11, 15, 21, 0, 1, tzinfo=UTC)
    left = [row(0, 0, b"k", b"late"), row(0, 1, b"k", b"moved")]
    right = [row(0, 0, b"k", b"late", timestamp=later), row(0, 2, b"k", b"moved")]
    assert found(spark, left, right).equal
    assert found(spark, left, right, compare=["value", "timestamp", "partition", "offset"]).missing == 2


def test_what_cannot_be_compared_is_refused_by_name(spark: SparkSession) -> None:
    """S6: before anything is read."""
    with pytest.raises(ValueError, match="cannot compare by 'colour'; choose from key, value"):
        found(spark, [], [], compare=["colour"])
    bare = frame(spark, []).drop("headers")
    with pytest.raises(ValueError, match="left side has no column 'headers'"):
        audit(bare, frame(spark, []), compare=["headers"])
    assert audit(bare, frame(spark, [])).compared == ("key", "value")


def test_random_faults_are_counted_exactly(spark: SparkSession) -> None:
    """S6: against a model in plain Python."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    left = orders(400, keys=17, partitions=4)
    dropped = {each[2] for each in left if chance.random() < 0.1}
    doubled = {each[2] for each in left if each[2] not in dropped and chance.random() < 0.1}
    right: list[Row] = []
    for each in left:
        copies = 0 if each[2] in dropped else 2 if each[2] in doubled else 1
        right += [row(each[1], len(right) + copy, each[3], each[4]) for copy in range(copies)]
    result = found(spark, left, right)
    seen = (result.missing, result.extra, result.duplicated, result.reordered, result.scattered)
    assert seen == (len(dropped), 0, len(doubled), 0, 0), f"seed {seed}"
    assert result.as_json()["equal"] is False


def test_a_topic_and_its_lake_are_compared_where_they_overlap(
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """S6 S5 O1: by the command, with an exit code; what is not archived yet is a note, not a difference."""
    topic, lake = new_topic(partitions=2), tmp_path / "lake"
    with Producer(bootstrap) as producer:
        for number in range(8):
            producer.send(topic, b"v%d" % number, key=b"k%d" % number, partition=number % 2)
    assert sum(step.rows for step in archive(spark, Lake(lake), Archive(bootstrap, (topic,)))) == 8
    with Producer(bootstrap) as producer:
        producer.send(topic, b"later", partition=1)
    with Admin(bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 1})
    words = ["topic", "audit", topic, str(lake), "-b", bootstrap]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert f"{topic}-1: 1 offsets from 4 on are not archived yet" in out
    assert "the same messages" in out
    other = new_topic(partitions=1)
    assert main(["topic", "audit", topic, other, "-b", bootstrap, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["equal"], found["missing"], found["right_rows"]) == (False, 8, 0)
    assert main([*words, "--compare", "colour"]) == 2
    assert "cannot compare by 'colour'" in capsys.readouterr().err
