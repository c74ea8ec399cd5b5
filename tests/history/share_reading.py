"""The checker of share groups: what was delivered to whom, how often, and what became of it.

Members tell, each with the time of a clock they share, which records were *delivered* to them and for which
time, that they are about to accept one (*accepting*), and that this was confirmed (*accepted*). It finds

  DUPLICATE   a record accepted twice, delivered after its acceptance had been confirmed, or delivered to two
              members as the same, say the second, delivery
  OVERDONE    a record delivered more often than the limit allows
  LOST        a record that nobody accepted and that was not given up after its last delivery

A record whose acceptance was under way when the member died may have been accepted or not.
"""

from __future__ import annotations

from tests.history.checker import Findings, Violation


class ShareReading(Findings):
    """Collects what the members of one share group tell of one partition."""

    def __init__(self, deliveries_max: int) -> None:
        super().__init__()
        self._deliveries_max = deliveries_max
        self._deliveries: dict[int, list[tuple[int, int]]] = {}
        """Time and count of each delivery of an offset."""
        self._accepting: set[int] = set()
        self._accepted: dict[int, list[int]] = {}
        self._given_up: set[int] = set()

    def delivered(self, time: int, offset: int, count: int) -> None:
        self._deliveries.setdefault(offset, []).append((time, count))

    def accepting(self, offset: int) -> None:
        self._accepting.add(offset)

    def accepted(self, time: int, offset: int) -> None:
        self._accepted.setdefault(offset, []).append(time)

    def given_up(self, offset: int) -> None:
        """Nobody meant to accept it, and the group has gone past it."""
        self._given_up.add(offset)

    def is_settled(self, offset: int) -> bool:
        """Whether it was accepted, as far as anybody can tell, or given up."""
        return offset in self._accepted or offset in self._accepting or self._is_given_up(offset)

    def conclude(self, end: int) -> None:
        """All records below `end` have been worked on."""
        for offset in range(end):
            self._check_deliveries(offset)
            self._check_acceptance(offset)
            if not self.is_settled(offset):
                often = len(self._deliveries.get(offset, []))
                self.find(Violation.LOST, 0, offset, f"delivered {often} times and never settled")

    def _is_given_up(self, offset: int) -> bool:
        last = any(count >= self._deliveries_max for _, count in self._deliveries.get(offset, []))
        return last or offset in self._given_up

    def _check_deliveries(self, offset: int) -> None:
        counts = [count for _, count in self._deliveries.get(offset, [])]
        if max(counts, default=0) > self._deliveries_max:
            self.find(Violation.OVERDONE, 0, offset, f"it was delivered {max(counts)} times")
        if len(set(counts)) < len(counts):
            self.find(Violation.DUPLICATE, 0, offset, f"one delivery went to two members: {counts}")

    def _check_acceptance(self, offset: int) -> None:
        times = self._accepted.get(offset, [])
        if len(times) > 1:
            self.find(Violation.DUPLICATE, 0, offset, f"it was accepted {len(times)} times")
        if times and any(time > min(times) for time, _ in self._deliveries.get(offset, [])):
            self.find(Violation.DUPLICATE, 0, offset, "it was delivered again after it had been accepted")
