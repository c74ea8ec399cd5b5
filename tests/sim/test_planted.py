"""The judge of the simulation can say no: each planted bug is found by one of the first seeds."""

from __future__ import annotations

import pytest
from tests.sim import cluster_planted, planted
from tests.sim.cluster import ClusterSimulation
from tests.sim.simulation import Simulation

SEEDS_MAX = 50


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", planted.BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    """L6 T2 C6 N4: a broker with this bug does not pass."""
    with planted.planted(bug):
        found = any(Simulation(seed).run().findings for seed in planted.seeds(bug, SEEDS_MAX))
    assert found, f"no seed below {SEEDS_MAX} shows {bug}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", cluster_planted.BUGS)
def test_a_bug_planted_into_a_cluster_is_found(bug: str) -> None:
    """N4 T2 C6: a cluster of three brokers with this bug does not pass."""
    with cluster_planted.planted(bug):
        found = any(ClusterSimulation(seed).run().findings for seed in cluster_planted.seeds(bug, SEEDS_MAX))
    assert found, f"no seed below {SEEDS_MAX} shows {bug}"
