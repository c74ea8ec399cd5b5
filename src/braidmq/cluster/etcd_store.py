"""The metadata store in etcd: for clusters of several machines.

Only this module imports gRPC; the messages are those of `aetcd.rpc`, the shell around them is ours. What it
takes care of:

- Each endpoint has a channel of its own, and we choose among them, so that nothing sticks to a dead one. A
  commit goes out on a channel that is connected, once; whatever then happens to it that is not a clear
  answer makes it `Unknown`.
- `hasleader` goes with every call: without it a watch on a member that is cut off hangs for ever.
- gRPC pings every 10 s: etcd closes connections that ping oftener than every 5 s.
- A watch that has seen nothing for 6 s (the controller's `tick` comes every 2 s) is opened at another
  endpoint. Progress notifications are not relied on: in versions people run they are wrong or missing (etcd
  issues 15220 and 17507).
- A watch is opened *at* its last revision and drops what it has seen. etcd calls a watch compacted that
  starts below the compacted revision, and one that starts right at it may miss a deletion; like this, it is
  `Lost` whenever its last revision is.
- `StoreFull` counts as Unknown: etcd answers NOSPACE to the commit that fills it, after applying it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import groupby
from typing import Any

import grpc
from aetcd import rpc

from braidmq.cluster.etcd_address import EtcdAddress
from braidmq.cluster.etcd_errors import FULL, NO_LEADER, Fate, explain, fate, final_error, version_warning
from braidmq.cluster.metadata_store import (
    Change,
    Compare,
    Conflict,
    Event,
    Expired,
    Item,
    Lease,
    Lost,
    ModRevision,
    Put,
    Snapshot,
    StoreClosed,
    Unavailable,
    Unknown,
    ValueIs,
    Watch,
    check_commit,
    check_key,
    check_prefix,
    check_ttl,
)

PAGE_ITEMS = 1000
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
WATCH_SILENCE_S_MAX = 6.0
CONNECT_PAUSE_S = 0.02
PAUSE_S = 0.1
EXAMINE_S_MAX = 2.0
SNAPSHOT_TRIES = 5
CHANNEL_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
)

log = logging.getLogger("braid.store")


class EtcdStore:
    """A metadata store under a prefix of an etcd cluster. `start` it before use; `close` it at the end."""

    kind = "etcd"

    def __init__(self, address: EtcdAddress) -> None:
        self.address = address
        self._root = address.prefix.encode()
        self.endpoints: list[_Endpoint] = []
        self.preferred = 0
        self._password = ""
        self._token: str | None = None
        self._token_lock = asyncio.Lock()
        self.watches: dict[EtcdWatch, None] = {}
        self._examining: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Reads the credentials and begins to look at the endpoints; requests wait for a connection."""
        address = self.address
        credentials = _credentials(address) if address.tls else None
        self.endpoints = [_Endpoint(str(each), credentials) for each in address.endpoints]
        if address.password_file is not None:
            self._password = address.password_file.read_text().rstrip("\r\n")
            if not address.tls:
                log.warning("the password for etcd is sent without TLS")
        self._examining = asyncio.get_running_loop().create_task(self._warn(), name="etcd-versions")

    async def close(self) -> None:
        for watch in list(self.watches):
            await watch.close()
        if self._examining is not None:
            self._examining.cancel()
            await asyncio.gather(self._examining, return_exceptions=True)
        endpoints, self.endpoints = self.endpoints, []
        for endpoint in endpoints:
            await endpoint.channel.close()

    # -- the interface --------------------------------------------------------------------------

    async def get(self, key: str) -> Item | None:
        check_key(key)
        found = await self._ask(lambda at: at.kv.Range, rpc.RangeRequest(key=self._key(key)))
        return self.item(found.kvs[0]) if found.kvs else None

    async def snapshot(self, prefix: str) -> Snapshot:
        check_prefix(prefix)
        for _ in range(SNAPSHOT_TRIES):
            try:
                return await self._read_pages(prefix)
            except _Compacted:
                # Somebody compacted the revision that was being read: a newer one will do.
                continue
        raise Unavailable(f"revisions of etcd were compacted while they were read, {SNAPSHOT_TRIES} times")

    async def _read_pages(self, prefix: str) -> Snapshot:
        start, end = self.range_of(prefix)
        limit = PAGE_ITEMS
        revision = 0
        items: list[Item] = []
        while True:
            request = rpc.RangeRequest(key=start, range_end=end, limit=limit, revision=revision)
            try:
                page = await self._ask(lambda at: at.kv.Range, request)
            except _TooLarge:
                if limit == 1:
                    raise Unavailable(f"etcd holds a value of more than {MESSAGE_BYTES_MAX} bytes") from None
                limit //= 2
                continue
            revision = revision or page.header.revision
            items.extend(self.item(found) for found in page.kvs)
            if not page.more:
                return Snapshot(revision, tuple(items))
            start = page.kvs[-1].key + b"\x00"

    async def commit(
        self, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        check_commit(compares, puts, deletes)
        operations = [rpc.RequestOp(request_put=self._put(put)) for put in puts]
        for key in deletes:
            delete = rpc.DeleteRangeRequest(key=self._key(key))
            operations.append(rpc.RequestOp(request_delete_range=delete))
        request = rpc.TxnRequest(compare=[self._compare(each) for each in compares], success=operations)
        answer = await self._ask(lambda at: at.kv.Txn, request, once=True)
        if not answer.succeeded:
            raise Conflict("a key is not as the commit demands")
        return int(answer.header.revision)

    def watch(self, prefix: str, after_revision: int) -> Watch:
        check_prefix(prefix)
        watch = EtcdWatch(self, prefix, after_revision)
        self.watches[watch] = None
        return watch

    async def lease(self, ttl_s: int) -> Lease:
        check_ttl(ttl_s)
        granted = await self._ask(lambda at: at.lease.LeaseGrant, rpc.LeaseGrantRequest(TTL=ttl_s))
        return Lease(int(granted.ID), int(granted.TTL))

    async def renew(self, lease_id: int) -> int:
        def method(at: _Endpoint) -> Callable[..., Any]:
            return lambda request, **call: _ask_stream(at.lease.LeaseKeepAlive(**call), request)

        renewed = await self._ask(method, rpc.LeaseKeepAliveRequest(ID=lease_id))
        if renewed.TTL <= 0:
            raise Expired(f"lease {lease_id:x} has ended")
        return int(renewed.TTL)

    async def revoke(self, lease_id: int) -> None:
        with contextlib.suppress(Expired):
            await self._ask(lambda at: at.lease.LeaseRevoke, rpc.LeaseRevokeRequest(ID=lease_id))

    async def compact(self, revision: int) -> None:
        with contextlib.suppress(_Compacted):
            await self._ask(lambda at: at.kv.Compact, rpc.CompactionRequest(revision=revision))

    # -- asking ---------------------------------------------------------------------------------

    async def _ask(
        self, method: Callable[[_Endpoint], Callable[..., Any]], request: Any, once: bool = False
    ) -> Any:
        """Asks endpoints in turn until one answers. With `once`, not again if it may have been done."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.address.timeout_s
        why = "no endpoint can be reached"
        tries_of_token = 0
        while (left := deadline - loop.time()) > 0:
            endpoint = await self.connected(self.preferred, deadline)
            # A commit has all the time there is; anything else may be asked of another endpoint as well.
            patience = left if once else min(left, max(self.address.timeout_s / 3, 1.0))
            sent = False
            try:
                metadata = await self.metadata(endpoint)
                sent = once
                answer = await method(endpoint)(request, timeout=patience, metadata=metadata)
                if answer is not grpc.aio.EOF:
                    return answer
                code, text = "UNAVAILABLE", "the stream was closed without an answer"
            except grpc.aio.AioRpcError as error:
                code, text = error.code().name, error.details() or ""
            except grpc.aio.UsageError:
                raise StoreClosed("the metadata store was closed before a request") from None
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                raise StoreClosed("the metadata store was closed during a request") from None
            meaning = fate(code, text)
            why = explain(code, text)
            if meaning is Fate.COMPACTED:
                raise _Compacted
            if meaning is Fate.TOO_LARGE and not once:
                raise _TooLarge
            if meaning is Fate.FINAL:
                raise final_error(code, text)
            if sent and meaning in (Fate.UNSURE, Fate.TOO_LARGE):
                self.avoid(endpoint)
                raise Unknown(f"no clear answer to a commit from etcd at {endpoint.name}: {why}")
            if meaning is Fate.NEW_TOKEN and tries_of_token < 2:
                tries_of_token += 1
                self.forget_token()
                continue
            self.avoid(endpoint)
            await asyncio.sleep(PAUSE_S)
        raise Unavailable(f"etcd does not answer: {why}")

    async def connected(self, first: int, deadline: float | None) -> _Endpoint:
        """An endpoint with a connection, the given one if it has; `Unavailable` if none has in time."""
        loop = asyncio.get_running_loop()
        while self.endpoints:
            # None is waited for while another is connected: one may swallow everything that is sent to it.
            first %= len(self.endpoints)
            for endpoint in (*self.endpoints[first:], *self.endpoints[:first]):
                if endpoint.is_connected():
                    return endpoint
            if deadline is not None and loop.time() >= deadline:
                names = ", ".join(endpoint.name for endpoint in self.endpoints)
                raise Unavailable(f"etcd cannot be reached at {names}")
            await asyncio.sleep(CONNECT_PAUSE_S)
        raise StoreClosed("the metadata store is closed")

    def avoid(self, endpoint: _Endpoint) -> None:
        """Asks another one first from now on."""
        if self.endpoints and self.endpoints[self.preferred % len(self.endpoints)] is endpoint:
            self.preferred = (self.preferred + 1) % len(self.endpoints)

    async def metadata(self, endpoint: _Endpoint) -> tuple[tuple[str, str], ...]:
        user = self.address.user
        if user is None:
            return (("hasleader", "true"),)
        async with self._token_lock:
            if self._token is None:
                request = rpc.AuthenticateRequest(name=user, password=self._password)
                answer = await endpoint.auth.Authenticate(request, timeout=self.address.timeout_s)
                self._token = answer.token
            return (("hasleader", "true"), ("token", self._token))

    def forget_token(self) -> None:
        self._token = None

    # -- what people should know ----------------------------------------------------------------

    async def examine(self) -> list[str]:
        """What is wrong with the endpoints: out of reach, without a leader, full, of a dangerous version."""
        found = await asyncio.gather(*(self._examine(endpoint) for endpoint in self.endpoints))
        return [complaint for complaints in found for complaint in complaints]

    async def _examine(self, endpoint: _Endpoint) -> list[str]:
        try:
            metadata = (await self.metadata(endpoint))[1:]
            request, timeout = rpc.StatusRequest(), EXAMINE_S_MAX
            status = await endpoint.maintenance.Status(request, timeout=timeout, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            reason = explain(error.code().name, error.details() or "")
            return [f"etcd at {endpoint.name} does not answer: {reason}"]
        complaints = [warning] if (warning := version_warning(endpoint.name, status.version)) else []
        if not status.leader:
            complaints.append(f"{NO_LEADER}, seen from {endpoint.name}")
        if any("NOSPACE" in error for error in status.errors):
            complaints.append(FULL)
        return complaints

    async def _warn(self) -> None:
        for complaint in await self.examine():
            log.warning("%s", complaint)

    # -- keys -----------------------------------------------------------------------------------

    def _key(self, key: str) -> bytes:
        return self._root + key.encode()

    def range_of(self, prefix: str) -> tuple[bytes, bytes]:
        start = self._key(prefix)
        # The root ends with a slash, and UTF-8 has no byte 255: the last one can always be one more.
        return start, start[:-1] + bytes([start[-1] + 1])

    def key_of(self, key: bytes) -> str:
        return key[len(self._root) :].decode("utf-8", "backslashreplace")

    def item(self, found: Any) -> Item:
        key = self.key_of(found.key)
        return Item(key, found.value, found.create_revision, found.mod_revision, found.lease)

    def _put(self, put: Put) -> Any:
        return rpc.PutRequest(key=self._key(put.key), value=put.value, lease=put.lease)

    def _compare(self, compare: Compare) -> Any:
        key = self._key(compare.key)
        if isinstance(compare, ValueIs):
            return rpc.Compare(key=key, target=rpc.Compare.VALUE, value=compare.value)
        if isinstance(compare, ModRevision):
            return rpc.Compare(key=key, target=rpc.Compare.MOD, mod_revision=compare.revision)
        return rpc.Compare(key=key, target=rpc.Compare.CREATE, create_revision=compare.revision)


class EtcdWatch:
    """A watch that outlives streams, endpoints and tokens."""

    def __init__(self, store: EtcdStore, prefix: str, after_revision: int) -> None:
        self._store = store
        self._range = store.range_of(prefix)
        self._position = after_revision
        """Changes up to this revision were handed out or are waiting here."""
        self._changes: deque[Change] = deque()
        self._unfinished: list[Any] = []
        """Events of a revision whose rest is in the next message."""
        self._stream: Any = None
        self._endpoint: _Endpoint | None = None
        self._first = store.preferred
        self._closed = False

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    async def __anext__(self) -> Change:
        while not self._closed:
            if self._changes:
                return self._changes.popleft()
            await self._receive()
        raise StopAsyncIteration

    async def close(self) -> None:
        self._closed = True
        self._store.watches.pop(self, None)
        self._drop_stream()

    async def _receive(self) -> None:
        """Takes the next message, on a stream that is opened if there is none."""
        try:
            if self._stream is None:
                self._stream = await self._open()
            async with asyncio.timeout(WATCH_SILENCE_S_MAX):
                answer = await self._stream.read()
        except grpc.aio.AioRpcError as error:
            code, text = error.code().name, error.details() or ""
            meaning = fate(code, text)
            if meaning is Fate.FINAL:
                raise final_error(code, text) from None
            if meaning is Fate.NEW_TOKEN:
                self._store.forget_token()
            log.info("a watch of etcd is opened again: %s", explain(code, text))
            await self._leave_endpoint()
        except grpc.aio.UsageError:
            raise StoreClosed("the metadata store is closed") from None
        except TimeoutError:
            log.info("a watch of etcd was silent for %g s and is opened elsewhere", WATCH_SILENCE_S_MAX)
            await self._leave_endpoint()
        except asyncio.CancelledError:
            # A read that is cancelled takes its stream with it; the next one opens another.
            self._drop_stream()
            if _is_cancelled():
                raise
        else:
            if answer is grpc.aio.EOF:
                await self._leave_endpoint()
            elif answer.canceled:
                await self._canceled(answer)
            else:
                self._take(answer)

    async def _open(self) -> Any:
        self._unfinished.clear()
        self._endpoint = endpoint = await self._store.connected(self._first, None)
        stream = endpoint.watch.Watch(metadata=await self._store.metadata(endpoint))
        key, end = self._range
        create = rpc.WatchCreateRequest(
            key=key, range_end=end, start_revision=max(1, self._position), fragment=True
        )
        await stream.write(rpc.WatchRequest(create_request=create))
        return stream

    async def _canceled(self, answer: Any) -> None:
        if answer.compact_revision:
            raise Lost(int(answer.compact_revision))
        reason = answer.cancel_reason
        if "permission denied" in reason:
            raise final_error("PERMISSION_DENIED", reason)
        if fate("UNAVAILABLE", reason) is Fate.NEW_TOKEN:
            self._store.forget_token()
        await self._leave_endpoint()

    def _take(self, answer: Any) -> None:
        self._unfinished.extend(answer.events)
        ready, self._unfinished = self._unfinished, []
        if answer.fragment and ready:
            newest = ready[-1].kv.mod_revision
            self._unfinished = [event for event in ready if event.kv.mod_revision == newest]
            ready = [event for event in ready if event.kv.mod_revision != newest]
        for revision, found in groupby(ready, key=lambda event: int(event.kv.mod_revision)):
            if revision > self._position:
                self._position = revision
                self._changes.append(Change(revision, tuple(sorted(self._event(each) for each in found))))

    def _event(self, found: Any) -> Event:
        if found.type == rpc.Event.DELETE:
            return Event(self._store.key_of(found.kv.key), None)
        item = self._store.item(found.kv)
        return Event(item.key, item)

    async def _leave_endpoint(self) -> None:
        self._drop_stream()
        if self._endpoint in self._store.endpoints:
            self._first = self._store.endpoints.index(self._endpoint) + 1
        await asyncio.sleep(PAUSE_S)

    def _drop_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()


class _Endpoint:
    """A member of etcd: its channel, and what can be asked on it."""

    def __init__(self, name: str, credentials: Any) -> None:
        self.name = name
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(name, CHANNEL_OPTIONS)
        else:
            self.channel = grpc.aio.secure_channel(name, credentials, CHANNEL_OPTIONS)
        self.auth = rpc.AuthStub(self.channel)
        self.kv = rpc.KVStub(self.channel)
        self.lease = rpc.LeaseStub(self.channel)
        self.maintenance = rpc.MaintenanceStub(self.channel)
        self.watch = rpc.WatchStub(self.channel)

    def is_connected(self) -> bool:
        """Begins to connect if it is not."""
        return bool(self.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY)


class _Compacted(Exception):
    """A request names a revision that is gone."""


class _TooLarge(Exception):
    """An answer is larger than a message may be."""


def _is_cancelled() -> bool:
    """Whether it is us who are cancelled: gRPC raises the same for a call that was."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _ask_stream(stream: Any, request: Any) -> Any:
    """One question and its answer on a stream of its own."""
    try:
        await stream.write(request)
        return await stream.read()
    finally:
        stream.cancel()


def _credentials(address: EtcdAddress) -> Any:
    ca, cert, key = (path and path.read_bytes() for path in (address.ca, address.cert, address.key))
    return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)
