"""Opens the metadata store that a command line names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from braidmq.cluster.metadata_store import MetadataStore


def opener(url: str, token_file: Path | None) -> Callable[[], Awaitable[MetadataStore]]:
    """What opens the store at `url`; `AddressError` if it is none."""

    async def open_it() -> MetadataStore:
        from braidmq.cluster.open_store import open_store

        store = open_store(url, token_file)
        await store.start()
        return store

    return open_it
