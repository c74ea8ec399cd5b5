"""Sound inputs to start from, made by our own builders; `fuzz/run.py --write-seeds` writes them down.

Inputs that findings left behind lie in the same directories and stay there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from braidmq.wire import header, records
from braidmq.wire.api import REQUESTS, RESPONSES, Api
from braidmq.wire.compress import Codec
from braidmq.wire.records import NewRecord, build_batch
from braidmq.wire.schema import Field, FieldKind, Message, encode
from fuzz.targets import selector

CORPUS = Path(__file__).resolve().parent / "corpus"
TOPIC = "fuzzed"
TOPIC_ID = bytes(range(16))
NOW_MS = 1_700_000_000_000
PLAIN_ROWS: list[NewRecord] = [(None, b"hello", [], NOW_MS)]
RICH_ROWS: list[NewRecord] = [
    (b"key", b"value", [("trace", b"1"), ("none", None)], NOW_MS),
    (None, b"no key", [], NOW_MS + 5),
    (b"tombstone", None, [], NOW_MS - 1000),
    (b"", b"", [("", b"")], NOW_MS),
]


def seeds(target: str) -> dict[str, bytes]:
    """File name to content, for one target."""
    return {"batches": batch_seeds, "messages": message_seeds, "frames": frame_seeds}[target]()


def batch_seeds() -> dict[str, bytes]:
    made: dict[str, bytes] = {}
    for codec in Codec:
        name = codec.name.lower()
        made[f"{name}-plain"] = bytes(build_batch(PLAIN_ROWS, codec))
        made[f"{name}-rich"] = bytes(build_batch(RICH_ROWS, codec, 5, 1000, 2))
        made[f"{name}-many"] = bytes(build_batch(RICH_ROWS * 30, codec))
    stamped = build_batch(RICH_ROWS)
    records.restamp_append_time(stamped, NOW_MS)
    made["append-time"] = bytes(stamped)
    made["transactional"] = bytes(build_batch(PLAIN_ROWS, Codec.NONE, 0, 7, 0, transactional=True))
    made["control"] = bytes(build_batch([(b"\0\0\0\1", b"\0\0\0\0\0\0", [], NOW_MS)], control=True))
    made["two-batches"] = made["none-plain"] * 2
    made["message-v0"] = (
        bytes(8) + b"\0\0\0\x14" + bytes(4) + b"\0\0" + b"\xff" * 4 + b"\0\0\0\x06" + b"abcdef"
    )
    made["message-v1"] = (
        bytes(8) + b"\0\0\0\x1c" + bytes(4) + b"\1\0" + bytes(8) + b"\xff" * 4 + b"\0\0\0\x06abcdef"
    )
    return made


def message_seeds() -> dict[str, bytes]:
    made: dict[str, bytes] = {}
    for table, suffix in ((REQUESTS, "request"), (RESPONSES, "response")):
        for api, cls in table.items():
            for version in sorted({*cls.versions}):
                name = f"{_name(api)}-{suffix}-v{version}"
                made[name] = selector(cls, version) + encode(filled(cls, version), version)
    return made


def frame_seeds() -> dict[str, bytes]:
    """Requests with their size prefix, filled so that a broker with the topic `fuzzed` has work to do."""
    made: dict[str, bytes] = {}
    for api, cls in REQUESTS.items():
        for version in sorted({*cls.versions}):
            made[f"{_name(api)}-v{version}"] = framed(api, version, filled(cls, version))
    return made


def framed(api: Api, version: int, message: Message, correlation_id: int = 1) -> bytes:
    request = header.request(api, version, correlation_id, "fuzz") + encode(message, version)
    return len(request).to_bytes(4, "big") + request


def filled(cls: type[Message], version: int) -> Message:
    """A message in which every field that `version` carries holds something."""
    return cls(**{field.name: _filling(field, version) for field in cls.fields if field.present(version)})


def _filling(field: Field, version: int) -> Any:
    if field.kind is FieldKind.ARRAY:
        assert field.element is not None
        return [_element(field.element, version, field.name)]
    if field.kind is FieldKind.STRUCT:
        assert isinstance(field.element, type)
        return filled(field.element, version)
    return _value(field.kind, field.name)


def _element(element: Field | type[Message], version: int, name: str) -> Any:
    return filled(element, version) if isinstance(element, type) else _value(element.kind, name)


def _value(kind: FieldKind, name: str) -> Any:
    if kind is FieldKind.STRING:
        return (
            TOPIC
            if name in ("name", "topic", "topics", "topic_name", "topic_names", "resource_name")
            else "1"
        )
    if kind is FieldKind.RECORDS:
        return bytes(build_batch(PLAIN_ROWS))
    if kind is FieldKind.UUID:
        return TOPIC_ID
    if kind is FieldKind.DATA:
        return b"\x01\x02"
    if kind is FieldKind.BOOLEAN:
        return True
    if kind is FieldKind.FLOAT64:
        return 0.5
    return {
        "acks": 1,
        "partition": 0,
        "index": 0,
        "resource_type": 2,
        "fetch_offset": 0,
        "session_id": 0,
    }.get(name, 1)


def _name(api: Api) -> str:
    return api.name.lower().replace("_", "-")


def write() -> int:
    """Writes every seed into its target's directory; how many."""
    count = 0
    for target in ("batches", "messages", "frames"):
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
        for name, content in seeds(target).items():
            (CORPUS / target / name).write_bytes(content)
            count += 1
    return count
