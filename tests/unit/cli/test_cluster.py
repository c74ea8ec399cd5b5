"""`braid cluster`: the state of a cluster, its clients, and its metadata between stores."""

from __future__ import annotations

import json
import socket
import stat
import threading
from pathlib import Path

import pytest

from braidmq.client import Consumer, Producer
from braidmq.client.admin import Admin
from braidmq.client.cluster import Cluster
from braidmq.client.live import clients, describe, read_assignment
from braidmq.testing import broker, cluster
from unit.cli.conftest import Braid


def create(bootstrap: str, name: str, partitions: int) -> None:
    with Admin(bootstrap) as admin:
        admin.create_topic(name, partitions)


def test_status_of_one_broker(braid: Braid) -> None:
    """O7 N4: it is its own controller, and its store is in the process."""
    found = braid.json("cluster", "status")
    assert (found["brokers_up"], found["brokers_known"], found["controller"]) == (1, 1, 1)
    assert (found["store"], found["store_reachable"], found["without_leader"]) == ("file", True, 0)
    assert found["brokers"][0]["state"] == "up"
    text, _ = braid("cluster", "status")
    assert found["cluster_id"] in text
    assert "1 of 1 up" in text


def test_brokers_and_topics_are_listed(braid: Braid, bootstrap: str) -> None:
    """O7: with what each broker leads."""
    create(bootstrap, "listed-here", 3)
    (one,) = braid.json("cluster", "brokers")
    assert one["broker"] == 1
    assert one["address"] == bootstrap
    assert one["leaders"] == one["partitions"] >= 3
    assert one["isolated"] == "no"
    topics = {row["topic"]: row for row in braid.json("cluster", "topics")}
    assert topics["listed-here"] == {
        "topic": "listed-here",
        "partitions": 3,
        "leaders": {"1": 3},
        "without_leader": 0,
    }
    assert "listed-here" in braid("cluster", "topics", "--output", "csv")[0]
    assert "broker,address" in braid("cluster", "brokers", "--output", "csv")[0]


