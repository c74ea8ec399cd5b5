"""Calls between brokers on the simulated network: cuts, resets and pauses, in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.sim.client import PORT
from tests.sim.loop import VirtualLoop
from tests.sim.network import SimNetwork
from tests.sim.nodes import Node
from tests.sim.threads import threads_take_turns
from tests.unit.net.peers import Directory

from braidmq.net.peer import Peers, PeerUnavailable
from braidmq.platform.randomness import replace_source
from braidmq.wire.messages.cluster import DescribeClusterRequest, DescribeClusterResponse

CALLER, CALLED = "caller", "broker"


async def answered(peers: Peers) -> None:
    assert isinstance(await peers.call(1, DescribeClusterRequest()), DescribeClusterResponse)


async def refused(peers: Peers, timeout_s: float = 3.0) -> PeerUnavailable:
    with pytest.raises(PeerUnavailable) as failed:
        await peers.call(1, DescribeClusterRequest(), timeout_s=timeout_s)
    return failed.value


async def story(loop: VirtualLoop, network: SimNetwork, told: list[str]) -> None:
    node = Node(loop, network, CALLED)
    node.start()
    while not node.serving:
        await asyncio.sleep(0.01)
    assert node.broker is not None
    directory = Directory(1)
    directory.addresses[1] = (CALLED, PORT)
    node.broker.peers.directory = directory
    peers = Peers(network.of(CALLER), directory)
    await asyncio.gather(*(answered(peers) for _ in range(20)))
    network.cut(CALLED, CALLER)
    told.append(f"cut: sent={(await refused(peers)).sent}")
    told.append(f"still cut: sent={(await refused(peers)).sent}")
    network.heal(CALLER)
    await asyncio.sleep(2)
    await answered(peers)
    waiting = asyncio.ensure_future(refused(peers))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    network.reset_between(CALLER, CALLED)
    told.append(f"reset: sent={(await waiting).sent}")
    await answered(peers)
    node.pause()
    told.append(f"paused: sent={(await refused(peers)).sent}")
    node.resume()
    await asyncio.sleep(2)
    await answered(peers)
    assert await node.stop() is None
    await asyncio.sleep(1)  # until the end of the connection has arrived
    told.append(f"stopped: sent={(await refused(peers)).sent}")
    await peers.close()


def simulated(seed: int) -> tuple[list[str], str]:
    loop = VirtualLoop(seed)
    network = SimNetwork(loop)
    told: list[str] = []
    before = replace_source(random.Random(seed).randbytes)
    try:
        with threads_take_turns():
            loop.run_until_complete(story(loop, network, told))
    finally:
        loop.close()
        replace_source(before)
    assert loop.failures == []
    return told, loop.digest


@pytest.mark.parametrize("seed", range(5))
def test_a_call_is_answered_or_says_that_its_outcome_is_unknown(seed: int) -> None:
    """N4: what was sent and not answered is unknown, what was not sent is not; the next call succeeds."""
    told, digest = simulated(seed)
    assert told == [
        "cut: sent=True",
        "still cut: sent=False",
        "reset: sent=True",
        "paused: sent=True",
        "stopped: sent=False",
    ]
    assert simulated(seed)[1] == digest
