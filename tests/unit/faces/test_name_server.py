"""A name server on a socket, and what strangers can do to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.address import Address
from braidmq.cli import main
from braidmq.client.connection import Connection
from braidmq.cluster.cluster_key import ClusterKey
from braidmq.config import configure
from braidmq.faces.kafka.name_servers import NAME_SERVER
from braidmq.nameserver import Options, serve
from braidmq.net.peer_proof import CallerProof, Purpose
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from braidmq.wire.messages.name_server import (
    NameServerHeartbeatRequest,
    NameServerHeartbeatResponse,
    NameServerRoutesRequest,
    NameServerRoutesResponse,
    RoutePartition,
    RouteTopic,
)
from braidmq.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from unit.net.peers import Directory


def visited(data: Path, visit: Callable[[Address], None]) -> None:
    """Runs a name server while `visit` talks to it from a thread."""
    directory = Directory(2)
    key_file = data / "cluster.key"
    key_file.write_text(ClusterKey(directory.cluster_id, directory.secret).text())

    async def story() -> None:
        lines: list[str] = []
        stopping, ready = asyncio.Event(), asyncio.Event()

        def on_ready(line: str) -> None:
            lines.append(line)
            ready.set()

        options = Options(configure({}), data / "n", Address("127.0.0.1", 0), key_file=key_file)
        serving = asyncio.ensure_future(serve(options, on_ready, stopping))
        await ready.wait()
        host, port = lines[0].split()[1].split(":")
        try:
            await asyncio.to_thread(visit, Address(host, int(port)))
        finally:
            stopping.set()
            await serving

    asyncio.run(story())


def prove(client: Connection, directory: Directory, purpose: Purpose = Purpose.CONTROL) -> int:
    """Tries to prove to be the broker of `directory`; the error code of the last answer."""
    client.call(SaslHandshakeRequest(mechanism="BRAID-PEER"), SaslHandshakeResponse)
    proof = CallerProof(directory, NAME_SERVER, purpose)
    said = client.call(SaslAuthenticateRequest(auth_bytes=proof.hello), SaslAuthenticateResponse)
    if said.error_code:
        return said.error_code
    mine = proof.answer(said.auth_bytes)
    return client.call(SaslAuthenticateRequest(auth_bytes=mine), SaslAuthenticateResponse).error_code


def beat(client: Connection, revision: int = 0) -> NameServerHeartbeatResponse:
    request = NameServerHeartbeatRequest(host="evil.example", port=1, routes_revision=revision)
    return client.call(request, NameServerHeartbeatResponse)


def brokers(address: Address) -> list[str]:
    with Connection(address) as client:
        answer = client.call(MetadataRequest(topics=[]), MetadataResponse)
        return [one.host for one in answer.brokers]


def test_a_stranger_cannot_put_an_address_in(tmp_path: Path) -> None:
    """N1: neither without a proof, nor by one for a client, nor under an id that is no broker's."""

    def visit(address: Address) -> None:
        with Connection(address) as client:
            assert beat(client).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        for directory, purpose in ((Directory(2), Purpose.FORWARD), (Directory(-7), Purpose.CONTROL)):
            with Connection(address) as client:
                assert prove(client, directory, purpose) == ErrorCode.NONE
                assert beat(client).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert brokers(address) == []
        with Connection(address) as client:
            assert prove(client, Directory(2)) == ErrorCode.NONE
            assert beat(client).error_code == ErrorCode.NONE
        assert brokers(address) == ["evil.example"]

    visited(tmp_path, visit)


def test_a_topic_that_is_asked_for_many_times_is_answered_once(tmp_path: Path) -> None:
    """N2: the answer is no larger than what there is to tell."""

    def visit(address: Address) -> None:
        with Connection(address) as client:
            prove(client, Directory(2))
            assert beat(client, revision=5).routes_after == 0
            topic = RouteTopic(
                name="t", topic_id=b"t" * 16, partitions=[RoutePartition(leader_id=2) for _ in range(50)]
            )
            page = NameServerRoutesRequest(after=0, revision=5, topics=[topic], is_first=True, is_last=True)
            assert client.call(page, NameServerRoutesResponse).error_code == ErrorCode.NONE
            wanted = [MetadataRequestTopic(name="t") for _ in range(10_000)]
            answer = client.call(MetadataRequest(topics=wanted), MetadataResponse)
            assert [len(one.partitions) for one in answer.topics] == [50]

    visited(tmp_path, visit)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--store", "file:", "--store-token-file", "token"], "needs a directory"),
        (
            ["--store", "file:meta", "--store-token-file", "no/such/token"],
            "cannot write no/such/token",
        ),
        (["--store", "file:meta"], "only with --store-token-file"),
        ([], "one of --key-file and --store"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """N1: and nothing is written."""
    monkeypatch.chdir(tmp_path)
    assert main(["nameserver", *words]) == 2
    assert why in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