def test_clients_are_listed_with_what_they_do(
    braid: Braid, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O7: who writes, who reads, what tools ask; a connection that said nothing, too."""
    monkeypatch.setenv("COLUMNS", "200")
    with (
        Producer(bootstrap) as producer,
        Consumer(bootstrap) as consumer,
        socket.create_connection(tuple(bootstrap.rsplit(":", 1))) as silent,  # type: ignore[arg-type]
    ):
        producer.send("watched", b"one coffee")
        producer.flush()
        consumer.assign("watched")
        assert consumer.poll(10)
        rows = braid.json("cluster", "clients")
        by_address = {row["address"]: row for row in rows}
        quiet = by_address["{}:{}".format(*silent.getsockname())]
        assert (quiet["as"], quiet["client_id"], quiet["bytes_in"]) == ([], "", 0)
        writers = [row for row in rows if "watched" in row["writes"]]
        assert [row["as"] for row in writers] == [["producer"]]
        assert writers[0]["bytes_in"] > 100
        assert writers[0]["last_ms"] >= writers[0]["since_ms"]
        readers = [row for row in rows if "watched" in row["reads"]]
        assert [row["as"] for row in readers] == [["consumer"]]
        assert any("admin" in row["as"] for row in rows)
        of_topic = braid.json("cluster", "clients", "--topic", "watched")
        assert len(of_topic) == 2
        assert braid.json("cluster", "clients", "--group", "nobody") == []
        shown = braid("cluster", "clients", "--topic", "watched")[0]
        assert "writes watched" in shown
        assert "reads watched" in shown
        assert "watched" in braid("cluster", "clients", "--output", "csv")[0]
    with Cluster(bootstrap) as cluster:
        cluster.refresh([])
        left = list(clients(cluster.connection(1)))
        assert not [one for one in left if one.writes]


def test_members_of_a_group_are_listed_with_their_partitions(braid: Braid, bootstrap: str) -> None:
    """O7: a consumer of another library, as it names itself."""
    confluent = pytest.importorskip("confluent_kafka")
    create(bootstrap, "shown", 2)
    consumer = confluent.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "kitchen", "client.id": "till-7"}
    )
    consumer.subscribe(["shown"])
    try:
        for _ in range(100):
            consumer.poll(0.1)
            if consumer.assignment():
                break
        consumer.poll(1)
        rows = braid.json("cluster", "clients", "--group", "kitchen")
        assert rows
        assert rows[0]["client_id"] == "till-7"
        assert rows[0]["software"]["name"]
        assert rows[0]["assigned"] == {"shown": [0, 1]}
        assert "consumer" in rows[0]["as"]
    finally:
        consumer.close()


def test_many_clients_come_in_pages(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """O7: each once."""
    from braidmq.client import live

    monkeypatch.setattr(live, "PAGE", 7)
    host, port = bootstrap.rsplit(":", 1)
    open_now = [socket.create_connection((host, int(port))) for _ in range(40)]
    try:
        with Cluster(bootstrap) as cluster:
            cluster.refresh([])
            connection = cluster.connection(1)
            numbers = [one.number for one in clients(connection)]
            assert len(numbers) == len(set(numbers)) >= 41
            assert describe(connection).connections >= 41
    finally:
        for each in open_now:
            each.close()


def test_a_broker_that_is_no_braid_is_named(braid: Braid) -> None:
    """O7: it closes the connection on a verb that it does not know; one line, no traceback."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def hang_up() -> None:
        listener.accept()[0].close()

    thread = threading.Thread(target=hang_up)
    thread.start()
    _, said = braid("cluster", "status", "-b", f"127.0.0.1:{port}", code=1)
    thread.join()
    listener.close()
    assert said.count("\n") == 1


def test_an_unknown_broker_is_a_mistake(braid: Braid) -> None:
    """O7: --on takes brokers that are up."""
    assert "broker 99 is not up" in braid("cluster", "clients", "--on", "99", code=2)[1]


def test_metadata_moves_from_a_directory_to_another(braid: Braid, tmp_path: Path) -> None:
    """N4: topics, options and the cluster's id, with the secret for the owner alone."""
    data, target, file = tmp_path / "data" / "data", tmp_path / "target", tmp_path / "cluster.export"
    with broker(data=data.parent) as running:
        create(running.bootstrap, "orders", 5)
        refused = braid("cluster", "export", "--from-store", f"file:{data}", "--to-file", str(file), code=2)
        assert "in use" in refused[1]
    exported = braid.json("cluster", "export", "--from-store", f"file:{data}", "--to-file", str(file))
    assert exported["keys"] > 5
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "braid-export" in json.loads(file.read_text().splitlines()[0])
    done = braid.json("cluster", "import", "--from-file", str(file), "--to-store", f"file:{target}", "--yes")
    assert done["keys"] == exported["keys"]
    again = braid(
        "cluster", "import", "--from-file", str(file), "--to-store", f"file:{target}", "--yes", code=1
    )
    assert "not empty" in again[1]


def test_metadata_of_several_brokers_is_found_in_their_directory(braid: Braid, tmp_path: Path) -> None:
    """N4: --from-store file:DIR with the DIR of braid serve --brokers; the doctor names it."""
    file = tmp_path / "cluster.export"
    with cluster(2, data=tmp_path) as running:
        create(running.bootstrap, "orders", 4)
        data = running.data
    exported = braid.json("cluster", "export", "--from-store", f"file:{data}", "--to-file", str(file))
    assert exported["keys"] > 5
    for home in (data / "1", data / "2"):
        assert f"--store file:{data} compares" in braid("doctor", str(home))[0]
    assert "node 2 of cluster" in braid("doctor", str(data / "2"), "--store", f"file:{data}")[0]


def test_an_export_is_not_overwritten_and_a_bad_one_not_imported(braid: Braid, tmp_path: Path) -> None:
    """N4: without --yes; and not a file that was edited."""
    data, file = tmp_path / "data", tmp_path / "cluster.export"
    with broker(data=tmp_path):
        pass
    export = ("cluster", "export", "--from-store", f"file:{data}", "--to-file", str(file))
    braid(*export)
    kept = file.read_text()
    assert "add --yes" in braid(*export, code=2)[1]
    file.write_text(kept.replace("braid/1", "braid/2", 1) + "more\n")
    imported = ("cluster", "import", "--from-file", str(file), "--to-store", f"file:{tmp_path / 'x'}")
    assert "cluster.export:" in braid(*imported, "--yes", code=2)[1]
    assert "no metadata.store" in braid(
        "cluster", "export", "--from-store", f"file:{tmp_path / 'none'}", "--to-file", "x", code=2
    )[1].replace("holds no", "no")
    braid(*export, "--yes")
    assert len(file.read_text().splitlines()) == len(kept.splitlines())


@pytest.mark.parametrize(
    ("content", "read"),
    [
        (b"", {}),
        (b"\0\x01\0\0\0\x01\0\x01t\0\0\0\x02\0\0\0\x03\0\0\0\x01\xff\xff\xff\xff", {"t": [1, 3]}),
        (b"\0\x01\0\0\0\x01\0\x01t\x7f\xff\xff\xff", {}),
        (b"\0\x01\x7f\xff\xff\xff", {}),
    ],
)
def test_assignments_of_classic_consumers_are_read(content: bytes, read: dict[str, list[int]]) -> None:
    """O7: whatever a client's own assignor wrote there."""
    assert read_assignment(content) == read
