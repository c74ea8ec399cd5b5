"""A Kafka client on a simulated machine: one connection, one request at a time, as slow as the network is.

It speaks the real wire. What may have happened or not (no answer in time, a reset) is `Lost`; what the broker
has answered with an error is `Refused`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from tests.sim.loop import VirtualLoop
from tests.sim.network import SimNetwork, SimSocket

from braidmq.wire import header, schema
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from braidmq.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from braidmq.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from braidmq.wire.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from braidmq.wire.primitives import skip_tagged_fields
from braidmq.wire.records import parse_header, records
from braidmq.wire.schema import Message

PATIENCE_S = 2.0
FETCH_BYTES = 20_000
PORT = 9092

R = TypeVar("R", bound=Message)


class Lost(Exception):
    """Nobody knows whether it happened."""


class Refused(Exception):
    """The broker has said no."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)
        self.code = ErrorCode(code)


class Kind(IntEnum):
    """Of coordinators, as FindCoordinator numbers them."""

    GROUP = 0
    TRANSACTION = 1


class Found(NamedTuple):
    """A record that was fetched."""

    offset: int
    value: bytes


class Page(NamedTuple):
    """What a fetch gave of one partition."""

    records: list[Found]
    next_offset: int
    high_watermark: int


class Client:
    """A connection to one broker that is made anew whenever it is lost."""

    def __init__(self, loop: VirtualLoop, network: SimNetwork, machine: str, broker: str) -> None:
        self.machine = machine
        self.broker = broker
        self._loop = loop
        self._network = network.of(machine)
        self._sock: SimSocket | None = None
        self._number = 0

    async def call(self, request: Message, answer: type[R], version: int) -> R:
        """Sends one request and waits for its answer."""
        self._number += 1
        head = header.request(request.api, version, self._number, self.machine)
        body = schema.encode(request, version)
        frame = (len(head) + len(body)).to_bytes(4, "big") + head + body
        try:
            async with asyncio.timeout(PATIENCE_S):
                if self._sock is None:
                    await self._connect()
                await self._send(memoryview(frame))
                found = await self._receive(int.from_bytes(await self._receive(4), "big"))
        except OSError as error:  # a time-out is one, too
            self.close()
            raise Lost(str(error)) from None
        assert int.from_bytes(found[:4], "big") == self._number, "answers come in the order of requests"
        at = 4
        if header.has_response_tags(request.api, version):
            at = skip_tagged_fields(found, at + 1, found[at])
        return schema.decode(answer, version, memoryview(found)[at:])

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    async def _connect(self) -> None:
        self._sock = self._network.connect(self.broker, PORT)
        await self._ready(self._loop.add_writer, self._loop.remove_writer)
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise ConnectionRefusedError(code, "refused")

    async def _send(self, view: memoryview) -> None:
        assert self._sock is not None
        while view:
            try:
                view = view[self._sock.send(view) :]
            except BlockingIOError:
                await self._ready(self._loop.add_writer, self._loop.remove_writer)

    async def _receive(self, size: int) -> bytes:
        assert self._sock is not None
        content = bytearray(size)
        at = 0
        while at < size:
            try:
                count = self._sock.recv_into(memoryview(content)[at:])
            except BlockingIOError:
                await self._ready(self._loop.add_reader, self._loop.remove_reader)
                continue
            if count == 0:
                raise ConnectionResetError("the broker closed the connection")
            at += count
        return bytes(content)

    async def _ready(self, add: Any, remove: Any) -> None:
        assert self._sock is not None
        ready = self._loop.create_future()
        fd = self._sock.fd
        add(fd, lambda: ready.done() or ready.set_result(None))
        try:
            await ready
        finally:
            remove(fd)

    # -- routes: with one broker everything is there -------------------------------------------

    async def to_leader(self, _topic: str, _index: int) -> Client:
        return self

    async def to_coordinator(self, _kind: Kind, _key: str) -> Client:
        return self

    def forget(self) -> None:
        """Whoever it asked was the wrong one: it looks again."""

    # -- verbs ----------------------------------------------------------------------------------

    async def create(self, topic: str, partitions: int) -> bytes:
        """The topic's id; one that is there already is fine."""
        made = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
        answer = await self.call(CreateTopicsRequest(topics=[made]), CreateTopicsResponse, 7)
        check(answer.topics[0].error_code)
        return bytes(answer.topics[0].topic_id)

    async def produce(
        self, topic: str, index: int, batch: bytes, transactional_id: str | None = None, version: int = 12
    ) -> int:
        """The offset of the first record, when all of them are as safe as the topic wants it."""
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=index, records=batch)])
        request = ProduceRequest(
            transactional_id=transactional_id, acks=-1, timeout_ms=int(PATIENCE_S * 1000), topic_data=[data]
        )
        answer = await (await self.to_leader(topic, index)).call(request, ProduceResponse, version)
        result = answer.responses[0].partition_responses[0]
        check(result.error_code)
        return int(result.base_offset)

    async def fetch(self, topic: str, index: int, offset: int, committed: bool, wait_ms: int = 300) -> Page:
        """Whole batches from `offset` on; what is aborted or a marker is left out, as a consumer does."""
        part = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            isolation_level=int(committed),
            topics=[FetchTopic(topic=topic, partitions=[part])],
        )
        answer = await (await self.to_leader(topic, index)).call(request, FetchResponse, 12)
        found = answer.responses[0].partitions[0]
        check(found.error_code)
        aborted = {(one.producer_id, one.first_offset) for one in found.aborted_transactions or ()}
        page = Page([], offset, found.high_watermark)
        return _read(bytes(found.records or b""), page, aborted)

    async def commit(self, group: str, topic: str, index: int, offset: int) -> None:
        part = OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[part])]
        )
        answer = await (await self.to_coordinator(Kind.GROUP, group)).call(request, OffsetCommitResponse, 8)
        check(answer.topics[0].partitions[0].error_code)

    async def committed(self, group: str, topic: str, index: int) -> int:
        """The group's position; -1 if there is none. Waits for no transaction: refused while one is open."""
        wanted = OffsetFetchRequestTopics(name=topic, partition_indexes=[index])
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=[wanted])], require_stable=True
        )
        answer = await (await self.to_coordinator(Kind.GROUP, group)).call(request, OffsetFetchResponse, 8)
        check(answer.groups[0].error_code)
        found = answer.groups[0].topics[0].partitions[0]
        check(found.error_code)
        return int(found.committed_offset)


def check(code: int) -> None:
    if code != ErrorCode.NONE:
        raise Refused(code)


def _batches(content: bytes) -> Iterator[tuple[Any, bytes]]:
    at = 0
    while at + 61 <= len(content):
        head = parse_header(content, at)
        if at + head.size > len(content):
            return
        yield head, content[at : at + head.size]
        at += head.size


def _read(content: bytes, page: Page, aborted: set[tuple[int, int]]) -> Page:
    """Adds the records of a fetch; `aborted` are producers and the first offsets of what they aborted."""
    next_offset = page.next_offset
    ending: dict[int, None] = {}
    for head, batch in _batches(content):
        for producer_id, first in sorted(aborted):
            if first <= head.base_offset:
                ending[producer_id] = None
                aborted.discard((producer_id, first))
        if head.is_control:
            ending.pop(head.producer_id, None)
        elif not (head.is_transactional and head.producer_id in ending):
            for number, record in enumerate(records(memoryview(batch))):
                if head.base_offset + number >= page.next_offset:
                    page.records.append(Found(head.base_offset + number, bytes(record.value or b"")))
        next_offset = max(next_offset, head.next_offset)
    return page._replace(next_offset=next_offset)
