"""Opens the metadata store that a command line names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from braidmq.cli.mistake import UserMistake
from braidmq.cluster.metadata_store import MetadataStore
from braidmq.cluster.served_store import UNIX_PREFIX, ServedStore

SERVED_PREFIX = "braid://"


def opener(url: str, token_file: Path | None) -> Callable[[], Awaitable[MetadataStore]]:
    """What opens the store at `url`."""

    async def open_it() -> MetadataStore:
        if url.startswith(UNIX_PREFIX):
            address = url
        elif url.startswith(SERVED_PREFIX):
            address = url.removeprefix(SERVED_PREFIX)
        else:
            raise UserMistake(f"{url} is not a store; write etcd://HOST:PORT, braid://HOST:PORT or unix:PATH")
        store = ServedStore(address, _token(token_file))
        await store.start()
        return store

    return open_it


def _token(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes().strip()
    except OSError as error:
        raise UserMistake(f"cannot read {path}: {error.strerror}") from None
