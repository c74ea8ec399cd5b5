"""Coordinators that live with the partitions of an internal topic: one *shard* per partition led here.

Which shard answers for a key is Kafka's rule, a hash of the key modulo the number of partitions, so every
broker knows from the image which broker to name. A shard is loaded when this broker begins to lead its
partition, and resigns when it does so no longer, or under another epoch. Until it is loaded its keys are
refused with COORDINATOR_LOAD_IN_PROGRESS.

    ShardMap   where a key belongs: for those who look for the coordinator
    Shards     the shards led here: for those who are asked as coordinator
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from operator import mul
from typing import Generic, Protocol, TypeVar

from braidmq.broker.internal_partition import InternalPartition
from braidmq.broker.topics import Topics
from braidmq.cluster.image import Delta, Image, PartitionImage, TopicImage
from braidmq.platform.clock import Clock
from braidmq.wire.errors import ApiError, ErrorCode

KEYS_KEPT = 4096
KEY_KEPT_MAX = 256
_UTF_16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
_POWERS = [31**exponent & 0xFFFFFFFF for exponent in reversed(range(256))]
NOBODY = -1
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 5.0
APPEAR_MAX_S = 5.0
"""How long a topic that another broker is creating is waited for."""

log = logging.getLogger("braid.shards")


class Shard(Protocol):
    """What coordinates the keys of one partition."""

    async def load(self) -> None:
        """Becomes what the partition says. Raises what keeps it from that; another one is made then."""
        ...

    def resign(self) -> None:
        """Forgets everything; its partition has resigned, so who waited has an answer."""
        ...

    def stop(self) -> None:
        """Begins nothing more; what is under way still gets its answer."""
        ...


S = TypeVar("S", bound=Shard)


class ShardMap:
    """Which partition of an internal topic a key belongs to, and who leads that."""

    def __init__(
        self,
        image: Image,
        topics: Topics,
        node_id: int,
        topic_name: str,
        new_count: Callable[[], int],
        options: Mapping[str, str],
    ) -> None:
        self._image = image
        self._node_id = node_id
        self._topics = topics
        self.topic_name = topic_name
        self._new_count = new_count
        self._options = options

    @property
    def shown(self) -> TopicImage | None:
        """The topic, as the image has it."""
        return self._image.find(self.topic_name)

    @property
    def exists(self) -> bool:
        return self.shown is not None

    def index_of(self, key: str) -> int:
        """The partition of a key. COORDINATOR_NOT_AVAILABLE while there is no topic."""
        shown = self.shown
        if shown is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.topic_name} is not there yet")
        count = len(shown.partitions)
        return 0 if count == 1 else partition_of(key, count)

    def leader_of(self, key: str) -> int:
        """The broker that coordinates a key; NOBODY while it does not run, or there is no topic."""
        shown = self.shown
        if shown is None:
            return NOBODY
        return self._running_leader(shown.partitions[self.index_of(key)])

    def leaders(self) -> list[int]:
        """Every broker that coordinates something, NOBODY among them while one of them does not run."""
        shown = self.shown
        found = () if shown is None else (self._running_leader(one) for one in shown.partitions)
        return sorted(dict.fromkeys(found))

    def _running_leader(self, partition: PartitionImage | None) -> int:
        if partition is None:
            return NOBODY
        leader = partition.record.leader
        broker = self._image.brokers.get(leader)
        runs = leader == self._node_id or (broker is not None and broker.alive is not None)
        return leader if runs else NOBODY

    async def ensure(self) -> None:
        """Makes the topic if it is not there yet; the image shows it on return."""
        deadline_s = asyncio.get_running_loop().time() + APPEAR_MAX_S
        while not self.exists:
            try:
                await self._topics.create_own(self.topic_name, self._options, self._new_count())
            except ApiError as error:
                # Another broker was faster, and the image will show it in a moment.
                if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                    # The store is away: clients look for their coordinator again.
                    raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
                if error.code not in (
                    ErrorCode.TOPIC_ALREADY_EXISTS,
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ):
                    raise
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from None
                await asyncio.sleep(RETRY_FIRST_S)


class _Led(Generic[S]):
    """A shard that this broker leads."""

    __slots__ = ("failure", "loaded", "loading", "partition", "shard", "tried")

    def __init__(self, partition: InternalPartition, shard: S) -> None:
        self.partition = partition
        self.shard = shard
        self.loaded = False
        self.loading: asyncio.Task[None] | None = None
        self.failure: Exception | None = None
        """What kept it from being loaded the last time."""
        self.tried = asyncio.Event()
        """Set when it is loaded, or was not the first time, or is led no more."""


class Shards(ShardMap, Generic[S]):
    """All shards of one internal topic that this broker leads."""

    def __init__(
        self,
        image: Image,
        topics: Topics,
        node_id: int,
        topic_name: str,
        new_count: Callable[[], int],
        options: Mapping[str, str],
        make: Callable[[InternalPartition], S],
        clock: Clock,
    ) -> None:
        super().__init__(image, topics, node_id, topic_name, new_count, options)
        self._make = make
        self._clock = clock
        self._led: dict[int, _Led[S]] = {}
        self._once_loaded: set[int] = set()
        """Partitions of which something was known here at some time."""
        self._turns = asyncio.Lock()
        self._making = asyncio.Lock()
        self._started = False
        self._stopped = False

    # -- what is here ---------------------------------------------------------------------------

    def of(self, key: str) -> S:
        """The shard of a key.

        ApiError NOT_COORDINATOR if another broker leads it, COORDINATOR_LOAD_IN_PROGRESS while it is read,
        COORDINATOR_NOT_AVAILABLE while there is no topic.
        """
        led = self._led.get(self.index_of(key))
        if led is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR, f"another broker coordinates {key[:60]!r}")
        if not led.loaded:
            raise ApiError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"the coordinator of {key[:60]!r} is being loaded"
            )
        return led.shard

    async def reach(self, key: str) -> S:
        """As `of`, for those who may be the first: makes the topic, and waits for what is loaded with it."""
        if not self.exists or self._making.locked():
            await self.ensure()
        return self.of(key)

    def at(self, index: int) -> S | None:
        """The shard of a partition, if it is led here and loaded."""
        led = self._led.get(index)
        return led.shard if led is not None and led.loaded else None

    @property
    def is_loading(self) -> bool:
        """Whether some shard that is led here is not loaded."""
        return not all(led.loaded for led in self._led.values())

    def __iter__(self) -> Iterator[S]:
        """The shards that are loaded, by partition."""
        return iter([led.shard for _, led in sorted(self._led.items()) if led.loaded])

    async def ensure(self) -> None:
        """Makes the topic if it is not there yet; then what is led here of it is loaded on return."""
        if self.exists and not self._making.locked():
            return
        async with self._making:
            if not self.exists:
                await super().ensure()
                await self.loaded()

    async def loaded(self) -> None:
        """Returns when every shard that is led here now is loaded, if it can be; those are tried again."""
        for led in list(self._led.values()):
            await led.tried.wait()

    def check_loaded(self) -> None:
        """Raises what keeps a shard that is led here from being loaded."""
        for led in self._led.values():
            if led.failure is not None and not led.loaded:
                raise led.failure

    # -- following the image --------------------------------------------------------------------

    def start(self) -> None:
        """Begins to load what the image shows; not before what a crash left is recovered."""
        self._started = True
        self._compare()

    def follow(self, delta: Delta) -> None:
        """Loads and resigns as leaders change; `Topics` has followed before."""
        shown = self.shown
        if shown is None:
            if self._led:
                self._compare()
        elif shown.id in delta.topics or any(which.topic_id == shown.id for which in delta.partitions):
            self._compare()

    def stop(self) -> None:
        """Nothing is loaded any more, and no timer rings; what is under way still gets its answer."""
        self._stopped = True
        for led in self._led.values():
            led.partition.on_lost = None
            led.tried.set()
            if led.loading is not None:
                led.loading.cancel()
            led.shard.stop()

    def _compare(self) -> None:
        if not self._started:
            return
        shown, topic = self.shown, self._topics.find(self.topic_name)
        mine = {}
        if shown is not None and topic is not None and topic.id == shown.id:
            mine = {
                index: replica
                for index, replica in topic.held.items()
                if replica.leads and self._is_mine(shown.partitions[index])
            }
        for index, led in list(self._led.items()):
            replica = mine.get(index)
            if replica is not led.partition.replica or replica.leader_epoch != led.partition.epoch:
                self._resign(index)
        for index in mine:
            if index not in self._led and not self._stopped:
                self._lead(index)

    def _is_mine(self, partition: PartitionImage | None) -> bool:
        """One whose record cannot be read stays with the broker that holds it."""
        return partition is None or partition.record.leader == self._node_id

    def _lead(self, index: int) -> None:
        replica = self._topics.get(self.topic_name).held[index]
        partition = InternalPartition(replica, self._clock, self._turns)
        led = self._led[index] = _Led(partition, self._make(partition))
        partition.on_lost = lambda: self._reload_soon(index, led)
        led.loading = asyncio.get_running_loop().create_task(self._load(index, led), name=f"load-{partition}")
        led.loading.add_done_callback(_log_failure)

    def _resign(self, index: int) -> None:
        led = self._led.pop(index)
        if led.loading is not None:
            led.loading.cancel()
        led.tried.set()
        led.partition.resign()
        led.shard.resign()

    def _reload_soon(self, index: int, led: _Led[S]) -> None:
        """Not at once: who waited for the write that was lost is being called."""
        led.partition.on_lost = None
        led.loaded = False
        asyncio.get_running_loop().call_soon(self._reload, index, led)

    def _reload(self, index: int, led: _Led[S]) -> None:
        if self._led.get(index) is led and not self._stopped:
            self._resign(index)
            self._compare()

    async def _load(self, index: int, led: _Led[S]) -> None:
        """Loads a shard. One that failed half-way is replaced by a new one, until it works."""
        began_s, pause_s = self._clock.monotonic(), RETRY_FIRST_S
        while True:
            try:
                await led.shard.load()
                break
            except Exception as error:
                if self._led.get(index) is not led:
                    return
                led.failure = error
                known = isinstance(error, ApiError | OSError)
                log.error(
                    "%s: cannot be loaded, which is tried again in %.1f s: %s", led.partition, pause_s, error,
                    exc_info=None if known else error,
                )  # fmt: skip
            led.tried.set()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)
            led.shard.resign()
            led.shard = self._make(led.partition)
        led.loaded, led.loading = True, None
        self._once_loaded.add(index)
        led.tried.set()
        log.info("%s: loaded in %.3f s", led.partition, self._clock.monotonic() - began_s)


def partition_of(key: str, count: int) -> int:
    """Kafka's rule: the absolute value of Java's hash of the key, modulo the number of partitions."""
    return (_partition_of if len(key) > KEY_KEPT_MAX else kept_partition_of)(key, count)


def _partition_of(key: str, count: int) -> int:
    hashed = java_hash(key)
    # The least integer has no absolute value in 32 bits; Kafka takes 0 for it.
    return 0 if hashed == -(2**31) else abs(hashed) % count


kept_partition_of = lru_cache(maxsize=KEYS_KEPT)(_partition_of)
"""For keys that are not too long to be kept: anybody may send any."""


def java_hash(key: str) -> int:
    """`String.hashCode`: over the UTF-16 code units, in 32 bits."""
    units = memoryview(key.encode(_UTF_16, "surrogatepass")).cast("H")
    hashed = 0
    # Some units at a time, as a sum of products: a key may have tens of thousands.
    for at in range(0, len(units), len(_POWERS)):
        some = units[at : at + len(_POWERS)]
        hashed = (hashed * 31 ** len(some) + sum(map(mul, some, _POWERS[-len(some) :]))) & 0xFFFFFFFF
    return hashed - 2**32 if hashed >= 2**31 else hashed


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("a coordinator is not loaded", exc_info=error)
