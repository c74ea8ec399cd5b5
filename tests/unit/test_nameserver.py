"""A name server and brokers that register with it, in this process, with real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from braidmq.address import parse_address
from braidmq.broker.broker import Broker
from braidmq.cli import main
from braidmq.client import Admin, Cluster, Consumer, Producer
from braidmq.client.connection import Connection
from braidmq.cluster.cluster_key import ClusterKey
from braidmq.config import configure
from braidmq.faces.kafka.name_servers import NAME_SERVER, Towards
from braidmq.nameserver import NameServerProcess, Options, ServedStoreOptions
from braidmq.net.peer import Peers, PeerUnavailable
from braidmq.platform.network import SocketNetwork
from braidmq.serve import Service
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from braidmq.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from braidmq.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from braidmq.wire.messages.name_server import NameServerHeartbeatRequest, NameServerHeartbeatResponse
from unit.embedded import started
from unit.net.peers import Directory

KEY = ClusterKey("one", b"a secret of thirty-two bytes, no less")


@contextlib.asynccontextmanager
async def name_server(data: Path, key: ClusterKey = KEY, port: int = 0) -> AsyncIterator[NameServerProcess]:
    data.mkdir(exist_ok=True)
    (data / "given").write_text(key.text())
    options = Options(configure({}), data, parse_address(f"127.0.0.1:{port}"), key_file=data / "given")
    async with contextlib.AsyncExitStack() as stack:
        running = NameServerProcess(options)
        await running.start(stack)
        yield running


def address(running: NameServerProcess) -> str:
    return running.line.split()[1]


@contextlib.asynccontextmanager
async def broker(data: Path, **options: object) -> AsyncIterator[tuple[Broker, Service]]:
    running = await started(data, **options)
    service = Service(running, SocketNetwork())
    try:
        await service.listen(("127.0.0.1", 0))
        yield running, service
    finally:
        await service.drain()
        await running.stop()


def key_of(running: Broker) -> ClusterKey:
    return ClusterKey(running.cluster_id, bytes.fromhex(running.metadata.image.secret or ""))


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


def ask(where: str, request: Any, answer: Any) -> Awaitable[Any]:
    def call() -> Any:
        with Connection(parse_address(where)) as connection:
            return connection.call(request, answer)

    return asyncio.to_thread(call)


async def beat(directory: Directory, where: str, **fields: Any) -> NameServerHeartbeatResponse:
    peers = Peers(SocketNetwork(), Towards(directory, parse_address(where)))
    try:
        answer = await peers.call(NAME_SERVER, NameServerHeartbeatRequest(host="h", port=9, **fields))
        assert isinstance(answer, NameServerHeartbeatResponse)
        return answer
    finally:
        await peers.close()


def test_clients_find_brokers_topics_and_coordinators_there(tmp_path: Path) -> None:
    """N1 N2: what a broker registers, and every later change, is what clients are answered."""

    async def story() -> None:
        async with (
            broker(tmp_path / "b") as (running, _),
            name_server(tmp_path / "n", key_of(running)) as server,
        ):
            where = address(server)
            await running.topics.create("first", 2, {})
            await running.options.reconfigure("", {"nameservers": where})
            await until(lambda: "first" in server.known.topics)
            await running.topics.create("second", 3, {})
            await until(lambda: "second" in server.known.topics)
            found = await ask(where, MetadataRequest(topics=None), MetadataResponse)
            host, port = running.metadata.image.brokers[1].alive.record.listeners[0][1:]
            assert [(one.node_id, one.host, one.port) for one in found.brokers] == [(1, host, port)]
            assert found.cluster_id == running.cluster_id
            assert {topic.name: len(topic.partitions) for topic in found.topics} == {"first": 2, "second": 3}
            assert {one.leader_id for topic in found.topics for one in topic.partitions} == {1}
            named = MetadataRequest(topics=[MetadataRequestTopic(name="third")])
            found = await ask(where, named, MetadataResponse)
            assert found.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await running.delete_topic("first")
            await until(lambda: "first" not in server.known.topics)
            described = await ask(where, DescribeClusterRequest(), DescribeClusterResponse)
            assert [one.broker_id for one in described.brokers] == [1]
            wanted = FindCoordinatorRequest(coordinator_keys=["g"])
            found = await ask(where, wanted, FindCoordinatorResponse)
            assert found.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            await running.topics.create_own("__consumer_offsets", {})
            await until(lambda: "__consumer_offsets" in server.known.topics)
            found = await ask(where, wanted, FindCoordinatorResponse)
            assert (found.coordinators[0].node_id, found.coordinators[0].port) == (1, port)

    asyncio.run(story())


def test_the_own_client_creates_topics_through_it(tmp_path: Path) -> None:
    """N2: what a name server does not serve, the client asks of a broker that it learns of there."""

    async def story() -> None:
        async with (
            broker(tmp_path / "b") as (running, _),
            name_server(tmp_path / "n", key_of(running)) as server,
        ):
            await running.options.reconfigure("", {"nameservers": address(server)})
            await until(lambda: 1 in server.known.brokers)
            command = ["topic", "create", "orders", "-p", "3", "-b", address(server)]
            assert await asyncio.to_thread(main, command) == 0
            assert running.topics.get("orders").partition_count == 3

    asyncio.run(story())


def test_braids_client_begins_at_a_name_server(tmp_path: Path) -> None:
    """N2: with any request; where the name server does not serve it, the brokers do."""

    def send_and_read(where: str) -> list[bytes | None]:
        with Cluster(where) as cluster:
            with Producer(cluster) as producer:
                producer.send("t", b"x", partition=1)
            with Consumer(cluster) as consumer:
                consumer.assign("t")
                return [message.value for _ in range(20) for message in consumer.poll(0.1)]

    async def story() -> None:
        async with (
            broker(tmp_path / "b") as (running, _),
            name_server(tmp_path / "n", key_of(running)) as server,
        ):
            where = address(server)
            await running.options.reconfigure("", {"nameservers": where})
            await running.topics.create("t", 2, {})
            await until(lambda: "t" in server.known.topics)
            assert await asyncio.to_thread(send_and_read, where) == [b"x"]
            with Admin(where) as admin:
                await asyncio.to_thread(admin.create_topic, "made", 1)
            assert running.topics.find("made") is not None

    asyncio.run(story())


def test_the_list_of_name_servers_changes_while_the_broker_runs(tmp_path: Path) -> None:
    """N1: a new one hears of the broker at once, one that was taken out is left with a goodbye."""

    async def story() -> None:
        async with broker(tmp_path / "b") as (running, service):
            key = key_of(running)
            async with name_server(tmp_path / "1", key) as one, name_server(tmp_path / "2", key) as two:
                await running.options.reconfigure("", {"nameservers": address(one)})
                await until(lambda: 1 in one.known.brokers)
                assert not two.known.brokers
                await running.options.reconfigure("", {"nameservers": address(two)})
                await until(lambda: 1 in two.known.brokers and not one.known.brokers)
                await service.drain()
                await until(lambda: not two.known.brokers)

    asyncio.run(story())


def test_a_name_server_that_comes_back_learns_everything_again(tmp_path: Path) -> None:
    """N1: it keeps nothing of brokers and topics; heartbeats bring them."""

    async def story() -> None:
        async with broker(tmp_path / "b") as (running, _):
            key = key_of(running)
            await running.topics.create("t", 2, {})
            async with name_server(tmp_path / "n", key) as server:
                port = parse_address(address(server)).port
                await running.options.reconfigure("", {"nameservers": address(server)})
                await until(lambda: "t" in server.known.topics)
            async with name_server(tmp_path / "n", key, port) as server:
                await until(lambda: "t" in server.known.topics and 1 in server.known.brokers)

    asyncio.run(story())


def test_a_stranger_cannot_put_an_address_in(tmp_path: Path) -> None:
    """N1: without the cluster's secret, or without any proof, a heartbeat changes nothing."""

    async def story() -> None:
        async with name_server(tmp_path) as server:
            where = address(server)
            with pytest.raises(PeerUnavailable, match="secret"):
                await beat(Directory(1, secret=b"another secret of thirty-two bytes!!"), where)
            with pytest.raises(PeerUnavailable, match="cluster"):
                await beat(Directory(1, cluster_id="two"), where)
            unproved = NameServerHeartbeatRequest(host="evil", port=1)
            answer = await ask(where, unproved, NameServerHeartbeatResponse)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert not server.known.brokers
            assert (await beat(Directory(1), where)).error_code == ErrorCode.NONE
            assert server.known.brokers[1].host == "h"
            with pytest.raises(PeerUnavailable, match="epoch 6"):
                await beat(Directory(1, epoch=6), where)

    asyncio.run(story())


