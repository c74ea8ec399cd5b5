"""The markers that end transactions: written here, or by the broker that leads the partition.

A coordinator asks for a marker and hears once when it is as safe as the topic's records. A partition of this
broker is a direct call. The others go by WriteTxnMarkers, one request per broker at a time (see
`txn/marker_queue`). What is not written, because its broker is away or leads the partition no more, is tried
again at the broker that the image names then. A partition that the image shows no longer has
nothing left to end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from braidmq.broker.replica import Replica
from braidmq.broker.topics import Topics
from braidmq.cluster.image import Delta, Image
from braidmq.log.transactions import EndMarker, MarkerType
from braidmq.net.peer import PeerUnavailable
from braidmq.platform.clock import Clock
from braidmq.txn.events import Marker, TopicPartition
from braidmq.txn.marker_queue import Codes, DueMarker, MarkerKey, MarkerQueue
from braidmq.wire.errors import ApiError, ErrorCode

NOBODY = -1

log = logging.getLogger("braid.transactions")

Then = Callable[[ErrorCode], None]


class MarkerPeers(Protocol):
    """Other brokers, which write markers; see `net.txn_peer`."""

    async def write_markers(self, node_id: int, due: Sequence[MarkerKey]) -> Codes: ...


class _Destination:
    """A broker that has markers to write, and the task that sends them."""

    __slots__ = ("changed", "queue", "task")

    def __init__(self) -> None:
        self.queue = MarkerQueue()
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class MarkerWriter:
    """Writes the markers of this broker's coordinators, wherever their partitions are."""

    def __init__(self, node_id: int, image: Image, topics: Topics, clock: Clock, peers: MarkerPeers) -> None:
        self._node_id = node_id
        self._image = image
        self._topics = topics
        self._clock = clock
        self._peers = peers
        self._destinations: dict[int, _Destination] = {}
        self._stopped = False

    # -- asking for one -------------------------------------------------------------------------

    def write(self, topic_partition: TopicPartition, marker: Marker, owner: object, then: Then) -> None:
        """Ends a transaction in one partition; `then` is called when that is as safe as the topic's records.

        UNKNOWN_TOPIC_OR_PARTITION means that there is nothing left to end. What another broker leads is tried
        until it has an answer, unless `drop` is called for the owner first.
        """
        partition = self._led_here(topic_partition)
        if partition is not None:
            append_marker(partition, marker, then)
            return
        leader = self._leader(topic_partition)
        if leader is None:
            then(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif not self._stopped:
            self._enqueue(leader, DueMarker(topic_partition, marker, owner, then))

    def write_here(self, topic_partition: TopicPartition, marker: Marker, then: Then) -> None:
        """As `write`, for another broker; NOT_LEADER_OR_FOLLOWER if this one does not lead the partition."""
        partition = self._led_here(topic_partition)
        if partition is not None:
            append_marker(partition, marker, then)
        elif self._leader(topic_partition) is None:
            then(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            then(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def drop(self, owner: object) -> None:
        """Forgets what a coordinator wanted; nobody is called."""
        for destination in self._destinations.values():
            destination.queue.drop(owner)
            destination.changed.set()

    def waiting(self) -> int:
        """Markers that other brokers have not written yet."""
        return sum(len(destination.queue) for destination in self._destinations.values())

    # -- following the image --------------------------------------------------------------------

    def follow(self, delta: Delta) -> None:
        """What waits for another try has it at once, where something has changed; `Topics` has followed."""
        if not (delta.topics or delta.partitions or delta.brokers):
            return
        for node_id, destination in self._destinations.items():
            if node_id == NOBODY or node_id in delta.brokers or delta.topics or delta.partitions:
                destination.queue.resume()
                destination.changed.set()

    async def stop(self) -> None:
        """Sends nothing more; the coordinators find what is missing when they are loaded again."""
        self._stopped = True
        tasks = [one.task for one in self._destinations.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _led_here(self, topic_partition: TopicPartition) -> Replica | None:
        name, index = topic_partition
        topic = self._topics.find(name)
        partition = None if topic is None else topic.held.get(index)
        return partition if partition is not None and partition.leads else None

    def _leader(self, topic_partition: TopicPartition) -> int | None:
        """The broker that leads a partition, NOBODY if none does now; None if there is no such partition.

        Whatever a coordinator has added to a transaction was in its image, so what is missing was deleted.
        """
        name, index = topic_partition
        shown = self._image.find(name)
        if shown is None or not 0 <= index < len(shown.partitions):
            return None
        partition = shown.partitions[index]
        if partition is None:
            return NOBODY
        leader = partition.record.leader
        broker = self._image.brokers.get(leader)
        runs = leader != self._node_id and broker is not None and broker.alive is not None
        return leader if runs else NOBODY

    # -- sending --------------------------------------------------------------------------------

    def _enqueue(self, node_id: int, one: DueMarker) -> None:
        destination = self._destinations.get(node_id)
        if destination is None:
            destination = self._destinations[node_id] = _Destination()
        destination.queue.add(one)
        if destination.task is None:
            name = f"markers-{node_id}"
            loop = asyncio.get_running_loop()
            destination.task = loop.create_task(self._send_all(node_id, destination), name=name)
            destination.task.add_done_callback(_log_failure)

    async def _send_all(self, node_id: int, destination: _Destination) -> None:
        """Sends what is due until nothing is left, or all of it belongs elsewhere."""
        queue = destination.queue
        # Not at once: the other partitions of the same transaction go with the same request.
        await asyncio.sleep(0)
        while True:
            for one in queue.moved(lambda topic_partition: self._leader(topic_partition) == node_id):
                self._write_again(one)
            if not len(queue):
                break
            left_ms = queue.pause_left_ms(self._now_ms())
            if left_ms:
                await _changed(destination.changed, left_ms / 1000)
                continue
            await self._send(node_id, queue)
        del self._destinations[node_id]

    def _write_again(self, one: DueMarker) -> None:
        """Where the image says now. Its owner's trouble is its own: the others are still to be sent."""
        try:
            self.write(*one)
        except Exception:
            log.exception("%s-%d: a callback failed", *one.topic_partition)

    async def _send(self, node_id: int, queue: MarkerQueue) -> None:
        due = queue.take()
        codes: Codes = {}
        try:
            if node_id != NOBODY:
                codes = await self._peers.write_markers(node_id, [one.key for one in due])
        except PeerUnavailable as error:
            log.info("broker %d: %d markers are tried again later: %s", node_id, len(due), error)
        except Exception:
            # A broken answer, say. Nobody else would send these.
            log.exception("broker %d: %d markers are tried again later", node_id, len(due))
        for one, code in queue.settle(codes, self._now_ms()):
            try:
                one.then(code)
            except Exception:
                log.exception("%s-%d: a callback failed", *one.topic_partition)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


def append_marker(partition: Replica, marker: Marker, then: Then) -> None:
    """Ends a transaction in a partition of this broker."""
    outcome = MarkerType.COMMIT if marker.committed else MarkerType.ABORT
    end = EndMarker(marker.producer_id, marker.producer_epoch, outcome, marker.coordinator_epoch)

    def write() -> None:
        try:
            stored_at = partition.append_marker(end, marker.transaction_version)
        except ApiError as error:
            then(error.code)
        else:
            partition.when_committed(stored_at, then)

    partition.when_open(write)


async def _changed(event: asyncio.Event, timeout_s: float) -> None:
    """Returns when the event is set, or after a while."""
    timer = asyncio.get_running_loop().call_later(timeout_s, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
    event.clear()


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("markers are not sent any more", exc_info=error)
