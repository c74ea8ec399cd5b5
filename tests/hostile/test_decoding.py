"""Requests that lie inside a right frame: counts, lengths, varints, text, tags, keys and versions.

Every API is attacked in the same way: its valid request is cut at each byte, and damaged at each byte in each
of several ways. Whatever comes back, it is a response to this request or a closed connection.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.hostile import calls, raw
from tests.hostile.raw import (
    NO_TAGS,
    Connection,
    Reader,
    array,
    compact,
    framed,
    i8,
    i16,
    i32,
    outcome,
    string,
    uvarint,
)
from tests.hostile.raw import request as plain_request
from tests.hostile.requests import NAMES, Valid, compact_array, valid_requests

UNSUPPORTED_VERSION, INVALID_TOPIC = 35, 17
OVERLONG = (b"\x80" * 10 + b"\x00", b"\xff" * 10, b"\xff\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x07")


@pytest.fixture
def valid(request: pytest.FixtureRequest, topic: str) -> Valid:
    return valid_requests(topic)[request.param]


every_api = pytest.mark.parametrize("valid", range(len(NAMES)), ids=NAMES, indirect=True)


@every_api
def test_the_undamaged_request_is_answered(bootstrap: str, valid: Valid) -> None:
    """W1: without this the tests below would prove nothing."""
    with Connection(bootstrap) as connection:
        connection.send(valid.framed())
        answer = connection.frame()
        assert answer is not None
        assert answer[:4] == i32(1)


@every_api
def test_a_body_cut_at_each_byte_is_refused(bootstrap: str, valid: Valid) -> None:
    """W5: the frame is whole, the message in it is not."""
    for size in range(len(valid.body)):
        assert outcome(bootstrap, valid.framed(valid.body[:size])) is None, f"cut at {size}"


def damaged(valid: Valid) -> Iterator[bytes]:
    """The body with one place damaged: huge and negative counts, overlong varints, broken text."""
    body = valid.body
    for at in range(len(body)):
        yield body[:at] + bytes([body[at] ^ 0xFF]) + body[at + 1 :]
        yield body[:at] + i32(2**31 - 1) + body[at + 4 :]
        yield body[:at] + i32(-2) + body[at + 4 :]
        if valid.flexible:
            for varint in OVERLONG:
                yield body[:at] + varint + body[at + 1 :]
        elif at % 2 == 0:
            yield body[:at] + i16(-2) + body[at + 2 :]


@every_api
def test_a_body_damaged_at_any_byte_harms_nobody(bootstrap: str, valid: Valid) -> None:
    """W5: counts larger than what is left, negative lengths, overlong varints, flipped bytes."""
    for body in damaged(valid):
        try:
            outcome(bootstrap, valid.framed(body))
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{valid.name} v{valid.version}: {body.hex()}") from error


@pytest.mark.parametrize("count", [2**31 - 1, 10_000_000, -2, -(2**31)])
def test_an_array_longer_than_the_request_is_refused(bootstrap: str, count: int) -> None:
    """W5: never allocate from a declared count."""
    body = i32(count) + string("t") + i8(1)
    assert outcome(bootstrap, framed(plain_request(raw.METADATA, 4, body))) is None


@pytest.mark.parametrize("junk", [b"\xff\xfe", b"\xc0\xaf", b"\xed\xa0\x80", b"ok\x80"])
def test_bad_utf8_in_a_name_is_refused(bootstrap: str, connection: Connection, junk: bytes) -> None:
    """W5: a name that is no text never becomes a topic."""
    plan = string(junk) + i32(1) + i16(1) + array() + array()
    refused = outcome(bootstrap, framed(plain_request(raw.CREATE_TOPICS, 4, array(plan) + i32(1000) + i8(0))))
    assert refused is None or Reader(refused[12:]).string() is not None
    everything = connection.call(raw.METADATA, 4, i32(-1) + i8(0)).view
    assert junk not in everything


@pytest.mark.parametrize("client_id", [string(b"\xff\xfe"), i16(2**15 - 1) + b"x", i16(-2)])
def test_a_client_id_that_lies_is_refused(bootstrap: str, client_id: bytes) -> None:
    """W5: the header is checked like everything else."""
    payload = i16(raw.METADATA) + i16(4) + i32(1) + client_id
    outcome(bootstrap, framed(payload))


@pytest.mark.parametrize("api", [-1, 999, 32767, -32768, 4])
def test_an_api_nobody_knows_closes_the_connection(bootstrap: str, api: int) -> None:
    """W5: as Kafka does; there is no response format for an unknown request."""
    assert outcome(bootstrap, framed(plain_request(api, 0, b""))) is None


def test_a_version_nobody_knows_closes_the_connection(bootstrap: str, topic: str) -> None:
    """W1 W5: as Kafka does, for all but ApiVersions, whose answer tells the client what to use."""
    for valid in valid_requests(topic):
        for version in (99, 32767, -1):
            if valid.api != raw.API_VERSIONS:
                assert outcome(bootstrap, valid._replace(version=version).framed()) is None, valid.name


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_api_versions_of_the_future_is_answered_in_version_0(bootstrap: str, version: int) -> None:
    """W1: the client learns the range of ApiVersions itself and tries again."""
    answer = outcome(
        bootstrap, framed(plain_request(raw.API_VERSIONS, version, b"\x01\x02\x03", flexible=True))
    )
    assert answer is not None
    reader = Reader(answer)
    assert reader.i16() == UNSUPPORTED_VERSION
    ranges = {reader.i16(): (reader.i16(), reader.i16()) for _ in range(reader.i32())}
    low, high = ranges[raw.API_VERSIONS]
    assert low == 0
    assert 3 <= high < version


def test_the_advertised_versions_are_what_old_and_new_clients_need(connection: Connection) -> None:
    """W1 F1: Produce from 0, or older librdkafka stops compressing; the rest from what Kafka 4 serves."""
    answer = connection.call(raw.API_VERSIONS, 0, b"")
    assert answer.i16() == 0
    ranges = {answer.i16(): (answer.i16(), answer.i16()) for _ in range(answer.i32())}
    assert ranges[raw.PRODUCE][0] == 0
    assert ranges[raw.FETCH][0] <= 4
    assert ranges[raw.LIST_OFFSETS][0] <= 1
    assert ranges[raw.CREATE_TOPICS][0] <= 2
    assert all(0 <= low <= high for low, high in ranges.values())


def tagged_metadata(topic: str, tags: bytes) -> bytes:
    body = compact_array(compact(topic) + NO_TAGS) + i8(0) + i8(0) + i8(0) + tags
    return framed(plain_request(raw.METADATA, 9, body, flexible=True))


def test_unknown_tagged_fields_are_skipped(bootstrap: str, topic: str) -> None:
    """W1: a newer client's extras do not matter."""
    tags = uvarint(3) + b"".join(uvarint(tag) + uvarint(5) + b"extra" for tag in (100, 101, 9000))
    assert outcome(bootstrap, tagged_metadata(topic, tags)) is not None