def test_the_configuration_is_kept_and_changed_by_who_has_the_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """N1: put, get, list and delete by the command; a restart loses nothing."""
    key_file = tmp_path / "key"
    key_file.write_text(KEY.text())

    async def run(server: NameServerProcess, *words: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, ["nameserver", "config", *words, "--server", address(server)])
        out, err = capsys.readouterr()
        return code, out, err

    async def story() -> None:
        with_key = ("--key-file", str(key_file))
        async with name_server(tmp_path / "n") as server:
            assert await run(server, "put", "ORDER", "a=1", *with_key) == (0, "", "")
            assert await run(server, "put", "other", "x", *with_key) == (0, "", "")
            code, _, err = await run(server, "put", "ORDER", "b")
            assert (code, "--key-file" in err) == (2, True)
            code, _, err = await run(server, "put", "k" * 300, "b", *with_key)
            assert (code, "256 bytes" in err) == (1, True)
        async with name_server(tmp_path / "n") as server:
            assert await run(server, "get", "ORDER") == (0, "a=1\n", "")
            assert await run(server, "delete", "other", *with_key) == (0, "", "")
            assert await run(server, "list") == (0, "ORDER=a=1\n", "")
            code, _, err = await run(server, "get", "other")
            assert (code, "no entry" in err) == (1, True)

    asyncio.run(story())


