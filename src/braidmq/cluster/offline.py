"""The metadata of a broker that is stopped, for whoever only looks: the files stay as they are.

Metadata of release 0.x is carried over and upgraded in memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from braidmq.cluster import journal, records
from braidmq.cluster.carry_over import carry_over
from braidmq.cluster.file_store import FILE_NAME, replayed
from braidmq.cluster.image import Image
from braidmq.cluster.kv import KeyValues
from braidmq.cluster.kv_store import KvStore
from braidmq.cluster.node_file import read_node_file
from braidmq.cluster.settlement import Writer
from braidmq.cluster.upgrade import upgrade
from braidmq.platform.clock import Clock
from braidmq.platform.disk import Disk

USUAL_NODE_ID = 1
USUAL_NAME = "braid"


class Offline(NamedTuple):
    """Whose the metadata is, and what it says."""

    node_id: int
    cluster_name: str
    image: Image


async def read_offline(disk: Disk, directory: Path, clock: Clock) -> Offline:
    """What the files of a data directory say; `StoreCorrupt` if they are damaged."""
    store = KvStore(clock, _read(disk, directory, clock))
    await store.start()
    try:
        keys = [item.key for item in (await store.snapshot(records.ALL_CLUSTERS)).items]
        kept = read_node_file(disk, directory)
        name = records.cluster_of(keys[0]) if keys else USUAL_NAME if kept is None else kept.cluster_name
        image = Image(records.prefix(name))
        if kept is not None:
            node_id = kept.node_id
        else:
            image.load(await store.snapshot(image.key("")))
            node_id = min(image.brokers, default=USUAL_NODE_ID)
        await upgrade(store, image.key(""), node_id, Writer("offline"))
        image.load(await store.snapshot(image.key("")))
        return Offline(node_id, name, image)
    finally:
        await store.close()


def _read(disk: Disk, directory: Path, clock: Clock) -> KeyValues:
    path = directory / FILE_NAME
    if not disk.exists(path):
        return carry_over(disk, directory, last_lease=0)[0]
    return replayed(path.name, journal.read(disk.read_file(path)), clock.monotonic())[1]
