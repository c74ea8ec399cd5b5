"""`braid serve`: a broker in the foreground, or several with a supervisor, until SIGTERM or Ctrl-C.

Uses argparse only; the package's docstring says why. A mistake of the user (a misspelt option, a port in use,
a directory that another broker holds) is one line on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from braidmq.address import PORT_MAX, Address, AddressError, parse_address
from braidmq.cli.mistake import UserMistake
from braidmq.config import Config, ConfigError, configure, gather

if TYPE_CHECKING:
    from braidmq import supervise

EXAMPLES = """\
examples:
  braid serve                                         data in ./braid-data, listening on 127.0.0.1:9092
  braid serve --data /var/lib/braid --listen 0.0.0.0:9092 --advertise queue.example.com:9092
  braid serve -o retention.ms=3600000 -o flush=async  options by name; `braid config` explains them all
  braid serve --config braid.toml                     the same options from a file
  BRAID_NUM_PARTITIONS=8 braid serve                  or from the environment
  braid serve --brokers auto                          a broker for each core, on ports 9092, 9093, …
  braid serve --node-id 2 --listen 0.0.0.0:9092 --advertise 10.0.0.2:9092 --store etcd://10.0.0.1,10.0.0.2
                                                      one broker of a cluster
  braid serve --node-id 3 --listen 0.0.0.0:9092 --advertise 10.0.0.3:9092 --join 10.0.0.1:9092
                                                      another, which asks the first for the store

