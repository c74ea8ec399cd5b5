"""Metadata moves from any store to any other."""

from __future__ import annotations

import asyncio

import pytest

from braidmq.cluster import transfer
from braidmq.cluster.metadata_store import MetadataStore, Put, Refused
from braidmq.cluster.transfer import MARKER, BadExport, export_lines, import_puts, read_export
from conformance import places
from conformance.places import Opener, run

CONTENT = {f"topics/{number:04}": b'{"v":1,"n":%d}' % number for number in range(300)}
CONTENT |= {"binary": bytes(range(256)), "é": "ü\n".encode(), "empty": b""}


async def filled(store: MetadataStore) -> list[str]:
    lease = await store.lease(60)
    await import_puts(store, [Put(key, value) for key, value in CONTENT.items()])
    await store.commit(puts=[Put("brokers/1/alive", b"", lease.lease_id)])
    exported, lines = await export_lines(store)
    await store.revoke(lease.lease_id)
    assert (exported.keys, exported.bound_keys) == (len(CONTENT), 1)
    return lines


def exported_from_memory() -> list[str]:
    return run(places.memory, filled)


def test_an_export_is_imported_whole_in_any_store(place: Opener) -> None:
    """N4: every key and value, whatever bytes; what is bound to a lease stays behind."""
    lines = run(place, filled)
    assert all(line.isascii() and "\n" not in line for line in lines)

    async def take_in(store: MetadataStore) -> None:
        revision = await import_puts(store, read_export(line + "\n" for line in lines))
        found = await store.snapshot("")
        assert (found.revision, {item.key: item.value for item in found.items}) == (revision, CONTENT)

    run(places.memory, take_in)


def test_a_store_that_is_not_empty_takes_no_import() -> None:
    """N4: nothing is written over, and an import that broke off is recognised."""
    puts = read_export(exported_from_memory())

    async def story(store: MetadataStore) -> None:
        await store.commit(puts=[Put("a", b"")])
        with pytest.raises(Refused, match="holds 1 keys"):
            await import_puts(store, puts)
        assert len((await store.snapshot("")).items) == 1
        await store.commit(puts=[Put(MARKER, b"")])
        with pytest.raises(Refused, match="did not finish"):
            await import_puts(store, puts)
        for prefix in ("", "a"):
            with pytest.raises(Refused, match="did not finish"):
                await export_lines(store, prefix)

    run(places.memory, story)


def test_somebody_who_writes_during_an_import_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: the target must be nobody else's."""
    puts = read_export(exported_from_memory())
    monkeypatch.setattr(transfer, "OPERATIONS_MAX", 2)

    async def story(store: MetadataStore) -> None:
        importing = asyncio.create_task(import_puts(store, puts))
        while not (await store.snapshot("topics/")).items:
            await asyncio.sleep(0)
        await store.commit(puts=[Put("zzz", b"")])
        with pytest.raises(Refused, match="somebody else"):
            await importing

    run(places.memory, story)


def test_a_damaged_export_is_refused_before_anything_is_written() -> None:
    """N4: cut off, edited, of another form, or no export at all."""
    lines = exported_from_memory()
    with pytest.raises(BadExport, match="302 of 303 keys"):
        read_export(lines[:-1])
    with pytest.raises(BadExport, match="checksum"):
        read_export([*lines[:-1], lines[-1].replace("9", "8")])
    with pytest.raises(BadExport, match="newer release"):
        read_export([lines[0].replace('"braid-export": 1', '"braid-export": 2'), *lines[1:]])
    for other in ([], ["x"], ["[]"], ["{}"], ["[" * 100_000]):
        with pytest.raises(BadExport, match="no export"):
            read_export(other)
