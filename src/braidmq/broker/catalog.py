"""The topics of a broker as its groups see them: ids, partition counts, and names that match a pattern.

Patterns come from the network and run on the event loop, so they are matched by RE2, whose time grows with
the name and not with the malice of the pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from braidmq.broker.topics import Topics
from braidmq.group.catalog import CatalogTopic
from braidmq.wire.errors import ApiError, ErrorCode

PATTERN_LENGTH_MAX = 1024


class TopicCatalog:
    """Follows `Topics`; rebuilt only when they have changed."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._version = -1
        self._found: dict[str, CatalogTopic] = {}

    @property
    def version(self) -> int:
        return self._topics.version

    @property
    def topics(self) -> Mapping[str, CatalogTopic]:
        if self._version != self._topics.version:
            self._version = self._topics.version
            self._found = {each.name: CatalogTopic(each.id, each.partition_count) for each in self._topics}
        return self._found

    def matching(self, pattern: str) -> frozenset[str]:
        """Names that the pattern matches as a whole; ApiError INVALID_REGULAR_EXPRESSION for a bad one."""
        matches = compile_pattern(pattern)
        return frozenset(name for name in self.topics if matches(name))


def compile_pattern(pattern: str) -> Callable[[str], object]:
    """Whether a name matches as a whole; ApiError INVALID_REGULAR_EXPRESSION for a pattern that is none."""
    import re2  # a few milliseconds, for those who use patterns

    if len(pattern) > PATTERN_LENGTH_MAX:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"the pattern is longer than {PATTERN_LENGTH_MAX} characters",
        )
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{pattern!r}: {error}") from None
    matches: Callable[[str], object] = compiled.fullmatch
    return matches
