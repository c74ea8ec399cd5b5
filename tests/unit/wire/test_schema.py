"""The notation, and what its generated codecs refuse."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.wire import header
from braidmq.wire.api import Api
from braidmq.wire.errors import ProtocolError
from braidmq.wire.messages.groups import JoinGroupRequest
from braidmq.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from braidmq.wire.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from braidmq.wire.messages.topics import Cursor, DescribeTopicPartitionsRequest
from braidmq.wire.primitives import (
    TAGGED_FIELDS_MAX,
    UVARINT_MAX,
    ZERO_UUID,
    read_uvarint,
    skip_tagged_fields,
    uvarint,
)
from braidmq.wire.schema import Message, array, decode, encode, float64, int32, string, uint16, uint32


def test_fields_left_out_hold_their_defaults_and_lists_are_not_shared() -> None:
    """W1: defaults are zero, empty, None for what may be null, or what the table says."""
    request = MetadataRequest()
    assert request.topics is None
    assert request.allow_auto_topic_creation is True
    topic = MetadataRequestTopic()
    assert (topic.topic_id, topic.name) == (ZERO_UUID, None)
    one, other = MetadataResponse(), MetadataResponse()
    one.brokers.append(None)  # type: ignore[arg-type]
    assert other.brokers == []


def test_fields_go_by_name_only_and_unknown_ones_are_refused() -> None:
    """W1: a misspelt field is an error, at construction and afterwards."""
    with pytest.raises(TypeError):
        MetadataRequest([])  # type: ignore[misc]
    with pytest.raises(TypeError, match="topic_names"):
        MetadataRequest(topic_names=[])  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        MetadataRequest().topic_names = []  # type: ignore[attr-defined]


def test_messages_compare_and_print_by_their_fields() -> None:
    """W1: equality and repr show every field."""
    topic = MetadataRequestTopic(name="t")
    assert topic == MetadataRequestTopic(name="t")
    assert topic != MetadataRequestTopic(name="u")
    assert topic != Cursor(topic_name="t")
    assert repr(topic) == f"MetadataRequestTopic(topic_id={ZERO_UUID!r}, name='t')"
    with pytest.raises(TypeError, match="unhashable"):
        hash(topic)


def test_null_where_a_version_has_none_is_refused_on_both_sides() -> None:
    """W5: null topics exist from version 1 of Metadata on, null names from version 10 on."""
    with pytest.raises(ValueError, match=r"MetadataRequest\.topics cannot be None in version 0"):
        encode(MetadataRequest(topics=None), 0)
    with pytest.raises(ProtocolError, match=r"MetadataRequest\.topics is null"):
        decode(MetadataRequest, 0, struct.pack(">i", -1))
    assert decode(MetadataRequest, 1, struct.pack(">i", -1)).topics is None
    with pytest.raises(ProtocolError, match=r"MetadataRequestTopic\.name is null"):
        decode(MetadataRequest, 9, b"\x02\x00\x00\x01\x00\x00\x00")


@pytest.mark.parametrize("length", [-2, -(2**31)])
def test_a_negative_length_other_than_null_is_refused(length: int) -> None:
    """W5: -1 is null; anything below is nonsense."""
    with pytest.raises(ProtocolError, match=str(length)):
        decode(MetadataRequest, 1, struct.pack(">i", length))


@pytest.mark.parametrize("count", [3, 2**20, 2**31 - 1])
def test_a_count_larger_than_what_is_left_is_refused_before_anything_is_read(count: int) -> None:
    """W5: a topic name takes two bytes at least, so three of them do not fit in five."""
    with pytest.raises(ProtocolError, match=f"claims {count} elements in 5 bytes"):
        decode(MetadataRequest, 1, struct.pack(">i", count) + b"\x00\x01a\x00\x00")
    with pytest.raises(ProtocolError, match=f"claims {count} elements in 5 bytes"):
        decode(MetadataRequest, 12, uvarint(count + 1) + bytes(5))


def test_a_string_that_is_not_utf_8_is_refused() -> None:
    """W5: bad UTF-8, a lone surrogate, and a character cut in two."""
    for name in (b"\xff\xfe", b"\xed\xa0\x80", "é".encode()[:1]):
        body = struct.pack(">ih", 1, len(name)) + name
        with pytest.raises(ProtocolError, match="utf-8"):
            decode(MetadataRequest, 1, body)


def test_an_overlong_varint_is_refused() -> None:
    """W5: a length takes five bytes at most and fits in 32 bits."""
    with pytest.raises(ProtocolError, match="longer than 5 bytes"):
        decode(MetadataRequest, 12, b"\x80\x80\x80\x80\x80\x01")
    with pytest.raises(ProtocolError, match="32 bits"):
        decode(MetadataRequest, 12, b"\xff\xff\xff\xff\x1f")


@given(st.integers(0, UVARINT_MAX))
def test_varints_are_read_back_wherever_they_stand(value: int) -> None:
    """W1: one to five bytes, seven bits each."""
    written = uvarint(value)
    assert len(written) == max(1, (value.bit_length() + 6) // 7)
    assert read_uvarint(b"??" + written + b"?", 2) == (value, 2 + len(written))
    for length in range(len(written)):
        with pytest.raises(IndexError):
            read_uvarint(written[:length], 0)


def test_a_flood_of_tagged_fields_is_refused() -> None:
    """W5: a structure carries a bounded number of tagged fields, known or not."""
    tag = uvarint(77) + b"\x00"
    many = uvarint(TAGGED_FIELDS_MAX) + tag * TAGGED_FIELDS_MAX
    assert skip_tagged_fields(many, 1, many[0]) == len(many)
    too_many = uvarint(TAGGED_FIELDS_MAX + 1) + tag * (TAGGED_FIELDS_MAX + 1)
    with pytest.raises(ProtocolError, match="129 tagged fields"):
        skip_tagged_fields(too_many, 1, too_many[0])
    with pytest.raises(ProtocolError, match="129 tagged fields"):
        decode(ProduceResponse, 10, b"\x01" + bytes(4) + too_many)


def test_a_tagged_field_must_fill_the_size_it_claims() -> None:
    """W5: node endpoints of one byte, claimed to be two."""
    assert decode(ProduceResponse, 10, b"\x01" + bytes(4) + b"\x01\x00\x01\x01").node_endpoints == []
    with pytest.raises(ProtocolError, match="wrong size"):
        decode(ProduceResponse, 10, b"\x01" + bytes(4) + b"\x01\x00\x02\x01\x00")


def test_tagged_structures_are_sent_only_when_they_are_there() -> None:
    """W1: the current leader travels in a tagged field, in versions that know of it."""
    leader = LeaderIdAndEpoch(leader_id=3, leader_epoch=9)
    partition = PartitionProduceResponse(index=1, current_leader=leader)
    response = ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[partition])])
    for version, expected in ((9, None), (10, leader), (12, leader)):
        back = decode(ProduceResponse, version, encode(response, version))
        assert back.responses[0].partition_responses[0].current_leader == expected


def test_a_nullable_structure_is_there_or_not() -> None:
    """W1: the cursor of DescribeTopicPartitions."""
    for cursor in (None, Cursor(topic_name="t", partition_index=7)):
        request = DescribeTopicPartitionsRequest(cursor=cursor)
        assert decode(DescribeTopicPartitionsRequest, 0, encode(request, 0)) == request
    with pytest.raises(ProtocolError, match="-5"):
        decode(DescribeTopicPartitionsRequest, 0, b"\x01" + bytes(4) + b"\xfb\x00")


class Measurement(Message, versions=(0, 1), flexible=1):
    """Kinds that no message of ours uses yet, so that the first one to do so finds them working."""

    port: int = uint16()
    mask: int = uint32()
    ratio: float = float64()
    counts: list[int] = array(uint32)
    lines: list[str] = array(string)
    rest: int = int32()


@given(
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
    st.floats(allow_nan=False),
    st.lists(st.integers(0, 2**32 - 1), max_size=12),
    st.lists(st.text(), max_size=3),
)
def test_kinds_that_are_rare_work_like_the_others(
    port: int, mask: int, ratio: float, counts: list[int], lines: list[str]
) -> None:
    """W1: unsigned numbers and floats, alone and in lists."""
    message = Measurement(port=port, mask=mask, ratio=ratio, counts=counts, lines=lines, rest=-1)
    for version in (0, 1):
        assert decode(Measurement, version, encode(message, version)) == message


def test_bytes_are_copied_out_of_what_was_received() -> None:
    """W4: receive buffers are reused, so what outlives a request must not point into them."""
    body = bytearray(
        encode(JoinGroupRequest(group_id="g", member_id="m", protocol_type="consumer"), 0)[:-4]
        + struct.pack(">ih", 1, 1) + b"r" + struct.pack(">i", 3) + b"abc"
    )  # fmt: skip
    request = decode(JoinGroupRequest, 0, memoryview(body))
    body[-3:] = b"xyz"
    assert request.protocols[0].metadata == b"abc"


def test_the_header_of_an_unknown_api_is_read_as_far_as_all_have_it() -> None:
    """W5: the broker can answer with the right correlation id, or hang up."""
    request = struct.pack(">hhih", 999, 7, 42, 2) + b"me" + b"whatever"
    assert header.parse_request(request) == (999, 7, 42, "me", 12)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        struct.pack(">hhi", 3, 9, 1),
        struct.pack(">hhih", 3, 9, 1, 5) + b"four",
        struct.pack(">hhih", 3, 9, 1, -2),
        struct.pack(">hhih", 3, 1, 1, 2) + b"\xff\xff",
        struct.pack(">hhih", 3, 9, 1, -1),
        struct.pack(">hhih", 3, 9, 1, -1) + b"\x01\x00\x05",
        struct.pack(">hhih", 3, 9, 1, -1) + b"\xff\xff\xff\xff\xff",
    ],
)
def test_a_damaged_request_header_is_a_protocol_error(damaged: bytes) -> None:
    """W5: too short, of negative length, not UTF-8, or with tagged fields that do not end."""
    with pytest.raises(ProtocolError):
        header.parse_request(memoryview(damaged))


def test_tagged_fields_in_a_request_header_are_skipped() -> None:
    """W1: header version 2 may carry what we do not know."""
    request = struct.pack(">hhih", 3, 9, 1, -1) + b"\x01\x4d\x02hi" + b"body"
    assert header.parse_request(request).body_at == len(request) - 4


def test_a_response_frame_says_its_size_and_whose_answer_it_is() -> None:
    """W1: ApiVersions answers without tagged fields in every version, the others with them where flexible."""
    assert header.response_frame(Api.METADATA, 8, 5, b"body") == struct.pack(">ii", 8, 5) + b"body"
    assert header.response_frame(Api.METADATA, 9, 5, b"body") == struct.pack(">iib", 9, 5, 0) + b"body"
    assert header.response_frame(Api.API_VERSIONS, 3, 5, b"body") == struct.pack(">ii", 8, 5) + b"body"
