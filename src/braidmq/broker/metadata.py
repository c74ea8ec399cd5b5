"""A broker's metadata: the store, the image that follows it, and this broker's place in the cluster.

A broker alone has its own store, a file in the data directory; the lock on the directory says that nobody
else uses it. So registrations that it holds at the start were left by a broker that was killed, and are ended
(`membership.EMBEDDED` says what a lease means here). Metadata of older releases is brought into its form.

A store that brokers share (`cluster/open_store.py`) belongs to none of them: a broker joins, and changes
nothing that is not its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path

from braidmq import __version__
from braidmq.address import AddressError
from braidmq.broker.topic_directories import holds_topics
from braidmq.cluster import records
from braidmq.cluster.changes import Changes
from braidmq.cluster.controller import Controller
from braidmq.cluster.file_store import FILE_NAME, FileStore
from braidmq.cluster.image import Image
from braidmq.cluster.image_feed import ImageFeed
from braidmq.cluster.membership import EMBEDDED, Identity, JoinRefused, LeaseTimes, Membership
from braidmq.cluster.metadata_store import MetadataStore, StoreCorrupt, StoreError
from braidmq.cluster.node_file import FILE_NAME as NODE_FILE
from braidmq.cluster.node_file import NodeFile, read_node_file, write_node_file
from braidmq.cluster.open_store import is_embedded, open_embedded, open_store
from braidmq.cluster.outage import Outage
from braidmq.cluster.records import BadRecord, Listener, Node, decode
from braidmq.cluster.settlement import Writer
from braidmq.cluster.upgrade import OLD_CLUSTER_ID, upgrade
from braidmq.config import Config, ConfigError
from braidmq.platform.host import Host
from braidmq.platform.randomness import new_uuid, random_bytes
from braidmq.platform.threads import DiskThreads
from braidmq.wire.errors import ApiError, ErrorCode

OUTAGE_PAUSE_S = 1.0
"""How long nobody asks a shared store for a change after it did not answer."""

log = logging.getLogger("braid.broker")


class Start(Enum):
    """What came before."""

    CLEAN = auto()
    AFTER_A_KILL = auto()
    ADOPTING = auto()
    """Topics whose metadata is lost are about to be brought back: it may be empty."""


@dataclass(frozen=True, slots=True)
class Joining:
    """How a broker joins, and where it stands."""

    store: MetadataStore | None = None
    """That of a cluster; None for the one in the data directory."""
    times: LeaseTimes = EMBEDDED
    rack: str | None = None
    host: str | None = None
    """The machine, for placement; None for its own name."""
    replace: bool = False
    """Whether this data directory takes the place of another one of the same node id."""
    compacts: bool = False
    """Whether the controller compacts the store's history."""


ALONE = Joining()


