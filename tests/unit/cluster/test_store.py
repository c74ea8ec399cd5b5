"""The metadata store: commits are whole, durable and found again."""

from __future__ import annotations

import errno
import json
import random
import struct
from pathlib import Path

import pytest

from braidmq.cluster import store as store_module
from braidmq.cluster.store import Conflict, Store, StoreCorrupt
from braidmq.platform.disk import RealDisk, StrPath
from braidmq.wire.checksum import crc32c
from sim.disk import Crash, SimDisk

SIM_JOURNAL = Path("/data/metadata.journal")


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


def journal_of(path: Path) -> Path:
    return path / "metadata.journal"


def old_entry(change: dict[str, object]) -> bytes:
    """An entry as releases wrote it that did not keep revisions."""
    body = json.dumps(change, separators=(",", ":")).encode()
    return struct.pack(">II", len(body), crc32c(body)) + body


def two_commits(path: Path, second: object = 2) -> tuple[bytes, int]:
    """A journal of two commits, and the byte at which the second begins."""
    store = open_store(path)
    store.commit({"a": 1})
    whole = journal_of(path).stat().st_size
    store.commit({"b": second})
    store.close()
    return journal_of(path).read_bytes(), whole


def test_a_bit_flipped_anywhere_is_reported_as_damage(tmp_path: Path) -> None:
    """L6 N4: also in the last entry, whose commit may have been reported as done."""
    content, second = two_commits(tmp_path)
    for at in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[at] ^= 1 << bit
            journal_of(tmp_path).write_bytes(damaged)
            with pytest.raises(StoreCorrupt, match=f"byte {0 if at < second else second} is damaged"):
                open_store(tmp_path)
            assert journal_of(tmp_path).read_bytes() == damaged


def test_a_bit_flipped_in_a_journal_of_an_older_release_is_reported_as_damage(tmp_path: Path) -> None:
    """L6 N4: those had the same checksum, and no more than that."""
    first = old_entry({"put": {"a": 1}, "delete": []})
    content = first + old_entry({"put": {"b": "see @ 64 here"}, "delete": []})
    for at in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[at] ^= 1 << bit
            journal_of(tmp_path).write_bytes(damaged)
            with pytest.raises(StoreCorrupt, match=f"byte {0 if at < len(first) else len(first)} is damaged"):
                open_store(tmp_path)


def test_a_damaged_last_entry_says_how_to_go_on(tmp_path: Path) -> None:
    """O1 N4: a person has to decide, so the message names both ways."""
    content, _ = two_commits(tmp_path)
    journal_of(tmp_path).write_bytes(content[:-4] + b"XXXX")
    with pytest.raises(StoreCorrupt, match=r"backup.*braid doctor.*--repair"):
        open_store(tmp_path)


