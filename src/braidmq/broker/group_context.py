"""What the group coordinators of one broker have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from braidmq.broker.topics import Topics
from braidmq.group.catalog import Catalog
from braidmq.group.settings import GroupSettings
from braidmq.group.shared_limits import SharedLimits
from braidmq.group.streams_group import StreamsOptions
from braidmq.platform.clock import Clock


class GroupContext(NamedTuple):
    """Made once, by `GroupShards`."""

    topics: Topics
    clock: Clock
    settings: GroupSettings
    catalog: Catalog
    streams_options: Callable[[str], StreamsOptions]
    limits: SharedLimits
    deleted_topics: Callable[[], Iterable[str]]
    """Names of topics whose deletion is recorded, and that were not created again."""
