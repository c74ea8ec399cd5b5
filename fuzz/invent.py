"""Requests that are well formed and strange, every field at an edge: they reach the handlers too."""

from __future__ import annotations

import random
from typing import Any

from braidmq.wire.api import REQUESTS, Api
from braidmq.wire.schema import Field, FieldKind, Message
from fuzz.mutate import EDGES, mutated
from fuzz.seeds import TOPIC, TOPIC_ID, batch_seeds, framed
from fuzz.targets import sealed

INT_BITS = {FieldKind.INT8: 8, FieldKind.INT16: 16, FieldKind.INT32: 32, FieldKind.INT64: 64}
UINT_BITS = {FieldKind.UINT16: 16, FieldKind.UINT32: 32}
TEXTS = (
    "", ".", "..", "../x", "a/b", "nul\0nul", "ü", "x" * 249, "x" * 250, "x" * 5000,
    "fresh", "fresher", "1", "-1", "0", "retention.ms", "segment.bytes", "compression.type", "zstd", "gzip",
    "max.message.bytes", "99999999999999999999999", "message.timestamp.type", "LogAppendTime", "\U0001f9f5",
)  # fmt: skip
SMALL = (0, 0, 0, 1, 1, -1, -2, -3, 2, 3, 5)
NESTING_MAX = 4
BATCHES = list(batch_seeds().values())


def request(chance: random.Random, apis: list[Api]) -> bytes:
    """A framed request of one of these APIs in any version; half of them read or write records."""
    api = chance.choice((Api.PRODUCE, Api.FETCH) if chance.random() < 0.5 else apis)
    cls = REQUESTS[api]
    version = chance.randint(*cls.versions)
    return framed(api, version, _message(chance, cls, version, 0), chance.randrange(2**31))


def _message(chance: random.Random, cls: type[Message], version: int, depth: int) -> Message:
    return cls(**{f.name: _value(chance, f, version, depth) for f in cls.fields if f.present(version)})


def _value(chance: random.Random, field: Field, version: int, depth: int) -> Any:
    if version >= field.nullable_from and chance.random() < 0.4:
        return None
    if field.kind is FieldKind.ARRAY:
        count = 0 if depth >= NESTING_MAX else chance.choice((0, 1, 1, 1, 2, 3))
        return [_element(chance, field, version, depth) for _ in range(count)]
    if field.kind is FieldKind.STRUCT:
        assert isinstance(field.element, type)
        return _message(chance, field.element, version, depth + 1)
    return _scalar(chance, field.kind)


def _element(chance: random.Random, field: Field, version: int, depth: int) -> Any:
    element = field.element
    assert element is not None
    if isinstance(element, type):
        return _message(chance, element, version, depth + 1)
    return _scalar(chance, element.kind)


def _scalar(chance: random.Random, kind: FieldKind) -> Any:
    if kind in INT_BITS:
        bits = INT_BITS[kind]
        edge = chance.choice(SMALL if chance.random() < 0.7 else EDGES) % (1 << bits)
        return edge - (1 << bits) if edge >> (bits - 1) else edge
    if kind in UINT_BITS:
        return chance.choice(EDGES) % (1 << UINT_BITS[kind])
    if kind is FieldKind.STRING:
        return TOPIC if chance.random() < 0.6 else chance.choice(TEXTS)
    if kind is FieldKind.UUID:
        return chance.choice((TOPIC_ID, TOPIC_ID, bytes(16), b"\xff" * 16))
    if kind is FieldKind.RECORDS:
        return _batch(chance)
    if kind is FieldKind.DATA:
        return chance.randbytes(chance.choice((0, 1, 50)))
    return chance.random() < 0.5 if kind is FieldKind.BOOLEAN else chance.choice((0.0, -1.5, 1e308))


def _batch(chance: random.Random) -> bytes:
    if chance.random() < 0.3:
        return chance.choice(BATCHES)
    damaged = mutated(chance, BATCHES)
    return sealed(damaged) if len(damaged) > 61 and chance.random() < 0.8 else damaged
