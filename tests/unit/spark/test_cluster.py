"""Jobs on Spark ask the cluster from the driver too, with the security their options describe."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from braidmq.client.errors import ClientError
from braidmq.spark.cluster import open_cluster
from braidmq.spark.lake.archiver import Archive, archive
from braidmq.spark.lake.lake import Lake
from braidmq.spark.options import OptionError
from braidmq.spark.rescue import redrive, reshard, summary
from braidmq.spark.rescue.audit_inputs import TopicReader

TLS_HANDSHAKE = 0x16
OPTIONS = {"kafka.security.protocol": "SSL", "request.timeout.ms": "200"}


@pytest.fixture
def listener() -> Iterator[tuple[str, list[int]]]:
    """An address, and the first byte that everyone who came has said; nobody is answered."""
    heard: list[int] = []
    server = socket.create_server(("127.0.0.1", 0))

    def listen() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                client.settimeout(5)
                heard.extend(client.recv(1))

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.getsockname()[1]}", heard
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(10)


JOBS: dict[str, Callable[[Any, str, Path], object]] = {
    "archive": lambda spark, at, path: list(
        archive(spark, Lake(path), Archive(at, ("orders",), client_options=OPTIONS))
    ),
    "reshard": lambda _, at, path: reshard.prepare(
        reshard.Reshard(at, "orders", "wide", 4, path, client_options=OPTIONS)
    ),
    "redrive": lambda spark, at, path: redrive.redrive(
        spark, redrive.Redrive(at, "dead", "orders", Lake(path), client_options=OPTIONS)
    ),
    "audit": lambda spark, at, _: TopicReader(spark, at, OPTIONS).whole("orders"),
    "report": lambda spark, at, _: summary.summarise(
        spark, summary.ReportRequest(at, ("orders",), client_options=OPTIONS)
    ),
}


@pytest.mark.parametrize("job", JOBS)
def test_a_job_speaks_tls_where_its_options_say_so(
    job: str, listener: tuple[str, list[int]], tmp_path: Path
) -> None:
    """S5 S6 S7: against a secured Kafka the driver's own questions are secured too."""
    address, heard = listener
    with pytest.raises(ClientError):
        JOBS[job](None, address, tmp_path / "place")
    assert set(heard) == {TLS_HANDSHAKE}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"security.protocol": "TLS"}, "security.protocol"),
        ({"request.timeout.ms": "soon"}, "it must be a whole number"),
        ({"kafka.sasl.pasword": "x"}, "did you mean 'sasl.password'"),
    ],
)
def test_a_wrong_option_is_told(options: dict[str, str], said: str) -> None:
    """S6: in a sentence."""
    with pytest.raises(OptionError, match=said):
        open_cluster("127.0.0.1:9092", options)
