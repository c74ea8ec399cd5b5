"""Options of the topics in which coordinators keep their state."""

from __future__ import annotations

from braidmq.config.option import Option, OptionType

_RULE = "; 0 is 1 on a broker with its own store and 16 in a cluster. A topic that is there keeps its count."


def _count_of(name: str, whose: str) -> Option:
    why = f"Partitions of the topic that keeps {whose}, over which brokers share that work{_RULE}"
    return Option(name, OptionType.INT, 0, why, low=0, high=1_000)


SHARDS: tuple[Option, ...] = (
    _count_of("offsets.topic.num.partitions", "groups and their offsets"),
    _count_of("transaction.state.log.num.partitions", "transactions"),
    _count_of("share.coordinator.state.topic.num.partitions", "what share groups have been delivered"),
)
