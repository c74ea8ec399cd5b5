"""`braid nameserver`: where brokers and clients find each other; its configuration; the cluster's key.

Uses argparse only, like `braid serve`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from braidmq.address import Address, AddressError, parse_address, parse_addresses
from braidmq.cli.mistake import UserMistake
from braidmq.config import ConfigError, configure, gather

if TYPE_CHECKING:
    from braidmq.nameserver import OpenStore, ServedStoreOptions

DEFAULT_PORT = 9876
STORE_PORT = 9190
TOKEN_BYTES = 32
FILE_PREFIX = "file:"

EXAMPLES = """\
examples:
  braid nameserver --store etcd://10.0.0.1:2379            listening on 127.0.0.1:9876; the key from the store
  braid nameserver --key-file cluster.key --listen 0.0.0.0:9876          the key from a file
  braid nameserver --store file:meta --store-token-file token --store-listen 0.0.0.0:9190
                                                           also serves a metadata store: no etcd needed
  braid nameserver key --store etcd://10.0.0.1:2379        print the cluster's key, for --key-file
  braid nameserver config list                             the key-value configuration of a name server
  braid nameserver config put ORDER_TOPIC a=1 --key-file cluster.key --server 10.0.0.1:9876,10.0.0.2:9876

Brokers find name servers with -o nameservers=HOST:PORT,… and clients bootstrap from any of them. A name
server that is down stops nothing: brokers and clients use another one, or what they know. While a process
that serves the metadata store is down, nothing can be changed; data flows.

It prints one line on stdout once clients can connect: ready HOST:PORT data=DIR [store=braid://HOST:PORT]
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserMistake(f"{message}; see braid nameserver --help")


def main(arguments: Sequence[str]) -> int:
    from braidmq.client.errors import ClientError
    from braidmq.cluster.cluster_key import BadKey
    from braidmq.cluster.metadata_store import StoreError

    try:
        if arguments[:1] == ["config"]:
            return _config(arguments[1:])
        if arguments[:1] == ["key"]:
            return _key(arguments[1:])
        return _serve(arguments)
    except (UserMistake, ConfigError, AddressError, BadKey) as mistake:
        print(f"braid nameserver: {mistake}", file=sys.stderr)
        return 2
    except (StoreError, ClientError) as error:
        print(f"braid nameserver: {error}", file=sys.stderr)
        return 1


# -- the server ---------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="braid nameserver",
        description="Run a name server until SIGTERM or Ctrl-C.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--listen",
        default=f"127.0.0.1:{DEFAULT_PORT}",
        metavar="HOST:PORT",
        help=f"address to listen on; port 0 takes a free port (default: 127.0.0.1:{DEFAULT_PORT})",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("braid-nameserver"),
        metavar="DIR",
        help="directory for its configuration (default: ./braid-nameserver)",
    )
    _add_key_arguments(parser)
    parser.add_argument(
        "--store-listen",
        default=f"127.0.0.1:{STORE_PORT}",
        metavar="HOST:PORT",
        help=f"with --store file:DIR, where to serve that store (default: 127.0.0.1:{STORE_PORT})",
    )
    parser.add_argument("--config", type=Path, metavar="FILE.toml", help="read options from a file")
    parser.add_argument(
        "-o", "--option", action="append", default=[], metavar="NAME=VALUE",
        help="set an option such as cluster.name or net.connections.max; may repeat",
    )  # fmt: skip
    parser.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="what to log to stderr (default: info)",
    )
    parser.add_argument("--stop-on-eof", action="store_true", help="stop when stdin is closed")
    return parser


def _add_key_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--key-file", type=Path, metavar="FILE", help="the cluster's key (braid nameserver key)"
    )
    parser.add_argument(
        "--store",
        metavar="URL",
        help="the cluster's metadata store, which holds the key: etcd://…, braid://HOST:PORT, unix:PATH, or"
        " file:DIR for one that this process keeps and serves",
    )
    parser.add_argument(
        "--store-token-file",
        type=Path,
        metavar="FILE",
        help="token of a store at braid://…; with file:DIR it is made if it is missing",
    )


