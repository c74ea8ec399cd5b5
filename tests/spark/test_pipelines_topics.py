"""Pipelines that write to topics: formats, keys, bad records, exactly once; and the examples."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from braidmq.client import Producer
from braidmq.client.groups import GroupAdmin
from braidmq.spark import avro
from braidmq.spark.avro import AvroSchema
from braidmq.spark.lake import Lake
from braidmq.spark.pipelines import PipelineError, formats, load, loads
from braidmq.spark.pipelines.loader import load_module
from braidmq.spark.pipelines.runner import run
from braidmq.spark.pipelines.table_source import read as read_table
from braidmq.testing import BrokerProcess

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"
pytestmark = pytest.mark.timeout(400)


def send(bootstrap: str, topic: str, values: list[Any]) -> None:
    with Producer(bootstrap) as producer:
        for value in values:
            producer.send(topic, value if isinstance(value, bytes) else json.dumps(value).encode(), key=b"k")


def messages(bootstrap: str, topic: str) -> list[Message]:
    """Every committed record of a topic, by a stock client."""
    config = {"bootstrap.servers": bootstrap, "group.id": "look", "isolation.level": "read_committed"}
    consumer = Consumer({**config, "enable.partition.eof": True})
    partitions = list(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, index, 0) for index in partitions])
    found, ended = [], 0
    while ended < len(partitions):
        message = consumer.poll(30)
        assert message is not None, "the topic does not end"
        if message.error():
            ended += 1
        else:
            found.append(message)
    consumer.close()
    return found


def values(bootstrap: str, topic: str) -> list[Any]:
    return sorted((json.loads(each.value()) for each in messages(bootstrap, topic)), key=str)


def run_once(text: str, spark: Any, directory: Path) -> None:
    run(replace(loads(text, directory), parallelism=1), once=True, spark=spark)


AVRO = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
    }
)


def test_rows_become_records_and_bad_records_go_aside(
    spark: Any, bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """S4 S3: JSON, CSV, text and Avro; key and headers from columns; what is bad with its reason."""
    topic = new_topic()
    bad = [b"{", {"id": "x"}, {"name": "nobody"}]
    send(bootstrap, topic, [{"id": 1, "name": "Ann"}, *bad, {"id": 2}])
    (tmp_path / "r.avsc").write_text(AVRO)
    text = f"""
pipeline: out
bootstrap: {bootstrap}
sources:
  a: {{topic: {topic}, schema: 'id BIGINT NOT NULL, name STRING', bad_records: {{topic: {topic}.bad}}}}
steps:
  words: {{sql: "SELECT concat('<', id, '>') AS value FROM a"}}
sinks:
  json: {{from: a, topic: {topic}.json, key: id, headers: {{who: "coalesce(name, 'nobody')"}}, partitions: 2}}
  csv: {{from: a, topic: {topic}.csv, format: csv}}
  text: {{from: words, topic: {topic}.text, format: text}}
  avro: {{from: a, topic: {topic}.avro, format: avro, schema: r.avsc}}