@pytest.mark.parametrize("first_bytes", [1, 200, 480, 501, 3000])
def test_a_commit_whose_sectors_reached_the_disk_in_part_leaves_the_earlier_ones(
    tmp_path: Path, first_bytes: int
) -> None:
    """L6: a power loss writes any sectors of an unsynced entry; the others read as zeros."""
    store = open_store(tmp_path)
    store.commit({"a": "x" * first_bytes})
    store.close()
    start = journal_of(tmp_path).stat().st_size
    store = open_store(tmp_path)
    store.commit({"b": "y" * 1800})
    store.close()
    content = journal_of(tmp_path).read_bytes()
    sectors = range(start // 512, (len(content) + 511) // 512)
    for lost in range(1, 2 ** len(sectors)):
        image = bytearray(content)
        for number, sector in enumerate(sectors):
            if lost >> number & 1:
                begin, end = max(sector * 512, start), min(sector * 512 + 512, len(content))
                image[begin:end] = bytes(end - begin)
        journal_of(tmp_path).write_bytes(image)
        again = open_store(tmp_path)
        assert (again.get("a"), again.get("b")) == ("x" * first_bytes, None)
        again.commit({"c": 3})
        again.close()
        again = open_store(tmp_path)
        assert again.get("c") == 3
        again.close()


@pytest.mark.parametrize("zeros", [1, 3, 8, 4096])
def test_a_tail_of_zeros_is_cut_off(tmp_path: Path, zeros: int) -> None:
    """L6: a power loss may leave a file longer than what was written to it."""
    content, _ = two_commits(tmp_path)
    journal_of(tmp_path).write_bytes(content + bytes(zeros))
    again = open_store(tmp_path)
    assert again.get("b") == 2
    again.close()
    assert journal_of(tmp_path).read_bytes() == content


def test_a_torn_entry_does_not_excuse_damage_to_the_one_before(tmp_path: Path) -> None:
    """L6 N4: the entry before the torn one was reported as done."""
    content, second = two_commits(tmp_path)
    damaged = bytearray(content + b"\x00\x00\x01\x00torn" + bytes(100))
    damaged[second + 12] ^= 1
    journal_of(tmp_path).write_bytes(damaged)
    with pytest.raises(StoreCorrupt, match=f"byte {second} is damaged"):
        open_store(tmp_path)


def test_revisions_survive_reopening_and_rewriting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: a demand on a revision means the same after a restart."""
    store = open_store(tmp_path)
    store.commit({"old": 1})
    for number in range(5):
        store.commit({"young": number})
    before = (store.revision("old"), store.revision("young"))
    store.close()
    monkeypatch.setattr(store_module, "REWRITE_BYTES_MIN", 1)
    monkeypatch.setattr(store_module, "REWRITE_FACTOR", 0)
    store = open_store(tmp_path)
    assert (store.revision("old"), store.revision("young")) == before == (1, 6)
    store.commit({"other": "x" * 100}, deletes=["young"])
    store.close()
    again = open_store(tmp_path)
    assert (again.revision("old"), again.revision("other"), again.revision("young")) == (1, 7, 0)
    again.commit({"young": 9})
    assert again.revision("young") == 8
    again.close()


def test_a_journal_of_an_older_release_opens(tmp_path: Path) -> None:
    """N4: its revisions are counted, as it counted them."""
    journal_of(tmp_path).write_bytes(
        old_entry({"put": {"a": 1, "b": 2}, "delete": []}) + old_entry({"put": {"a": 3}, "delete": ["b"]})
    )
    store = open_store(tmp_path)
    assert (store.get("a"), store.revision("a"), store.get("b")) == (3, 2, None)
    store.commit({"c": 1})
    store.close()
    again = open_store(tmp_path)
    assert (again.get("a"), again.revision("a"), again.revision("c")) == (3, 2, 3)
    again.close()


def data_disk() -> SimDisk:
    disk = SimDisk()
    disk.makedirs("/data")
    disk.sync_directory("/")
    return disk


def swollen(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store that wants to rewrite its journal with the next commit."""
    store = Store(disk, SIM_JOURNAL)
    for number in range(20):
        store.commit({"a": number})
    monkeypatch.setattr(store_module, "REWRITE_BYTES_MIN", 1)
    return store


def test_a_rewrite_that_fails_fails_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: the commit is durable in the old journal, which stays in use."""
    disk = data_disk()
    store = swollen(disk, monkeypatch)
    disk.failing_sync = disk.syncs + 2  # the first is the commit's own
    store.commit({"a": "kept"})
    assert store.get("a") == "kept"
    store.commit({"b": 1})
    store.close()
    again = Store(disk.crash(Crash.LOST, random.Random(1)), SIM_JOURNAL)
    assert (again.get("a"), again.get("b")) == ("kept", 1)


def test_a_rewrite_whose_directory_cannot_be_synced_stops_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: a crash could bring either journal back, so neither may grow."""
    disk = data_disk()
    store = swollen(disk, monkeypatch)

    def refuse(path: StrPath) -> None:
        raise OSError(errno.EIO, f"planted: {path}")

    monkeypatch.setattr(disk, "sync_directory", refuse)
    store.commit({"a": "kept"})
    with pytest.raises(OSError, match="takes no more changes"):
        store.commit({"b": 1})
    assert (store.get("a"), store.get("b")) == ("kept", None)
    for crash in Crash:
        again = Store(disk.crash(crash, random.Random(1)), SIM_JOURNAL)
        assert (again.get("a"), again.get("b")) == ("kept", None)


def test_a_commit_that_cannot_be_taken_back_stops_the_store() -> None:
    """N4: what follows garbage would be lost at the next start."""
    disk = data_disk()
    store = Store(disk, SIM_JOURNAL)
    store.commit({"a": 1})
    disk.room_bytes = 10
    disk.truncate_fails = True
    with pytest.raises(OSError, match="no space"):
        store.commit({"b": "x" * 100})
    disk.room_bytes = None
    disk.truncate_fails = False
    with pytest.raises(OSError, match="takes no more changes"):
        store.commit({"c": 1})
    again = Store(disk, SIM_JOURNAL)
    assert (again.get("a"), again.get("b"), again.get("c")) == (1, None, None)


def test_a_commit_refused_by_a_full_disk_leaves_the_store_usable() -> None:
    """N4: nothing of it remains, and there is room again later."""
    disk = data_disk()
    store = Store(disk, SIM_JOURNAL)
    disk.room_bytes = 10
    with pytest.raises(OSError, match="no space"):
        store.commit({"b": "x" * 100})
    disk.room_bytes = None
    store.commit({"c": 1})
    again = Store(disk.crash(Crash.LOST, random.Random(1)), SIM_JOURNAL)
    assert (again.get("b"), again.get("c")) == (None, 1)


@pytest.mark.parametrize("crash", Crash)
def test_a_power_loss_during_any_step_keeps_every_commit_reported_as_done(
    crash: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L6 N4: commits and rewrites cut off after each operation of the disk."""
    monkeypatch.setattr(store_module, "REWRITE_BYTES_MIN", 600)
    disk = data_disk()
    chance = random.Random(7)
    images: list[tuple[SimDisk, int]] = []
    done = 0
    disk.on_operation = lambda _: images.append((disk.crash(crash, chance), done))
    store = Store(disk, SIM_JOURNAL)
    for number in range(1, 60):
        store.commit({"a": number, f"b/{number % 3}": "x" * chance.randint(0, 40)})
        done = number
    assert len(images) > 120
    for image, known in images:
        again = Store(image, SIM_JOURNAL)
        found = again.get("a") or 0
        assert known <= found <= known + 1
        assert again.revision("a") == found


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
