"""Fetch through a session of the Kafka face: waiting, limits, incremental sessions, errors."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from braidmq.broker.broker import Broker
from braidmq.broker.replica import Replica
from braidmq.faces.kafka.face import KafkaFace
from braidmq.faces.kafka.session import KafkaSession
from braidmq.log.files import FileSlice
from braidmq.net.connection import Connection, PendingReply
from braidmq.net.outbox import Parts
from braidmq.wire import header, schema
from braidmq.wire.api import Api
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from unit.embedded import append, embedded

VERSION = 12


class Client:
    """Speaks Fetch to a session, as bytes in and parts out."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.face = KafkaFace(broker)
        self._session = KafkaSession(
            self.face, cast(Connection, SimpleNamespace(peer="127.0.0.1", last_active=0.0))
        )

    def send(self, **request: object) -> Parts | PendingReply | None:
        message = FetchRequest(**request)  # type: ignore[arg-type]
        body = header.request(Api.FETCH, VERSION, 7, "test") + schema.encode(message, VERSION)
        return self._session.on_frame(memoryview(bytearray(struct.pack(">i", len(body)) + body)))

    async def fetch(self, **request: object) -> FetchResponse:
        answer = self.send(**request)
        if isinstance(answer, PendingReply):
            for _ in range(500):
                if answer.done:
                    break
                await asyncio.sleep(0.01)
            answer = answer.parts
        assert answer is not None
        return response(cast(Parts, answer))


def response(parts: Parts) -> FetchResponse:
    whole = b""
    for part in parts:
        if isinstance(part, FileSlice):
            whole += part.read()
            part.release()
        else:
            whole += bytes(cast(bytes, part))
    assert struct.unpack_from(">i", whole)[0] == len(whole) - 4
    return schema.decode(FetchResponse, VERSION, whole[9:])


def wanted(*offsets: int, topic: str = "t", max_bytes: int = 1 << 20, epoch: int = -1) -> list[FetchTopic]:
    parts = [
        FetchPartition(
            partition=index, fetch_offset=offset, partition_max_bytes=max_bytes, current_leader_epoch=epoch
        )
        for index, offset in enumerate(offsets)
    ]
    return [FetchTopic(topic=topic, partitions=parts)]


def results(answer: FetchResponse) -> dict[int, PartitionData]:
    return {part.partition_index: part for topic in answer.responses for part in topic.partitions}


@asynccontextmanager
async def client(
    tmp_path: Path, partitions: int = 2, **config: str
) -> AsyncIterator[tuple[Client, list[Replica]]]:
    async with embedded(tmp_path) as broker:
        topic = await broker.topics.create("t", partitions, {"flush": "async", **config})
        yield Client(broker), list(topic.held.values())


def put(partition: Replica, value: bytes, count: int = 1) -> None:
    append(partition, value, 1_700_000_000_000, count)


def test_a_fetch_waits_for_the_first_record(tmp_path: Path) -> None:
    """C1: long poll: no busy wait, no added delay."""

    async def run() -> None:
        async with client(tmp_path) as (speaker, partitions):
            answer = speaker.send(topics=wanted(0, 0), max_wait_ms=60_000, min_bytes=1, max_bytes=1 << 20)
            assert isinstance(answer, PendingReply)
            await asyncio.sleep(0.02)
            assert not answer.done
            put(partitions[1], b"hello")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert answer.parts is not None
            got = results(response(answer.parts))
            assert b"hello" in bytes(got[1].records or b"")
            assert (got[0].high_watermark, got[1].high_watermark) == (0, 1)
            assert not speaker.face.waiting_fetches

    asyncio.run(run())


def test_a_fetch_waits_until_min_bytes_or_its_time_is_over(tmp_path: Path) -> None:
    """C1: min_bytes is waited for, but not past max_wait_ms."""

    async def run() -> None:
        async with client(tmp_path) as (speaker, partitions):
            answer = speaker.send(topics=wanted(0, 0), max_wait_ms=60_000, min_bytes=2000, max_bytes=1 << 20)
            assert isinstance(answer, PendingReply)
            for number in range(2):
                put(partitions[number], b"x" * 900)
                await asyncio.sleep(0.01)
                assert not answer.done
            put(partitions[0], b"x" * 900)
            await asyncio.sleep(0.01)
            assert answer.parts is not None
            response(answer.parts)
            late = await speaker.fetch(topics=wanted(2, 1), max_wait_ms=50, min_bytes=1, max_bytes=1 << 20)
            assert all(not part.records for part in results(late).values())

    asyncio.run(run())


