"""Metadata on a store that is given to it, until the broker takes one."""

from __future__ import annotations

from typing import Any
from unittest import mock

from braidmq.broker import metadata as module
from braidmq.broker.metadata import Metadata, Start
from braidmq.cluster.changes import Changes
from braidmq.cluster.image_feed import ImageFeed
from braidmq.cluster.membership import LeaseTimes
from braidmq.cluster.node_file import read_node_file


class SharedMetadata(Metadata):
    def __init__(self, store: Any, *rest: Any) -> None:
        super().__init__(*rest)
        self.store = store
        self.shared = True
        self.feed = ImageFeed(store, self.image, self._host.clock)
        self.changes = Changes(store, self.feed, self.node_id, self._writer)

    async def open(self, start: Start) -> None:
        kept = read_node_file(self._host.disk, self._data)
        try:
            with mock.patch.object(module, "EMBEDDED", LeaseTimes()):
                await self._join(kept, start)
            await self.feed.start()
        except BaseException:
            await self.store.close()
            raise
