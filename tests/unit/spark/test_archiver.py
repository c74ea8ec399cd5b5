"""How an archiver goes on from step to step; what a step writes is in tests/spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from braidmq.client import Admin, Producer
from braidmq.client.cluster import TopicPartition
from braidmq.spark.lake import compaction
from braidmq.spark.lake.archiver import Archive, archive
from braidmq.spark.lake.commits import CommitConflict, LakeError
from braidmq.spark.lake.direct_write import DirectWrite
from braidmq.spark.lake.lake import Lake

NewTopic = Callable[..., str]
NO_SESSION: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def topic(bootstrap: str, new_topic: NewTopic) -> str:
    made = new_topic()
    fill(bootstrap, made, 6)
    return made


def fill(bootstrap: str, topic: str, count: int) -> None:
    with Producer(bootstrap) as producer:
        for _ in range(count):
            producer.send(topic, b"v")


def trim(bootstrap: str, topic: str, offset: int) -> None:
    with Admin(bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): offset})


@pytest.fixture
def writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps reach their offsets without files, and so without Spark."""
    monkeypatch.setattr(DirectWrite, "stage", lambda *_: [])


@pytest.mark.usefixtures("writes_nothing")
def test_a_topic_that_was_made_again_is_known_though_it_has_grown_past_the_archive(
    bootstrap: str, topic: str, lake: Lake
) -> None:
    """S5: by its id; its first records would never be archived, and nobody told."""
    job = Archive(bootstrap, (topic,))
    assert len(list(archive(NO_SESSION, lake, job))) == 1
    assert list(archive(NO_SESSION, Lake(lake.path), job)) == []
    with Admin(bootstrap) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, 1)
    fill(bootstrap, topic, 9)
    with pytest.raises(LakeError, match=f"{topic} was deleted and recreated.*another folder"):
        next(archive(NO_SESSION, lake, job))


@pytest.mark.usefixtures("writes_nothing")
def test_an_archive_from_before_ids_were_kept_goes_on_and_learns_them(
    bootstrap: str, topic: str, lake: Lake
) -> None:
    """S5: what is not known cannot have changed."""
    lake.append_staged(lambda _: [], onto=lake.create(), reached={topic: {0: 2}})
    assert [step.ahead for step in archive(NO_SESSION, lake, Archive(bootstrap, (topic,)))] == [0]
    assert lake.snapshot().topic_ids.keys() == {topic}


@pytest.mark.usefixtures("writes_nothing")
def test_retention_that_overtakes_a_run_between_two_steps_is_seen(
    bootstrap: str, topic: str, lake: Lake
) -> None:
    """S5: told, or gone past where that is wanted."""
    steps = archive(NO_SESSION, lake, Archive(bootstrap, (topic,), rows_per_commit=2))
    assert next(steps).ahead == 4
    trim(bootstrap, topic, 4)
    with pytest.raises(LakeError, match=f"{topic}-0: offsets 2 to 3 were deleted.*--skip-lost"):
        next(steps)
    job = Archive(bootstrap, (topic,), rows_per_commit=1, skip_lost=True)
    steps = archive(NO_SESSION, lake, job)
    assert next(steps).ahead == 1
    trim(bootstrap, topic, 6)
    assert list(steps) == []


@pytest.mark.parametrize("skip_lost", [False, True])
def test_retention_that_overtakes_a_step_is_one_sentence_or_gone_past(
    bootstrap: str, topic: str, lake: Lake, monkeypatch: pytest.MonkeyPatch, skip_lost: bool
) -> None:
    """S5 O1: between the look at the topic and the plan of what to read of it."""
    stage = DirectWrite.stage

    def late(write: DirectWrite, staging: Path) -> list[Path]:
        trim(bootstrap, topic, 6)
        return stage(write, staging)

    monkeypatch.setattr(DirectWrite, "stage", late)
    steps = archive(NO_SESSION, lake, Archive(bootstrap, (topic,), skip_lost=skip_lost))
    if skip_lost:
        assert [(step.rows, step.ahead) for step in steps] == [(0, 0)]
    else:
        with pytest.raises(LakeError, match=f"{topic}-0: records from offset 0 on were deleted.*--skip-lost"):
            next(steps)


@pytest.mark.usefixtures("writes_nothing")
def test_an_archiver_goes_on_when_somebody_else_merges_its_files(
    bootstrap: str, topic: str, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5: `braid lake compact` beside it was faster; the files are merged all the same."""

    def slower(*_: object) -> None:
        raise CommitConflict("another compaction finished first; nothing was changed")

    monkeypatch.setattr(compaction, "is_fragmented", lambda _: True)
    monkeypatch.setattr(compaction, "compact", slower)
    steps = archive(NO_SESSION, lake, Archive(bootstrap, (topic,), rows_per_commit=3))
    assert [step.ahead for step in steps] == [3, 0]
