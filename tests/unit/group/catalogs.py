"""A catalogue of topics for tests: the id of a topic is its name filled up, patterns are prefixes."""

from __future__ import annotations

from braidmq.group.catalog import CatalogTopic
from braidmq.wire.errors import ApiError, ErrorCode


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b".")


class FakeCatalog:
    """Topics that a test adds to."""

    def __init__(self, **partitions: int) -> None:
        self.version = 0
        self.topics: dict[str, CatalogTopic] = {}
        for name, count in partitions.items():
            self.put(name, count)

    def put(self, name: str, partitions: int) -> None:
        self.version += 1
        self.topics[name] = CatalogTopic(topic_id(name), partitions)

    def drop(self, name: str) -> None:
        self.version += 1
        del self.topics[name]

    def matching(self, pattern: str) -> frozenset[str]:
        if not pattern.endswith(".*"):
            raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, pattern)
        return frozenset(name for name in self.topics if name.startswith(pattern[:-2]))