def test_a_name_server_serves_a_store_and_takes_the_key_from_it(tmp_path: Path) -> None:
    """N1 N4: a cluster by pip alone; the key is there as soon as a broker has founded the cluster."""
    from braidmq.cluster.membership import SECRET_BYTES, founding_records
    from braidmq.cluster.metadata_store import Put
    from braidmq.cluster.records import encode, prefix
    from braidmq.cluster.served_store import ServedStore

    token = b"a token of more than sixteen bytes"
    options = Options(
        configure({}),
        tmp_path / "n",
        parse_address("127.0.0.1:0"),
        served=ServedStoreOptions(tmp_path / "s", parse_address("127.0.0.1:0"), token),
    )

    async def story() -> None:
        async with contextlib.AsyncExitStack() as stack:
            server = NameServerProcess(options)
            await server.start(stack)
            store = ServedStore(server.line.rpartition("store=braid://")[2], token)
            await store.start()
            stack.push_async_callback(store.close)
            secret = bytes(range(SECRET_BYTES))
            made = founding_records("one", secret)
            await store.commit(
                puts=[Put(prefix("braid") + key, encode(one, "t")) for key, one in made.items()]
            )
            await until(lambda: (tmp_path / "n" / "key").exists())
            assert (await beat(Directory(1, secret=secret), address(server))).error_code == ErrorCode.NONE
            assert (tmp_path / "n" / "key").stat().st_mode & 0o077 == 0

    asyncio.run(story())
