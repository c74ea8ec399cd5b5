"""`braid cluster export` and `import`: all metadata of a store as a file, and back into another store."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braidmq.cli.command import command
from braidmq.cli.mistake import UserMistake
from braidmq.cli.options import Yes, confirm
from braidmq.cli.output import AsJson, print_json
from braidmq.cli.store_access import DIRECTORY, FORMS, opened

if TYPE_CHECKING:
    from braidmq.cluster.transfer import Exported

TokenFile = Annotated[
    Path | None, typer.Option("--store-token-file", help="The token of a store at braid://HOST:PORT.")
]


def attach(app: typer.Typer) -> None:
    """Adds both commands."""
    command(
        app,
        "export",
        examples=(
            "braid cluster export --from-store file:braid-data --to-file cluster.export",
            "braid cluster export --from-store etcd://etcd1:2379 --to-file cluster.export --yes",
        ),
    )(export)
    command(
        app,
        "import",
        examples=("braid cluster import --from-file cluster.export --to-store etcd://etcd1:2379",),
    )(import_)


def export(
    from_store: Annotated[str, typer.Option("--from-store", metavar="URL", help=f"The store: {FORMS}.")],
    to_file: Annotated[Path, typer.Option("--to-file", help="Where to write the export.")],
    token_file: TokenFile = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Write all metadata of a store to a file: topics, partitions, options, the cluster's id and secret.

    Keep the file safe: with the secret in it, a process can pass for a broker. Registrations of running
    brokers are left out. Asks before it overwrites a file.
    """
    if to_file.exists():
        confirm(yes, f"Overwrite {to_file}?")
    with _failures():
        done, lines = asyncio.run(_export(from_store, token_file))
    _write(to_file, lines)
    if as_json:
        print_json({"file": str(to_file), **done._asdict()})
    else:
        print(f"exported {done.keys:,} keys as of revision {done.revision:,} to {to_file}")


def import_(
    from_file: Annotated[Path, typer.Option("--from-file", help="An export.")],
    to_store: Annotated[
        str, typer.Option("--to-store", metavar="URL", help=f"The store, which must be empty: {FORMS}.")
    ],
    token_file: TokenFile = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Write an export into an empty store. Stop all brokers first; then start them with the new --store.

    A store that holds anything is refused. Data directories stay as they are. Internal topics keep their
    partition counts, which brokers read from the topics, so groups and transactions stay where they are and
    nothing has to be sharded again.
    """
    from braidmq.cluster.transfer import BadExport, read_export

    try:
        lines = from_file.read_text(encoding="utf-8").splitlines()
        puts = read_export(lines)
    except OSError as error:
        raise UserMistake(f"{from_file}: {error.strerror}") from None
    except (BadExport, UnicodeDecodeError) as error:
        raise UserMistake(f"{from_file}: {error}") from None
    confirm(yes, f"Write {len(puts):,} keys to {to_store}? All brokers of the cluster must be stopped.")
    with _failures(), _progress(len(puts), as_json) as written:

        async def run() -> int:
            from braidmq.cluster.transfer import import_puts

            async with opened(to_store, token_file, create=True) as store:
                return await import_puts(store, puts, written)

        revision = asyncio.run(run())
    if as_json:
        print_json({"store": to_store, "keys": len(puts), "revision": revision})
    else:
        print(f"imported {len(puts):,} keys; {_next(to_store)}")


def _next(to_store: str) -> str:
    if not to_store.startswith(DIRECTORY):
        return f"start the brokers with --store {to_store}"
    directory = to_store.removeprefix(DIRECTORY)
    return f"start braid serve --data {directory}, or braid nameserver --store {to_store} for several brokers"


async def _export(url: str, token_file: Path | None) -> tuple[Exported, list[str]]:
    from braidmq.cluster.transfer import export_lines

    async with opened(url, token_file) as store:
        return await export_lines(store)


def _write(file: Path, lines: list[str]) -> None:
    """For its owner alone, and renamed into place when it is whole."""
    from braidmq.platform.disk import RealDisk

    before = os.umask(0o077)
    try:
        RealDisk().write_atomically(file, "".join(line + "\n" for line in lines).encode())
    except OSError as error:
        raise UserMistake(f"{file}: {error.strerror}") from None
    finally:
        os.umask(before)


@contextmanager
def _failures() -> Iterator[None]:
    """A store that refuses or does not answer is a failure of one line."""
    from braidmq.client.errors import ClientError
    from braidmq.cluster.metadata_store import StoreError

    try:
        yield
    except StoreError as error:
        raise ClientError(str(error)) from None


@contextmanager
def _progress(total: int, as_json: bool) -> Iterator[Callable[[int], None]]:
    """What takes the number of keys written so far; a bar if somebody looks at the terminal."""
    if as_json or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("importing", total=total)
        yield lambda done: bar.update(task, completed=done)
