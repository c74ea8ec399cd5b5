"""The offsets a group has committed: where reading of each partition continues.

A table holds what is durable. A commit is checked (`checked_metadata`, and the group's own `check_commit`),
written to the internal topic, and only then entered with `commit`, so that nobody is shown a position that a
crash could take back. Offsets committed within a transaction wait beside the table, by producer, until the
transaction's marker says what becomes of them.

Times here are wall-clock milliseconds: they are stored, and have to mean the same after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from braidmq.wire.errors import ApiError, ErrorCode

NO_OFFSET = -1
NO_LEADER_EPOCH = -1
OFFSET_BYTES = 350
"""What an offset weighs whose committer adds no text."""

TopicPartition = tuple[str, int]
"""Topic and partition."""


class Committed(NamedTuple):
    """One committed position."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int | None = None
    """A fixed end, which clients could ask for up to OffsetCommit 4."""


Commit = tuple[TopicPartition, Committed]
"""What a group commits for one partition."""


class Expirable(NamedTuple):
    """What a group says about its offsets when it is asked which of them may go."""

    in_use: frozenset[str]
    """Topics whose offsets stay, because members read them."""
    idle_ms: int | None
    """How long the group has had no members; None where only the age of each commit counts."""


def checked_metadata(metadata: str | None, length_max: int) -> str:
    """The text a client attached to a commit; null is empty.

    Kafka calls its limit one of bytes (offset.metadata.max.bytes) and counts characters.
    """
    if metadata is None:
        return ""
    if len(metadata) > length_max:
        raise ApiError(
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            f"the metadata of an offset is longer than {length_max} characters",
        )
    return metadata


def weight_of(committed: Committed) -> int:
    """About what an offset takes in memory."""
    return OFFSET_BYTES + len(committed.metadata)


class OffsetTable:
    """Committed offsets of one group."""

    __slots__ = ("_committed", "_undecided")

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, Committed] = {}
        self._undecided: dict[int, dict[TopicPartition, Committed]] = {}

    def __len__(self) -> int:
        return len(self._committed)

    def weight_bytes(self) -> int:
        """About what the table takes in memory."""
        undecided = sum(
            weight_of(one) for partitions in self._undecided.values() for one in partitions.values()
        )
        return undecided + sum(weight_of(one) for one in self._committed.values())

    @property
    def in_use(self) -> bool:
        """Whether the group has to be kept for the sake of its offsets."""
        return bool(self._committed or self._undecided)

    def has_more_than(self, partitions: list[TopicPartition]) -> bool:
        """Whether anything is left without these partitions, which are some of its own."""
        return len(self._committed) > len(partitions) or bool(self._undecided)

    def commit(self, topic: str, partition: int, committed: Committed) -> None:
        self._committed[topic, partition] = committed

    def commit_all(self, entries: Iterable[Commit]) -> None:
        self._committed.update(entries)

    def find(self, topic: str, partition: int) -> Committed | None:
        return self._committed.get((topic, partition))

    def topics(self) -> dict[str, list[int]]:
        """Every partition that has an offset, by topic."""
        found: dict[str, list[int]] = {}
        for topic, partition in sorted(self._committed):
            found.setdefault(topic, []).append(partition)
        return found

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drops offsets whose tombstones are written; unknown ones are no matter."""
        for at in partitions:
            self._committed.pop(at, None)

    def partitions(self) -> list[TopicPartition]:
        """Every partition that has an offset."""
        return list(self._committed)

    def of_topic(self, topic: str) -> list[TopicPartition]:
        """What has to be forgotten with a topic that was deleted."""
        return [at for at in self._committed if at[0] == topic]

    def expired(self, now_ms: int, retention_ms: int, expirable: Expirable) -> list[TopicPartition]:
        """The offsets that may go. A fresh commit stays even if the group has long been idle."""
        due = []
        undecided = {at for partitions in self._undecided.values() for at in partitions}
        for at, committed in self._committed.items():
            if at[0] in expirable.in_use or at in undecided:
                continue
            age_ms = now_ms - committed.commit_ms
            if expirable.idle_ms is not None:
                age_ms = min(age_ms, expirable.idle_ms)
            past_end = committed.expire_ms is not None and now_ms >= committed.expire_ms
            if past_end or (committed.expire_ms is None and age_ms >= retention_ms):
                due.append(at)
        return due

    # Transactions

    def commit_undecided(self, producer_id: int, topic: str, partition: int, committed: Committed) -> None:
        """Enters an offset that counts if the producer's transaction commits."""
        self._undecided.setdefault(producer_id, {})[topic, partition] = committed

    def is_undecided(self, topic: str, partition: int) -> bool:
        """Whether a transaction may still change this offset; readers that want certainty have to wait."""
        return any((topic, partition) in partitions for partitions in self._undecided.values())

    def producers(self) -> list[int]:
        """Whose transactions hold offsets here."""
        return list(self._undecided)

    def decide(self, producer_id: int, committed: bool) -> list[TopicPartition]:
        """The transaction has ended; returns the partitions it had written."""
        partitions = self._undecided.pop(producer_id, {})
        if committed:
            self._committed.update(partitions)
        return list(partitions)
