"""The schema registry id of a source's values.

Braid does not ask a registry. The file has one schema; its id is in the file (`registry_id`) or else in the
first record that the source reads. The checkpoint keeps that id, and a value with another one is bad.
"""

from __future__ import annotations

from dataclasses import replace

from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.consumer import Consumer
from braidmq.client.consumer import Start as Edge
from braidmq.client.offsets import list_offsets
from braidmq.spark import avro
from braidmq.spark.avro import Framing
from braidmq.spark.pipelines.checkpoint import Checkpoint
from braidmq.spark.pipelines.clusters import connect
from braidmq.spark.pipelines.mistakes import PipelineError
from braidmq.spark.pipelines.model import Pipeline, TopicSource, TopicStart

READ_COMMITTED = 1
POLLS_MAX = 20
WAIT_S = 0.5


def pinned(pipeline: Pipeline, source: TopicSource, checkpoint: Checkpoint) -> TopicSource:
    """The source with the id of its values; PipelineError if no record has it yet."""
    known = with_kept_id(source, checkpoint)
    if known.avro is None or known.avro.framing is Framing.PLAIN or known.avro.registry_id is not None:
        return known
    with connect(pipeline, source) as cluster:
        found = _first_id(cluster, source)
    if found is None:
        raise PipelineError(
            f"{source.location}: topic {source.topic} has no record yet from which to take the registry id"
            "; send one, or set registry_id"
        )
    checkpoint.keep_registry_id(source.name, found)
    return with_kept_id(source, checkpoint)


def with_kept_id(source: TopicSource, checkpoint: Checkpoint) -> TopicSource:
    """The source with the id of the file, or of an earlier run, if there is one."""
    if source.avro is None or source.avro.framing is Framing.PLAIN or source.avro.registry_id is not None:
        return source
    return replace(source, avro=replace(source.avro, registry_id=checkpoint.registry_id(source.name)))


def _first_id(cluster: Cluster, source: TopicSource) -> int | None:
    """The id of the first record after the start; if that is the end, of a last record."""
    some = [TopicPartition(source.topic, index) for index in range(cluster.partition_count(source.topic))]
    firsts = list_offsets(cluster, dict.fromkeys(some, int(Edge.EARLIEST)))
    ends = list_offsets(cluster, dict.fromkeys(some, int(Edge.LATEST)), READ_COMMITTED)
    starts = {at: ends[at].offset - 1 for at in some}
    if source.start is not TopicStart.LATEST:
        asked = Edge.EARLIEST if source.start is TopicStart.EARLIEST else source.start
        found = list_offsets(cluster, dict.fromkeys(some, int(asked)))
        starts |= {at: spot.offset for at, spot in found.items() if spot.offset >= 0}
    consumer = Consumer(cluster, reset=Edge.EARLIEST)
    for at in some:
        if firsts[at].offset < ends[at].offset:
            consumer.seek(*at, max(firsts[at].offset, min(starts[at], ends[at].offset - 1)))
    for _ in range(POLLS_MAX if any(firsts[at].offset < ends[at].offset for at in some) else 0):
        for message in consumer.poll(WAIT_S):
            if message.value is not None and (found_id := avro.registry_id(message.value)) is not None:
                return found_id
    return None