"""
    run_once(text, spark, tmp_path)
    as_json = {each.key(): each for each in messages(bootstrap, f"{topic}.json")}
    assert json.loads(as_json[b"2"].value()) == {"id": 2, "name": None}
    assert as_json[b"1"].headers() == [("who", b"Ann")]
    assert {each.value() for each in messages(bootstrap, f"{topic}.text")} == {b"<1>", b"<2>"}
    assert {each.value() for each in messages(bootstrap, f"{topic}.csv")} == {b"1,Ann", b"2,"}
    decode = avro.decoder(AvroSchema(AVRO))
    found = [decode(each.value()) for each in messages(bootstrap, f"{topic}.avro")]
    assert sorted(found, key=str) == [{"id": 1, "name": "Ann"}, {"id": 2, "name": None}]
    aside = {each.value(): dict(each.headers()) for each in messages(bootstrap, f"{topic}.bad")}
    assert aside.keys() == {b"{", b'{"id": "x"}', b'{"name": "nobody"}'}
    reasons = [aside[value][b"braid.reason".decode()].decode() for value in sorted(aside)]
    assert reasons[0].startswith("not JSON: Expecting property name")
    assert reasons[1:] == ["column id: 'x' is not BIGINT", "column id is missing"]
    assert aside[b"{"]["braid.topic"].decode() == topic
    assert aside[b"{"]["braid.offset"] == b"1"
    assert {each.key() for each in messages(bootstrap, f"{topic}.bad")} == {b"k"}


def test_a_bad_record_keeps_its_headers_and_time(
    spark: Any, bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """S4 Q3: or nobody could send it back as it was; one that was aside before has one reason, the last."""
    topic, timestamp_ms = new_topic(), 1_600_000_000_123
    given = [("trace", b"7"), ("trace", None), ("braid.reason", b"an earlier one")]
    with Producer(bootstrap) as producer:
        producer.send(topic, b"{", key=b"k", headers=given, timestamp_ms=timestamp_ms)
        producer.send(topic, b"[", key=b"k")
    text = f"""
pipeline: aside
bootstrap: {bootstrap}
sources: {{a: {{topic: {topic}, schema: id BIGINT, bad_records: {{topic: {topic}.bad}}}}}}
sinks: {{out: {{from: a, topic: {topic}.out}}}}
"""
    run_once(text, spark, tmp_path)
    with_headers, plain = sorted(messages(bootstrap, f"{topic}.bad"), key=lambda each: -len(each.headers()))
    assert with_headers.timestamp()[1] == timestamp_ms
    assert with_headers.headers()[:2] == given[:2]
    names = [name for name, _ in with_headers.headers()]
    assert names[2:] == [name for name, _ in plain.headers()] == formats.BAD_HEADERS


def test_avro_values_with_another_registry_id_are_bad_records(
    spark: Any, bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """S4: their bytes decode with the schema of the file, into wrong columns."""
    topic = new_topic(partitions=1)
    (tmp_path / "r.avsc").write_text(AVRO)
    value = avro.encoder(AvroSchema(AVRO))({"id": 1, "name": "Ann"})
    send(bootstrap, topic, [b"\0\0\0\0\x07" + value, b"\0\0\0\0\x08" + value])
    text = f"""
pipeline: ids
bootstrap: {bootstrap}
sources: {{a: {{topic: {topic}, format: avro, schema: r.avsc, framing: registry}}}}
sinks: {{out: {{from: a, topic: {topic}.out}}}}
"""
    with pytest.raises(PipelineError, match="offset 1 cannot be read: the value has schema registry id 8"):
        run_once(text, spark, tmp_path)
    run_once(text.replace("registry}", f"registry, bad_records: {{topic: {topic}.bad}}}}"), spark, tmp_path)
    assert values(bootstrap, f"{topic}.out") == [{"id": 1, "name": "Ann"}]
    (bad,) = messages(bootstrap, f"{topic}.bad")
    assert "schema registry id 8" in dict(bad.headers())["braid.reason"].decode()


def test_bad_records_after_the_latest_are_not_lost_when_they_get_a_topic_later(
    spark: Any, bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """S4 S3: what comes after a run has begun belongs to it, also if the first batch fails on it."""
    topic = new_topic()
    send(bootstrap, topic, [{"id": 0}])
    text = f"""
