"""The topics there are, as far as groups need to know: their ids and how many partitions they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class CatalogTopic(NamedTuple):
    """One topic as a group sees it."""

    topic_id: bytes
    partitions: int


class Catalog(Protocol):
    """What the broker tells its groups about topics. `version` changes whenever anything else here does."""

    @property
    def version(self) -> int: ...

    @property
    def topics(self) -> Mapping[str, CatalogTopic]: ...

    def matching(self, pattern: str) -> frozenset[str]:
        """Names of the topics that a subscription's regular expression matches as a whole.

        Raises ApiError INVALID_REGULAR_EXPRESSION. Patterns come from the network: matching has to take
        time in proportion to the name's length, as RE2 does.
        """
        ...
