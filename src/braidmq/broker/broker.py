"""The broker: one data directory, its topics, and everything that keeps them.

This is the wiring. Faces call `partition`, `topics`, `producer_ids` and the few operations below; they
never see files, threads or timers.

After a crash, the partitions that were being written (named in the file `active`) are recovered before
clients are accepted, in threads. Every other partition is checked when it is first used. The file only
decides where that time is spent: a partition missing from it is still recovered, since opening a log always
checks what its last checkpoint does not cover.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from braidmq.broker import disk_reserve, share_coordinator, share_records
from braidmq.broker.broker_options import BrokerOptions
from braidmq.broker.catalog import TopicCatalog
from braidmq.broker.closing import close_logs
from braidmq.broker.cluster_view import ClusterView, Leader
from braidmq.broker.group_commit import GroupCommit
from braidmq.broker.group_options import GroupOptions
from braidmq.broker.group_shards import GroupShards
from braidmq.broker.housekeeping import Housekeeping
from braidmq.broker.metadata import Joining, Metadata, Start, joining
from braidmq.broker.opening import Opener
from braidmq.broker.partition import Partition
from braidmq.broker.peer_directory import PeerDirectory
from braidmq.broker.producer_ids import ProducerIds
from braidmq.broker.replica import Replica
from braidmq.broker.settings import group_settings, take_over, transaction_settings
from braidmq.broker.shards import Shards
from braidmq.broker.share_coordinator import ShareCoordinator
from braidmq.broker.share_delivery import ShareDelivery
from braidmq.broker.share_expiry import expire_share_groups
from braidmq.broker.share_persister import SharePersister
from braidmq.broker.topic import INTERNAL_TOPICS, Topic
from braidmq.broker.topics import Topics
from braidmq.broker.txn_gate import TxnGate
from braidmq.broker.txn_markers import MarkerWriter
from braidmq.broker.txn_orphans import OrphanSearch
from braidmq.broker.txn_questions import TxnQuestions
from braidmq.broker.txn_shards import TransactionShards
from braidmq.config import Config, TopicConfig
from braidmq.group.share_group import ShareGroup
from braidmq.log.files import FileCache
from braidmq.log.flush import sync_ancestors
from braidmq.log.log import Log
from braidmq.log.producer_state import ProducerLimits
from braidmq.log.retention import stored_bytes
from braidmq.net.peer import Peers
from braidmq.net.txn_peer import TxnPeers
from braidmq.platform.host import Host
from braidmq.wire.errors import ApiError, ErrorCode

OFFSETS_CHECK_S = 600.0
TRANSACTIONS_CHECK_S = 3600.0
CLUSTER_TRANSACTIONS_CHECK_S = 300.0
"""Sooner: at the start of a broker the others cannot be asked what is over."""
TIDY_S = 1.0
RESERVE_CHECK_S = 60.0
CLUSTER_SHARDS = 16
"""Partitions of an internal topic in a cluster."""
STOP_PATIENCE_S = 2.5
"""How long each step of a stop waits for a disk that ends nothing; container platforms kill after 10 s."""
THREADS_PATIENCE_S = 1.0
"""How long a stop waits for files that are being removed; the next start removes the rest."""

log = logging.getLogger("braid.broker")


class Broker:
    """A broker over one data directory, alone or in a cluster.

    `how` says how it joins; without it the options do.
    """

    def __init__(
        self,
        config: Config,
        data: Path,
        host: Host | None = None,
        how: Joining | None = None,
    ) -> None:
        host = host or Host()
        how = how or joining(config)
        self.config = config
        self.data = data
        self.disk = host.disk
        self.clock = host.clock
        loop = asyncio.get_running_loop()
        self.disk.makedirs(data)
        self._lock = self.disk.lock(data)
        self.threads = host.threads(loop, config.log_sync_threads)
        # Apart from those that sync: an ack must not wait for somebody's cold read.
        self.readers = host.threads(loop, config.log_read_threads)
        self._opener = Opener(self.readers, self._open_log)
        self._commit = GroupCommit(loop, self.threads)
        self._files = FileCache(config.log_files_open_max)
        self._producer_limits = ProducerLimits(
            config.producer_id_expiration_ms, config.producer_ids_per_partition_max
        )
        self.metadata = Metadata(config.node_id, config.cluster_name, data, host, self.threads, how)
        self.node_id = config.node_id
        self.image = image = self.metadata.image
        self.view = ClusterView(image, self.node_id)
        self.peers = Peers(host.network, PeerDirectory(config.node_id, self.metadata))
        changes = self.metadata.changes
        self.options = BrokerOptions(config, image, changes, self._on_options_changed)
        self.topics = Topics(
            config, data, self.disk, self.metadata, self.threads, self._new_partition, self.clock
        )
        self.producer_ids = ProducerIds(changes, self.clock)
        self.housekeeping = Housekeeping(
            config, data, self.disk, self.clock, self.topics, self.threads, self.readers
        )
        self.catalog = TopicCatalog(self.topics)
        self.group_options = GroupOptions(config, image, changes, self._on_group_options_changed)
        self._group_settings = group_settings(config)
        self.groups = self._new_groups()
        self._transaction_settings = transaction_settings(config)
        txn_peers = TxnPeers(self.peers)
        self.markers = MarkerWriter(config.node_id, image, self.topics, self.clock, txn_peers)
        self.transactions = self._new_transactions()
        self._orphans = OrphanSearch(config.node_id, self.transactions, txn_peers)
        self._txn_questions = TxnQuestions(txn_peers)
        self.txn_gate = TxnGate(self.transactions, self._txn_questions, config.node_id)
        self._make_share_groups()
        self._active_names: set[str] = set()
        self._stopping: asyncio.Future[None] | None = None

    def _make_share_groups(self) -> None:
        """What delivers to share groups, and what keeps its state."""
        self.share_state = Shards(
            self.image,
            self.topics,
            self.node_id,
            share_records.STATE_TOPIC,
            lambda: self._internal_partitions(self.config.share_coordinator_state_topic_num_partitions),
            share_coordinator.TOPIC_OPTIONS,
            lambda partition: ShareCoordinator(partition, self.topics.was_deleted),
            self.clock,
        )
        self.share_persister = SharePersister(self.share_state, self.node_id)
        self.share_delivery = ShareDelivery(
            self.topics, self.clock, self.group_options.share, self.share_persister
        )

    async def start(self) -> None:
        """Loads metadata and topics, recovers what a crash left open, and begins the recurring work.

        A broker that cannot start gives its directory back.
        """
        try:
            await self._start()
        except BaseException:
            self.groups.stop()
            self.transactions.stop()
            await self.peers.close()
            await self.markers.stop()
            await _within(asyncio.ensure_future(self.metadata.close()), STOP_PATIENCE_S)
            for pool in (self.readers, self.threads):
                pool.stop(THREADS_PATIENCE_S)
            self._lock.release()
            raise

    async def _start(self) -> None:
        # Before anything is kept: a directory whose name a power loss takes back takes all with it.
        if self.disk.makedirs(self.data / "topics") is not None:
            sync_ancestors(self.disk, self.data / "topics")
        disk_reserve.release(self.disk, self.data)
        was_killed = self.disk.exists(self.data / "active")
        await self.metadata.open(Start.AFTER_A_KILL if was_killed else Start.CLEAN)
        self._load_metadata()
        recovered = await self._recover_active()
        self._active = self.disk.open_append(self.data / "active")
        self.groups.start()
        if not self.in_cluster:
            await self.groups.loaded()
            self.groups.check_loaded()
        await self._load_share_state()
        self.transactions.start()
        if not self.in_cluster:
            await self.transactions.loaded()
            self.transactions.check_loaded()
            await self._orphans.end(recovered)
        self.housekeeping.measure_disk()
        disk_reserve.keep(self.disk, self.data)
        await self._finish_deletions()
        self.housekeeping.start(
            (OFFSETS_CHECK_S, self.expire_groups),
            (
                CLUSTER_TRANSACTIONS_CHECK_S if self.in_cluster else TRANSACTIONS_CHECK_S,
                self.tend_transactions,
            ),
            (TIDY_S, self._tidy),
            (RESERVE_CHECK_S, self._keep_reserve),
        )

    async def _load_share_state(self) -> None:
        self.share_state.start()
        for follower in (self.share_state, self.share_persister, self.share_delivery):
            self.metadata.feed.listen(follower.follow)
        if self.in_cluster:
            return  # groups are known from what their coordinators have written
        await self.share_state.loaded()
        self.share_state.check_loaded()
        for group_id in self.share_persister.groups_kept_here():
            # Before coordinators wrote down which share groups there are, only their state said so.
            (await self.groups.reach(group_id)).groups.add_share(group_id)

    def _load_metadata(self) -> None:
        """Takes what the image shows, and follows it from here on; nothing is awaited in between."""
        self.options.load()
        take_over(self._group_settings, group_settings(self.config))
        take_over(self._transaction_settings, transaction_settings(self.config))
        self.group_options.load()
        self.group_options.settle(self._group_settings)
        self.topics.load()
        shards = (self.groups, self.transactions, self.markers)
        for follower in (self.options, self.group_options, self.topics, *shards):
            self.metadata.feed.listen(follower.follow)

    async def _keep_reserve(self) -> None:
        disk_reserve.keep(self.disk, self.data)

    async def _tidy(self) -> None:
        await self.options.settle()
        await self.topics.tidy()

    async def stop(self, patience_s: float = STOP_PATIENCE_S) -> None:
        """Flushes and closes every log; the next start has nothing to recover.

        Whatever the disk does not end within `patience_s` is left to the next start, which recovers it.
        """
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop(patience_s))
        await asyncio.shield(self._stopping)

    async def _stop(self, patience_s: float) -> None:
        self._opener.stop()
        self.groups.stop()
        self.share_delivery.stop()
        self.share_persister.stop()
        self.share_state.stop()
        self.transactions.stop()
        await self.peers.close()
        await asyncio.gather(self.markers.stop(), self._txn_questions.stop())
        duties = asyncio.gather(self.producer_ids.stop(), self.housekeeping.stop())
        clean = await _within(duties, patience_s)
        clean = await self._commit.settle(patience_s) and clean
        # Nothing is awaited from here until every log is taken: no append comes in between.
        hanging = self._commit.under_way
        for partition in hanging:
            log.error("%s: its sync did not finish in time; it is recovered at the next start", partition)
        partitions = [one for topic in self.topics for one in topic.held.values() if one not in hanging]
        clean = await close_logs(partitions, self.threads, patience_s) and clean
        self._active.close()
        if clean:
            self.disk.unlink(self.data / "active")
        await _within(asyncio.ensure_future(self.metadata.close()), patience_s)
        ended = [pool.stop(THREADS_PATIENCE_S) for pool in (self.readers, self.threads)]
        if not all(ended):
            log.error("disk work did not finish in time; stopping without it")
        self._lock.release()

    # -- what faces ask for ---------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        return self.metadata.cluster_id

    @property
    def in_cluster(self) -> bool:
        """Whether the metadata is shared with other brokers."""
        return self.metadata.shared

    def leader(self, topic_id: bytes, index: int) -> Leader:
        """Who leads a partition; node id -1 while that broker does not run, or if there is no such one."""
        return self.view.leader(topic_id, index)

    def endpoint(self, node_id: int) -> tuple[str, int] | None:
        """Where a broker accepts clients; None while it does not run."""
        return self.view.endpoint(node_id)

    def _internal_partitions(self, wanted: int) -> int:
        """Of a new internal topic; `wanted` is 0 where nobody has chosen."""
        return wanted or (CLUSTER_SHARDS if self.in_cluster else 1)

    def partition(self, topic_name: str, index: int) -> Replica:
        """A partition that this broker leads; ApiError if there is none, or another broker does."""
        topic = self.topics.find(topic_name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic_name[:60]!r}")
        return topic.leading(index)

    def known_partitions(self, partitions: Iterable[tuple[str, int]]) -> list[Replica]:
        """Those of these partitions that this broker holds."""
        return [
            found
            for name, index in partitions
            if (topic := self.topics.find(name)) is not None and (found := topic.held.get(index)) is not None
        ]

    def why_writes_are_refused(self) -> str:
        """The code producers get while the disk is full."""
        return (
            f"the broker's disk is {self.housekeeping.disk_percent:.0f} % full (disk.full.percent="
            f"{self.config.disk_full_percent}); free space, or shorten retention.ms or retention.bytes"
        )

    async def delete_topic(self, name: str) -> None:
        """Deletes a topic, and with it what groups had committed for it."""
        topic = self.topics.get(name)
        if topic.internal:
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} is the broker's own and cannot be deleted"
            )
        await self.topics.delete(name, lambda: self.groups.forgotten(name))
        await self.share_delivery.forget_topic(topic.id)

    async def delete_group(self, group_id: str) -> ErrorCode:
        """Deletes a group without members, and all it has kept.

        If a broker that may keep something of a share group is away, the group stays, and the client tries
        again: nobody could delete that later. A group of another kind has kept nothing there.
        """
        coordinator = self.groups.of(group_id)
        is_share = isinstance(coordinator.groups.find(group_id), ShareGroup)
        if is_share:
            await self.share_persister.of_group(group_id)
        code = await coordinator.delete_group(group_id)
        if is_share and code is ErrorCode.NONE:
            await self.share_delivery.forget_group(group_id)
        return code

    async def reconfigure_group(self, group_id: str, overrides: Mapping[str, str]) -> None:
        """Replaces a group's own options; they count at once."""
        await self.group_options.reconfigure(group_id, overrides)

    async def tend_transactions(self) -> None:
        """Forgets idle transactional ids, and ends transactions that no coordinator knows of."""
        await self.transactions.expire()
        await self._orphans.end([partition for topic in self.topics for partition in topic.held.values()])

    async def expire_groups(self) -> None:
        """Forgets offsets past their retention, and groups of either kind that have nothing left."""
        await self.groups.expire()
        await expire_share_groups(self.groups, self.share_persister)

    async def delete_records(self, partition: Replica, before_offset: int) -> int:
        """Moves the start of a partition's log for good; the new start."""
        if partition.topic in INTERNAL_TOPICS:
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{partition}: the broker relies on what it has written here",
            )
        await partition.settled()
        partition.delete_before(before_offset)
        await self.housekeeping.checkpoint_one(partition)
        return partition.start_offset

    async def sizes_on_disk(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The bytes of each partition's log. Those that nobody has used yet are measured without opening."""
        sizes = {each: each.size_bytes for each in partitions}
        unopened = [each for each, size in sizes.items() if size < 0]
        if unopened:
            await self.readers.run(
                lambda: sizes.update((each, self._measure(each.path)) for each in unopened)
            )
        return sizes

    # -- details --------------------------------------------------------------------------------

    async def _finish_deletions(self) -> None:
        """Their groups have forgotten the offsets of deleted topics as they were loaded."""
        for deletion in self.topics.unfinished_deletions():
            deletion.forgotten = True

    def _measure(self, path: Path) -> int:
        """The bytes of a log's segments; -1 if the disk does not tell."""
        try:
            return stored_bytes(self.disk, str(path))
        except OSError:
            return -1

    def _on_group_options_changed(self, group_id: str) -> None:
        self.group_options.settle(self._group_settings, group_id)
        self.share_delivery.relimit(group_id)

    async def _on_options_changed(self) -> None:
        """`config` holds new values: those who made something of the old ones make it again."""
        take_over(self._group_settings, group_settings(self.config))
        self.group_options.settle(self._group_settings)
        take_over(self._transaction_settings, transaction_settings(self.config))
        for group_id in dict.fromkeys(part.key.group_id for part in self.share_delivery):
            self.share_delivery.relimit(group_id)
        await self.topics.refresh_options()
        try:
            self.housekeeping.measure_disk()
        except OSError as error:
            log.warning("cannot read how full the disk is, trying again later: %s", error)

    def _new_transactions(self) -> TransactionShards:
        config = self.config
        return TransactionShards(
            self.image,
            self.topics,
            config.node_id,
            lambda: self._internal_partitions(config.transaction_state_log_num_partitions),
            self._transaction_settings,
            self.producer_ids,
            self.markers,
            self.clock,
            lambda: not self.in_cluster,
        )

    def _new_groups(self) -> GroupShards:
        return GroupShards(
            self.image,
            self.topics,
            self.node_id,
            self.clock,
            self._group_settings,
            self.catalog,
            self.group_options.streams,
            lambda: self._internal_partitions(self.config.offsets_topic_num_partitions),
            lambda: self.in_cluster,
        )

    def _new_partition(self, topic: Topic, index: int) -> Replica:
        return Replica(
            topic.name,
            index,
            topic.path,
            topic.config,
            self._opener,
            self._commit,
            self._on_dirty,
            self.disk,
        )

    def _open_log(self, path: Path, config: TopicConfig) -> Log:
        if self._stopping is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path}: the broker is stopping")
        opened = Log.open(self.disk, path, config, self.clock, self._files, self._producer_limits)
        for note in opened.notes:
            log.warning("%s/%s: %s", path.parent.name, path.name, note)
        return opened

    def _on_dirty(self, partition: Partition) -> None:
        self.housekeeping.mark_dirty(partition)
        name = str(partition)
        if name not in self._active_names:
            try:
                # A line of its own, even after one that was written in part.
                self._active.write(f"\n{name}\n".encode())
            except OSError as error:
                # It only decides when the partition is recovered; a record that was appended stays so.
                log.warning("%s: cannot note that it is being written: %s", name, error)
                return
            self._active_names.add(name)

    async def _recover_active(self) -> list[Replica]:
        """Opens what was being written when the broker died; nothing after a clean stop."""
        path = self.data / "active"
        if not self.disk.exists(path):
            return []
        names = set(self.disk.read_file(path).decode(errors="replace").splitlines())
        partitions = [p for topic in self.topics for p in topic.held.values() if str(p) in names]
        log.info("recovering %d partitions after an unclean stop", len(partitions))
        # One after the other: they share the cache of open files, and the disk is the limit.
        await self.threads.run(lambda: self._open_all(partitions))
        self.disk.unlink(path)
        return partitions

    def _open_all(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            try:
                partition.adopt(self._open_log(partition.path, partition.config))
            except (OSError, ApiError) as error:
                log.error("%s: cannot be recovered; its clients get a storage error: %s", partition, error)


async def _within(work: asyncio.Future[Any], patience_s: float) -> bool:
    """Whether `work` ended in time; what it raised is raised here."""
    ended, _ = await asyncio.wait([work], timeout=patience_s)
    if not ended:
        log.error("the broker's own disk work did not finish within %.1f s", patience_s)
        return False
    work.result()
    return True
