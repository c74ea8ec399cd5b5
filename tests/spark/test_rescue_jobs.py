"""Reshard, redrive and replay: records move once, in order, and groups continue where they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from braidmq.cli import main
from braidmq.client import Admin, Producer
from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.groups import GroupAdmin
from braidmq.spark.lake import Archive, CommitConflict, Lake, archive, ranges
from braidmq.spark.lake.replay import Selection, replay, select
from braidmq.spark.partitioner import Partitioner
from braidmq.spark.rescue import audit
from braidmq.spark.rescue import redrive as redriving
from braidmq.spark.rescue.redrive import Redrive, Redriven, redrive
from braidmq.spark.rescue.reshard import Reshard, copy, prepare
from braidmq.spark.rescue.reshard import switch as switch_groups

NewTopic = Callable[..., str]
START_MS = 1_794_700_800_000


def send(bootstrap: str, topic: str, numbers: range, **options: int) -> None:
    with Producer(bootstrap) as producer:
        for number in numbers:
            producer.send(
                topic,
                b"%d" % number,
                key=b"k%d" % (number % 5),
                headers=[("n", b"%d" % number)],
                timestamp_ms=START_MS + number,
                **options,
            )


def read(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """What a reader of committed records sees now."""
    with Cluster(bootstrap) as cluster:
        spans = ranges.whole(cluster, [topic])
    return ranges.read_ranges(spark, bootstrap, spans)


def values(rows: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in rows.select("value").collect())


def test_a_resharded_topic_holds_the_same_in_order_and_groups_go_on(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopic,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """S6 O1 C9: by the command: copied in two goes, audited, every group placed without loss."""
    old = new_topic(partitions=2, **{"retention.ms": "-1"})
    new = f"{old}-p7"
    send(bootstrap, old, range(30))
    with GroupAdmin(bootstrap) as groups, Admin(bootstrap) as admin:
        ends = {p.index: p.end_offset for p in admin.describe_topics([old])[0].partitions}
        behind = {TopicPartition(old, index): end // 2 for index, end in ends.items()}
        groups.commit(f"{old}-half", behind)
        groups.commit(f"{old}-done", {TopicPartition(old, index): end for index, end in ends.items()})
    words = ["topic", "reshard", old, "--partitions", "7", "-b", bootstrap, "--checkpoint", str(tmp_path)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert f"created {new}, 7 partitions" in out
    assert f"copied 30 records from {old} to {new}" in out
    assert "--switch" in out

    assert main([*words, "--switch", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "no group was moved" in out
    assert "now start" not in out
    send(bootstrap, old, range(30, 40))
    assert main([*words, "--switch", "--yes", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["copied"], done["switched"]) == (10, True)
    placed = {each["group"]: each for each in done["groups"]}
    assert placed[f"{old}-done"]["unread"] == 10
    assert placed[f"{old}-half"]["unread"] == 40 - sum(behind.values())
    copied = read(spark, bootstrap, new)
    assert audit(read(spark, bootstrap, old), copied, ["key", "value", "headers", "timestamp"]).equal
    with GroupAdmin(bootstrap) as groups, Admin(bootstrap) as admin:
        half = {
            at.partition: at_offset
            for at, at_offset in groups.committed(f"{old}-half").items()
            if at.topic == new
        }
        options = {each.name: each.value for each in admin.topic_configs(new) if each.overridden}
    assert options == {"retention.ms": "-1"}
    ahead = {int(row.value) for row in copied.collect() if row.offset >= half[row.partition]}
    was = read(spark, bootstrap, old).collect()
    unread = {int(row.value) for row in was if row.offset >= behind[TopicPartition(old, row.partition)]}
    assert unread <= ahead
    assert len(ahead) == len(unread) + placed[f"{old}-half"]["again"]

    assert main([*words, "--switch", "--yes"]) == 0
    assert f"{old}-half already has offsets in {new}" in capsys.readouterr().out


def test_keys_are_copied_to_where_librdkafka_goes_on_with_them(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """S6 C1: by its own hash of the key; records without one spread out."""
    from confluent_kafka import Producer as StockProducer

    old, wide = new_topic(partitions=1), new_topic(partitions=7)
    stock = StockProducer({"bootstrap.servers": bootstrap})
    keys = [None, b"", *(b"key-%d" % number for number in range(40))]
    for topic in (old, wide):
        for key in keys:
            stock.produce(topic, b"v", key=key)
    assert stock.flush(30) == 0
    job = Reshard(bootstrap, old, f"{old}-wide", 7, tmp_path, partitioner=Partitioner.CRC32)
    prepare(job)
    assert [step.copied for step in copy(spark, job)][-1] == len(keys)
    places = [
        {bytes(row.key): row.partition for row in read(spark, bootstrap, topic).collect() if row.key}
        for topic in (wide, job.into)
    ]
    assert len(places[0]) == 40
    assert places[0] == places[1]


def test_a_reshard_that_cannot_be_is_refused_with_the_reason(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopic,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """S6 O1: before a record is copied."""
    assert spark is not None
    old, other = new_topic(partitions=1), new_topic(partitions=2)
    send(bootstrap, other, range(1))
    words = ["topic", "reshard", old, "-b", bootstrap, "--checkpoint", str(tmp_path / "c"), "--partitions"]
    for more, said in (
        (["2", "--to-topic", old], "cannot be resharded into itself"),
        (["3", "--to-topic", other], f"{other} exists with 2 partitions, not 3"),
        (["2", "--to-topic", other], f"{other} holds records that {tmp_path / 'c'} does not know"),
    ):
        assert main([*words, *more]) == 2
        assert said in capsys.readouterr().err


def test_groups_with_members_are_not_moved(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """S6: they would go on committing in the old topic; a dry run may look all the same."""
    from kafka import KafkaConsumer

    from braidmq.spark.rescue.errors import RescueError

    old = new_topic(partitions=1)
    send(bootstrap, old, range(3))
    job = Reshard(bootstrap, old, f"{old}-new", 2, tmp_path)
    prepare(job)
    consumer = KafkaConsumer(
        old, bootstrap_servers=bootstrap, group_id=f"{old}-busy", auto_offset_reset="earliest"
    )
    try:
        while not consumer.poll(timeout_ms=500):
            pass
        consumer.commit()
        assert [step.copied for step in copy(spark, job)][-1] == 3
        with pytest.raises(RescueError, match=f"group {old}-busy still has members"):
            switch_groups(spark, job, dry_run=False)
        (found,) = [each for each in switch_groups(spark, job, dry_run=True) if each.group == f"{old}-busy"]
        assert (found.unread, found.again) == (0, 0)
    finally:
        consumer.close()
    with GroupAdmin(bootstrap) as groups:
        assert all(at.topic == old for at in groups.committed(f"{old}-busy"))


def test_a_ledger_of_another_job_is_not_moved_with_the_groups(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """S6 S3: the offsets beside its decisions are no positions; moved, it could not be read."""
    old = new_topic(partitions=1)
    rows = spark.createDataFrame([(b"1",)], "value binary")

    def write(prefix: str) -> None:
        options = {"bootstrap.servers": bootstrap, "topic": old, "writeId": "job"}
        rows.write.format("braid").mode("append").options(**options, transactionalIdPrefix=prefix).save()

    for prefix in ("braid-spark", "ours"):
        write(prefix)
    job = Reshard(bootstrap, old, f"{old}-new", 2, tmp_path)
    prepare(job)
    assert [step.copied for step in copy(spark, job)][-1] == 2
    assert switch_groups(spark, job, dry_run=False) == []
    for prefix in ("braid-spark", "ours"):
        write(prefix)
    assert read(spark, bootstrap, old).count() == 2


def test_dead_letters_go_back_once_whatever_the_condition(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopic,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """S6 O1: chosen by a header, then the rest; each says where it lay."""
    dead, orders = new_topic(partitions=2), new_topic(partitions=3)
    send(bootstrap, dead, range(10))
    words = [
        "topic",
        "redrive",
        dead,
        "--to-topic",
        orders,
        "-b",
        bootstrap,
        "--checkpoint",
        str(tmp_path / "j"),
    ]
    chosen = ["--where", "CAST(header['n'] AS INT) < 4"]
    assert main([*words, *chosen, "--dry-run"]) == 0
    assert f"would send 4 to {orders}" in capsys.readouterr().out
    assert main([*words, *chosen]) == 0
    assert f"sent 4 to {orders}" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    done = {"there": 10, "before": 4, "chosen": 6, "resumed": 0, "sent": True}
    assert json.loads(capsys.readouterr().out) == done
    assert main([*words, "--where", "nope = 1"]) == 2
    assert "`nope` cannot be resolved" in capsys.readouterr().err

    back = read(spark, bootstrap, orders)
    assert audit(read(spark, bootstrap, dead), back, ["key", "value", "headers", "timestamp"]).equal
    row = back.filter("CAST(value AS STRING) = '7'").collect()[0]
    (lay,) = read(spark, bootstrap, dead).filter("CAST(value AS STRING) = '7'").collect()
    marks = {each.key: bytes(each.value) for each in row.headers}
    assert marks == {"n": b"7", "braid.redriven": f"{dead}/{lay.partition}/{lay.offset}".encode()}


def test_a_redrive_killed_around_its_send_is_finished_once(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6: killed after the plan, or after the send and before it was marked."""
    dead, orders = new_topic(partitions=1), new_topic(partitions=1)
    send(bootstrap, dead, range(4))
    job = Redrive(bootstrap, dead, orders, Lake(tmp_path / "j"), limit=2)
    marked = Lake.mark

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Lake, "mark", killed)
    with pytest.raises(KeyboardInterrupt):
        redrive(spark, job)
    monkeypatch.setattr(Lake, "mark", marked)
    assert values(read(spark, bootstrap, orders)) == [0, 1]
    other = Redrive(bootstrap, new_topic(), orders, job.journal)
    assert redrive(spark, other) == Redriven(there=0, before=0, chosen=0, resumed=0)
    with Admin(bootstrap) as admin:
        admin.delete_records({TopicPartition(dead, 0): 1})
    done = redrive(spark, job)
    assert (done.resumed, done.chosen) == (1, 2), "the first letter of the plan is gone by now"
    assert values(read(spark, bootstrap, orders)) == [0, 1, 2, 3]


