"""Produce through a session of the Kafka face: what is accepted, what is refused, and with which words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from braidmq.broker.opening import opened
from braidmq.wire.compress import Codec
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.metadata import MetadataRequest, MetadataResponse
from braidmq.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from braidmq.wire.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from braidmq.wire.records import build_batch, parse_header
from unit.faces.spoken import Speaker, speaker

VERSION = 12


async def produce(
    one: Speaker,
    batch: bytes | bytearray | None,
    topic: str = "t",
    partition: int = 0,
    acks: int = -1,
    version: int = VERSION,
    transactional_id: str | None = None,
) -> PartitionProduceResponse:
    request = producing(batch, topic, partition, acks, transactional_id)
    answer = await one.ask(request, ProduceResponse, version)
    return answer.responses[0].partition_responses[0]


def producing(
    batch: bytes | bytearray | None,
    topic: str = "t",
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
) -> ProduceRequest:
    part = PartitionProduceData(index=partition, records=None if batch is None else bytes(batch))
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name=topic, partition_data=[part])],
    )


def batch_of(one: Speaker, count: int = 1, codec: Codec = Codec.NONE, **rest: int | bool) -> bytearray:
    now_ms = one.broker.clock.wall_ms()
    return build_batch([(b"k", b"v" * 50, [], now_ms)] * count, codec, **rest)  # type: ignore[arg-type]


def run(tmp_path: Path, story: Callable[[Speaker], object], **overrides: str) -> None:
    async def told() -> None:
        async with speaker(tmp_path) as one:
            await one.broker.topics.create("t", 2, overrides)
            await story(one)  # type: ignore[misc]

    asyncio.run(told())


def test_an_ack_of_all_means_on_disk_and_offsets_follow_each_other(tmp_path: Path) -> None:
    """L4 P4: acks=all is answered after the group commit."""

    async def story(one: Speaker) -> None:
        assert (await produce(one, batch_of(one, 3))).base_offset == 0
        answer = await produce(one, batch_of(one, 2))
        assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, 3, -1)
        assert one.broker.partition("t", 0).log.durable_offset == 5

    run(tmp_path, story)


def test_a_retried_batch_is_acked_again_and_written_once(tmp_path: Path) -> None:
    """P4: idempotent sends: a duplicate gets its first offset, a gap or an old epoch is refused."""

    async def story(one: Speaker) -> None:
        def numbered(sequence: int, epoch: int = 0) -> bytearray:
            return batch_of(one, 2, base_sequence=sequence, producer_id=7, producer_epoch=epoch)

        assert (await produce(one, numbered(0))).base_offset == 0
        assert (await produce(one, numbered(2))).base_offset == 2
        assert (await produce(one, numbered(0))).base_offset == 0
        assert one.broker.partition("t", 0).end_offset == 4
        assert (await produce(one, numbered(8))).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await produce(one, numbered(0, epoch=1))).error_code == 0
        assert (await produce(one, numbered(4))).error_code == ErrorCode.INVALID_PRODUCER_EPOCH

    run(tmp_path, story)


def test_what_cannot_be_stored_is_refused_with_a_reason(tmp_path: Path) -> None:
    """P5 W5: Kafka's codes, and a text that says what to do."""

    async def story(one: Speaker) -> None:
        async def refused(code: ErrorCode, words: str, batch: bytearray | None, **how: object) -> None:
            answer = await produce(one, batch, **how)  # type: ignore[arg-type]
            assert ErrorCode(answer.error_code) is code
            assert words in str(answer.error_message)

        good = batch_of(one)
        torn = bytearray(good)
        torn[-1] ^= 1
        ancient = bytearray(good)
        ancient[16] = 1
        future = build_batch([(None, b"x", [], one.broker.clock.wall_ms() + 7_200_000)])
        await refused(ErrorCode.INVALID_REQUIRED_ACKS, "0, 1 or -1", good, acks=2)
        await refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic 'nope'", good, topic="nope")
        await refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "2 partitions", good, partition=2)
        await refused(ErrorCode.INVALID_RECORD, "no records", None)
        await refused(ErrorCode.CORRUPT_MESSAGE, "CRC", torn)
        await refused(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, "v2", ancient)
        await refused(ErrorCode.INVALID_TIMESTAMP, "message.timestamp.after.max.ms", future)
        await refused(ErrorCode.MESSAGE_TOO_LARGE, "max.message.bytes", batch_of(one, 100))
        await refused(ErrorCode.INVALID_TXN_STATE, "transaction", batch_of(one, transactional=True,
                      base_sequence=0, producer_id=1, producer_epoch=0))  # fmt: skip
        await refused(ErrorCode.INVALID_RECORD, "control", batch_of(one, control=True))
        old = await produce(one, batch_of(one, 1, Codec.ZSTD), version=6)
        assert old.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert one.broker.partition("t", 0).end_offset == 0

    run(tmp_path, story, **{"max.message.bytes": "4000"})


