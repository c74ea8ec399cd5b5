"""Fetch written by hand does what the generated codec does; its answers keep file slices as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braidmq.wire import fetch, header
from braidmq.wire.api import Api
from braidmq.wire.errors import ProtocolError
from braidmq.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from braidmq.wire.primitives import uvarint
from braidmq.wire.schema import decode, encode
from unit.wire.drawn import BYTES, TEXTS, filled, messages

VERSIONS = range(FetchRequest.versions[0], FetchRequest.versions[1] + 1)
every_version = pytest.mark.parametrize("version", VERSIONS)


@dataclass(frozen=True)
class FileSlice:
    """Stands for bytes in a segment; the encoder may look at nothing but the size."""

    content: bytes

    @property
    def size(self) -> int:
        return len(self.content)


INT64 = st.integers(-(2**63), 2**63 - 1)
RESULTS = st.builds(
    fetch.FetchResult,
    st.integers(0, 2**31 - 1), st.integers(-1, 133), INT64, INT64, INT64,
    st.none() | st.lists(st.tuples(INT64, INT64), max_size=2), st.integers(-1, 2**31 - 1),
    st.none() | BYTES | BYTES.map(FileSlice),
)  # fmt: skip
TOPICS = st.lists(
    st.tuples(TEXTS, st.binary(min_size=16, max_size=16), st.lists(RESULTS, max_size=3)), max_size=3
)


def as_tuples(request: FetchRequest, version: int) -> Any:
    """A request of the generated codec in the shape of ours."""
    by_id = version >= fetch.TOPIC_IDS
    topics = [
        (
            None if by_id else topic.topic,
            topic.topic_id if by_id else None,
            [
                (
                    one.partition, one.current_leader_epoch, one.fetch_offset,
                    one.last_fetched_epoch, one.log_start_offset, one.partition_max_bytes,
                )
                for one in topic.partitions
            ],
        )
        for topic in request.topics
    ]  # fmt: skip
    forgotten = [
        (None if by_id else topic.topic, topic.topic_id if by_id else None, topic.partitions)
        for topic in request.forgotten_topics_data
    ]
    state = request.replica_state
    replica_id = request.replica_id if state is None else state.replica_id
    return (
        replica_id, request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level,
        request.session_id, request.session_epoch, topics, forgotten, request.rack_id,
    )  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(request=messages(FetchRequest), prefix=BYTES)
def test_requests_are_read_as_the_generated_codec_reads_them(request: FetchRequest, prefix: bytes) -> None:
    """W1: every version, wherever in the frame the body begins."""
    for version in VERSIONS:
        body = encode(request, version)
        expected = as_tuples(decode(FetchRequest, version, body), version)
        assert fetch.decode(memoryview(prefix + body), len(prefix), version) == expected
        assert fetch.decode(body, 0, version) == expected


def test_a_follower_is_recognised_in_every_version() -> None:
    """W1: its id moved from a plain to a tagged field in version 15."""
    request = filled(FetchRequest)
    request.replica_id = request.replica_state.replica_id = 4
    for version in VERSIONS:
        assert fetch.decode(encode(request, version), 0, version).replica_id == 4
        assert fetch.decode(encode(FetchRequest(), version), 0, version).replica_id == fetch.CONSUMER


@settings(max_examples=40, deadline=None)
@given(
    topics=TOPICS,
    correlation_id=st.integers(0, 2**31 - 1),
    throttle_ms=st.integers(0, 2**31 - 1),
    code=st.integers(-1, 133),
    session_id=st.integers(0, 2**31 - 1),
)
def test_responses_are_the_bytes_of_the_generated_codec(
    topics: list[Any], correlation_id: int, throttle_ms: int, code: int, session_id: int
) -> None:
    """W1, W3: joined, the parts are size prefix, header and body; slices stand among them untouched."""
    slices = [
        one.records for _, _, results in topics for one in results if isinstance(one.records, FileSlice)
    ]
    for version in VERSIONS:
        response = FetchResponse(
            throttle_time_ms=throttle_ms,
            error_code=code,
            session_id=session_id,
            responses=as_messages(topics),
        )
        expected = header.response_frame(Api.FETCH, version, correlation_id, encode(response, version))
        parts = fetch.encode_response(version, correlation_id, throttle_ms, code, session_id, topics)
        assert joined(parts) == expected
        placed = [part for part in parts if isinstance(part, FileSlice)]
        assert [id(one) for one in placed] == [id(one) for one in slices if one.size]


def as_messages(topics: list[Any]) -> list[FetchableTopicResponse]:
    return [
        FetchableTopicResponse(
            topic=name, topic_id=topic_id,
            partitions=[
                PartitionData(
                    partition_index=one.index, error_code=one.code, high_watermark=one.high_watermark,
                    last_stable_offset=one.last_stable_offset, log_start_offset=one.log_start_offset,
                    aborted_transactions=aborted(one.aborted),
                    preferred_read_replica=one.preferred_replica, records=content(one.records),
                )
                for one in results
            ],
        )
        for name, topic_id, results in topics
    ]  # fmt: skip


def aborted(transactions: list[tuple[int, int]] | None) -> list[AbortedTransaction] | None:
    if transactions is None:
        return None
    return [AbortedTransaction(producer_id=producer, first_offset=first) for producer, first in transactions]


def content(records: Any) -> bytes:
    return records.content if isinstance(records, FileSlice) else records or b""


def joined(parts: list[Any]) -> bytes:
    return b"".join(content(part) for part in parts)


def test_large_records_are_counted_and_not_read() -> None:
    """W3: a slice of nearly two gigabytes costs its size in the length, nothing more."""

    class Huge:
        size = 2**31 - 2000

    for version in VERSIONS:
        result = fetch.FetchResult(0, 0, 1, 1, 0, None, -1, Huge())
        parts = fetch.encode_response(version, 1, 0, 0, 0, [("t", bytes(16), [result])])
        assert isinstance(parts[1], Huge)
        around = sum(len(part) for part in parts if not isinstance(part, Huge))
        assert int.from_bytes(parts[0][:4], "big") == around + Huge.size - 4


@every_version
def test_a_request_cut_at_any_byte_or_too_long_is_a_protocol_error(version: int) -> None:
    """W5: truncation is noticed wherever it falls."""
    body = memoryview(encode(filled(FetchRequest), version))
    for length in range(len(body)):
        with pytest.raises(ProtocolError):
            fetch.decode(body[:length], 0, version)
    with pytest.raises(ProtocolError, match=f"the body ends at byte {len(body)}, the request at"):
        fetch.decode(bytes(body) + b"\0", 0, version)


@every_version
def test_damaged_bytes_are_taken_as_the_generated_codec_takes_them_or_refused(version: int) -> None:
    """W5: each byte in turn made small, large and negative."""
    body = encode(filled(FetchRequest), version)
    for position in range(len(body)):
        for value in (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF):
            damaged = memoryview(body[:position] + bytes([value]) + body[position + 1 :])
            try:
                expected = as_tuples(decode(FetchRequest, version, damaged), version)
            except ProtocolError:
                # Tagged fields we have no use for are skipped unread, so a few more get through.
                try:
                    fetch.decode(damaged, 0, version)
                except ProtocolError:
                    pass
            else:
                assert fetch.decode(damaged, 0, version) == expected


def test_unknown_tagged_fields_are_skipped_at_every_level() -> None:
    """W1: of a partition, of a topic, of a forgotten topic, of the request."""
    tag = b"\x01" + uvarint(300) + b"\x02hi"
    partition = bytes(32) + tag
    body = bytes(21) + b"\x02" + bytes(16) + b"\x02" + partition + tag
    body += b"\x02" + bytes(16) + b"\x02" + bytes(4) + tag + b"\x01" + tag
    request = fetch.decode(body, 0, 16)
    assert request.topics == [(None, bytes(16), [(0, 0, 0, 0, 0, 0)])]
    assert request.forgotten == [(None, bytes(16), [0])]


@pytest.mark.parametrize("count", [0, 100, 2**32 - 1])
def test_a_count_larger_than_what_is_left_is_refused(count: int) -> None:
    """W5: zero is null, which a list of topics cannot be."""
    with pytest.raises(ProtocolError, match=f"an array of {count - 1} elements"):
        fetch.decode(bytes(21) + uvarint(count) + bytes(20), 0, 16)
