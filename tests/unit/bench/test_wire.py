"""The load generator's few frames, against a codec that is not ours."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any

from bench import wire
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import request as fetch_request
from kio.schema.fetch.v12 import response as fetch_response
from kio.schema.produce.v9 import request as produce_request
from kio.schema.produce.v9 import response as produce_response
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32, i32Timedelta, i64

from braidmq.wire import records

REQUEST_HEADER_BYTES = 4 + 2 + 2 + 4 + 2 + len(wire.CLIENT_ID) + 1


def read(frame: bytes, schema: Any) -> Any:
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    message, size = entity_reader(schema)(frame, REQUEST_HEADER_BYTES)
    assert REQUEST_HEADER_BYTES + size == len(frame)
    return message


def written(message: Any) -> bytes:
    with io.BytesIO() as buffer:
        entity_writer(type(message))(buffer, message)
        return b"\0\0\0\7\0" + buffer.getvalue()


def test_a_produce_frame_carries_each_batch_to_its_partition() -> None:
    batch = wire.record_batch(b"value", 3)
    request = read(wire.produce_frame("t", [(4, batch), (9, batch)], -1), produce_request.ProduceRequest)
    (topic,) = request.topic_data
    assert (request.acks, topic.name) == (-1, "t")
    assert [(part.index, bytes(part.records)) for part in topic.partition_data] == [(4, batch), (9, batch)]


def test_a_built_batch_is_one_a_broker_accepts() -> None:
    batch = memoryview(bytearray(wire.record_batch(b"v" * 300, 200)))
    header = records.check_produced(batch, 1_000_000)
    assert header.record_count == 200
    assert [record.value for record in records.records(batch)] == [b"v" * 300] * 200


def test_a_fetch_frame_asks_for_each_position() -> None:
    frame = wire.fetch_frame("t", [wire.Position(0, 5), wire.Position(3, 2**40)], max_wait_ms=9)
    request = read(frame, fetch_request.FetchRequest)
    asked = [(part.partition, part.fetch_offset) for part in request.topics[0].partitions]
    assert asked == [(0, 5), (3, 2**40)]


def test_an_error_of_any_partition_in_a_produce_answer_is_found() -> None:
    def answer(*codes: ErrorCode) -> bytes:
        parts = tuple(
            produce_response.PartitionProduceResponse(
                index=i32(index), error_code=code, base_offset=i64(1), record_errors=(), error_message="why"
            )
            for index, code in enumerate(codes)
        )
        topic = produce_response.TopicProduceResponse(name="t", partition_responses=parts)
        return written(produce_response.ProduceResponse(responses=(topic,)))

    assert wire.produce_error(answer(ErrorCode.none, ErrorCode.none)) == 0
    assert wire.produce_error(answer(ErrorCode.none, ErrorCode.corrupt_message)) == 2


def test_whole_batches_of_a_fetch_answer_are_found_and_a_cut_one_is_not() -> None:
    batch = wire.record_batch(b"value", 3)
    part = fetch_response.PartitionData(
        partition_index=i32(6),
        error_code=ErrorCode.none,
        high_watermark=i64(9),
        last_stable_offset=i64(9),
        aborted_transactions=(),
        preferred_read_replica=-1,
        records=batch + batch + batch[:-1],
    )
    topic = fetch_response.FetchableTopicResponse(topic="t", partitions=(part,))
    response = fetch_response.FetchResponse(
        throttle_time=i32Timedelta.parse(timedelta()), error_code=ErrorCode.none, responses=(topic,)
    )
    view = memoryview(written(response))
    (found,) = wire.fetched(view)
    assert (found.partition, found.code) == (6, 0)
    assert list(wire.batches(view, found.start, found.end)) == [(0, 3), (0, 3)]