@pytest.mark.parametrize(
    "tags",
    [
        uvarint(2**32 - 1) + b"\x00" * 50,
        uvarint(200_000) + b"".join(uvarint(tag) + b"\x00" for tag in range(100, 200_100)),
        uvarint(1) + uvarint(100) + uvarint(2**31 - 1) + b"x",
        uvarint(1) + uvarint(100) + b"\xff" * 10 + b"x",
        uvarint(2) + (uvarint(100) + uvarint(1) + b"x") * 2,
        b"\xff" * 20,
    ],
    ids=[
        "count of 4 billion",
        "200,000 tags",
        "2 GiB tag",
        "overlong size",
        "tag given twice",
        "overlong count",
    ],
)
def test_floods_of_tagged_fields_harm_nobody(bootstrap: str, topic: str, tags: bytes) -> None:
    """W5: skipped within a bound, or refused."""
    outcome(bootstrap, tagged_metadata(topic, tags))


def test_a_request_naming_a_topic_a_hundred_thousand_times_harms_nobody(bootstrap: str) -> None:
    """W5: large and valid is not the same as harmless; a name that exists nowhere is not created either."""
    names = array(*[string("hostile-nowhere")] * 100_000)
    outcome(bootstrap, framed(plain_request(raw.METADATA, 4, names + i8(0))))


def test_a_body_after_the_body_harms_nobody(bootstrap: str, topic: str) -> None:
    """W5: trailing bytes."""
    for valid in valid_requests(topic):
        outcome(bootstrap, valid.framed(valid.body + b"\x00" * 9))


def test_acks_0_gets_no_response_not_even_for_a_bad_batch(connection: Connection, topic: str) -> None:
    """P4: the connection is closed on an error, as Kafka does, or stays silent; it never answers."""
    body = calls.produce_body(topic, b"no batch at all", acks=0)
    connection.send(framed(plain_request(raw.PRODUCE, 7, body, correlation=5)))
    connection.send(framed(plain_request(raw.API_VERSIONS, 0, b"", correlation=6)))
    answer = connection.frame()
    assert answer is None or answer[:4] == i32(6)
