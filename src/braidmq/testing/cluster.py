"""`braid serve --brokers N` as a child process: several brokers on one machine, each can be killed."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from braidmq.platform.lock import holder_of
from braidmq.testing.process import START_TIMEOUT_S, BrokerFailed, BrokerProcess

LOOK_EVERY_S = 0.01


class ClusterProcess(BrokerProcess):
    """A supervisor with its brokers. Node ids count from 1; a broker that is killed is started again."""

    def __init__(self, directory: Path, brokers: int, options: Mapping[str, object] | None = None) -> None:
        super().__init__(directory, options)
        self.brokers = brokers

    def pid_of(self, node_id: int) -> int:
        """The process of a broker; BrokerFailed if it does not run at the moment."""
        pid = holder_of(self.data / str(node_id))
        if not pid:
            raise BrokerFailed(f"broker {node_id} is not running")
        return pid

    def kill_broker(self, node_id: int) -> None:
        """SIGKILL for one broker. Its partitions are away until the supervisor has started it again."""
        os.kill(self.pid_of(node_id), signal.SIGKILL)

    def await_broker(self, node_id: int, other_than: int) -> int:
        """Returns when a broker runs as another process than `other_than`: which."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while (pid := holder_of(self.data / str(node_id)) or other_than) == other_than:
            if time.monotonic() > deadline:
                raise BrokerFailed(f"broker {node_id} was not started again\n{self.stderr}")
            time.sleep(LOOK_EVERY_S)
        return pid

    def _arguments(self) -> list[str]:
        return ["--brokers", str(self.brokers)]


@contextmanager
def cluster(brokers: int = 3, data: str | Path | None = None, **options: object) -> Iterator[ClusterProcess]:
    """Running brokers; stopped, and their temporary directory removed, at the end of the `with` block.

    Options are those of `braid config` with underscores for dots, for every broker. With `data`, the logs are
    kept in that directory and stay.
    """
    given = {name.replace("_", "."): value for name, value in options.items()}
    with tempfile.TemporaryDirectory(prefix="braid-") as temporary:
        directory = Path(data) if data is not None else Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        with ClusterProcess(directory, brokers, given) as running:
            yield running