def test_a_refusal_that_cannot_be_told_closes_the_connection(tmp_path: Path) -> None:
    """P4 P5: with acks=0 there is no answer; nothing is dropped without a sign."""

    async def story(one: Speaker) -> None:
        await opened(one.broker.topics.get("t").held.values())
        one.tell(producing(batch_of(one), acks=0), VERSION)
        assert (one.closed, one.broker.partition("t", 0).end_offset) == ([], 1)
        one.tell(producing(batch_of(one), topic="nope", acks=0), VERSION)
        assert len(one.closed) == 1
        assert "no topic 'nope'" in one.closed[0]

    run(tmp_path, story)


@pytest.mark.parametrize("version", [8, 12])
def test_a_refusal_names_the_records_that_are_to_blame(tmp_path: Path, version: int) -> None:
    """P5: so that a client tells them from those that were only in the same batch (KIP-467)."""

    async def story(one: Speaker) -> None:
        now_ms = one.broker.clock.wall_ms()
        good, keyless = (b"k", b"v", [], now_ms), (None, b"v", [], now_ms)

        async def blamed(*rows: Any) -> list[tuple[int, str | None]]:
            answer = await produce(one, build_batch(rows, Codec.GZIP), version=version)
            assert answer.error_message
            return [(each.batch_index, each.batch_index_error_message) for each in answer.record_errors]

        assert await blamed(good, keyless, good, keyless) == [
            (1, "t-0 is compacted: every record needs a key"),
            (3, "t-0 is compacted: every record needs a key"),
        ]
        late = now_ms + 7_200_000
        assert await blamed(good, (b"k", b"v", [], late)) == [(1, f"its time is {late}")]
        many = await blamed(*[keyless] * 150)
        assert [at for at, _ in many] == list(range(150))
        assert many[-1] == (149, None)
        assert (await produce(one, build_batch([good] * 3), version=version)).record_errors == []
        assert one.broker.partition("t", 0).end_offset == 3

    run(tmp_path, story, **{"cleanup.policy": "compact"})


@pytest.mark.parametrize("codec", list(Codec))
def test_a_topic_may_choose_codec_and_clock(tmp_path: Path, codec: Codec) -> None:
    """P3: compression.type and message.timestamp.type are the topic's to decide."""

    async def story(one: Speaker) -> None:
        answer = await produce(one, batch_of(one, 20, Codec.GZIP))
        assert answer.error_code == 0
        assert answer.log_append_time_ms > 0
        found = one.broker.partition("t", 0).read(0, 10_000).records
        assert found is not None
        header = parse_header(found.read())
        assert (header.codec, header.record_count, header.timestamp_type_append) == (codec, 20, True)
        found.release()

    name = "uncompressed" if codec is Codec.NONE else codec.name.lower()
    run(tmp_path, story, **{"compression.type": name, "message.timestamp.type": "LogAppendTime"})


def test_the_brokers_own_topics_are_read_but_not_written_or_deleted(tmp_path: Path) -> None:
    """C6 W5: nobody forges committed offsets, or takes them away, through an internal topic."""

    async def story(one: Speaker) -> None:
        await one.broker.groups.ensure()
        answer = await produce(one, batch_of(one), topic="__consumer_offsets")
        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="__consumer_offsets")])
        refused = (await one.ask(gone, DeleteTopicsResponse)).responses[0]
        assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        told = await one.ask(MetadataRequest(topics=None), MetadataResponse)
        assert {topic.name: topic.is_internal for topic in told.topics} == {
            "__consumer_offsets": True, "t": False,
        }  # fmt: skip

    run(tmp_path, story)
