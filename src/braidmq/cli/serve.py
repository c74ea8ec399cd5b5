"""`braid serve`: a broker in the foreground, until SIGTERM or Ctrl-C.

Uses argparse only; the package's docstring says why. A mistake of the user (a misspelt option, a port in use,
a directory that another broker holds) is one line on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from braidmq.address import Address, AddressError, parse_address
from braidmq.cli.mistake import UserMistake
from braidmq.config import Config, ConfigError, configure, gather

EXAMPLES = """\
examples:
  braid serve                                         data in ./braid-data, listening on 127.0.0.1:9092
  braid serve --data /var/lib/braid --listen 0.0.0.0:9092 --advertise queue.example.com:9092
  braid serve -o retention.ms=3600000 -o flush=async  options by name; `braid config` explains them all
  braid serve --config braid.toml                     the same options from a file
  BRAID_NUM_PARTITIONS=8 braid serve                  or from the environment

It prints one line on stdout once clients can connect: ready HOST:PORT node=ID data=DIR
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserMistake(f"{message}; see braid serve --help")


def main(arguments: Sequence[str]) -> int:
    try:
        asked = _parse(arguments)
        config = configure(gather(asked.config, asked.option))
        return _serve(asked, config)
    except (UserMistake, ConfigError, AddressError) as mistake:
        print(f"braid serve: {mistake}", file=sys.stderr)
        return 2


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


def _unknown(word: str, parser: argparse.ArgumentParser) -> str:
    if not word.startswith("-"):
        return f"does not take {word!r}; options are set with -o NAME=VALUE"
    known = [flag for action in parser._actions for flag in action.option_strings]
    close = difflib.get_close_matches(word.partition("=")[0], known, n=1)
    return f"unknown option {word}; " + (f"did you mean {close[0]}?" if close else "see braid serve --help")


def _serve(asked: argparse.Namespace, config: Config) -> int:
    from braidmq.cluster.membership import JoinRefused
    from braidmq.cluster.metadata_store import StoreCorrupt
    from braidmq.log.segment import DamagedSegment
    from braidmq.serve import run

    logging.basicConfig(
        level=asked.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    listen = parse_address(asked.listen)
    advertise = parse_address(asked.advertise) if asked.advertise else None
    if asked.stop_on_eof:
        threading.Thread(target=_stop_when_stdin_ends, daemon=True).start()
    try:
        run(config, asked.data, listen, advertise, _announce)
    except OSError as error:
        raise UserMistake(_explain(error, listen, asked.data)) from None
    except JoinRefused as refused:
        raise UserMistake(f"{asked.data}: {refused}") from None
    except (StoreCorrupt, DamagedSegment) as damage:
        print(f"braid serve: {asked.data}: {damage}", file=sys.stderr)
        return 1
    return 0


def _announce(line: str) -> None:
    print(line, flush=True)


def _stop_when_stdin_ends() -> None:
    # A parent that is killed cannot stop its child, but its end of the pipe closes all the same.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _explain(error: OSError, listen: Address, data: Path) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{listen} is in use by another program; choose another with --listen HOST:PORT"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{listen} is not an address of this machine; try --listen 0.0.0.0:PORT with --advertise"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission for {error.filename or f'{listen} or {data}'}: {error.strerror}"
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST):
        return f"cannot use the data directory {data}: {error.strerror}; choose another with --data"
    return f"{error.filename or data}: {error.strerror or error}"
