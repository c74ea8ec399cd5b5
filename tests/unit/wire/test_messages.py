"""Every message in every version, whole, cut short and damaged: bytes either parse or raise ProtocolError."""

from __future__ import annotations

import contextlib
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.wire import api
from braidmq.wire.api import Api
from braidmq.wire.errors import ProtocolError
from braidmq.wire.primitives import uvarint
from braidmq.wire.schema import NEVER, Message, decode, decoder, encode
from unit.wire.drawn import CLASS_VERSIONS, CLASSES, as_read, encodable, filled

every_version = pytest.mark.parametrize(
    ("cls", "version"), CLASS_VERSIONS, ids=[f"{cls.__name__}-{version}" for cls, version in CLASS_VERSIONS]
)
FLEXIBLE = [(cls, version) for cls, version in CLASS_VERSIONS if version >= cls.flexible_from]


def sample(cls: type[Message], version: int) -> bytes:
    return encode(encodable(filled(cls), version), version)


def check_parsed_or_refused(cls: type[Message], version: int, noise: bytes) -> None:
    """ProtocolError and no other; and what was parsed is a whole message that can be sent on."""
    try:
        message = decode(cls, version, memoryview(noise))
    except ProtocolError:
        return
    assert decode(cls, version, encode(message, version)) == message


@every_version
def test_a_message_is_read_back_as_it_was_written(cls: type[Message], version: int) -> None:
    """W1: what a version carries comes back, what it lacks holds its default."""
    written = sample(cls, version)
    expected = as_read(filled(cls), version)
    assert decode(cls, version, written) == expected
    assert decode(cls, version, memoryview(written)) == expected
    message, end = decoder(cls, version)(memoryview(b"before" + written + b"after"), 6)
    assert (message, end) == (expected, 6 + len(written))


@every_version
def test_a_message_cut_at_any_byte_is_a_protocol_error(cls: type[Message], version: int) -> None:
    """W5: truncation is noticed wherever it falls, and raises nothing else."""
    written = memoryview(sample(cls, version))
    read = decoder(cls, version)
    for length in range(len(written)):
        with pytest.raises(ProtocolError):
            read(written[:length], 0)


@every_version
def test_a_message_with_any_byte_damaged_parses_or_is_a_protocol_error(
    cls: type[Message], version: int
) -> None:
    """W5: no damaged byte leads to another exception."""
    written = sample(cls, version)
    for position in range(len(written)):
        for value in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            check_parsed_or_refused(
                cls, version, written[:position] + bytes([value]) + written[position + 1 :]
            )


@every_version
def test_bytes_after_a_message_are_a_protocol_error(cls: type[Message], version: int) -> None:
    """W5: a body that is longer than its message is refused."""
    with pytest.raises(ProtocolError, match="1 bytes left over"):
        decode(cls, version, sample(cls, version) + b"\0")


@pytest.mark.parametrize(
    ("cls", "version"), FLEXIBLE, ids=[f"{cls.__name__}-{version}" for cls, version in FLEXIBLE]
)
def test_unknown_tagged_fields_are_skipped(cls: type[Message], version: int) -> None:
    """W1: what a newer peer adds as tagged fields does not disturb us."""
    plain = encode(encodable(cls(), version), version)
    assert plain[-1] == 0, "a message of defaults ends with no tagged fields"
    tagged = plain[:-1] + b"\x02" + uvarint(90) + b"\x03abc" + uvarint(2**31) + b"\x00"
    assert decode(cls, version, memoryview(tagged)) == decode(cls, version, plain)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(CLASS_VERSIONS), st.binary(max_size=200))
def test_arbitrary_bytes_parse_or_are_a_protocol_error(
    cls_version: tuple[type[Message], int], noise: bytes
) -> None:
    """W5: no bytes lead to another exception."""
    check_parsed_or_refused(*cls_version, noise)


@pytest.mark.parametrize("flood", [b"\xff" * 64, b"\x7f" * 64, b"\x00" * 4096, b"\x01" * 4096])
def test_claims_of_length_cost_no_memory(flood: bytes) -> None:
    """W5: memory is taken for what was sent, never for what was announced."""
    decoders = [decoder(cls, version) for cls, version in CLASS_VERSIONS]
    tracemalloc.start()
    try:
        for one in decoders:
            with contextlib.suppress(ProtocolError):
                one(memoryview(flood), 0)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 200 * len(flood)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_version_outside_the_table_is_a_protocol_error(cls: type[Message]) -> None:
    """W5: nothing is guessed about versions we have no table for."""
    for version in (cls.versions[0] - 1, cls.versions[1] + 1):
        with pytest.raises(ProtocolError, match=f"not {version}"):
            decode(cls, version, b"")
        with pytest.raises(ProtocolError, match=f"not {version}"):
            encode(cls(), version)


def test_every_request_has_its_response_in_the_same_versions() -> None:
    """W1: request and response of an API are found by its key and agree on versions."""
    assert api.REQUESTS.keys() == api.RESPONSES.keys()
    for key in api.REQUESTS:
        request, response = api.request_class(key), api.response_class(key)
        assert request.__name__.removesuffix("Request") == response.__name__.removesuffix("Response")
        assert (request.versions, request.flexible_from) == (response.versions, response.flexible_from)


def test_apis_without_a_table_are_told_apart() -> None:
    """W5: an API we cannot speak is a KeyError, not a guess."""
    with pytest.raises(KeyError):
        api.request_class(Api.VOTE)
    assert api.flexible_from(Api.METADATA) == 9
    assert api.flexible_from(Api.OFFSET_DELETE) == NEVER
