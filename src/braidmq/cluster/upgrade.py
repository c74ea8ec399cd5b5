"""Turns the keys of release 0.x into those of `cluster/records.py`.

`cluster/carry_over.py` brings the old keys into the store as they were:

    topics/<name>         id, partitions, config
    deleted/<id>          name, directory, at_ms, done
    groups/<group>        options
    brokers/<node id>     options; without a node id, of all brokers
    producer-ids/next     a number
    cluster/id            a text

Each is deleted in the commit that writes what stands for it now. So a start that is killed in the middle
leaves some keys in the one form and some in the other, and the next one goes on with what is left. The
cluster's id comes last: as long as it is in the old form, the upgrade is not done. Only partition keys are
written without anything that goes; they belong to nobody until their topic is written.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from braidmq.cluster import records
from braidmq.cluster.membership import SECRET_BYTES, founding_records
from braidmq.cluster.metadata_store import OPERATIONS_MAX, Item, MetadataStore, Put, StoreCorrupt
from braidmq.cluster.records import (
    DeletedTopic,
    NextProducerId,
    Options,
    PartitionMeta,
    Record,
    TopicMeta,
    TopicName,
    encode,
)
from braidmq.cluster.settlement import Writer
from braidmq.platform.randomness import random_bytes

OLD_CLUSTER_ID = "cluster/id"
TOGETHER = 64
"""Commits made at the same time, so that the store syncs them together."""

log = logging.getLogger("braid.store")

Each = TypeVar("Each")
Moved = dict[str, Record]
"""What stands for an old key now, by new keys without their prefix."""


async def upgrade(store: MetadataStore, prefix: str, node_id: int, writer: Writer) -> None:
    """Upgrades what is left to upgrade; nobody else may use the store. `node_id` holds all partitions."""
    if await store.get(OLD_CLUSTER_ID) is None:
        return
    by = writer.sign()

    def put(key: str, record: Record) -> Put:
        return Put(prefix + key, encode(record, by))

    async def move(old: Item, moved: Moved) -> None:
        await store.commit(puts=[put(key, record) for key, record in moved.items()], deletes=[old.key])

    topics = (await store.snapshot("topics/")).items
    for some in _slices(topics):
        chunks = [chunk for item in some for chunk in _partitions(_value(item), node_id)]
        for together in _slices(chunks):
            await asyncio.gather(
                *(store.commit(puts=[put(key, record) for key, record in chunk]) for chunk in together)
            )
        await asyncio.gather(*(move(item, _topic(item)) for item in some))
    for start, moved in _MOVES.items():
        for others in _slices((await store.snapshot(start)).items):
            await asyncio.gather(*(move(item, moved(item)) for item in others))
    log.info("the metadata of %d topics was upgraded", len(topics))


def _slices(found: Sequence[Each]) -> Iterator[Sequence[Each]]:
    return (found[at : at + TOGETHER] for at in range(0, len(found), TOGETHER))


def _partitions(topic: Any, node_id: int) -> Iterator[list[tuple[str, Record]]]:
    record = PartitionMeta(leader=node_id, epoch=0, replicas=(node_id,), isr=(node_id,))
    topic_id, count = bytes.fromhex(topic["id"]), topic["partitions"]
    for first in range(0, count, OPERATIONS_MAX):
        indexes = range(first, min(first + OPERATIONS_MAX, count))
        yield [(records.partition_key(topic_id, index), record) for index in indexes]


def _topic(item: Item) -> Moved:
    value, name = _value(item), item.key.removeprefix("topics/")
    meta = TopicMeta(name=name, partitions=value["partitions"], options=value["config"])
    return {
        records.TOPICS + value["id"]: meta,
        records.name_key(name): TopicName(topic_id=value["id"]),
    }


def _deleted(item: Item) -> Moved:
    value = _value(item)
    return {item.key: DeletedTopic(name=value["name"], at_ms=value["at_ms"], done=value["done"])}


def _group(item: Item) -> Moved:
    key = records.config_key(records.OF_GROUPS, item.key.removeprefix("groups/"))
    return {key: Options(options=_value(item))}


def _broker(item: Item) -> Moved:
    key = records.config_key(records.OF_BROKERS, item.key.removeprefix("brokers/"))
    return {key: Options(options=_value(item))}


def _producer_ids(item: Item) -> Moved:
    return {records.PRODUCER_IDS: NextProducerId(next=_value(item))}


def _cluster(item: Item) -> Moved:
    return dict(founding_records(_value(item), random_bytes(SECRET_BYTES)))


_MOVES: dict[str, Callable[[Item], Moved]] = {
    "deleted/": _deleted,
    "groups/": _group,
    "brokers/": _broker,
    "producer-ids/next": _producer_ids,
    OLD_CLUSTER_ID: _cluster,
}
"""By how old keys begin, in the order in which they are moved."""


def _value(item: Item) -> Any:
    try:
        return json.loads(item.value)
    except ValueError as error:
        raise StoreCorrupt(f"the old metadata of {item.key} is not understood: {error}") from None
