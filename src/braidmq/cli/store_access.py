"""How commands reach a metadata store: by its address, or that of stopped brokers by their directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from braidmq.cli.mistake import UserMistake

if TYPE_CHECKING:
    from braidmq.cluster.metadata_store import MetadataStore

DIRECTORY = "file:"
METADATA = "metadata.store"
SHARED = "cluster"
"""Where `braid serve --brokers` keeps it."""
FORMS = "file:DIR, unix:PATH, braid://HOST:PORT or etcd://HOST:PORT,…"


def shared_store(directory: Path) -> str | None:
    """The address of the store that `braid serve --brokers` keeps for a broker with this directory."""
    for root in (directory, directory.absolute().parent):
        if (root / SHARED / METADATA).exists():
            return f"{DIRECTORY}{root}"
    return None


@asynccontextmanager
async def opened(
    url: str, token_file: Path | None = None, create: bool = False
) -> AsyncIterator[MetadataStore]:
    """The store at an address; `create` allows a directory that holds none yet."""
    if url.startswith(DIRECTORY):
        async with _of_directory(Path(url.removeprefix(DIRECTORY)), create) as store:
            yield store
        return
    if url == DIRECTORY.rstrip(":"):
        raise UserMistake("name the directory: file:DIR")
    from braidmq.cluster.open_store import open_store

    shared = open_store(url, token_file)
    try:
        await shared.start()
    except (ImportError, OSError) as error:
        raise UserMistake(f"{url}: {error}") from None
    try:
        yield shared
    finally:
        await shared.close()


@asynccontextmanager
async def _of_directory(directory: Path, create: bool) -> AsyncIterator[MetadataStore]:
    from braidmq.cluster.file_store import FileStore
    from braidmq.platform.clock import SystemClock
    from braidmq.platform.disk import RealDisk
    from braidmq.platform.lock import DirectoryInUse, DirectoryLock
    from braidmq.platform.threads import DiskThreads

    if (directory / SHARED / METADATA).exists():
        directory = directory / SHARED
    if create:
        directory.mkdir(parents=True, exist_ok=True)
    elif not (directory / METADATA).exists():
        raise UserMistake(
            f"{directory} holds no {METADATA}; give the data directory of a stopped broker. One of release"
            " 0.x has to be started once with this release"
        )
    try:
        lock = DirectoryLock(directory)
    except DirectoryInUse:
        raise UserMistake(f"{directory} is in use by a broker or a name server; stop it first") from None
    threads = DiskThreads(asyncio.get_running_loop(), 1)
    try:
        store = FileStore(RealDisk(), directory, SystemClock(), threads.run)
        await store.start()
        try:
            yield store
        finally:
            await store.close()
    finally:
        threads.stop()
        lock.release()
