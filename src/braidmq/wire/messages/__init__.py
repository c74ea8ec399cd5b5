"""The messages Braid speaks, one module per area, in the notation of `braidmq.wire.schema`.

Field and class names are Kafka's, versions are those that Kafka 4.3 advertises (no unstable
ones). Importing this package defines them all.
"""

from __future__ import annotations

from braidmq.wire.messages import (
    cluster,
    commits,
    configs,
    consumer_groups,
    fetch,
    groups,
    leaders,
    live,
    metadata,
    name_server,
    offsets,
    produce,
    producers,
    quorum,
    sasl,
    share_fetch,
    share_groups,
    share_state,
    streams_groups,
    topics,
    transactions,
    versions,
)

__all__ = [
    "cluster",
    "commits",
    "configs",
    "consumer_groups",
    "fetch",
    "groups",
    "leaders",
    "live",
    "metadata",
    "name_server",
    "offsets",
    "produce",
    "producers",
    "quorum",
    "sasl",
    "share_fetch",
    "share_groups",
    "share_state",
    "streams_groups",
    "topics",
    "transactions",
    "versions",
]
