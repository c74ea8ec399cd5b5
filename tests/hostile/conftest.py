"""The victim: one real broker process for the whole suite, examined after every attack.

After each test the broker must be alive, the peak of its memory within a bound, and two other clients — one
connected since before the attack, one new — must produce and fetch as if nothing had happened. Limits are set
lower than the defaults so that the bound on memory is tight enough to mean something.
With BRAID_COMPAT_BOOTSTRAP the attacks go to a foreign server, to learn what Kafka answers (it has the codes
but seldom says why, and answers some forgeries with UNKNOWN_SERVER_ERROR).
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.hostile import batches, calls
from tests.hostile.raw import Connection

from braidmq.testing import BrokerProcess, broker

FOREIGN_SERVER = "BRAID_COMPAT_BOOTSTRAP"
MEBIBYTE = 1 << 20
FRAME_BYTES_MAX = 8 * MEBIBYTE
INFLIGHT_BYTES_MAX = 32 * MEBIBYTE
PEAK_BYTES_MAX = 384 * MEBIBYTE
OPTIONS = {
    "net_frame_bytes_max": FRAME_BYTES_MAX,
    "net_inflight_bytes_max": INFLIGHT_BYTES_MAX,
    "partitions_max": 2_000,
    "producer_ids_per_partition_max": 1_000,
}


class Victim:
    """The server under attack and the innocent client beside it."""

    def __init__(self, bootstrap: str, process: BrokerProcess | None, witness: Connection) -> None:
        self.bootstrap = bootstrap
        self.process = process
        self.topic = f"innocent-{uuid.uuid4().hex[:8]}"
        self._witness = witness
        self._said_before = 0
        self._well = True
        self._peak_before = 0
        assert calls.create_topic(witness, self.topic)[0] == 0

    def prepare(self) -> None:
        """Before an attack: forget earlier peaks of memory, and see that all is well."""
        if not self._well:
            self._witness.reopen()
        if self.process is not None:
            forget_peak(self.process.pid)
            self._peak_before = peak_bytes(self.process.pid)
            self._said_before = len(self.process.stderr)
        self._use(self._witness)

    def examine(self) -> None:
        """After an attack: nobody else noticed."""
        self._well = False
        if self.process is not None:
            assert self.process.running, f"the broker died:\n{self.process.stderr[-5000:]}"
            assert peak_bytes(self.process.pid) < PEAK_BYTES_MAX
            said = self.process.stderr[self._said_before :]
            assert "Traceback" not in said, said[-5000:]
        self._use(self._witness)
        with Connection(self.bootstrap) as fresh:
            self._use(fresh)
        self._well = True

    @property
    def growth_bytes(self) -> int:
        """By how much the attack has raised the most memory held; earlier attacks do not count."""
        return 0 if self.process is None else peak_bytes(self.process.pid) - self._peak_before

    def _use(self, connection: Connection) -> None:
        value = uuid.uuid4().bytes
        produced = calls.produce(connection, self.topic, batches.simple(value))
        assert produced.code == 0
        fetched = calls.fetch(connection, self.topic, produced.offset)
        assert fetched.code == 0
        assert value in fetched.records


def forget_peak(pid: int) -> None:
    """Where the kernel allows it; else the peak is that of the whole run, and the bound still holds."""
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_bytes(pid: int) -> int:
    """The most memory the process has held; 0 on systems that do not tell."""
    if not Path("/proc/self/status").exists():
        return 0
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


@pytest.fixture(scope="session")
def running_victim() -> Iterator[Victim]:
    with ExitStack() as stack:
        foreign = os.environ.get(FOREIGN_SERVER)
        process = None if foreign else stack.enter_context(broker(**OPTIONS))
        bootstrap = foreign or process.bootstrap
        witness = stack.enter_context(Connection(bootstrap))
        yield Victim(bootstrap, process, witness)


@pytest.fixture
def victim(running_victim: Victim) -> Iterator[Victim]:
    running_victim.prepare()
    yield running_victim
    running_victim.examine()


@pytest.fixture
def bootstrap(victim: Victim) -> str:
    return victim.bootstrap


@pytest.fixture
def connection(bootstrap: str) -> Iterator[Connection]:
    with Connection(bootstrap) as opened:
        yield opened


@pytest.fixture(scope="session")
def new_name() -> Callable[[], str]:
    run, count = uuid.uuid4().hex[:8], itertools.count()
    return lambda: f"hostile-{run}-{next(count)}"


@pytest.fixture
def topic(connection: Connection, new_name: Callable[[], str]) -> str:
    name = new_name()
    assert calls.create_topic(connection, name)[0] == 0
    return name
