"""The judge of one broker: what its clients were told, held against what is there in the end.

The checkers of `tests/history` do most of it. What they do not know of is here: positions of a group that
were confirmed, producer ids given twice, topics whose creation or deletion was confirmed, refusals that no
fault explains, and brokers that fall over or do not come back.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.history.checker import History
from tests.history.exactly_once import Stage
from tests.history.group_reading import GroupReading
from tests.history.share_reading import ShareReading

from braidmq.wire.errors import ErrorCode

PARTITIONS = 2
"""Of each topic that is judged."""
DELIVERIES_MAX = 10
"""After which a share group gives a record up."""
UNBOUNDED = 1 << 30
"""A broker that dies may forget how often it has delivered something, so nobody counts."""
EXCUSED = {
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
}
"""What a broker may say while its disk fails or it comes and goes; a client tries again."""


class Judge:
    """Collects what one broker's clients tell."""

    def __init__(self, broker: str, excused: Iterable[ErrorCode] = ()) -> None:
        self.broker = broker
        self._excused = EXCUSED | set(excused)
        self.orders = History()
        self.copies = Stage("the copier")
        self.group = GroupReading()
        self.shares = [ShareReading(UNBOUNDED) for _ in range(PARTITIONS)]
        self._deliveries = 0
        self._asked = [0] * PARTITIONS
        """Fetches of the share group without an answer yet, or ever."""
        self._holders: list[dict[int, tuple[str, int]]] = [{} for _ in range(PARTITIONS)]
        """Who was given a record last, and for which time."""
        self._counts: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
        self.complaints: list[str] = []
        self.acked = 0
        """Everything that was confirmed to anybody; grows as long as there is progress."""
        self._positions: dict[str, tuple[int, int]] = {}
        self._producer_ids: dict[int, str] = {}
        self.topics: dict[str, bool | None] = {}
        """Whether a topic is there, as far as was confirmed; None while that is not known."""

    def may_be_delivered(self, indexes: list[int]) -> None:
        """A member of the share group asks for records; without an answer nobody knows what it was given."""
        for index in indexes:
            self._asked[index] += 1

    def was_answered(self, indexes: list[int]) -> None:
        for index in indexes:
            self._asked[index] -= 1

    def accepted(self, member: str, index: int, time: int, offset: int) -> None:
        """An acceptance was confirmed.

        One of a record that others were given since then says nothing: what lies before a group's window is
        confirmed whoever accepts it, as in Kafka.
        """
        if self._holders[index].get(offset, ("", 0))[0] == member:
            self.shares[index].accepted(time, offset)

    def delivered(self, member: str, index: int, time: int, offset: int, count: int) -> None:
        """A member was given a record, for the `count`th time as the broker says; it has asked at `time`.

        Answers may overtake each other: one that counts less than another is the older.
        """
        self._deliveries += 1
        if count >= self._holders[index].get(offset, ("", 0))[1]:
            self._holders[index][offset] = (member, count)
        self.shares[index].delivered(time, offset, self._deliveries)
        known = self._counts[index].get(offset, 0) + 1
        self._counts[index][offset] = known
        if not 1 <= count <= known + self._asked[index]:
            self.complain(
                f"orders-{index} offset {offset} was delivered {known} times as far as known and counted"
                f" {count}, with {self._asked[index]} fetches without an answer"
            )

    def died(self, broker: str) -> None:
        """A broker is about to lose its power."""

    def is_given_up(self, index: int, offset: int) -> bool:
        """Whether the share group may have gone past a record that it has delivered as often as it may."""
        return self._counts[index].get(offset, 0) + self._asked[index] >= DELIVERIES_MAX

    def conclude_shares(self, ends: dict[int, int]) -> None:
        for index, end in ends.items():
            for offset in range(end):
                if self.is_given_up(index, offset):
                    self.shares[index].given_up(offset)
            self.shares[index].conclude(end)

    def complain(self, text: str) -> None:
        if len(self.complaints) < 20:
            self.complaints.append(f"{self.broker}: {text}")

    def refused(self, what: str, code: ErrorCode) -> None:
        """A client was refused something that it had a right to."""
        if code not in self._excused:
            self.complain(f"{what} was refused with {code.name}")

    def given_producer_id(self, producer_id: int, whom: str) -> None:
        before = self._producer_ids.setdefault(producer_id, whom)
        if before != whom:
            self.complain(f"{whom} was given the producer id of {before}, {producer_id}")

    def committing(self, group: str, offset: int) -> None:
        confirmed, _ = self._positions.get(group, (-1, -1))
        self._positions[group] = (confirmed, offset)

    def committed(self, group: str, offset: int) -> None:
        self.acked += 1
        self._positions[group] = (offset, self._positions[group][1])

    def position_of(self, group: str, offset: int) -> None:
        """What the broker says that the group has committed."""
        confirmed, sent = self._positions.get(group, (-1, -1))
        if not confirmed <= offset <= sent:
            self.complain(f"{group} is at {offset}: {confirmed} was confirmed, {sent} is the last one sent")

    def found_topics(self, names: set[str]) -> None:
        for name, there in self.topics.items():
            if there is not None and (name in names) is not there:
                self.complain(f"topic {name} is {'gone' if there else 'there'}, against what was confirmed")

    def verdict(self) -> list[str]:
        """Everything that is wrong; to be asked once, after the final reads."""
        self.orders.conclude()
        self.copies.conclude()
        found = [*self.orders.findings, *self.copies.findings, *self.group.findings]
        found += [finding for share in self.shares for finding in share.findings]
        return self.complaints + [f"{self.broker}: {one}" for one in found]
