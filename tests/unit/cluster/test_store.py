"""The metadata store: commits are whole, durable and found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.cluster import store as store_module
from braidmq.cluster.store import Conflict, Store, StoreCorrupt
from braidmq.platform.disk import RealDisk


def open_store(path: Path) -> Store:
    return Store(RealDisk(), path / "metadata.journal")


def test_what_is_committed_is_there_after_reopening(tmp_path: Path) -> None:
    """N4: metadata survives a restart."""
    store = open_store(tmp_path)
    store.commit({"topics/a": {"partitions": 4}, "topics/b": {"partitions": 1}})
    store.commit({"cluster/id": "x"}, deletes=["topics/a"])
    store.close()
    again = open_store(tmp_path)
    assert list(again.items("topics/")) == [("topics/b", {"partitions": 1})]
    assert again.get("cluster/id") == "x"
    assert again.get("topics/a") is None
    again.close()


def test_a_commit_at_the_wrong_revision_changes_nothing(tmp_path: Path) -> None:
    """N4: a change may demand the revision it was based on."""
    store = open_store(tmp_path)
    store.commit({"leader": 1}, revisions={"leader": 0})
    revision = store.revision("leader")
    store.commit({"leader": 2}, revisions={"leader": revision})
    with pytest.raises(Conflict):
        store.commit({"leader": 3, "other": 1}, revisions={"leader": revision})
    assert store.get("leader") == 2
    assert store.get("other") is None
    store.close()


def test_a_commit_cut_off_at_any_byte_leaves_the_earlier_ones(tmp_path: Path) -> None:
    """L6: a torn tail is dropped, nothing before it is."""
    store = open_store(tmp_path)
    store.commit({"a": 1})
    whole = (tmp_path / "metadata.journal").stat().st_size
    store.commit({"b": 2})
    store.close()
    content = (tmp_path / "metadata.journal").read_bytes()
    for cut in range(whole, len(content)):
        (tmp_path / "metadata.journal").write_bytes(content[:cut])
        again = open_store(tmp_path)
        assert (again.get("a"), again.get("b")) == (1, None)
        again.commit({"c": 3})
        again.close()
        assert open_store(tmp_path).get("c") == 3


def test_a_bit_flipped_anywhere_is_noticed(tmp_path: Path) -> None:
    """L6: damage is never taken for metadata."""
    store = open_store(tmp_path)
    store.commit({"a": 1})
    store.commit({"b": 2})
    store.close()
    content = (tmp_path / "metadata.journal").read_bytes()
    second = content.index(b'{"put":{"b"') - 8
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0x10
        (tmp_path / "metadata.journal").write_bytes(damaged)
        if at < second:
            with pytest.raises(StoreCorrupt, match=r"byte 0 is damaged"):
                open_store(tmp_path)
        else:
            again = open_store(tmp_path)
            assert (again.get("a"), again.get("b")) == (1, None)
            again.close()


def test_the_journal_is_rewritten_when_it_has_outgrown_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N4: the store's size follows what it holds, not how often it changed."""
    monkeypatch.setattr(store_module, "REWRITE_BYTES_MIN", 4096)
    store = open_store(tmp_path)
    for number in range(400):
        store.commit({"counter": number, f"key/{number % 10}": "x" * 20})
    store.close()
    assert (tmp_path / "metadata.journal").stat().st_size < 8192
    again = open_store(tmp_path)
    assert again.get("counter") == 399
    assert len(list(again.items("key/"))) == 10
    again.close()
