"""A topic: its name, its identity, its options and its partitions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from braidmq.broker.replica import Replica
from braidmq.config import Config, Flush, TopicConfig
from braidmq.wire.errors import ApiError, ErrorCode

NAME_LENGTH_MAX = 249
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__share_group_state", "__transaction_state"})
"""Where the broker keeps records of its own, by Kafka's names: clients may read them, only it writes them."""
PINNED = {"flush": Flush.SYNC.value, "cleanup.policy": "compact"}
"""Options that the broker's own topics have whatever anybody sets."""
# File systems allow 255 bytes, of which the id and the marks of deleted and unknown topics need some.
DIRECTORY_NAME_CHARACTERS = 200
_LEGAL_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """What the metadata store keeps of a topic."""

    name: str
    id: bytes
    partition_count: int
    overrides: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id.hex(), "partitions": self.partition_count, "config": dict(self.overrides)}

    @classmethod
    def from_json(cls, name: str, value: Mapping[str, Any]) -> TopicRecord:
        return cls(name, bytes.fromhex(value["id"]), int(value["partitions"]), dict(value["config"]))

    def renamed(self, name: str) -> TopicRecord:
        return replace(self, name=name)

    @property
    def directory_name(self) -> str:
        """The id is part of it, so a recreated topic never finds the files of the old one."""
        return directory_name(self.name, self.id)


def directory_name(topic: str, topic_id: bytes) -> str:
    return f"{topic[:DIRECTORY_NAME_CHARACTERS]}.{topic_id.hex()[:12]}"


def effective_config(config: Config, name: str, overrides: Mapping[str, str]) -> TopicConfig:
    """The options under which a topic is kept: its own, then the broker's.

    The broker's own topics wait for the disk, whatever is the default: a position that a power loss took back
    would undo a transaction that was answered as committed. And nothing is removed from them by age.
    """
    return config.topic({**overrides, **(PINNED if name in INTERNAL_TOPICS else {})})


class Topic:
    """A topic that this broker serves."""

    __slots__ = ("config", "partitions", "path", "record")

    def __init__(self, record: TopicRecord, config: TopicConfig, path: Path) -> None:
        self.record = record
        self.config = config
        self.path = path
        self.partitions: list[Replica] = []

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def id(self) -> bytes:
        return self.record.id

    @property
    def held(self) -> dict[int, Replica]:
        """The partitions that this broker holds."""
        return dict(enumerate(self.partitions))

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    @property
    def internal(self) -> bool:
        return self.record.name in INTERNAL_TOPICS


def check_name(name: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION unless every Kafka client and file system can carry `name`."""
    if not name:
        complaint = "it is empty"
    elif name in (".", ".."):
        complaint = "it is a directory's name"
    elif len(name) > NAME_LENGTH_MAX:
        complaint = f"it has {len(name)} characters, and {NAME_LENGTH_MAX} is the most"
    elif not _LEGAL_NAME.fullmatch(name):
        complaint = "only ASCII letters, digits, '.', '_' and '-' are allowed"
    else:
        return
    raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic name {name[:60]!r} is not usable: {complaint}")


def check_pinned(name: str, overrides: Mapping[str, str]) -> None:
    """Raises INVALID_CONFIG if the broker's own topic is to be kept as it must not be."""
    for option, value in PINNED.items() if name in INTERNAL_TOPICS else ():
        if overrides.get(option, value) != value:
            raise ApiError(
                ErrorCode.INVALID_CONFIG, f"topic {name!r} is the broker's own and is kept {option}={value}"
            )