def _serve(arguments: Sequence[str]) -> int:
    from braidmq.cli.serve import announce, explain, start_logging, stop_on_eof
    from braidmq.cluster.metadata_store import StoreCorrupt
    from braidmq.cluster.name_server_config import BadEntry
    from braidmq.nameserver import Options, run

    asked = _parser().parse_args(arguments)
    start_logging(asked.log_level)
    if (asked.key_file is None) == (asked.store is None):
        raise UserMistake(
            "name one of --key-file and --store: without the cluster's key a name server cannot tell brokers"
            " from strangers"
        )
    listen = parse_address(asked.listen, DEFAULT_PORT)
    options = Options(
        config=configure(gather(asked.config, asked.option)),
        data=asked.data,
        listen=listen,
        key_file=asked.key_file,
        open_store=_opener(asked),
        served=_served(asked),
    )
    if asked.stop_on_eof:
        stop_on_eof()
    try:
        run(options, announce)
    except OSError as error:
        raise UserMistake(explain(error, listen, asked.data)) from None
    except (StoreCorrupt, BadEntry) as damage:
        print(f"braid nameserver: {damage}", file=sys.stderr)
        return 1
    return 0


def _served(asked: argparse.Namespace) -> ServedStoreOptions | None:
    from braidmq.nameserver import ServedStoreOptions

    if asked.store is None or not asked.store.startswith(FILE_PREFIX):
        return None
    if asked.store_token_file is None:
        raise UserMistake(
            "a store is served over TCP only with --store-token-file FILE; it is made if missing"
        )
    if asked.store == FILE_PREFIX:
        raise UserMistake("--store file: needs a directory, as in file:/var/lib/braid-meta")
    if not asked.store_token_file.exists():
        try:
            descriptor = os.open(asked.store_token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise UserMistake(f"cannot write {asked.store_token_file}: {error.strerror}") from None
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(os.urandom(TOKEN_BYTES).hex() + "\n")
    directory = Path(asked.store.removeprefix(FILE_PREFIX))
    return ServedStoreOptions(directory, parse_address(asked.store_listen, STORE_PORT), _token(asked))


def _token(asked: argparse.Namespace) -> bytes:
    try:
        token: bytes = asked.store_token_file.read_bytes().strip()
    except OSError as error:
        raise UserMistake(f"cannot read {asked.store_token_file}: {error.strerror}") from None
    if len(token) < 16:
        raise UserMistake(f"{asked.store_token_file}: a token has 16 bytes or more, this one {len(token)}")
    return token


def _opener(asked: argparse.Namespace) -> OpenStore | None:
    """Opens the store that holds the key, where that is not one of our own."""
    if asked.store is None or asked.store.startswith(FILE_PREFIX):
        return None
    from braidmq.cli.stores import opener

    return opener(asked.store, asked.store_token_file)


# -- the cluster's key --------------------------------------------------------------------------


def _key(arguments: Sequence[str]) -> int:
    parser = _Parser(prog="braid nameserver key", description="Print the cluster's key: keep it secret.")
    parser.add_argument("--store", required=True, metavar="URL", help="the cluster's metadata store")
    parser.add_argument("--store-token-file", type=Path, metavar="FILE", help="token of a store at braid://…")
    parser.add_argument("--cluster", default="braid", metavar="NAME", help="cluster.name (default: braid)")
    asked = parser.parse_args(arguments)
    from braidmq.cli.stores import opener
    from braidmq.cluster.cluster_key import read_stored_key

    async def read() -> str:
        store = await opener(asked.store, asked.store_token_file)()
        try:
            found = await read_stored_key(store, asked.cluster)
        finally:
            await store.close()
        if found is None:
            raise UserMistake(f"the store holds no cluster {asked.cluster!r}; start a broker of it first")
        return found.text()

    print(asyncio.run(read()))
    return 0


# -- the configuration --------------------------------------------------------------------------


def _config(arguments: Sequence[str]) -> int:
    parser = _Parser(
        prog="braid nameserver config",
        description="Read or change the configuration of name servers. Changes need the cluster's key.",
        allow_abbrev=False,
    )
    parser.add_argument("verb", choices=("list", "get", "put", "delete"))
    parser.add_argument("key", nargs="?")
    parser.add_argument("value", nargs="?")
    parser.add_argument(
        "--server",
        default=f"127.0.0.1:{DEFAULT_PORT}",
        metavar="HOST:PORT,…",
        help=f"name servers; a change goes to all of them (default: 127.0.0.1:{DEFAULT_PORT})",
    )
    parser.add_argument(
        "--key-file", type=Path, metavar="FILE", help="the cluster's key (braid nameserver key)"
    )
    asked = parser.parse_args(arguments)
    words = sum(word is not None for word in (asked.key, asked.value))
    if words != {"list": 0, "get": 1, "put": 2, "delete": 1}[asked.verb]:
        raise UserMistake("write config list, config get KEY, config put KEY VALUE, or config delete KEY")
    servers = parse_addresses(asked.server)
    if asked.verb in ("put", "delete"):
        return _change(asked, servers)
    return _read(asked, servers)


def _read(asked: argparse.Namespace, servers: Sequence[Address]) -> int:
    from braidmq.client.connection import Connection
    from braidmq.client.errors import ClientError, Unreachable
    from braidmq.faces.kafka.name_server import GET
    from braidmq.wire.messages.name_server import NameServerConfigRequest, NameServerConfigResponse

    unreachable: Unreachable | None = None
    for server in servers:
        try:
            with Connection(server) as connection:
                request = NameServerConfigRequest(operation=GET, key=asked.key)
                answer = connection.call(request, NameServerConfigResponse)
        except Unreachable as error:
            unreachable = error
            continue
        if answer.error_code:
            raise ClientError(f"{server}: {answer.error_message}")
        for entry in answer.entries:
            print(entry.value if asked.verb == "get" else f"{entry.key}={entry.value}")
        return 0
    assert unreachable is not None
    raise unreachable


def _change(asked: argparse.Namespace, servers: Sequence[Address]) -> int:
    from braidmq.cluster.cluster_key import read_key_file

    if asked.key_file is None:
        raise UserMistake(
            "a change needs the cluster's key: --key-file FILE (braid nameserver key prints it)"
        )
    key = read_key_file(asked.key_file)
    failures = asyncio.run(_change_all(asked, servers, key))
    for failure in failures:
        print(f"braid nameserver: {failure}", file=sys.stderr)
    return 1 if failures else 0


async def _change_all(asked: argparse.Namespace, servers: Sequence[Address], key: object) -> list[str]:
    from braidmq.cluster.cluster_key import ClusterKey
    from braidmq.cluster.name_server import NameServer
    from braidmq.faces.kafka.name_server import DELETE, PUT, Directory
    from braidmq.faces.kafka.name_servers import NAME_SERVER, Towards
    from braidmq.net.peer import Peers, PeerUnavailable
    from braidmq.platform.network import SocketNetwork
    from braidmq.wire.messages.name_server import NameServerConfigRequest, NameServerConfigResponse

    assert isinstance(key, ClusterKey)
    request = NameServerConfigRequest(
        operation=PUT if asked.verb == "put" else DELETE, key=asked.key, value=asked.value
    )
    failures = []
    for server in servers:
        # A person is no broker: an id that none has.
        peers = Peers(SocketNetwork(), Towards(Directory(NameServer(), key, NAME_SERVER - 1), server))
        try:
            answer = await peers.call(NAME_SERVER, request)
            assert isinstance(answer, NameServerConfigResponse)
            if answer.error_code:
                failures.append(f"{server}: {answer.error_message}")
        except PeerUnavailable as error:
            failures.append(f"{server}: {error}")
        finally:
            await peers.close()
    return failures
