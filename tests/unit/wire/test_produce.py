"""Produce written by hand does what the generated codec does, in every version and on damaged bytes too."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braidmq.wire import header, produce
from braidmq.wire.api import Api
from braidmq.wire.errors import ProtocolError, RecordError
from braidmq.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from braidmq.wire.primitives import uvarint
from braidmq.wire.schema import decode, encode
from unit.wire.drawn import BYTES, TEXTS, encodable, filled, messages

VERSIONS = range(ProduceRequest.versions[0], ProduceRequest.versions[1] + 1)
every_version = pytest.mark.parametrize("version", VERSIONS)
INT64 = st.integers(-(2**63), 2**63 - 1)
RESULTS = st.builds(
    produce.ProduceResult,
    st.integers(0, 2**31 - 1), st.integers(-1, 133), INT64, INT64, INT64, st.none() | TEXTS,
    st.lists(st.builds(RecordError, st.integers(0, 2**31 - 1), st.none() | TEXTS), max_size=3),
)  # fmt: skip
TOPICS = st.lists(
    st.tuples(TEXTS, st.binary(min_size=16, max_size=16), st.lists(RESULTS, max_size=3)), max_size=3
)


def as_tuples(request: ProduceRequest, version: int) -> Any:
    """A request of the generated codec in the shape of ours."""
    by_id = version >= produce.TOPIC_IDS
    topics = [
        (
            None if by_id else topic.name,
            topic.topic_id if by_id else None,
            [(partition.index, partition.records) for partition in topic.partition_data],
        )
        for topic in request.topic_data
    ]
    return (request.transactional_id, request.acks, request.timeout_ms, topics)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(request=messages(ProduceRequest), prefix=BYTES)
def test_requests_are_read_as_the_generated_codec_reads_them(request: ProduceRequest, prefix: bytes) -> None:
    """W1: every version, wherever in the frame the body begins."""
    for version in VERSIONS:
        body = encode(request, version)
        expected = as_tuples(decode(ProduceRequest, version, body), version)
        assert produce.decode(memoryview(prefix + body), len(prefix), version) == expected
        assert produce.decode(body, 0, version) == expected


def test_records_are_a_slice_of_the_receive_buffer() -> None:
    """W3: the batch a producer sent is not copied on its way to the log."""
    frame = bytearray(encode(filled(ProduceRequest), 9))
    records = produce.decode(memoryview(frame), 0, 9).topics[0][2][0][1]
    assert isinstance(records, memoryview)
    assert records.obj is frame


@settings(max_examples=40, deadline=None)
@given(topics=TOPICS, correlation_id=st.integers(0, 2**31 - 1), throttle_ms=st.integers(0, 2**31 - 1))
def test_responses_are_the_bytes_of_the_generated_codec(
    topics: list[Any], correlation_id: int, throttle_ms: int
) -> None:
    """W1: size prefix, header and body in every version."""
    responses = [
        TopicProduceResponse(
            name=name, topic_id=topic_id,
            partition_responses=[
                PartitionProduceResponse(
                    index=result.index, error_code=result.code, base_offset=result.base_offset,
                    log_append_time_ms=result.append_time_ms, log_start_offset=result.log_start_offset,
                    error_message=result.message,
                    record_errors=[
                        BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=why)
                        for at, why in result.record_errors
                    ],
                )
                for result in results
            ],
        )
        for name, topic_id, results in topics
    ]  # fmt: skip
    for version in VERSIONS:
        body = encode(ProduceResponse(responses=responses, throttle_time_ms=throttle_ms), version)
        expected = header.response_frame(Api.PRODUCE, version, correlation_id, body)
        assert produce.encode_response(version, correlation_id, topics, throttle_ms) == expected


def test_counts_of_many_topics_and_partitions_take_several_bytes() -> None:
    """W1: 200 topics, one of 200 partitions, read and answered."""
    results = [produce.ProduceResult(index, 0, 7, -1, 0, None) for index in range(200)]
    topics = [(f"topic {index}", bytes(16), results if index == 199 else []) for index in range(200)]
    for version in VERSIONS:
        frame = produce.encode_response(version, 1, topics)
        body = frame[9 if header.has_response_tags(Api.PRODUCE, version) else 8 :]
        response = decode(ProduceResponse, version, body)
        assert len(response.responses) == 200
        assert [one.index for one in response.responses[-1].partition_responses] == list(range(200))
    request = filled(ProduceRequest)
    request.topic_data[0].partition_data *= 100
    request.topic_data += request.topic_data[1:] * 198
    for version in VERSIONS:
        body = encode(request, version)
        assert produce.decode(body, 0, version) == as_tuples(decode(ProduceRequest, version, body), version)


@every_version
def test_a_request_cut_at_any_byte_or_too_long_is_a_protocol_error(version: int) -> None:
    """W5: truncation is noticed wherever it falls."""
    body = memoryview(encode(filled(ProduceRequest), version))
    for length in range(len(body)):
        with pytest.raises(ProtocolError):
            produce.decode(body[:length], 0, version)
    with pytest.raises(ProtocolError, match=f"the body ends at byte {len(body)}, the request at"):
        produce.decode(bytes(body) + b"\0", 0, version)


@every_version
def test_damaged_bytes_are_taken_and_refused_as_the_generated_codec_does(version: int) -> None:
    """W5: each byte in turn made small, large and negative."""
    body = encode(encodable(filled(ProduceRequest), version), version)
    for position in range(len(body)):
        for value in (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF):
            damaged = memoryview(body[:position] + bytes([value]) + body[position + 1 :])
            try:
                expected = as_tuples(decode(ProduceRequest, version, damaged), version)
            except ProtocolError:
                with pytest.raises(ProtocolError):
                    produce.decode(damaged, 0, version)
            else:
                assert produce.decode(damaged, 0, version) == expected


def test_unknown_tagged_fields_are_skipped_at_every_level() -> None:
    """W1: of a partition, of a topic, of the request."""
    tag = b"\x01" + uvarint(300) + b"\x02hi"
    body = (
        b"\x00" + b"\xff\xff" + (1500).to_bytes(4, "big")
        + b"\x02" + b"\x02t" + b"\x02" + (7).to_bytes(4, "big") + b"\x04abc" + tag + tag + tag
    )  # fmt: skip
    assert produce.decode(body, 0, 9) == (None, -1, 1500, [("t", None, [(7, b"abc")])])


def test_a_topic_without_a_name_is_refused() -> None:
    """W5: null in place of the name, in both ways to write it."""
    with pytest.raises(ProtocolError, match="a topic without a name"):
        produce.decode(b"\x00" + bytes(6) + b"\x02" + b"\x00" + b"\x01\x00\x00", 0, 9)
    with pytest.raises(ProtocolError, match="a topic without a name"):
        produce.decode(b"\xff\xff" + bytes(6) + b"\x00\x00\x00\x01" + b"\xff\xff" + bytes(4), 0, 8)


@pytest.mark.parametrize("count", [0, 100, 2**32 - 1])
def test_a_count_larger_than_what_is_left_is_refused(count: int) -> None:
    """W5: zero is null, which a list of topics cannot be."""
    body = b"\x00" + bytes(6) + uvarint(count) + bytes(20)
    with pytest.raises(ProtocolError, match=f"an array of {count - 1} elements"):
        produce.decode(body, 0, 9)