def test_an_abandoned_wait_leaves_nothing_behind(tmp_path: Path) -> None:
    """W4: a client that goes away while it waits is forgotten at once."""

    async def run() -> None:
        async with client(tmp_path) as (speaker, partitions):
            answer = speaker.send(
                topics=wanted(0, 0), max_wait_ms=60_000, min_bytes=10_000, max_bytes=1 << 20
            )
            assert isinstance(answer, PendingReply)
            put(partitions[0], b"x")
            await asyncio.sleep(0.01)
            answer.abandon()
            assert not speaker.face.waiting_fetches

    asyncio.run(run())


def test_the_whole_answer_stays_within_max_bytes_but_never_below_one_batch(tmp_path: Path) -> None:
    """C1: a batch larger than the limits is still delivered, one at a time."""

    async def run() -> None:
        async with client(tmp_path) as (speaker, partitions):
            put(partitions[0], b"a" * 5000)
            put(partitions[1], b"b" * 5000)
            answer = await speaker.fetch(topics=wanted(0, 0), max_wait_ms=0, min_bytes=1, max_bytes=100)
            got = results(answer)
            assert len(bytes(got[0].records or b"")) > 5000
            assert not got[1].records

    asyncio.run(run())


def test_a_session_answers_only_what_is_new(tmp_path: Path) -> None:
    """C1: incremental fetch sessions (KIP-227)."""

    async def run() -> None:
        async with client(tmp_path, 3) as (speaker, partitions):
            put(partitions[0], b"zero")
            first = await speaker.fetch(topics=wanted(0, 0, 0), max_bytes=1 << 20, session_epoch=0)
            assert first.session_id != 0
            assert set(results(first)) == {0, 1, 2}
            put(partitions[2], b"two")
            moved = [FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1000)]
            second = await speaker.fetch(
                topics=[FetchTopic(topic="t", partitions=moved)],
                max_bytes=1 << 20, session_id=first.session_id, session_epoch=1,
            )  # fmt: skip
            assert set(results(second)) == {2}
            stale = await speaker.fetch(topics=[], session_id=first.session_id, session_epoch=1)
            assert stale.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
            unknown = await speaker.fetch(topics=[], session_id=first.session_id + 1, session_epoch=5)
            assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    asyncio.run(run())


def test_errors_are_told_per_partition_and_at_once(tmp_path: Path) -> None:
    """W5: one bad partition does not spoil the others, and the client does not wait for it."""

    async def run() -> None:
        async with client(tmp_path, 1) as (speaker, partitions):
            put(partitions[0], b"x")
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for topics, expected in (
                (wanted(5), ErrorCode.OFFSET_OUT_OF_RANGE),
                (wanted(0, topic="nope"), code),
                (wanted(0, epoch=5), ErrorCode.UNKNOWN_LEADER_EPOCH),
            ):
                answer = speaker.send(topics=topics, max_wait_ms=60_000, min_bytes=1, max_bytes=1000)
                assert not isinstance(answer, PendingReply)
                assert results(response(cast(Parts, answer)))[0].error_code == expected

    asyncio.run(run())


def test_a_client_cannot_pose_as_a_replica(tmp_path: Path) -> None:
    """O5: a replica's fetch needs a broker's rights (Kafka CVE-2018-1288)."""

    async def run() -> None:
        async with client(tmp_path, 1) as (speaker, _):
            answer = await speaker.fetch(topics=wanted(0), replica_id=2, max_bytes=1000)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    asyncio.run(run())


def test_deleting_a_topic_wakes_its_readers(tmp_path: Path) -> None:
    """C1: nobody waits on a topic that is gone."""

    async def run() -> None:
        async with client(tmp_path, 1) as (speaker, _):
            answer = speaker.send(topics=wanted(0), max_wait_ms=60_000, min_bytes=1, max_bytes=1000)
            assert isinstance(answer, PendingReply)
            await speaker.broker.topics.delete("t")
            await asyncio.sleep(0.01)
            assert answer.parts is not None
            assert results(response(answer.parts))[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(run())