def joining(config: Config) -> Joining:
    """As the options say; ConfigError if they cannot be followed."""
    try:
        store = (
            None
            if is_embedded(config.store)
            else open_store(config.store, Path(config.store_token_file) if config.store_token_file else None)
        )
    except AddressError as error:
        raise ConfigError(f"store: {error}") from None
    times = LeaseTimes(-(-config.cluster_lease_ms // 1000), config.cluster_lease_renew_ms / 1000)
    return Joining(
        store=store,
        times=EMBEDDED if store is None else times,
        rack=config.rack or None,
        host=config.host_name or None,
        replace=config.replace,
        compacts=config.etcd_compact and getattr(store, "kind", "") == "etcd",
    )


class Metadata:
    """Opened before anything else of a broker, closed after it."""

    def __init__(
        self,
        node_id: int,
        cluster_name: str,
        data: Path,
        host: Host,
        threads: DiskThreads,
        how: Joining = ALONE,
    ) -> None:
        self.node_id = node_id
        self._how = how
        self.rack = how.rack
        self.shared = how.store is not None
        """Whether other brokers use the store, too: it is not the embedded one."""
        self._cluster_name = cluster_name
        self._data = data
        self._host = host
        self._prefix = records.prefix(cluster_name)
        self._run = new_uuid().hex()
        self._writer = Writer(f"{node_id}/{self._run}")
        self._membership: Membership | None = None
        self.listening: tuple[str, int] | None = None
        """Where this broker reaches itself, which need not be where clients are sent."""
        self.controller: Controller | None = None
        """Campaigns for this broker once it has appeared; a broker alone needs none."""
        self._own: FileStore | None = None
        if how.store is not None:
            self.store = how.store
        else:
            self.store = self._own = open_embedded(host.disk, data, host.clock, threads.run)
        self.image = Image(self._prefix)
        self.feed = ImageFeed(self.store, self.image, host.clock)
        outage = Outage(OUTAGE_PAUSE_S if self.shared else 0.0)
        self.changes = Changes(self.store, self.feed, node_id, self._writer, outage)
        self.cluster_id = ""

    @property
    def epoch(self) -> int:
        """The broker epoch; -1 before it is registered."""
        return records.NO_EPOCH if self._membership is None else self._membership.epoch

    async def open(self, start: Start) -> None:
        """Joins the cluster and loads the image."""
        kept = read_node_file(self._host.disk, self._data)
        if kept is not None and kept.node_id != self.node_id:
            raise JoinRefused(
                f"the data directory belongs to node {kept.node_id}, not {self.node_id}; start the broker"
                f" with -o node.id={kept.node_id}, or give it another directory"
            )
        await self.store.start()
        try:
            if start is not Start.ADOPTING:
                await self._check_known(kept)
            if self._own is not None:
                await upgrade(self._own, self._prefix, self.node_id, self._writer)
                await self._own.end_leases()
            await self._join(kept, start)
            self._set_own_aside()
            await self.feed.start()
        except BaseException:
            await self.store.close()
            raise

    @property
    def membership(self) -> Membership:
        """This broker's place in the cluster, once it is open."""
        assert self._membership is not None, "open it first"
        return self._membership

    async def appear(self, host: str, port: int) -> None:
        """Shows where clients are accepted."""
        await self.membership.appear((Listener("kafka", host, port),))
        if self.shared:
            self.controller = Controller(
                self.store,
                self.feed,
                self.node_id,
                self.membership,
                self._writer,
                self._host.clock,
                self._how.compacts,
            )
            self.controller.start()

    async def close(self) -> None:
        if self.controller is not None:
            await self.controller.stop()
        if self._membership is not None:
            await self._membership.leave()
        await self.feed.stop()
        await self.store.close()

    async def _check_known(self, kept: NodeFile | None) -> None:
        """Refuses metadata that cannot be that of this directory."""
        if await self.store.get(self._prefix + records.CLUSTER_ID):
            return
        if self._own is None:
            self._check_empty()
            return
        if await self.store.get(OLD_CLUSTER_ID):
            return
        others = (await self.store.snapshot(records.ALL_CLUSTERS)).items
        if others:
            name = records.cluster_of(others[0].key)
            raise JoinRefused(
                f"{FILE_NAME} holds the metadata of the cluster {name!r}; start the broker with"
                f" -o cluster.name={name}, or give it another directory"
            )
        if kept is not None and kept.shared:
            raise JoinRefused(
                f"node {kept.node_id} is a broker of a cluster, whose metadata is kept elsewhere; start it"
                " with --store or --join, or bring the metadata here first: braid cluster export and import"
            )
        if holds_topics(self._host.disk, self._data / "topics"):
            raise StoreCorrupt(
                f"{FILE_NAME} is missing or empty, and topics/ holds topics; restore the file from a backup,"
                " or run braid doctor DIR --adopt all, which makes a new one of what is there"
            )

    def _set_own_aside(self) -> None:
        """Metadata from the time before the cluster: a start without --store must not find it."""
        disk, own = self._host.disk, self._data / FILE_NAME
        if self.shared and disk.exists(own):
            disk.rename(own, own.with_name(FILE_NAME + ".old"))
            disk.sync_directory(self._data)
            log.info("%s is from before this broker joined the cluster; it is kept as %s.old", own, own.name)

    def _check_empty(self) -> None:
        """The first broker of a new cluster brings no topics: nobody would know them."""
        if holds_topics(self._host.disk, self._data / "topics"):
            raise JoinRefused(
                f"the store does not know the cluster {self._cluster_name!r}, and this data directory holds"
                " topics; check --store and cluster.name, or bring the metadata over first: braid cluster"
                " export and braid cluster import"
            )

    async def _join(self, kept: NodeFile | None, start: Start) -> None:
        host = self._host
        place = f"{host.name}:{self._data.absolute()}"
        # In a copy, the former run is that of the original, which may well be alive.
        is_here = kept is not None and kept.place in ("", place)
        mine = NodeFile(
            node_id=self.node_id,
            cluster_name=self._cluster_name,
            uuid=kept.uuid if kept is not None else await self._known_uuid() or new_uuid().hex(),
            run=self._run,
            former_run=kept.run if kept is not None and is_here else None,
            boot_id=host.boot_id,
            cluster_id=None if kept is None else kept.cluster_id,
            shared=self.shared,
            place=place,
        )
        write_node_file(host.disk, self._data, mine)
        await self._join_as(mine, start, kept)

    async def _join_as(self, mine: NodeFile, start: Start, kept: NodeFile | None) -> None:
        host = self._host
        identity = Identity(
            node_id=mine.node_id,
            uuid=mine.uuid,
            run=mine.run,
            former_run=mine.former_run,
            cluster_id=mine.cluster_id,
            host=self._how.host or host.name,
            boot_id=host.boot_id,
            rack=self.rack,
            replace=self._how.replace,
            directories=(mine.uuid,),
            lost_unsynced=start is Start.AFTER_A_KILL and (kept is None or kept.boot_id != host.boot_id),
            version=__version__,
        )
        membership = Membership(
            self.store, self._prefix, identity, host.clock.boottime, random_bytes, self._how.times
        )
        try:
            await membership.join()
        except JoinRefused:
            if kept is None:
                # A new directory that was refused belongs to nobody: it may try another node id.
                host.disk.unlink(self._data / NODE_FILE)
            raise
        self._membership, self.cluster_id = membership, membership.cluster_id
        if mine.cluster_id != membership.cluster_id:
            write_node_file(host.disk, self._data, replace(mine, cluster_id=membership.cluster_id))

    async def _known_uuid(self) -> str | None:
        """The uuid that the store has for this node, if it lies in the directory: it is the directory's."""
        if self._own is None:
            return None
        item = await self.store.get(self._prefix + records.node_key(self.node_id))
        try:
            return None if item is None else decode(Node, item.key, item.value).uuid
        except BadRecord:
            return None


@contextmanager
def storing(outage: Outage | None = None) -> Iterator[None]:
    """Turns a change of the metadata that could not be made into what a client is told.

    With `outage`, it is refused at once while the store is known to be away.
    """
    refusal = None if outage is None else outage.refusal()
    try:
        if refusal is not None:
            raise refusal
        yield
    except (StoreError, OSError, BadRecord) as error:
        if outage is not None and error is not refusal and isinstance(error, StoreError):
            outage.note(error)
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot store the change: {error}") from error
