"""A broker starts on a data directory of release 0.x and finds everything, also if it is killed meanwhile."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from braidmq.broker import broker as broker_module
from braidmq.broker.broker import Broker
from braidmq.broker.topic import TopicRecord
from braidmq.cluster import records
from braidmq.config import configure
from braidmq.platform.disk import Disk, RealDisk
from braidmq.platform.host import Host
from sim.disk import Crash, SimDisk
from unit.cluster.old_metadata import OldJournal
from unit.embedded import append, embedded

DATA = Path("/data")
OLD = "metadata.journal"
CLUSTER = "8f1b4a4e-of-old"
ORDERS = TopicRecord("orders", bytes(range(16)), 300, {"retention.ms": "-1"})
PAYMENTS = TopicRecord("payments", bytes(range(16, 32)), 1, {})
GONE_ID = bytes(range(32, 48))
NEXT_ID = 1 << 60
"""Far above what the time makes of it."""


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are removed when a test says so."""
    monkeypatch.setattr(broker_module, "TIDY_S", 3600.0)


def write_old(disk: Disk, data: Path) -> None:
    """A data directory as release 0.x left it; the form of logs has not changed."""
    for record in (ORDERS, PAYMENTS):
        disk.makedirs(data / "topics" / record.directory_name)
    disk.makedirs(data / "topics" / f"gone.{GONE_ID.hex()[:12]}" / "0")
    journal = OldJournal(disk, data)
    journal.commit({"cluster/id": CLUSTER})
    journal.commit({"topics/orders": {**ORDERS.to_json(), "partitions": 3}})
    journal.commit({"topics/payments": PAYMENTS.to_json(), "topics/gone": PAYMENTS.to_json()})
    journal.commit({"topics/orders": ORDERS.to_json()})
    deleted = {"name": "gone", "directory": f"gone.{GONE_ID.hex()[:12]}", "at_ms": 1, "done": False}
    journal.commit({f"deleted/{GONE_ID.hex()}": deleted}, deletes=["topics/gone"])
    journal.commit({"groups/workers": {"share.record.lock.duration.ms": "20000"}})
    journal.commit({"brokers/": {"num.partitions": "6"}, "brokers/1": {"fetch.wait.max.ms": "77"}})
    journal.commit({"producer-ids/next": NEXT_ID})
    journal.close()


async def check(broker: Broker) -> None:
    """All that `write_old` wrote is there, in the form it has now."""
    image = broker.metadata.image
    assert broker.cluster_id == image.cluster_id == CLUSTER
    assert image.secret is not None
    assert {topic.record.name: topic.record for topic in broker.topics} == {
        "orders": ORDERS,
        "payments": PAYMENTS,
    }
    assert all(part is not None and part.record.leader == 1 for part in image.topics[ORDERS.id].partitions)
    assert broker.config.num_partitions == 6
    assert broker.config.fetch_wait_max_ms == 77
    assert broker.group_options.share("workers").limits.lock_ms == 20000
    assert await broker.producer_ids.take() >= NEXT_ID
    assert image.was_deleted(GONE_ID)
    keys = [item.key for item in (await broker.metadata.store.snapshot("")).items]
    assert all(key.startswith(records.prefix("braid")) for key in keys)


def test_old_metadata_is_upgraded_and_kept(tmp_path: Path) -> None:
    """N4: topics, options, ids and deletions; the old file stays as it was, under another name."""
    write_old(RealDisk(), tmp_path)
    content = (tmp_path / OLD).read_bytes()

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            await check(broker)
            partition = broker.topics.get("orders").held[299]
            append(partition, b"x", broker.clock.wall_ms())
            await broker.topics.tidy()
            assert not any("gone" in path.name for path in (tmp_path / "topics").iterdir())
        async with embedded(tmp_path) as broker:
            await check(broker)
            assert broker.topics.get("orders").held[299].log.end_offset == 1

    asyncio.run(run())
    assert (tmp_path / f"{OLD}.old").read_bytes() == content
    assert not (tmp_path / OLD).exists()


@pytest.mark.parametrize("crash", [Crash.LOST, Crash.KEPT, Crash.TORN, Crash.REORDERED])
def test_an_upgrade_that_is_cut_off_anywhere_is_finished_by_the_next_start(crash: Crash) -> None:
    """N4 L6: after every operation of the disk in the first start, and again in the second one."""
    images: list[SimDisk] = []

    async def first() -> None:
        disk = SimDisk()
        disk.makedirs(DATA / "topics")
        write_old(disk, DATA)
        for directory in (DATA / "topics", DATA, Path("/")):
            disk.sync_directory(directory)
        chance = random.Random(3)
        disk.on_operation = lambda _: images.append(disk.crash(crash, chance))
        broker = Broker(configure({}), DATA, Host(disk=disk))
        await broker.start()
        disk.on_operation = None
        await broker.stop()

    async def second(image: SimDisk) -> None:
        chance = random.Random(4)
        again: list[SimDisk] = []
        image.on_operation = lambda _: again.append(image.crash(Crash.KEPT, chance))
        broker = Broker(configure({}), DATA, Host(disk=image))
        await broker.start()
        image.on_operation = None
        await check(broker)
        await broker.stop()
        third = Broker(configure({}), DATA, Host(disk=chance.choice(again)))
        await third.start()
        await check(third)
        await third.stop()

    asyncio.run(first())
    assert len(images) > 15
    for image in images:
        asyncio.run(second(image))
