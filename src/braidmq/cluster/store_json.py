"""How the parts of a metadata store are written as JSON: in its journal, between client and server, in an
export.

Values are bytes, and nearly always JSON themselves, so they are written as text that a person can read.
Bytes that are not UTF-8 become lone surrogates, which JSON carries as escapes; any bytes come back as they
were.

Reading checks every type: whatever is not of the right form raises `ValueError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from braidmq.cluster.metadata_store import (
    Change,
    Compare,
    CreateRevision,
    Event,
    Item,
    ModRevision,
    Put,
    ValueIs,
)

Json = Any


def to_text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def to_bytes(text: Json) -> bytes:
    return string(text).encode("utf-8", "surrogateescape")


def item_to_json(item: Item) -> Json:
    return [item.key, to_text(item.value), item.create_revision, item.mod_revision, item.lease]


def item_from_json(found: Json) -> Item:
    key, value, created, modified, lease = fields(found, 5)
    return Item(string(key), to_bytes(value), number(created), number(modified), number(lease))


def change_to_json(change: Change) -> Json:
    return [change.revision, [_event_to_json(event) for event in change.events]]


def change_from_json(found: Json) -> Change:
    revision, events = fields(found, 2)
    return Change(number(revision), tuple(_event_from_json(event) for event in sequence(events)))


def _event_to_json(event: Event) -> Json:
    return [event.key] if event.item is None else item_to_json(event.item)


def _event_from_json(found: Json) -> Event:
    if len(sequence(found)) == 1:
        return Event(string(found[0]), None)
    item = item_from_json(found)
    return Event(item.key, item)


def put_to_json(put: Put) -> Json:
    return [put.key, to_text(put.value), put.lease]


def put_from_json(found: Json) -> Put:
    key, value, lease = fields(found, 3)
    return Put(string(key), to_bytes(value), number(lease))


def compare_to_json(compare: Compare) -> Json:
    match compare:
        case ModRevision(key, revision):
            return ["mod", key, revision]
        case CreateRevision(key, revision):
            return ["create", key, revision]
        case ValueIs(key, value):
            return ["value", key, to_text(value)]


def compare_from_json(found: Json) -> Compare:
    kind, key, expected = fields(found, 3)
    if kind == "mod":
        return ModRevision(string(key), number(expected))
    if kind == "create":
        return CreateRevision(string(key), number(expected))
    if kind == "value":
        return ValueIs(string(key), to_bytes(expected))
    raise ValueError(f"no such compare: {kind!r}")


def string(found: Json) -> str:
    if not isinstance(found, str):
        raise ValueError(f"not text: {found!r:.100}")
    return found


def number(found: Json) -> int:
    """A whole number that is not negative; every number of a store is one."""
    if type(found) is not int or found < 0:
        raise ValueError(f"not a number: {found!r:.100}")
    return found


def sequence(found: Json) -> Sequence[Json]:
    if not isinstance(found, list):
        raise ValueError(f"not a list: {found!r:.100}")
    return found


def fields(found: Json, count: int) -> Sequence[Json]:
    if len(sequence(found)) != count:
        raise ValueError(f"{len(found)} fields, not {count}: {found!r:.100}")
    return sequence(found)
