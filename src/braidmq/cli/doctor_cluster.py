"""What `braid doctor` finds about a cluster: does this data directory fit the shared metadata, and are the
others well?

The directory of a broker in a cluster has no metadata of its own; its file `node` says which cluster it
belongs to. With the address of the store, directories are compared with what the metadata says. What is wrong
with this directory is a finding; what is wrong elsewhere is a warning.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from braidmq.broker.adoption import look
from braidmq.broker.topic import directory_name
from braidmq.cli.mistake import UserMistake
from braidmq.cli.store_access import opened
from braidmq.cluster import records
from braidmq.cluster.image import Image, Role, role_of
from braidmq.cluster.metadata_store import StoreError
from braidmq.cluster.node_file import NodeFile, read_node_file
from braidmq.log.doctor import Finding
from braidmq.platform.disk import RealDisk

if TYPE_CHECKING:
    from braidmq.client.live import BrokerView

CLOCKS_APART_MS = 1000
ASK_S = 5.0


class ClusterCheck(NamedTuple):
    """What is wrong here, and what should be known of the others."""

    findings: list[Finding]
    warnings: list[str]


def shared_node(directory: Path) -> NodeFile | None:
    """Which node of which cluster this is; None for a broker with its own metadata."""
    node = read_node_file(RealDisk(), directory)
    return node if node is not None and node.shared else None


def examine(directory: Path, node: NodeFile, url: str, token_file: Path | None) -> ClusterCheck:
    """Compares a directory with the metadata of its cluster, and asks the brokers that run."""
    try:
        image, warnings = asyncio.run(_read(node, url, token_file))
    except StoreError as error:
        raise UserMistake(f"{url}: {error}") from None
    findings = [Finding("node", 0, what) for what in _identity(node, image)]
    if not findings:
        found, elsewhere = _directories(directory, node, image)
        findings += found
        warnings += elsewhere
    mine = image.brokers.get(node.node_id)
    if mine is not None and mine.alive is not None and not findings:
        why = "its broker was killed a moment ago, or runs from a copy of this directory"
        warnings.append(f"node {node.node_id} is still registered: {why}")
    warnings += _gone(node, image)
    warnings += clocks_apart(_views(image))
    return ClusterCheck(findings, warnings)


async def _read(node: NodeFile, url: str, token_file: Path | None) -> tuple[Image, list[str]]:
    image = Image(records.prefix(node.cluster_name))
    async with opened(url, token_file) as store:
        delta = image.load(await store.snapshot(image.key("")))
        warnings = [f"metadata: {key} is not understood: {why}" for key, why in delta.unreadable.items()]
        examine_store = getattr(store, "examine", None)
        if examine_store is not None:
            # etcd: members that do not answer, are full, or of a version that may lose data.
            warnings += await examine_store()
    return image, warnings


def _identity(node: NodeFile, image: Image) -> list[str]:
    if image.cluster_id is None:
        return [f"the store holds no cluster {node.cluster_name!r}; check --store"]
    if node.cluster_id is not None and image.cluster_id != node.cluster_id:
        return [f"this directory belongs to cluster {node.cluster_id}, the store to {image.cluster_id}"]
    known = image.brokers.get(node.node_id)
    if known is None or known.node is None:
        return [f"the metadata does not know node {node.node_id}"]
    if known.node.record.uuid != node.uuid:
        where = known.node.record.host
        what = f"node id {node.node_id} belongs to another data directory, on {where}: two have one id; start"
        return [what + " this one with another node id, or with -o replace=true if that one is lost for good"]
    if known.alive is not None and known.alive.record.run != node.run:
        where = ", ".join(f"{at.host}:{at.port}" for at in known.alive.record.listeners)
        return [f"a broker with node id {node.node_id} is running at {where}, from a copy of this directory"]
    return []


def _directories(directory: Path, node: NodeFile, image: Image) -> tuple[list[Finding], list[str]]:
    found = look(RealDisk(), directory / "topics", image)
    findings = [
        Finding(name, 0, "the metadata does not know this topic; the broker sets it aside and keeps it")
        for name in found.unknown
    ]
    held: set[str] = set()
    elsewhere: set[str] = set()
    for topic in image.topics.values():
        is_here = any(role_of(one, node.node_id) is not Role.NONE for one in topic.partitions)
        (held if is_here else elsewhere).add(directory_name(topic.name, topic.id))
    here = (
        {path.name for path in (directory / "topics").iterdir()} if (directory / "topics").exists() else set()
    )
    warnings = [
        f"topics/{name}: missing; this broker's partitions of it are empty" for name in sorted(held - here)
    ]
    warnings += [f"topics/{name}: no partition of it is on this broker" for name in sorted(elsewhere & here)]
    return findings, warnings


def _gone(node: NodeFile, image: Image) -> list[str]:
    """Other brokers that are not running, with what cannot be reached because of that."""
    loads = image.loads()
    return [
        f"broker {node_id} is not running; {loads.get(node_id, (0, 0))[0]:,} partitions have no other leader"
        for node_id, known in sorted(image.brokers.items())
        if known.alive is None and node_id != node.node_id
    ]


def _views(image: Image) -> list[BrokerView]:
    from braidmq.client.cluster import Cluster
    from braidmq.client.errors import ClientError
    from braidmq.client.live import views
    from braidmq.wire.errors import ApiError

    alive = [known.alive.record for known in image.brokers.values() if known.alive is not None]
    addresses = [f"{each.listeners[0].host}:{each.listeners[0].port}" for each in alive if each.listeners]
    if not addresses:
        return []
    try:
        with Cluster(",".join(addresses), timeout_s=ASK_S) as cluster:
            return views(cluster)
    except (ApiError, ClientError):
        return []


def clocks_apart(views: list[BrokerView]) -> list[str]:
    """Brokers whose wall clocks differ: retention and time lookups go by them."""
    ahead = {view.node_id: view.answer.wall_ms - view.asked_ms for view in views if view.answer is not None}
    if not ahead:
        return []
    first, last = min(ahead, key=lambda each: ahead[each]), max(ahead, key=lambda each: ahead[each])
    apart_ms = ahead[last] - ahead[first]
    if apart_ms < CLOCKS_APART_MS:
        return []
    ahead_s = f"{apart_ms / 1000:.1f} s"
    return [f"the clock of broker {last} is {ahead_s} ahead of that of broker {first}; run NTP on both"]