pipeline: late
bootstrap: {bootstrap}
sources: {{a: {{topic: {topic}, schema: id BIGINT, start: latest}}}}
sinks: {{out: {{from: a, topic: {topic}.out}}}}
"""
    made = replace(loads(text, tmp_path), parallelism=1)

    def tell(_: str) -> None:
        """Told that the target topic was made, by a run that knows by then where it begins."""
        send(bootstrap, topic, [{"id": 1}, b"{"])

    with pytest.raises(PipelineError, match="offset 2 cannot be read"):
        run(made, once=True, spark=spark, tell=tell)
    send(bootstrap, topic, [{"id": 3}])
    run_once(text.replace("latest", f"latest, bad_records: {{topic: {topic}.bad}}"), spark, tmp_path)
    assert values(bootstrap, f"{topic}.out") == [{"id": 1}, {"id": 3}]
    assert [each.value() for each in messages(bootstrap, f"{topic}.bad")] == [b"{"]


def test_a_batch_that_is_given_twice_is_in_the_topic_once(
    spark: Any, bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """S4 S3: the driver died after the write and before Spark's own commit."""
    topic = new_topic(partitions=2)
    send(bootstrap, topic, [{"n": n} for n in range(50)])
    text = f"""
pipeline: twice
bootstrap: {bootstrap}
sources: {{a: {{topic: {topic}, schema: n BIGINT}}}}
steps: {{sums: {{sql: 'SELECT n % 2 AS odd, count(*) AS n FROM a GROUP BY 1'}}}}
sinks:
  out: {{from: a, topic: {topic}.out}}
  sums: {{from: sums, topic: {topic}.sums, key: odd, mode: update}}
"""
    run_once(text, spark, tmp_path)
    for query in ("out", "sums"):
        for file in (tmp_path / "checkpoints" / "twice" / "v1" / "queries" / query / "commits").iterdir():
            file.unlink()
    run_once(text, spark, tmp_path)
    assert values(bootstrap, f"{topic}.sums") == [{"odd": 0, "n": 25}, {"odd": 1, "n": 25}]
    assert sorted(each["n"] for each in values(bootstrap, f"{topic}.out")) == list(range(50))
    with GroupAdmin(bootstrap) as groups:
        for query in ("out", "sums"):
            assert sum(groups.committed(f"braid-twice-{query}-{topic}").values()) == 50


