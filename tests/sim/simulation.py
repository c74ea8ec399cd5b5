"""One run of a seed: brokers, their clients and everything that goes wrong, then peace, then the judge.

A run is a function of its seed. The order of callbacks, the delays, the faults, the load and all random
identifiers come from it; nothing asks the machine for time, entropy or addresses. What is left is the order
of sets of strings, which is why whoever compares runs fixes PYTHONHASHSEED (see `tests/sim/__main__.py`).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import traceback
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.sim.client import Client
from tests.sim.faults import MachineFaults, NetworkFaults
from tests.sim.invariants import Judge
from tests.sim.load import Load
from tests.sim.loop import VirtualLoop
from tests.sim.network import SimNetwork
from tests.sim.nodes import DATA, Node
from tests.sim.threads import threads_take_turns

from braidmq.cluster.file_store import FILE_NAME
from braidmq.platform.randomness import replace_source

FAULTS_S = 4.0
PATIENCE_S = 30.0
"""Within which there is progress once the faults have ended, in virtual time."""

ACKED_MIN = 10


@dataclass
class Verdict:
    """What came of a run."""

    seed: int
    digest: str = ""
    callbacks: int = 0
    virtual_s: float = 0.0
    acked: int = 0
    findings: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    """What went wrong on purpose, in order."""


class Simulation:
    """`nodes` brokers, each for itself, under faults drawn from `seed`."""

    def __init__(self, seed: int, nodes: int = 1) -> None:
        self._seed = seed
        self._loop = VirtualLoop(seed)
        self._network = SimNetwork(self._loop)
        self._nodes = [Node(self._loop, self._network, f"broker-{number}") for number in range(nodes)]
        self._judges = [Judge(node.name) for node in self._nodes]
        self._told: list[str] = []

    def run(self) -> Verdict:
        """Runs to the end; what is raised on the way is a finding, too."""
        return judged(self._seed, self._loop, self._live(), self._judges, self._told)

    def _client(self, broker: str, role: str) -> Client:
        return Client(self._loop, self._network, f"{broker}-{role}", broker)

    async def _live(self) -> None:
        await asyncio.gather(*(self._one(*each) for each in zip(self._nodes, self._judges, strict=True)))

    async def _one(self, node: Node, judge: Judge) -> None:
        """A broker's life from its first start to its last stop."""
        faults = MachineFaults(self._loop, node, judge, self._told)
        load = Load(self._loop, lambda role: self._client(node.name, role), judge)
        node.start()
        await faults.come_back()
        first_day = node.disk.read_file(DATA / FILE_NAME)
        load.start()
        between = NetworkFaults(self._loop, self._network, node.name, load.machines)
        until_s = self._loop.time() + FAULTS_S
        between.told = self._told
        await asyncio.gather(faults.run(until_s), between.run(until_s))
        self._network.heal(node.name)
        acked = judge.acked
        if not await node.wait_for(lambda: judge.acked > acked + ACKED_MIN, PATIENCE_S):
            judge.complain("no progress after the faults had ended")
        load.ending = True
        if not await load.drained(PATIENCE_S):
            judge.complain("a reader of orders has not come to the end")
        await load.end()
        contents = await load.contents()
        await load.tell_all(contents)
        await faults.stop()
        if self._loop.chance.random() < 0.3:
            await faults.lose_metadata(first_day)
            if await load.contents() != contents:
                judge.complain("a broker that had old metadata for a while has lost what it did not know of")
        problem = await node.stop()
        if problem is not None:
            judge.complain(f"it did not stop: {problem}")


def judged(
    seed: int, loop: VirtualLoop, life: Coroutine[Any, Any, None], judges: Sequence[Judge], told: list[str]
) -> Verdict:
    """Runs `life` to its end; what is raised on the way is a finding, too."""
    before = replace_source(random.Random(seed).randbytes)
    gc.collect()
    gc.disable()
    findings: list[str] = []
    quiet = _Quiet()
    try:
        with threads_take_turns(), quiet:
            loop.run_until_complete(life)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        findings.append(f"the simulation ended early: {error!r} in {where.name}, line {where.lineno}")
    finally:
        loop.close()
        replace_source(before)
        gc.enable()
    for judge in judges:
        findings += judge.verdict() if not findings else judge.complaints
    findings += loop.failures + quiet.errors
    acked = sum(judge.acked for judge in judges)
    return Verdict(seed, loop.digest, loop.callbacks, loop.now_s, acked, findings, told)


class _Quiet(logging.Handler):
    """Keeps a broker's log off the terminal; an error with a traceback in it is a finding."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[str] = []
        self._log = logging.getLogger("braid")

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and not isinstance(record.exc_info[1], OSError) and len(self.errors) < 20:
            self.errors.append(f"{record.getMessage()}: {record.exc_info[1]!r}")

    def __enter__(self) -> _Quiet:
        self._propagates, self._log.propagate = self._log.propagate, False
        self._log.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._log.removeHandler(self)
        self._log.propagate = self._propagates