It prints one line on stdout once clients can connect: ready HOST:PORT node=ID data=DIR
With --brokers N, once all of them accept clients:     ready HOST:PORT brokers=N data=DIR
"""


BROKERS_MAX = 256
WILDCARDS = ("", "0.0.0.0", "::")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserMistake(f"{message}; see braid serve --help")


def main(arguments: Sequence[str]) -> int:
    try:
        asked = _parse(arguments)
        start_logging(asked.log_level, asked.log_prefix)
        asked.option += [*_joining(asked), *_shortcuts(asked)]
        config = configure(gather(asked.config, asked.option))
        if asked.brokers is not None:
            return _supervise(asked, config)
        return _serve(asked, config)
    except (UserMistake, ConfigError, AddressError) as mistake:
        print(f"{_prefix(arguments)}braid serve: {mistake}", file=sys.stderr)
        return 2


def start_logging(level: str, prefix: str = "") -> None:
    """To stderr, every line with the prefix."""
    before = f"{prefix.replace('%', '%%')} " if prefix else ""
    logging.basicConfig(
        level=level.upper(), format=f"{before}%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def _prefix(arguments: Sequence[str]) -> str:
    """Of messages that are no log lines; looked up in the words, as they may be what is wrong."""
    at = arguments.index("--log-prefix") + 1 if "--log-prefix" in arguments else len(arguments)
    return f"{arguments[at]} " if at < len(arguments) else ""


def _joining(asked: argparse.Namespace) -> list[str]:
    if asked.join is None:
        return []
    if asked.store is not None:
        raise UserMistake("--join asks a broker for the store, and --store names it: use one of them")
    from braidmq.cli.join import found_options

    return found_options(parse_address(asked.join), asked.data)


def _shortcuts(asked: argparse.Namespace) -> list[str]:
    """Options of the broker that have a flag of their own."""
    given = {"node.id": asked.node_id, "store": asked.store, "store.token.file": asked.store_token_file}
    if asked.replace:
        given["replace"] = "true"
    return [f"{name}={value}" for name, value in given.items() if value is not None]


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="braid serve",
        description="Run a broker until SIGTERM or Ctrl-C.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("braid-data"),
        metavar="DIR",
        help="data directory; created if missing (default: ./braid-data)",
    )
    parser.add_argument(
        "--listen",
        default="127.0.0.1:9092",
        metavar="HOST:PORT",
        help="address to listen on; port 0 takes a free port (default: 127.0.0.1:9092)",
    )
    parser.add_argument(
        "--advertise",
        metavar="HOST:PORT",
        help="address for clients, if it differs from --listen (NAT, containers, 0.0.0.0)",
    )
    _add_cluster_arguments(parser)
    parser.add_argument("--config", type=Path, metavar="FILE.toml", help="read broker options from a file")
    parser.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a broker option; may repeat; wins over the file and BRAID_… variables",
    )
    parser.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="what to log to stderr (default: info)",
    )
    parser.add_argument("--stop-on-eof", action="store_true", help="stop when stdin is closed")
    asked, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise UserMistake(_unknown(unknown[0], parser))
    return asked


def _add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--brokers",
        metavar="N|auto",
        help="run N brokers on this machine, on ports PORT to PORT+N-1 (those of forward.listen likewise);"
        " auto: one for each core",
    )
    parser.add_argument(
        "--node-id", metavar="N", help="this broker's number, or the first one's (default: 1)"
    )
    parser.add_argument(
        "--store",
        metavar="URL",
        help="where the cluster keeps its metadata: file (this broker alone), unix:PATH, braid://HOST:PORT,"
        " etcd://HOST:PORT,… (default: file)",
    )
    parser.add_argument("--store-token-file", metavar="FILE", help="token for a store at braid://…")
    parser.add_argument(
        "--join",
        metavar="HOST:PORT",
        help="a running broker or name server of the cluster: it is asked for the store",
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="take over the node id of a data directory that is lost for good",
    )
    parser.add_argument("--log-prefix", default="", help=argparse.SUPPRESS)


def _unknown(word: str, parser: argparse.ArgumentParser) -> str:
    if not word.startswith("-"):
        return f"does not take {word!r}; options are set with -o NAME=VALUE"
    known = [flag for action in parser._actions for flag in action.option_strings]
    close = difflib.get_close_matches(word.partition("=")[0], known, n=1)
    return f"unknown option {word}; " + (f"did you mean {close[0]}?" if close else "see braid serve --help")


def _serve(asked: argparse.Namespace, config: Config) -> int:
    from braidmq.serve import run

    listen = parse_address(asked.listen)
    advertise = parse_address(asked.advertise) if asked.advertise else None
    if asked.stop_on_eof:
        stop_on_eof()

    def serve() -> None:
        # Brokers with a store elsewhere may well share a directory: their supervisor's.
        data = _own_directory(asked.data) if config.store == "file" else asked.data
        run(config, data, listen, advertise, announce)

    return _explained(asked, asked.data, serve)


def _explained(asked: argparse.Namespace, data: Path, serve: Callable[[], None]) -> int:
    """Runs until stopped; what keeps it from starting is one line."""
    from braidmq.cluster.membership import JoinRefused
    from braidmq.cluster.metadata_store import StoreCorrupt, StoreError
    from braidmq.log.segment import DamagedSegment

    try:
        serve()
    except OSError as error:
        raise UserMistake(explain(error, parse_address(asked.listen), data)) from None
    except JoinRefused as refused:
        raise UserMistake(f"{data}: {refused}") from None
    except (StoreCorrupt, DamagedSegment) as damage:
        print(f"{_prefixed(asked)}braid serve: {data}: {damage}", file=sys.stderr)
        return 1
    except StoreError as error:
        print(f"{_prefixed(asked)}braid serve: {error}", file=sys.stderr)
        return 1
    return 0


def _prefixed(asked: argparse.Namespace) -> str:
    return f"{asked.log_prefix} " if asked.log_prefix else ""


def _own_directory(data: Path) -> Path:
    """The data directory of a single broker: that of the first one where several have shared it."""
    if not (data / "cluster").is_dir():
        return data
    from braidmq.cluster.shared_directory import SharedDirectory
    from braidmq.platform.clock import SystemClock
    from braidmq.platform.disk import RealDisk

    return asyncio.run(SharedDirectory(data, RealDisk(), SystemClock()).give_back())


def _supervise(asked: argparse.Namespace, config: Config) -> int:
    from braidmq import supervise
    from braidmq.cli.stores import opener

    given = {"forward.listen": config.forward_listen, "forward.advertise": config.forward_advertise}
    plan = supervise.Plan(
        brokers=_count(asked.brokers),
        first_id=config.node_id,
        data=asked.data,
        listen=parse_address(asked.listen),
        advertise=parse_address(asked.advertise) if asked.advertise else None,
        cluster_name=config.cluster_name,
        arguments=_for_each_broker(asked),
        addresses=tuple((name, parse_address(text)) for name, text in given.items() if text),
        stop_on_eof=asked.stop_on_eof,
        open_store=None if config.store == "file" else opener(config.store, _file(config.store_token_file)),
    )
    _check_ports(plan)
    if asked.stop_on_eof:
        stop_on_eof()
    try:
        return _explained(asked, asked.data, lambda: supervise.run(plan, announce))
    except supervise.CannotStart as refused:
        print(f"braid serve: {refused}", file=sys.stderr)
        return refused.code


def _check_ports(plan: supervise.Plan) -> None:
    """Every broker has the next port of each address; they must be there, and not be one another's."""
    first = {"--listen": plan.listen, **dict(plan.addresses)}
    if plan.advertise is not None:
        first["--advertise"] = plan.advertise
    for name, address in first.items():
        last = address.port + plan.brokers - 1
        if address.port and last > PORT_MAX:
            raise UserMistake(f"{name} {address} with {plan.brokers} brokers: there is no port {last}")
    forward = first.get("forward.listen")
    if forward is None or not (forward.port and plan.listen.port):
        return
    same_host = forward.host == plan.listen.host or not {forward.host, plan.listen.host}.isdisjoint(WILDCARDS)
    if same_host and abs(forward.port - plan.listen.port) < plan.brokers:
        raise UserMistake(
            f"--listen {plan.listen} and forward.listen {forward} with {plan.brokers} brokers use the same"
            f" ports; leave {plan.brokers} between them"
        )


