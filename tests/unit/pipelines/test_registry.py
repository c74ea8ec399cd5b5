"""Which registry id the values of a source must have: the file's, an earlier run's, or a first record's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.client import Producer
from braidmq.spark.pipelines import PipelineError, loads
from braidmq.spark.pipelines.checkpoint import Checkpoint
from braidmq.spark.pipelines.model import Pipeline, TopicSource
from braidmq.spark.pipelines.registry import pinned

AVRO = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'


def framed(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + b"\x02"


def read(bootstrap: str, topic: str, folder: Path, more: str = "") -> tuple[Pipeline, TopicSource]:
    (folder / "r.avsc").write_text(AVRO)
    made = loads(
        f"""
pipeline: p
bootstrap: {bootstrap}
sources: {{a: {{topic: {topic}, format: avro, schema: r.avsc, framing: registry{more}}}}}
sinks: {{out: {{from: a, topic: {topic}.out}}}}
""",
        folder,
    )
    (source,) = made.sources
    assert isinstance(source, TopicSource)
    return made, source


def found(bootstrap: str, topic: str, folder: Path, more: str = "") -> int | None:
    avro = pinned(*read(bootstrap, topic, folder, more), Checkpoint(folder / "c")).avro
    assert avro is not None
    return avro.registry_id


def test_the_id_of_the_first_record_is_kept(
    bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """S4: by the checkpoint, whatever retention removes later; the file has the last word."""
    topic = new_topic(partitions=1)
    with Producer(bootstrap) as producer:
        for value in (b"none", framed(7), framed(8)):
            producer.send(topic, value)
    assert found(bootstrap, topic, tmp_path) == 7
    assert found(bootstrap, new_topic(), tmp_path) == 7
    assert found(bootstrap, topic, tmp_path, ", registry_id: 8") == 8


def test_a_source_that_starts_at_the_end_goes_by_the_last_record(
    bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """S4: what lies before may be of a schema that nobody writes any more."""
    topic = new_topic(partitions=1)
    with Producer(bootstrap) as producer:
        for value in (framed(7), framed(8)):
            producer.send(topic, value)
    assert found(bootstrap, topic, tmp_path, ", start: latest") == 8


def test_an_empty_topic_needs_the_id_in_the_file(
    bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """S4: else the first batch would be read without a check."""
    topic = new_topic()
    with pytest.raises(PipelineError, match=rf"topic {topic} has no record yet from which to take"):
        found(bootstrap, topic, tmp_path)
    assert found(bootstrap, topic, tmp_path, ", registry_id: 7") == 7