def test_of_two_redrives_side_by_side_one_sends(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6: both have chosen the same letters when the faster one writes its plan."""
    dead, orders = new_topic(partitions=1), new_topic(partitions=1)
    send(bootstrap, dead, range(3))
    job = Redrive(bootstrap, dead, orders, Lake(tmp_path / "j"))
    choose = redriving._chosen

    def slowly(mine: Redrive, letters: DataFrame) -> DataFrame:
        monkeypatch.setattr(redriving, "_chosen", choose)
        assert redrive(spark, job).chosen == 3
        return choose(mine, letters)

    monkeypatch.setattr(redriving, "_chosen", slowly)
    with pytest.raises(CommitConflict, match="another run began meanwhile; this one changed nothing"):
        redrive(spark, job)
    assert values(read(spark, bootstrap, orders)) == [0, 1, 2]


def test_archived_records_go_back_as_they_were(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """S5: keys, headers, timestamps, order within keys; done again under its id, it sends nothing."""
    topic, target = new_topic(partitions=2), new_topic(partitions=2)
    send(bootstrap, topic, range(12))
    lake = Lake(tmp_path / "lake")
    assert sum(step.rows for step in archive(spark, lake, Archive(bootstrap, (topic,)))) == 12
    rows = select(spark, str(lake.path), Selection(from_ms=START_MS + 4, until_ms=START_MS + 9))
    assert replay(rows, bootstrap, target, f"{target}-once")
    assert not replay(rows, bootstrap, target, f"{target}-once")
    wanted = read(spark, bootstrap, topic).filter("CAST(CAST(value AS STRING) AS INT) BETWEEN 4 AND 8")
    compare = ["key", "value", "headers", "timestamp", "partition"]
    assert audit(wanted, read(spark, bootstrap, target), compare).equal
    assert values(read(spark, bootstrap, target)) == [4, 5, 6, 7, 8]