def _file(path: str) -> Path | None:
    return Path(path) if path else None


def _count(text: str) -> int:
    from braidmq.platform.processes import usable_cores

    if text == "auto":
        return usable_cores()
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(BROKERS_MAX))
    if not (is_number and 1 <= int(text) <= BROKERS_MAX):
        raise UserMistake(f"--brokers {text:.20}: write a number from 1 to {BROKERS_MAX}, or auto")
    return int(text)


def _for_each_broker(asked: argparse.Namespace) -> tuple[str, ...]:
    words = ["--log-level", asked.log_level]
    if asked.config is not None:
        words += ["--config", str(asked.config.absolute())]
    for option in asked.option:
        if option.partition("=")[0].strip() != "node.id":
            words += ["-o", option]
    return tuple(words)


def announce(line: str) -> None:
    """Says it on stdout. If nobody reads that any more, as after a kill of the supervisor, it is not said."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        # What is still in the buffer must go somewhere when this process ends.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def stop_on_eof() -> None:
    """Stops this process as by SIGTERM when its stdin ends."""
    threading.Thread(target=_stop_when_stdin_ends, daemon=True).start()


def _stop_when_stdin_ends() -> None:
    # A parent that is killed cannot stop its child, but its end of the pipe closes all the same.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def explain(error: OSError, listen: Address, data: Path) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{listen} is in use by another program; choose another with --listen HOST:PORT"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{listen} is not an address of this machine; try --listen 0.0.0.0:PORT with --advertise"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission for {error.filename or f'{listen} or {data}'}: {error.strerror}"
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST):
        return f"cannot use the data directory {data}: {error.strerror}; choose another with --data"
    return f"{error.filename or data}: {error.strerror or error}"
