"""`braid cluster` and `braid doctor` with several brokers over one store, and one of them gone."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import Cluster, cluster

from braidmq.address import Address
from braidmq.cli import main
from braidmq.cli.doctor_cluster import clocks_apart
from braidmq.client.live import BrokerView
from braidmq.cluster.node_file import read_node_file, write_node_file
from braidmq.platform.clock import SystemClock
from braidmq.platform.disk import RealDisk
from braidmq.platform.host import Host
from braidmq.wire.messages.live import DescribeBrokerResponse

Run = Callable[..., Awaitable[Any]]


@pytest.fixture
def braid(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in a thread, as the brokers are in this one; its JSON."""

    async def run(*arguments: str, code: int = 0) -> Any:
        capsys.readouterr()
        found = await asyncio.to_thread(main, [*arguments, "--json"])
        shown = capsys.readouterr()
        assert found == code, shown.err
        return json.loads(shown.out) if shown.out else shown.err

    return run


def story(data: Path, tell: Callable[[Cluster], Awaitable[None]], count: int = 3) -> None:
    async def run() -> None:
        async with cluster(data, count) as found:
            await asyncio.wait_for(tell(found), 60)

    asyncio.run(run())


async def elected(found: Cluster) -> int:
    """The controller, once all brokers agree on it."""
    await found.until(lambda broker: broker.image.controller is not None)
    held = next(iter(found)).broker.image.controller
    assert held is not None
    return held.record.node_id


def test_three_brokers_and_then_two(tmp_path: Path, braid: Run) -> None:
    """N4 O7 R5: one controller; when it stops, another; its partitions have no leader."""

    async def tell(found: Cluster) -> None:
        topic = await found[1].broker.topics.create("orders", 6, {})
        await found.shown(topic.id)
        first = await elected(found)
        status = await braid("cluster", "status", "-b", found.bootstrap)
        assert (status["brokers_up"], status["controller"], status["store"]) == (3, first, "served")
        assert (status["without_leader"], status["store_reachable"]) == (0, True)
        assert all(row["problem"] is None for row in status["brokers"])
        rows = await braid("cluster", "topics", "-b", found.bootstrap)
        assert {row["topic"]: row["leaders"] for row in rows}["orders"] == {"1": 2, "2": 2, "3": 2}
        await found.stop(first)
        await found.complete(2)
        await found.until(
            lambda broker: broker.image.controller and broker.image.controller.record.node_id != first
        )
        after = await braid("cluster", "status", "-b", found.bootstrap)
        assert (after["brokers_up"], after["brokers_known"]) == (2, 3)
        assert after["without_leader"] >= 2
        assert after["controller_epoch"] > status["controller_epoch"]
        brokers = {row["broker"]: row for row in await braid("cluster", "brokers", "-b", found.bootstrap)}
        assert (brokers[first]["state"], brokers[first]["address"]) == ("down", None)
        assert brokers[first]["leaders"] >= 2
        described = await braid("topic", "describe", "orders", "-b", found.bootstrap)
        assert Counter(one["leader"] for one in described["partitions"])[-1] == 2
        assert [row["topic"] for row in await braid("topic", "list", "-b", found.bootstrap)] == ["orders"]

    story(tmp_path, tell)


def test_clients_of_all_brokers_are_listed(tmp_path: Path, braid: Run) -> None:
    """O7: asked from any of them."""

    async def tell(found: Cluster) -> None:
        rows = await braid("cluster", "clients", "-b", found[1].address)
        assert {row["broker"] for row in rows} == {1, 2}
        assert {
            row["broker"] for row in await braid("cluster", "clients", "-b", found[1].address, "--on", "2")
        } == {2}

    story(tmp_path, tell, count=2)


def test_the_doctor_compares_a_directory_with_the_cluster(tmp_path: Path, braid: Run) -> None:
    """N4: and warns of brokers that are gone; a foreign directory with the same id is a finding."""

    async def tell(found: Cluster) -> None:
        topic = await found[1].broker.topics.create("orders", 6, {})
        await found.shown(topic.id)
        cluster_id = found[1].broker.cluster_id
        await found.stop(3)
        await found.stop(2)
        directory = tmp_path / "2"
        alone = await braid("doctor", str(directory))
        assert alone["cluster"] == {"name": "braid", "id": cluster_id, "node": 2}
        assert "--store URL" in alone["warnings"][0]
        report = await braid("doctor", str(directory), "--store", found.store)
        assert report["findings"] == []
        assert [line for line in report["warnings"] if "broker 3 is not running; 2 partitions" in line]
        (directory / "topics" / "stray.0123456789ab").mkdir()
        (directory / "topics" / "stray.0123456789ab" / "0").mkdir()
        report = await braid("doctor", str(directory), "--store", found.store, code=1)
        assert "does not know this topic" in report["findings"][0]["what"]
        mine = read_node_file(RealDisk(), directory)
        assert mine is not None
        write_node_file(RealDisk(), directory, replace(mine, uuid="another"))
        report = await braid("doctor", str(directory), "--store", found.store, code=1)
        assert "two have one id" in report["findings"][0]["what"]
        write_node_file(RealDisk(), directory, replace(mine, cluster_id="another"))
        report = await braid("doctor", str(directory), "--store", found.store, code=1)
        assert "belongs to cluster another" in report["findings"][0]["what"]

    story(tmp_path, tell)


def test_the_doctor_wants_a_store_only_where_there_is_one_elsewhere(tmp_path: Path, braid: Run) -> None:
    """N4: a directory with its own metadata is compared with that."""

    async def tell(found: Cluster) -> None:
        said = await braid("doctor", str(tmp_path / "1"), "--store", found.store, code=2)
        assert "in use" in said
        await found.stop(1)
        said = await braid("doctor", str(tmp_path / "1"), "--adopt", "all", code=2)
        assert "belongs to a cluster" in said
        said = await braid("doctor", str(tmp_path / "1"), "--store", "nonsense", code=2)
        assert "is no metadata store" in said

    story(tmp_path, tell, count=1)


class FastClock(SystemClock):
    """A machine whose wall clock is a minute ahead."""

    def wall_ms(self) -> int:
        return super().wall_ms() + 60_000


def test_the_status_warns_of_clocks_that_differ(tmp_path: Path, braid: Run) -> None:
    """N4 O7: and of none that agree."""

    async def tell(found: Cluster) -> None:
        assert (await braid("cluster", "status", "-b", found.bootstrap))["warnings"] == []
        await found.start(2, host=Host(clock=FastClock()))
        await found.complete(2)
        (warning,) = (await braid("cluster", "status", "-b", found.bootstrap))["warnings"]
        assert "the clock of broker 2 is" in warning
        assert "ahead of that of broker 1; run NTP on both" in warning

    story(tmp_path, tell, count=1)


def test_clocks_that_differ_are_named() -> None:
    """N4: by how much, and whose."""

    def view(node_id: int, ahead_ms: int) -> BrokerView:
        answer = DescribeBrokerResponse(node_id=node_id, wall_ms=1_000_000 + ahead_ms)
        return BrokerView(node_id, Address("a", 1), answer, asked_ms=1_000_000)

    assert clocks_apart([view(1, -300), view(2, 600)]) == []
    (said,) = clocks_apart([view(1, -300), view(2, 600), view(3, 5200)])
    assert "broker 3 is 5.5 s ahead of that of broker 1" in said
