"""Leader epochs: which leader wrote which offsets.

Every batch carries the epoch of the leader that appended it. The log keeps where each epoch began, so that
a client or a follower that knows an old epoch can learn where it ended and notice that it has read what was
later cut off (KIP-101, KIP-320). The epoch is outside the batch's CRC; as the list is made durable
before a new epoch's first batch, it is also what a stored epoch is checked against.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

UNDEFINED = -1


class LeaderEpochs:
    """Epochs and the offsets they began at, both ascending; a new log begins with epoch 0 at offset 0."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        known = list(entries) or [(0, 0)]
        self._epochs = [epoch for epoch, _ in known]
        self._starts = [start for _, start in known]

    @property
    def latest(self) -> int:
        return self._epochs[-1]

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def begin(self, epoch: int, offset: int) -> None:
        """Epoch `epoch` writes from `offset` on; epochs that wrote nothing are forgotten."""
        assert epoch > self.latest, f"epoch {epoch} does not follow {self.latest}"
        while self._starts and self._starts[-1] >= offset:
            self._starts.pop()
            self._epochs.pop()
        self._epochs.append(epoch)
        self._starts.append(offset)

    def followed_by(self, epoch: int, offset: int) -> LeaderEpochs:
        """The same epochs and then this one."""
        longer = LeaderEpochs(self.entries())
        longer.begin(epoch, offset)
        return longer

    def at(self, offset: int) -> int:
        """The epoch that wrote `offset`."""
        return self._epochs[max(bisect_right(self._starts, offset) - 1, 0)]

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch not above `epoch`, and where it ended; (-1, -1) if `epoch` is still unknown."""
        if epoch > self.latest or epoch < 0:
            return UNDEFINED, UNDEFINED
        number = bisect_right(self._epochs, epoch)
        if number == len(self._epochs):
            return self.latest, log_end_offset
        if number == 0:
            return epoch, self._starts[0]
        return self._epochs[number - 1], self._starts[number]

    def cut_to(self, end_offset: int) -> None:
        """Forgets what began past `end_offset`; one epoch always stays."""
        while len(self._starts) > 1 and self._starts[-1] > end_offset:
            self._starts.pop()
            self._epochs.pop()
