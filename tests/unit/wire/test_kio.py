"""Our bytes against those of kio, a codec generated from Kafka's own definitions, in every version."""

from __future__ import annotations

import dataclasses
import datetime
import io
import typing
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from braidmq.wire import header
from braidmq.wire.api import REQUESTS, Api
from braidmq.wire.errors import ErrorCode
from braidmq.wire.primitives import ZERO_UUID
from braidmq.wire.schema import Field, Message, decode, encode
from unit.wire.drawn import CLASSES as ALL_CLASSES
from unit.wire.drawn import as_read, encodable, messages

CLASSES = [cls for cls in ALL_CLASSES if not cls.api.name.startswith("BRAID_")]
"""Those that Kafka has, too."""
NOT_RELEASED = {Api.INIT_PRODUCER_ID: 6}
"""Versions that Kafka defines and marks as unstable: no release advertises them."""
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
OWN_TAGS_FROM = 10_000
"""Tagged fields from here on are Braid's own, and only sent between brokers."""
MILLISECOND = datetime.timedelta(milliseconds=1)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@settings(max_examples=15, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(drawn=st.data())
def test_bytes_equal_those_of_kio_in_every_version_and_both_read_the_other(
    cls: type[Message], drawn: st.DataObject
) -> None:
    """W1: a message is the same bytes, version by version, as Kafka's definition makes it."""
    message = drawn.draw(messages(cls))
    for field in filter(is_own, cls.fields):
        setattr(message, field.name, getattr(cls(), field.name))
    for version in range(cls.versions[0], cls.versions[1] + 1):
        theirs = kio_class(cls, version)
        counterpart = as_kio(as_read(message, version), theirs)
        ours = encode(encodable(message, version), version)
        assert ours == kio_bytes(counterpart), version
        assert entity_reader(theirs)(ours, 0) == (counterpart, len(ours)), version
        assert decode(cls, version, memoryview(ours)) == as_read(message, version), version


def test_the_versions_of_every_table_are_those_of_kafka() -> None:
    """W1: oldest and newest version and the first flexible one agree with Kafka 4.3."""
    for cls in CLASSES:
        oldest, newest = cls.versions
        for version in range(oldest, newest + 1):
            assert kio_class(cls, version).__flexible__ == (version >= cls.flexible_from), (cls, version)
        for outside in (oldest - 1, NOT_RELEASED.get(cls.api, newest) + 1):
            with pytest.raises(Exception, match="Failed mapping"):
                kio_class(cls, outside)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_what_may_be_null_in_a_version_may_be_null_in_kafka(cls: type[Message]) -> None:
    """W1: nulls are read and written in exactly the versions in which Kafka has them."""
    for version in range(cls.versions[0], cls.versions[1] + 1):
        compare_nulls(cls, kio_class(cls, version), version)


def compare_nulls(cls: type[Message], theirs: Any, version: int) -> None:
    hints = typing.get_type_hints(theirs)
    compared = []
    for field in dataclasses.fields(theirs):
        ours = next(one for one in cls.fields if one.name == our_name(cls, field.name))
        compared.append(ours)
        nested = entity_class(hints[field.name])
        if nested is not None:
            assert isinstance(ours.element, type)
            compare_nulls(ours.element, nested, version)
        if field.metadata.get("kafka_type") not in ("uuid", "datetime_i64"):
            optional = type(None) in typing.get_args(hints[field.name])
            assert optional == (version >= ours.nullable_from), (theirs, field.name)
    of_kafka = [one for one in cls.fields if not is_own(one)]
    assert {one.name for one in compared} == {one.name for one in of_kafka if one.present(version)}


def is_own(field: Field) -> bool:
    return field.tag is not None and field.tag >= OWN_TAGS_FROM


def test_error_codes_and_what_may_be_retried_are_those_of_kafka() -> None:
    """W1: codes, names and the retriable ones agree with Kafka 4.3."""
    ours = {(code.name, int(code), code.retriable) for code in ErrorCode}
    assert ours == {(code.name.upper(), int(code), code.retriable) for code in KioErrorCode}


KAFKAS = [api for api in REQUESTS if not api.name.startswith("BRAID_")]


@pytest.mark.parametrize("api", KAFKAS, ids=lambda api: api.name)
@given(
    correlation_id=st.integers(-(2**31), 2**31 - 1),
    client_id=st.none() | st.text(max_size=5) | st.just("é" * 200),
)
@settings(max_examples=10, deadline=None)
def test_headers_equal_those_of_kio(api: Api, correlation_id: int, client_id: str | None) -> None:
    """W1: both header versions, in the versions of each API where Kafka uses them."""
    oldest, newest = REQUESTS[api].versions
    for version in range(oldest, newest + 1):
        request = load_request_schema(api, version).__header_schema__(
            request_api_key=api,
            request_api_version=version,
            correlation_id=correlation_id,
            client_id=client_id,
        )
        ours = header.request(api, version, correlation_id, client_id)
        assert ours == kio_bytes(request)
        assert header.parse_request(ours) == (api, version, correlation_id, client_id, len(ours))
        response = load_response_schema(api, version).__header_schema__(correlation_id=correlation_id)
        assert header.response(api, version, correlation_id) == kio_bytes(response)


def kio_class(cls: type[Message], version: int) -> Any:
    if cls.__name__.endswith("Request"):
        return load_request_schema(cls.api, version)
    return load_response_schema(cls.api, version)


def kio_bytes(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def as_kio(message: Message, theirs: Any) -> Any:
    """The same message as an instance of kio's class."""
    hints = typing.get_type_hints(theirs)
    values = {}
    for field in dataclasses.fields(theirs):
        value = getattr(message, our_name(message, field.name))
        if value is None and dataclasses.is_dataclass(field.default):
            value = field.default
        values[field.name] = as_kio_value(value, field.metadata.get("kafka_type"), hints[field.name])
    return theirs(**values)


def our_name(message: Message | type[Message], name: str) -> str:
    return name if hasattr(message, name) else f"{name}_ms"


def as_kio_value(value: Any, kafka_type: str | None, hint: Any) -> Any:
    if isinstance(value, list):
        return tuple(as_kio_value(item, kafka_type, hint) for item in value)
    if isinstance(value, Message):
        return as_kio(value, entity_class(hint))
    if kafka_type == "uuid":
        return None if value == ZERO_UUID else uuid.UUID(bytes=value)
    if kafka_type == "error_code":
        return KioErrorCode(value)
    if kafka_type is not None and kafka_type.startswith("timedelta"):
        return value * MILLISECOND
    if kafka_type == "datetime_i64":
        return None if value == -1 else EPOCH + value * MILLISECOND
    return value


def entity_class(hint: Any) -> Any:
    """The dataclass somewhere in `X | None`, `tuple[X, ...]` or `X`."""
    if dataclasses.is_dataclass(hint):
        return hint
    found = [entity_class(inner) for inner in typing.get_args(hint)]
    return next((one for one in found if one is not None), None)
