"""Reading the internal topic when a broker starts: the last word on each key counts.

Records are taken in the order of the log. Offsets written within a transaction wait for its marker, as they
do in a running broker. What cannot be read is counted and passed over: one bad record must not keep all
groups away.
"""

from __future__ import annotations

from braidmq.group.consumer_group import StoredConsumerGroup
from braidmq.group.consumer_records import ConsumerLoader
from braidmq.group.offsets import OffsetTable
from braidmq.group.records import StoredGroup, StoredOffset, parse
from braidmq.group.share_records import ShareLoader
from braidmq.group.streams_group import StoredStreamsGroup
from braidmq.group.streams_records import StreamsLoader
from braidmq.wire.errors import ProtocolError


class GroupLoader:
    """What the records read so far say."""

    def __init__(self) -> None:
        self.unreadable = 0
        self.offsets: dict[str, OffsetTable] = {}
        self.classic: dict[str, StoredGroup] = {}
        self._consumer = ConsumerLoader()
        self._streams = StreamsLoader()
        self.share = ShareLoader()

    def record(self, key: bytes, value: bytes | None, producer_id: int | None = None) -> None:
        """Takes in one record; `producer_id` is that of the transaction it was written in, if any."""
        try:
            if (
                self._consumer.take(key, value)
                or self._streams.take(key, value)
                or self.share.take(key, value)
            ):
                return
            stored = parse(key, value)
        except ProtocolError:
            self.unreadable += 1
            return
        if isinstance(stored, StoredGroup):
            self.classic[stored.group_id] = stored
            if stored.snapshot is not None:
                self._consumer.forget(stored.group_id)
                self._streams.forget(stored.group_id)
        elif stored is not None:
            self._offset(stored, producer_id)

    def marker(self, producer_id: int, committed: bool) -> None:
        """Takes in the end of a transaction."""
        for table in self.offsets.values():
            table.decide(producer_id, committed)

    def consumer(self) -> dict[str, StoredConsumerGroup]:
        """The server-assigned groups that are left; to be asked once, at the end."""
        groups = self._consumer.groups()
        self.unreadable += self._consumer.unreadable
        return groups

    def streams(self) -> dict[str, StoredStreamsGroup]:
        """The streams groups that are left; to be asked once, at the end."""
        groups = self._streams.groups()
        self.unreadable += self._streams.unreadable
        return groups

    def _offset(self, stored: StoredOffset, producer_id: int | None) -> None:
        table = self.offsets.setdefault(stored.group_id, OffsetTable())
        if stored.committed is None:
            table.forget([(stored.topic, stored.partition)])
        elif producer_id is None:
            table.commit(stored.topic, stored.partition, stored.committed)
        else:
            table.commit_undecided(producer_id, stored.topic, stored.partition, stored.committed)
