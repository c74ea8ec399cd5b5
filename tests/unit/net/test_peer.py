"""Calls between brokers: over real sockets, to a whole broker."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest

from braidmq.net import peer_link
from braidmq.net.peer import PeerUnavailable, Purpose
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from braidmq.wire.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from unit.net.peers import Directory, called, calling


def test_calls_are_pipelined_and_each_gets_its_own_answer(tmp_path: Path) -> None:
    """N4: many questions at once share one connection for each purpose."""

    async def run() -> None:
        directory = Directory(1)
        async with called(tmp_path, directory) as (_, service), calling(directory) as peers:

            async def make(number: int) -> str:
                topic = CreatableTopic(name=f"t{number}", num_partitions=1, replication_factor=1)
                purpose = Purpose.BULK if number % 2 else Purpose.CONTROL
                made = await peers.call(1, CreateTopicsRequest(topics=[topic]), purpose=purpose)
                assert isinstance(made, CreateTopicsResponse)
                assert made.topics[0].error_code == 0
                return made.topics[0].name

            names = await asyncio.gather(*(make(number) for number in range(20)))
            assert list(names) == [f"t{number}" for number in range(20)]
            assert service._reactor.connection_count == 2

    asyncio.run(run())


def test_a_broker_that_is_not_there_is_said_at_once_and_found_again(tmp_path: Path) -> None:
    """N4: no address, a refused connection, then a broker: calls fail with `sent` false, then succeed."""

    async def run() -> None:
        directory = Directory(1)
        async with calling(directory) as peers:
            with pytest.raises(PeerUnavailable, match="does not run") as gone:
                await peers.call(1, DescribeClusterRequest())
            assert not gone.value.sent
            with socket.socket() as bound:
                bound.bind(("127.0.0.1", 0))
                directory.addresses[1] = bound.getsockname()
            await asyncio.sleep(peer_link.PAUSE_S_MIN)
            with pytest.raises(PeerUnavailable, match="refused") as refused:
                await peers.call(1, DescribeClusterRequest())
            assert not refused.value.sent
            with pytest.raises(PeerUnavailable, match="refused"):
                await peers.call(1, DescribeClusterRequest())
            async with called(tmp_path, directory) as (broker, _):
                await asyncio.sleep(0.2)
                answer = await peers.call(1, DescribeClusterRequest())
                assert isinstance(answer, DescribeClusterResponse)
                assert answer.cluster_id == broker.cluster_id

    asyncio.run(run())


def test_a_broker_without_the_secret_is_refused_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """N4: neither side talks to one that cannot prove itself; both say why, and the caller slows down."""

    async def run() -> None:
        async with called(tmp_path, Directory(1)) as (broker, _):
            directory = Directory(0, cluster_id="another")
            directory.addresses[1] = broker.peers.directory.address_of(1) or ("", 0)
            async with calling(directory) as peers:
                for _ in range(3):
                    with pytest.raises(PeerUnavailable, match="belongs to the cluster 'another'") as failed:
                        await peers.call(1, DescribeClusterRequest())
                    assert not failed.value.sent

    with caplog.at_level(logging.WARNING, "braid.peer"):
        asyncio.run(run())
    assert len([line for line in caplog.messages if "is refused as a broker" in line]) == 1
    assert len([line for line in caplog.messages if "the proof between" in line]) == 1


def test_a_silent_broker_is_left_and_what_was_asked_is_unknown() -> None:
    """N4: no answer in time means `sent`; a connection that stays silent is closed."""

    async def run() -> None:
        ended = asyncio.Event()

        async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.read(1000):
                pass
            ended.set()
            writer.close()

        server = await asyncio.start_server(swallow, "127.0.0.1", 0)
        directory = Directory(1)
        directory.addresses[1] = server.sockets[0].getsockname()
        async with server, calling(directory) as peers:
            with pytest.raises(PeerUnavailable, match=r"did not answer within 0\.2 s") as late:
                await peers.call(1, DescribeClusterRequest(), timeout_s=0.2)
            assert not late.value.sent, "it waited for the proof"
            await peers.close()
            await asyncio.wait_for(ended.wait(), 5)
            with pytest.raises(PeerUnavailable, match="stopping"):
                await peers.call(1, DescribeClusterRequest())

    asyncio.run(run())


def test_a_broker_that_stands_still_is_left_and_found_again(tmp_path: Path) -> None:
    """N4: what was sent and not answered is `sent`: unknown. The silent connection is not used again."""

    async def run() -> None:
        directory = Directory(1)
        async with called(tmp_path, directory) as (_, service), calling(directory) as peers:
            await peers.call(1, DescribeClusterRequest())
            for connection in service._reactor._connections:
                connection._pause()
            with pytest.raises(PeerUnavailable, match=r"did not answer within 0\.2 s") as late:
                await peers.call(1, DescribeClusterRequest(), timeout_s=0.2)
            assert late.value.sent
            assert isinstance(await peers.call(1, DescribeClusterRequest()), DescribeClusterResponse)

    asyncio.run(run())


def test_a_connection_that_breaks_fails_what_is_under_way_and_is_made_again(tmp_path: Path) -> None:
    """N4: a broker that drains closes its connections; the next call connects again."""

    async def run() -> None:
        directory = Directory(1)
        async with calling(directory) as peers:
            async with called(tmp_path / "a", directory):
                await peers.call(1, DescribeClusterRequest())
            with pytest.raises(PeerUnavailable):
                await peers.call(1, DescribeClusterRequest())
            async with called(tmp_path / "b", directory):
                answer = await peers.call(1, DescribeClusterRequest())
                assert isinstance(answer, DescribeClusterResponse)
                assert answer.error_code == ErrorCode.NONE

    asyncio.run(run())


def test_a_new_registration_proves_itself_again(tmp_path: Path) -> None:
    """N4: after a new broker epoch the old connection is not used any more."""

    async def run() -> None:
        directory = Directory(1)
        async with called(tmp_path, directory) as (_, service), calling(directory) as peers:
            await peers.call(1, DescribeClusterRequest())
            directory.epoch = directory.epochs[1] = 9
            await peers.call(1, DescribeClusterRequest())
            for _ in range(100):
                if service._reactor.connection_count == 1:
                    break
                await asyncio.sleep(0.01)
            assert service._reactor.connection_count == 1

    asyncio.run(run())
