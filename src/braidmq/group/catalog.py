"""The topics there are, as far as groups need to know: their ids and how many partitions they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from braidmq.group.pattern import Pattern

PATTERNS_KEPT_MAX = 1_000
"""Patterns whose topics are remembered; clients choose them, so there is a limit."""


class Topic(NamedTuple):
    """One topic as a group sees it."""

    topic_id: bytes
    partitions: int


class Catalog(Protocol):
    """What the broker tells its groups about topics. `version` changes whenever anything else here does."""

    @property
    def version(self) -> int: ...

    @property
    def topics(self) -> Mapping[str, Topic]: ...

    def matching(self, pattern: str) -> frozenset[str]:
        """Names of the topics that a subscription's regular expression matches as a whole.

        Raises ApiError INVALID_REGULAR_EXPRESSION. Patterns come from the network: matching has to take
        time in proportion to the name's length, as RE2 does.
        """
        ...


class TopicCatalog:
    """The topics at one moment. A broker makes a new one when its topics change."""

    def __init__(self, version: int, topics: Mapping[str, Topic]) -> None:
        self.version = version
        self.topics = topics
        self._matching: dict[str, frozenset[str]] = {}

    def matching(self, pattern: str) -> frozenset[str]:
        """Names that match; each pattern is tried once."""
        found = self._matching.get(pattern)
        if found is None:
            compiled = Pattern(pattern)
            found = frozenset(name for name in self.topics if compiled.matches(name))
            if len(self._matching) < PATTERNS_KEPT_MAX:
                self._matching[pattern] = found
        return found
