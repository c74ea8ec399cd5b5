"""Where the partitions of a new topic go, as people write it on the command line."""

from __future__ import annotations

from braidmq.cli.mistake import UserMistake

PARTITIONS_MAX = 100_000


def parse_placement(
    on_brokers: str | None, replica_assignment: str | None, partitions: int | None
) -> list[list[int]]:
    """The brokers of each partition; empty if nobody says. `UserMistake` says what to write instead."""
    if on_brokers is None and replica_assignment is None:
        return []
    if on_brokers is not None and replica_assignment is not None:
        raise UserMistake("use --on-brokers or --replica-assignment, not both")
    if partitions is not None:
        raise UserMistake("--partitions does not go with a placement: that says how many there are")
    if on_brokers is not None:
        return _per_broker(on_brokers)
    # As with Kafka's tools: partitions are separated by commas, the replicas of one by colons.
    assert replica_assignment is not None
    return [
        [_node_id(node_id, "--replica-assignment 1,2,1") for node_id in one.split(":")]
        for one in replica_assignment.split(",")
    ]


def _per_broker(text: str) -> list[list[int]]:
    counts: dict[int, int] = {}
    for part in text.split(","):
        node_id, equals, count = part.partition("=")
        node = _node_id(node_id, "--on-brokers 1=2,3=4")
        if node in counts:
            raise UserMistake(f"--on-brokers names broker {node} twice")
        counts[node] = _node_id(count, "--on-brokers 1=2,3=4") if equals else 1
    if not 0 < sum(counts.values()) <= PARTITIONS_MAX:
        raise UserMistake(f"--on-brokers {text}: choose from 1 to {PARTITIONS_MAX:,} partitions")
    # In turns, so that partitions next to each other are led by different brokers.
    return [
        [node]
        for turn in range(max(counts.values()))
        for node, count in sorted(counts.items())
        if turn < count
    ]


def _node_id(text: str, example: str) -> int:
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdecimal() and len(stripped) <= 10):
        raise UserMistake(f"{text!r} is no number; write for example {example}")
    return int(stripped)
