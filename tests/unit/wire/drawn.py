"""Messages drawn by hypothesis from the tables themselves, for every test that wants one of anything."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st

import braidmq.wire.messages  # noqa: F401 — enters every message into the two tables
from braidmq.wire.api import REQUESTS, RESPONSES
from braidmq.wire.errors import ErrorCode
from braidmq.wire.schema import NEVER, Field, FieldKind, Message

CLASSES = [*REQUESTS.values(), *RESPONSES.values()]
CLASS_VERSIONS = [
    (cls, version) for cls in CLASSES for version in range(cls.versions[0], cls.versions[1] + 1)
]
MOMENT_MS_MAX = 2**42
"""Times stay within what a datetime can hold, because the codec we compare with turns them into one."""

LIMITS = {
    FieldKind.INT8: (-(2**7), 2**7 - 1),
    FieldKind.INT16: (-(2**15), 2**15 - 1),
    FieldKind.UINT16: (0, 2**16 - 1),
    FieldKind.INT32: (-(2**31), 2**31 - 1),
    FieldKind.UINT32: (0, 2**32 - 1),
    FieldKind.INT64: (-(2**63), 2**63 - 1),
}
TEXTS = st.text(max_size=6) | st.just("a name too long for a length of one byte " * 4)
BYTES = st.binary(max_size=6) | st.just(bytes(range(256)))


def messages(cls: type[Message]) -> st.SearchStrategy[Any]:
    """Messages with every field drawn, those that no single version has together included."""
    return st.builds(cls, **{field.name: _values(field) for field in cls.fields})


def filled(cls: type[Message]) -> Any:
    """The one message in which no field holds its default and every list two elements."""
    return cls(**{field.name: _other_than_default(field) for field in cls.fields})


def as_read(message: Message, version: int) -> Any:
    """What is left of `message` after a trip through `version`, which may lack fields and nulls."""
    kept = {}
    for field in message.fields:
        if field.present(version):
            kept[field.name] = _as_read(field, getattr(message, field.name), version)
    return type(message)(**kept)


def encodable(message: Message, version: int) -> Any:
    """`message` without nulls where `version` has none; the fields it lacks stay."""
    changed = {field.name: getattr(message, field.name) for field in message.fields}
    return type(message)(**changed | _without_nulls(message, version))


def _without_nulls(message: Message, version: int) -> dict[str, Any]:
    present = [field for field in message.fields if field.present(version)]
    return {field.name: _as_read(field, getattr(message, field.name), version) for field in present}


def _as_read(field: Field, value: Any, version: int) -> Any:
    if value is None:
        if version >= field.nullable_from or field.kind is FieldKind.STRUCT:
            return None
        return {FieldKind.STRING: "", FieldKind.DATA: b"", FieldKind.RECORDS: b""}.get(field.kind, [])
    if field.kind is FieldKind.STRUCT:
        return as_read(value, version)
    if field.kind is FieldKind.ARRAY and isinstance(field.element, type):
        return [as_read(item, version) for item in value]
    return value


def _other_than_default(field: Field) -> Any:
    if field.kind is FieldKind.STRUCT:
        assert isinstance(field.element, type)
        return filled(field.element)
    if field.kind is FieldKind.ARRAY:
        assert field.element is not None
        if isinstance(field.element, type):
            return [filled(field.element), filled(field.element)]
        return [_other_than_default(field.element)] * 2
    samples = {
        FieldKind.STRING: "né",
        FieldKind.DATA: b"\x00\xff",
        FieldKind.RECORDS: b"\xff\x00",
        FieldKind.UUID: bytes(range(16)),
    }
    return samples.get(field.kind, not field.default if field.kind is FieldKind.BOOLEAN else 5)


@functools.cache
def _values(field: Field) -> st.SearchStrategy[Any]:
    if field.name.endswith("error_code"):
        return st.sampled_from([int(code) for code in ErrorCode])
    if field.name == "transaction_start_time_ms":
        return st.integers(0, MOMENT_MS_MAX)
    if field.name in ("log_append_time_ms", "retention_time_ms", "session_lifetime_ms"):
        return st.just(-1) | st.integers(0, MOMENT_MS_MAX)
    if field.kind is FieldKind.STRUCT:
        assert isinstance(field.element, type)
        # A tagged structure that holds nothing but defaults is not sent, so it would come back as None.
        present = messages(field.element).filter(lambda value: value != type(value)())
        return st.none() | present if field.tag is not None or field.nullable_from <= NEVER else present
    values = _array(field) if field.kind is FieldKind.ARRAY else _plain(field.kind)
    return st.none() | values if field.default is None else values


def _plain(kind: FieldKind) -> st.SearchStrategy[Any]:
    if kind in LIMITS:
        return st.integers(*LIMITS[kind])
    if kind is FieldKind.BOOLEAN:
        return st.booleans()
    if kind is FieldKind.FLOAT64:
        return st.floats(allow_nan=False)
    if kind is FieldKind.UUID:
        return st.just(bytes(16)) | st.binary(min_size=16, max_size=16)
    return TEXTS if kind is FieldKind.STRING else BYTES


def _array(field: Field) -> st.SearchStrategy[Any]:
    if isinstance(field.element, type):
        return st.lists(messages(field.element), max_size=2)
    assert field.element is not None
    items = _plain(field.element.kind)
    return st.lists(items, max_size=10) | st.lists(items, min_size=1, max_size=1).map(lambda one: one * 200)
