"""Options of a read: what they mean, and what is said when they cannot be."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("pyspark")

from braidmq.client.consumer import Start
from braidmq.spark.options import Isolation, LocalLog, OptionError
from braidmq.spark.source.group_positions import group_name
from braidmq.spark.source.query import parse_query

MINIMUM = {"bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}


def parse(streaming: bool = False, **options: str) -> Any:
    return parse_query(MINIMUM | {name.replace("__", "."): text for name, text in options.items()}, streaming)


def test_a_query_of_sparks_kafka_source_is_understood_as_it_is() -> None:
    """S1: names in any case, the client's settings with their prefix, those without effect here accepted."""
    query = parse_query(
        {
            "kafka.bootstrap.servers": "one:9092,two:9093",
            "SUBSCRIBE": "orders, payments",
            "startingoffsets": '{"orders":{"0":23,"1":-2},"payments":{"0":-2}}',
            "endingOffsets": '{"orders":{"0":50,"1":-1},"payments":{"0":-1}}',
            "failOnDataLoss": "false",
            "kafka.isolation.level": "read_committed",
            "kafka.max.poll.records": "500",
            "kafkaConsumer.pollTimeoutMs": "1000",
            "minPartitions": "10",
        },
        streaming=False,
    )

    assert query.bootstrap == "one:9092,two:9093"
    assert query.subscription.topics == ("orders", "payments")
    assert query.start.offsets == {"orders": {0: 23, 1: -2}, "payments": {0: -2}}
    assert query.end.offsets["orders"] == {0: 50, 1: -1}
    assert query.isolation is Isolation.READ_COMMITTED
    assert (query.fail_on_data_loss, query.partitions_min) == (False, 10)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    """S1 S2: a batch begins at the earliest record, a stream at the latest."""
    batch, stream = parse(), parse(streaming=True)

    assert (batch.start.edge, batch.end.edge) == (Start.EARLIEST, Start.LATEST)
    assert stream.start.edge is Start.LATEST
    assert (batch.fail_on_data_loss, batch.include_headers) == (True, False)
    assert batch.local_log is LocalLog.AUTO


def test_times_go_before_offsets() -> None:
    """S1: one time for all, then times by partition, then offsets, as in Spark's Kafka source."""
    times = '{"orders":{"0":5}}'
    both = parse(startingTimestamp="17", startingOffsetsByTimestamp=times, startingOffsets="earliest")
    by_partition = parse(endingOffsetsByTimestamp=times, endingOffsets="latest")

    assert both.start.timestamp_ms == 17
    assert by_partition.end.timestamps == {"orders": {0: 5}}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"startingOffset": "earliest"}, "no option 'startingOffset'; did you mean 'startingOffsets'"),
        ({"maxOffsetPerTriger": "5"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"kafka.bootstrap.server": "a:1"}, "did you mean 'bootstrap.servers'"),
        ({"startingOffsets": "erliest"}, "not JSON of the right form"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "startingOffsets: 'orders' has '0': -3"),
        ({"startingOffsets": "latest"}, "startingOffsets is latest, so nothing would be read"),
        ({"endingOffsets": "earliest"}, "write latest"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "would read nothing"),
        ({"minPartitions": "none"}, "minPartitions is 'none'; it must be a whole number of at least 1"),
        ({"failOnDataLoss": "maybe"}, "must be true or false"),
        ({"isolation": "serial"}, "must be one of read_uncommitted, read_committed"),
        ({"localLog": "sometimes"}, "must be one of auto, always, never"),
        ({"subscribePattern": "x.*"}, "subscribe and subscribePattern are given"),
        ({"bootstrap.servers": "host:port"}, "bootstrap.servers: 'host:port': the port must be a number"),
        ({"kafka.security.protocol": "TLS"}, "security.protocol is 'TLS'; it must be one of PLAINTEXT, SSL"),
        ({"kafka.security.protocol": "SASL_SSL"}, "sasl.mechanism is ''"),
        ({"kafka.max.partition.fetch.bytes": "much"}, "fetch.bytes is 'much'; it must be a whole"),
        ({"maxTriggerDelay": "soon"}, "write a time like 500ms"),
        ({"kafka.group.id": "a", "group.id": "b"}, "given twice"),
    ],
)
def test_a_wrong_option_is_named_with_what_would_be_right(options: dict[str, str], complaint: str) -> None:
    """S1: nothing is ignored silently."""
    with pytest.raises(OptionError) as caught:
        parse_query(MINIMUM | options, streaming=False)

    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"subscribe": "orders"}, "bootstrap.servers is missing"),
        ({"bootstrap.servers": "a:1"}, "none is given"),
        ({"bootstrap.servers": "a:1", "subscribe": " , "}, "names no topic"),
        ({"bootstrap.servers": "a:1", "subscribePattern": "("}, "not a regular expression"),
        ({"bootstrap.servers": "a:1", "subscribePattern": r"\p{InGreek}"}, r"does not support \p{InGreek}"),
        ({"bootstrap.servers": "a:1", "subscribe": ""}, "option subscribe is empty; write .option"),
        ({"bootstrap.servers": "a:1", "assign": '{"orders":"0"}'}, "not a list of numbers"),
        ({"bootstrap.servers": "a:1", "assign": "{}"}, "names no partition"),
    ],
)
def test_what_is_missing_is_asked_for(given: dict[str, str], complaint: str) -> None:
    """S1: with an example of how it is written."""
    with pytest.raises(OptionError, match=re.escape(complaint)):
        parse_query(given, streaming=False)


def test_a_stream_has_no_end() -> None:
    """S2: ending offsets in a stream are a mistake."""
    with pytest.raises(OptionError, match="has no meaning in a stream"):
        parse(streaming=True, endingOffsets="latest")


def test_a_query_publishes_to_a_group_named_after_its_topics() -> None:
    """S2: unless it is told a name; an empty one turns it off."""
    assert group_name(parse()) == "spark-braid-orders"
    assert group_name(parse(groupIdPrefix="etl")) == "etl-orders"
    assert group_name(parse(groupId="mine")) == "mine"
    assert group_name(parse(kafka__group__id="theirs")) == "theirs"
    assert group_name(parse(groupId="")) == ""
    pattern = parse_query({"bootstrap.servers": "a:1", "subscribePattern": "orders.*"}, streaming=True)
    assert group_name(pattern).startswith("spark-braid-orders.--")


def test_passwords_do_not_show() -> None:
    """S1: what is printed of a query holds no secrets."""
    query = parse(
        kafka__security__protocol="SASL_SSL",
        kafka__sasl__mechanism="PLAIN",
        kafka__sasl__username="bob",
        kafka__sasl__password="hunter2",
    )

    assert "hunter2" not in repr(query)
