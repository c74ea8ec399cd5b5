"""A broker's metadata: the store, the image that follows it, and this broker's place in the cluster.

The store is a file in the data directory, in the broker's own process; the lock on the directory says that
nobody else uses it. So registrations that it holds at the start were left by a broker that was killed, and
are ended (`membership.EMBEDDED` says what a lease means here).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path

from braidmq import __version__
from braidmq.broker.topic_directories import holds_topics
from braidmq.cluster import records
from braidmq.cluster.changes import Changes
from braidmq.cluster.file_store import FILE_NAME, FileStore
from braidmq.cluster.image import Image
from braidmq.cluster.image_feed import ImageFeed
from braidmq.cluster.membership import EMBEDDED, Identity, JoinRefused, Membership
from braidmq.cluster.metadata_store import StoreCorrupt, StoreError
from braidmq.cluster.node_file import NodeFile, read_node_file, write_node_file
from braidmq.cluster.records import BadRecord, Listener, Node, decode
from braidmq.cluster.settlement import Writer
from braidmq.cluster.upgrade import OLD_CLUSTER_ID, upgrade
from braidmq.platform.host import Host
from braidmq.platform.randomness import new_uuid, random_bytes
from braidmq.platform.threads import DiskThreads
from braidmq.wire.errors import ApiError, ErrorCode

log = logging.getLogger("braid.broker")


class Start(Enum):
    """What came before."""

    CLEAN = auto()
    AFTER_A_KILL = auto()
    ADOPTING = auto()
    """Topics whose metadata is lost are about to be brought back: it may be empty."""


class Metadata:
    """Opened before anything else of a broker, closed after it."""

    def __init__(self, node_id: int, cluster_name: str, data: Path, host: Host, threads: DiskThreads) -> None:
        self._node_id = node_id
        self._cluster_name = cluster_name
        self._data = data
        self._host = host
        self._prefix = records.prefix(cluster_name)
        self._run = new_uuid().hex()
        self._writer = Writer(f"{node_id}/{self._run}")
        self._membership: Membership | None = None
        self.store = FileStore(host.disk, data, host.clock, threads.run)
        self.image = Image(self._prefix)
        self.feed = ImageFeed(self.store, self.image, host.clock)
        self.changes = Changes(self.store, self.feed, node_id, self._writer)
        self.cluster_id = ""

    @property
    def epoch(self) -> int:
        """The broker epoch; -1 before it is registered."""
        return records.NO_EPOCH if self._membership is None else self._membership.epoch

    async def open(self, start: Start) -> None:
        """Joins the cluster and loads the image."""
        kept = read_node_file(self._host.disk, self._data)
        if kept is not None and kept.node_id != self._node_id:
            raise JoinRefused(
                f"the data directory belongs to node {kept.node_id}, not {self._node_id}; start the broker"
                f" with -o node.id={kept.node_id}, or give it another directory"
            )
        await self.store.start()
        try:
            if start is not Start.ADOPTING:
                await self._check_known()
            await upgrade(self.store, self._prefix, self._node_id, self._writer)
            await self.store.end_leases()
            await self._join(kept, start)
            await self.feed.start()
        except BaseException:
            await self.store.close()
            raise

    async def appear(self, host: str, port: int) -> None:
        """Shows where clients are accepted."""
        assert self._membership is not None, "open it first"
        await self._membership.appear((Listener("kafka", host, port),))

    async def close(self) -> None:
        if self._membership is not None:
            await self._membership.leave()
        await self.feed.stop()
        await self.store.close()

    async def _check_known(self) -> None:
        """Refuses metadata that cannot be that of this directory."""
        if await self.store.get(self._prefix + records.CLUSTER_ID) or await self.store.get(OLD_CLUSTER_ID):
            return
        others = (await self.store.snapshot(records.ALL_CLUSTERS)).items
        if others:
            name = records.cluster_of(others[0].key)
            raise JoinRefused(
                f"{FILE_NAME} holds the metadata of the cluster {name!r}; start the broker with"
                f" -o cluster.name={name}, or give it another directory"
            )
        if holds_topics(self._host.disk, self._data / "topics"):
            raise StoreCorrupt(
                f"{FILE_NAME} is missing or empty, and topics/ holds topics; restore the file from a backup,"
                " or run braid doctor DIR --adopt all, which makes a new one of what is there"
            )

    async def _join(self, kept: NodeFile | None, start: Start) -> None:
        host = self._host
        mine = NodeFile(
            node_id=self._node_id,
            cluster_name=self._cluster_name,
            uuid=kept.uuid if kept is not None else await self._known_uuid() or new_uuid().hex(),
            run=self._run,
            former_run=None if kept is None else kept.run,
            boot_id=host.boot_id,
            cluster_id=None if kept is None else kept.cluster_id,
        )
        write_node_file(host.disk, self._data, mine)
        identity = Identity(
            node_id=mine.node_id,
            uuid=mine.uuid,
            run=mine.run,
            former_run=mine.former_run,
            cluster_id=mine.cluster_id,
            host=host.name,
            boot_id=host.boot_id,
            directories=(mine.uuid,),
            lost_unsynced=start is Start.AFTER_A_KILL and (kept is None or kept.boot_id != host.boot_id),
            version=__version__,
        )
        membership = Membership(
            self.store, self._prefix, identity, host.clock.monotonic, random_bytes, EMBEDDED
        )
        await membership.join()
        self._membership, self.cluster_id = membership, membership.cluster_id
        if mine.cluster_id != membership.cluster_id:
            write_node_file(host.disk, self._data, replace(mine, cluster_id=membership.cluster_id))

    async def _known_uuid(self) -> str | None:
        """The uuid that the store has for this node. It lies in the directory, so it is this directory's."""
        item = await self.store.get(self._prefix + records.node_key(self._node_id))
        try:
            return None if item is None else decode(Node, item.key, item.value).uuid
        except BadRecord:
            return None


@contextmanager
def storing() -> Iterator[None]:
    """Turns a change of the metadata that could not be made into what a client is told."""
    try:
        yield
    except (StoreError, OSError) as error:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot store the change: {error}") from error