def test_a_sink_that_is_stuck_shows_beside_one_that_is_not(
    spark: Any, bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """S4 S2: each query publishes its positions to a group of its own, steps and bad records included."""
    topic = new_topic(partitions=1)
    send(bootstrap, topic, [*({"n": n} for n in range(10)), b"{"])
    text = f"""
pipeline: lagging
bootstrap: {bootstrap}
sources:
  a:
    topic: {topic}
    schema: n BIGINT
    batch_records_max: 6
    bad_records: {{topic: {topic}.bad}}
    options: {{OPTIONS}}
steps:
  small: {{sql: 'SELECT n, assert_true(n < LIMIT) AS ok FROM a'}}
sinks:
  out: {{from: a, topic: {topic}.out}}
"""
    stuck = f"  stuck: {{from: small, topic: {topic}.stuck}}\n"
    run_once(text.replace("LIMIT", "100").replace("OPTIONS", ""), spark, tmp_path)
    with pytest.raises(PipelineError, match="query stuck"):
        run_once(text.replace("LIMIT", "8").replace("OPTIONS", "") + stuck, spark, tmp_path)
    at = {"out": 11, "a_bad": 11, "stuck": 6}
    with GroupAdmin(bootstrap) as groups:
        found = {query: groups.committed(f"braid-lagging-{query}-{topic}") for query in at}
    assert {query: sum(each.values()) for query, each in found.items()} == at
    own = text.replace("LIMIT", "100").replace("OPTIONS", "groupIdPrefix: ours") + stuck
    run_once(own, spark, tmp_path)
    with GroupAdmin(bootstrap) as groups:
        assert sum(groups.committed(f"ours-stuck-{topic}").values()) == 11


@pytest.fixture
def sent(braid_broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Sends an example's records; examples find broker and folder in the environment."""
    monkeypatch.setenv("BRAID_BOOTSTRAP", braid_broker.bootstrap)
    monkeypatch.setenv("PIPELINE_DATA", str(tmp_path))
    program = load_module(EXAMPLES / "send.py")
    return lambda kind, count: program.send(kind, count, braid_broker.bootstrap)


def run_example(name: str, spark: Any) -> None:
    run(replace(load(EXAMPLES / name), parallelism=1), once=True, spark=spark)


def test_the_examples_of_orders_and_dead_letters(
    sent: Callable[..., int], spark: Any, braid_broker: BrokerProcess, tmp_path: Path
) -> None:
    """S4 S5: counts in a topic and in the lake agree with what was sent; bad ones are accounted for."""
    sent("orders", 500)
    run_example("orders.yaml", spark)
    counts = values(braid_broker.bootstrap, "orders.per-minute")
    assert sum(each["orders"] for each in counts) == 500
    in_lake = Lake(tmp_path / "lake" / "orders").read(spark)
    assert in_lake.selectExpr("sum(orders)").first()[0] == 500
    assert {row["date"].isoformat() for row in in_lake.select("date").collect()} == {"2026-11-15"}
    run_example("dead_letters.yaml", spark)
    account = values(braid_broker.bootstrap, "dead-letters.account")
    assert sum(each["letters"] for each in account) == 2
    letters = Lake(tmp_path / "lake" / "dead-letters").read(spark)
    assert {row["from_topic"] for row in letters.collect()} == {"orders"}


def test_the_example_of_a_binlog(
    sent: Callable[..., int], spark: Any, braid_broker: BrokerProcess, tmp_path: Path
) -> None:
    """S4: the table is what the newest change of each row says; the topic never goes back."""
    sent("binlog", 300)
    run_example("binlog.yaml", spark)
    newest: dict[int, dict[str, Any]] = {}
    for each in messages(braid_broker.bootstrap, "mysql.shop.customers"):
        row = json.loads(each.value())
        if row["position"] > newest.get(row["id"], {"position": 0})["position"]:
            newest[row["id"]] = row
    expected = {key: row["name"] for key, row in newest.items() if row["op"] != "delete"}
    table = read_table(spark, tmp_path / "tables" / "customers").collect()
    assert {row["id"]: row["name"] for row in table} == expected
    reached: dict[int, int] = {}
    for each in messages(braid_broker.bootstrap, "customers.changes"):
        row = json.loads(each.value())
        assert row["position"] > reached.get(row["id"], 0)
        reached[row["id"]] = row["position"]
    assert reached == {key: row["position"] for key, row in newest.items()}


def test_the_example_of_clickstream_sessions(
    sent: Callable[..., int], spark: Any, braid_broker: BrokerProcess, tmp_path: Path
) -> None:
    """S4: one visit for each visitor, without pictures, in the topic and in the lake."""
    sent("clicks", 160)
    run_example("clickstream.py", spark)
    clicks = [json.loads(each.value()) for each in messages(braid_broker.bootstrap, "clicks")]
    pages = [click for click in clicks if not click["page"].endswith(".png") and click["visitor"] != "last"]
    visits = values(braid_broker.bootstrap, "visits")
    assert sum(visit["clicks"] for visit in visits) == len(pages)
    buyers = {click["visitor"] for click in pages if click["page"] == "/thanks"}
    assert {visit["visitor"] for visit in visits if visit["bought"]} == buyers
    assert Lake(tmp_path / "lake" / "visits").read(spark).count() == len(visits)


def test_the_demo_shows_the_same_counts_in_topic_lake_and_plot(
    braid_broker: BrokerProcess, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """S4 S5 O1: the part of scripts/demo that needs Spark."""
    pytest.importorskip("matplotlib")
    folder = load_module(EXAMPLES.parent / "demo_pipeline.py").show(braid_broker.bootstrap, 1000, spark)
    assert "1,000 orders counted" in capsys.readouterr().out
    assert (folder / "orders.png").stat().st_size > 10_000
    shutil.rmtree(folder)
