"""Runs a broker process: from a configuration to clients served, until SIGTERM or SIGINT.

Nothing heavy is imported here, because starting in a fraction of a second is part of the promise.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from braidmq.address import parse_address
from braidmq.broker.broker import Broker
from braidmq.config import Config, ConfigError
from braidmq.faces.kafka.face import KafkaFace
from braidmq.faces.kafka.name_servers import NameServers
from braidmq.faces.kafka.session import KafkaSession
from braidmq.net.connection import Connection
from braidmq.net.reactor import Reactor
from braidmq.platform.network import Network, SocketNetwork
from braidmq.platform.watchdog import Watchdog

# A thread that comes back from the disk asks for the interpreter; 5 ms, the default, would be its wait
# under load.
SWITCH_INTERVAL_S = 0.0005
FILES_KEPT_BACK = 64
FILES_SHARED_MIN = 64
COLLECTOR_THRESHOLDS = (20_000, 50, 100)
WILDCARD_HOSTS = ("", "0.0.0.0", "::")
LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}

Address = tuple[str, int]

log = logging.getLogger("braid.serve")


def run(
    config: Config, data: Path, listen: Address, advertise: Address | None, ready: Callable[[str], None]
) -> None:
    """Serves until it is stopped. `ready` gets the line that says clients are accepted."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    config = share_files(config, _raise_file_limit())
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(config, data, listen, advertise, ready))


def share_files(config: Config, files_max: int) -> Config:
    """The options with connections and open segments within what the process may open.

    Where both do not fit, neither gets less than half of it unless it wants less. ConfigError if that would
    be too little to serve anybody.
    """
    available = files_max - FILES_KEPT_BACK
    if available < FILES_SHARED_MIN:
        raise ConfigError(
            f"this process may open {files_max} files but needs {FILES_KEPT_BACK + FILES_SHARED_MIN} or more;"
            " raise the hard limit (ulimit -Hn, or LimitNOFILE of the service)"
        )
    segments = min(config.log_files_open_max, max(available // 2, available - config.net_connections_max))
    connections = min(config.net_connections_max, available - segments)
    shared = dataclasses.replace(config, log_files_open_max=segments, net_connections_max=connections)
    if shared != config:
        log.warning(
            "this process may open %d files (hard limit): net.connections.max is %d instead of %d,"
            " log.files.open.max %d instead of %d",
            files_max,
            connections,
            config.net_connections_max,
            segments,
            config.log_files_open_max,
        )
    return shared


async def _serve(
    config: Config, data: Path, listen: Address, advertise: Address | None, ready: Callable[[str], None]
) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    broker = Broker(config, data)
    await broker.start()
    watchdog = Watchdog(config.loop_stall_limit_ms)
    watchdog.start()
    try:
        service = Service(broker, SocketNetwork())
        host, port = await service.listen(listen, advertise)
        if advertise is None and host in WILDCARD_HOSTS:
            log.info(
                "clients are sent to %s:%d; use --advertise if they cannot reach it", _reachable(host), port
            )
        _calm_the_collector()
        ready(f"ready {host}:{port} node={config.node_id} data={data}")
        await stopping.wait()
        log.info("stopping")
        await service.drain()
    finally:
        await broker.stop()
        watchdog.stop()


class Service:
    """What clients find: a started broker, the faces that it has, and the reactor that brings connections."""

    def __init__(self, broker: Broker, network: Network) -> None:
        loop = asyncio.get_running_loop()
        self._broker = broker
        self._reactor = Reactor(broker.config, loop, network, broker.readers.submit)
        self._face = KafkaFace(broker)
        self.forwarding: Address | None = None
        """Where clients are served for the whole cluster, if anywhere."""
        self._name_servers = NameServers(
            broker.config, network, broker.peers.directory, broker.metadata.image, broker.metadata.feed
        )

    async def listen(self, listen: Address, advertise: Address | None = None) -> Address:
        """Accepts clients, and shows so in the metadata; the address that was bound."""
        host, port = self._reactor.listen(*listen, lambda connection: KafkaSession(self._face, connection))
        told = advertise or (_reachable(host), port)
        self._face.advertise(*told, listening=(host, port))
        self._broker.metadata.listening = (LOOPBACK.get(host, host), port)
        self._listen_forwarding()
        await self._broker.metadata.appear(*told)
        self._name_servers.start(*told)
        return host, port

    def _listen_forwarding(self) -> None:
        """Serves those who can reach this broker only, if there is an address for them."""
        config = self._broker.config
        if not config.forward_listen:
            return
        # Nobody else needs it: a start should not load it.
        from braidmq.faces.kafka.forwarding.front import Front
        from braidmq.faces.kafka.forwarding.session import ForwardingSession

        def accept(connection: Connection) -> ForwardingSession:
            return ForwardingSession(self._face, connection, front)

        try:
            host, port = self._reactor.listen(*parse_address(config.forward_listen), accept)
        except OSError as error:
            raise ConfigError(f"forward.listen: {config.forward_listen}: {error.strerror or error}") from None
        told = (
            parse_address(config.forward_advertise) if config.forward_advertise else (_reachable(host), port)
        )
        front = Front(config.node_id, *told)
        self.forwarding = (host, port)
        log.info("clients at %s:%d are served for the whole cluster, as %s:%d", host, port, *told)

    async def drain(self) -> None:
        """Answers what was asked, and takes nothing more."""
        self._reactor.stop_accepting()
        await self._name_servers.stop()
        self._face.begin_drain()
        await self._reactor.drain()


def _calm_the_collector() -> None:
    """Takes what was loaded at the start out of the collector's sight, and lets it look less often.

    With ten thousand connections a full collection stops the loop for tens of milliseconds (measured), and a
    broker makes next to no cycles: what it allocates per request is freed by counting.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


def _reachable(host: str) -> str:
    """Clients cannot connect to a wildcard address; this machine's name is the best guess."""
    import socket

    return socket.gethostname() if host in WILDCARD_HOSTS else host


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _raise_file_limit() -> int:
    """Every connection and segment is a file; the soft limit is often far below what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
