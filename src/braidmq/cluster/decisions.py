"""What a cluster's controller decides: from the image and the time to changes of the store. Pure.

Each decision is a list of `Step`s, commits that are made one after the other; if one fails, those after it
are dropped and the next look decides again. Every key that a step writes or deletes must be as the image
shows it. `cluster/controller.py` makes the commits, each guarded by the controller epoch.

**Leftovers.** A topic's partition keys are written before its own key, by any broker, so keys without a topic
may belong to a creation that is under way. Age alone cannot tell: a broker may stand still for minutes and
then finish. So the first step of a sweep also writes a key that the end of a creation compares, and one of
the two is a `Conflict`: for a new topic `deleted/<id>`, for a growth the topic's own key. The minute that
keys are left alone only spares slow creations the trouble. Keys of a topic whose deletion is recorded need no
minute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from braidmq.cluster import records
from braidmq.cluster.image import Image
from braidmq.cluster.metadata_store import OPERATIONS_MAX, ModRevision
from braidmq.cluster.records import DeletedTopic, Record, Tick

LEFTOVER_S = 60.0
DELETED_KEPT_MS = 7 * 86_400_000
DELETED_MAX = 10_000
HISTORY_S = 3600.0
SAMPLE_S = 60.0
KEYS_PER_STEP = OPERATIONS_MAX - 4
"""A step has compares of its own, and the guard."""
STEPS_MAX = 64
"""Of one decision; what is left is decided at the next look."""


class Step(NamedTuple):
    """One commit, by names without the cluster's prefix."""

    compares: tuple[ModRevision, ...]
    puts: Mapping[str, Record]
    deletes: tuple[str, ...]


def tick(image: Image) -> Step:
    """The next tick."""
    before = image.tick
    return Step(_as_seen(image, [records.TICK]), {records.TICK: Tick(count=before + 1)}, ())


class Leftovers:
    """Partition keys that belong to no topic, and since when this controller has seen them so."""

    def __init__(self) -> None:
        self._seen: dict[bytes, tuple[int, float]] = {}
        """By topic: the revision of the newest such key, and since when that is the newest."""

    def due(self, image: Image, now_s: float, now_ms: int) -> list[list[Step]]:
        """For each topic whose leftovers may go, the steps of that."""
        found: dict[bytes, list[int]] = {}
        for topic_id, index in image.leftovers():
            found.setdefault(topic_id, []).append(index)
        before, self._seen = self._seen, {}
        sweeps: list[list[Step]] = []
        room = STEPS_MAX
        for topic_id, indexes in found.items():
            newest = max(image.mod_revision(records.partition_key(topic_id, index)) for index in indexes)
            since = before.get(topic_id, (0, 0.0))
            seen = self._seen[topic_id] = since if since[0] == newest else (newest, now_s)
            is_old = now_s - seen[1] >= LEFTOVER_S
            if room > 0 and (is_old or (image.was_deleted(topic_id) and topic_id not in image.topics)):
                steps = list(islice(_sweep(image, topic_id, indexes, now_ms), room))
                room -= len(steps)
                sweeps.append(steps)
        return sweeps


def _sweep(image: Image, topic_id: bytes, indexes: Sequence[int], now_ms: int) -> Iterator[Step]:
    topic_key, deleted_key = records.topic_key(topic_id), records.deleted_key(topic_id)
    topic = image.topics.get(topic_id)
    puts: dict[str, Record] = {}
    if topic is not None:
        puts[topic_key] = topic.meta.record
    else:
        puts[deleted_key] = image.deleted(topic_id) or DeletedTopic(at_ms=now_ms, done=True)
    demands = _as_seen(image, [topic_key, deleted_key])
    keys = iter(records.partition_key(topic_id, index) for index in indexes)
    while some := tuple(islice(keys, KEYS_PER_STEP)):
        yield Step((*demands, *_as_seen(image, some)), puts, some)
        demands, puts = (), {}


def outdated_deletions(image: Image, now_ms: int) -> list[Step]:
    """Records of deletions of long ago, and the oldest ones where there are too many.

    The time is that of the broker that deleted, and clocks differ. A record that goes too early does no harm:
    a directory that comes back after that is set aside instead of removed.
    """
    waiting = {topic_id for topic_id, _ in image.leftovers()}
    ages = [
        (record.at_ms, topic_id)
        for topic_id in image.all_deleted()
        if topic_id not in waiting and (record := image.deleted(topic_id)) is not None
    ]
    ages.sort()
    too_many = len(ages) - DELETED_MAX
    old = [
        records.deleted_key(topic_id)
        for at, (at_ms, topic_id) in enumerate(ages)
        if at < too_many or at_ms < now_ms - DELETED_KEPT_MS
    ]
    chunks = (old[at : at + KEYS_PER_STEP] for at in range(0, len(old), KEYS_PER_STEP))
    return [Step(_as_seen(image, some), {}, tuple(some)) for some in islice(chunks, STEPS_MAX)]


class History:
    """Which revision the store was at an hour ago: what is before that may be compacted."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=2 * int(HISTORY_S / SAMPLE_S))
        self._compacted = 0

    def note(self, now_s: float, revision: int) -> None:
        if not self._samples or now_s - self._samples[-1][0] >= SAMPLE_S:
            self._samples.append((now_s, revision))

    def due(self, now_s: float) -> int | None:
        """The revision to compact to, if there is something before it that has not been."""
        newest = None
        while self._samples and now_s - self._samples[0][0] >= HISTORY_S:
            newest = self._samples.popleft()[1]
        if newest is None or newest <= self._compacted:
            return None
        self._compacted = newest
        return newest


def _as_seen(image: Image, keys: Sequence[str]) -> tuple[ModRevision, ...]:
    return tuple(ModRevision(key, image.mod_revision(key)) for key in keys)
