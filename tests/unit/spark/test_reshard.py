"""What a reshard looks at before and after it copies; the copying itself is in tests/spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as StockProducer

from braidmq.client import Admin, Producer
from braidmq.spark.partitioner import Partitioner
from braidmq.spark.rescue import reshard
from braidmq.spark.rescue.errors import RescueError
from braidmq.spark.rescue.reshard import Reshard, copy, prepare

NewTopic = Callable[..., str]


def step(checkpoint: Path, folder: str) -> None:
    """A trace as a query of Spark leaves it, with the checksum beside."""
    (checkpoint / folder).mkdir(parents=True)
    (checkpoint / folder / "0").write_text("v1")
    (checkpoint / folder / ".0.crc").write_bytes(b"")


@pytest.mark.parametrize("trace", ["offsets", "commits"])
def test_the_checkpoint_of_an_earlier_copy_is_not_gone_on_from_in_a_new_topic(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path, trace: str
) -> None:
    """S6: it would skip all that the earlier copy had; and no empty topic is left behind."""
    old = new_topic()
    job = Reshard(bootstrap, old, f"{old}-wide", 2, tmp_path)
    step(tmp_path, trace)
    if trace == "commits":
        (tmp_path / "offsets").mkdir()
        with Admin(bootstrap) as admin:
            admin.create_topic(job.into, 2)
    with pytest.raises(RescueError, match=f"{tmp_path} belongs to an earlier copy.*another --checkpoint"):
        prepare(job)
    with Admin(bootstrap) as admin:
        assert (job.into in admin.list_topics()) == (trace == "commits")


def test_a_copy_killed_before_its_first_batch_was_done_is_gone_on_with(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """S6: what was planned is in the checkpoint, what was done is not, and the topic is empty."""
    old = new_topic()
    job = Reshard(bootstrap, old, f"{old}-wide", 2, tmp_path)
    assert prepare(job)
    step(tmp_path, "offsets")
    assert not prepare(job)


@pytest.fixture
def idle_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy whose query has nothing to read, and needs no Spark for that."""
    nothing: Iterator[int] = iter(())
    monkeypatch.setattr(reshard, "_start", lambda *_: None)
    monkeypatch.setattr(reshard, "_watched", lambda _: nothing)


@pytest.mark.usefixtures("idle_query")
def test_a_copy_goes_on_with_the_partitioner_it_began_with(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """S6: else the records of a key would lie in two partitions."""
    no_session: Any = None
    job = Reshard(bootstrap, new_topic(), "wide", 2, tmp_path / "c", partitioner=Partitioner.CRC32)
    for _ in range(2):
        assert [each.ahead for each in copy(no_session, job)] == [0]
    with pytest.raises(RescueError, match="a copy with --partitioner consistent_random; continue with that"):
        next(copy(no_session, replace(job, partitioner=Partitioner.MURMUR2)))


@pytest.mark.usefixtures("idle_query")
def test_a_switch_is_refused_while_records_lie_behind_an_open_transaction(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """S6: whoever reads committed records does not see them, and groups would be moved past them."""
    old = new_topic(partitions=2)
    job = Reshard(bootstrap, old, f"{old}-wide", 2, tmp_path)
    no_session: Any = None
    killed = StockProducer({"bootstrap.servers": bootstrap, "transactional.id": f"of-{old}"})
    killed.init_transactions(30)
    killed.begin_transaction()
    killed.produce(old, b"undecided", partition=1)
    assert killed.flush(30) == 0
    with Producer(bootstrap) as producer:
        producer.send(old, b"plain", partition=1)
    assert [each.ahead for each in copy(no_session, job)] == [0]
    with pytest.raises(RescueError, match=f"{old}-1: a transaction is open at offset 0"):
        list(copy(no_session, job, until_still=True))
    killed.abort_transaction(30)
    assert [each.ahead for each in copy(no_session, job, until_still=True)] == [0]
