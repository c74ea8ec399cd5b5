"""What the broker has to say about a pipeline before Spark is started: topics, offsets, lag."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from braidmq.client.admin import Admin, TopicDescription
from braidmq.client.cluster import TopicPartition
from braidmq.client.errors import ClientError
from braidmq.client.offsets import list_offsets
from braidmq.spark.pipelines import graph
from braidmq.spark.pipelines.checkpoint import Checkpoint, Offsets
from braidmq.spark.pipelines.connecting import connect
from braidmq.spark.pipelines.mistakes import Mistake, PipelineError, PipelineMistakes, suggestion
from braidmq.spark.pipelines.model import BadRecords, Pipeline, Start, TopicSink, TopicSource
from braidmq.wire.errors import ApiError, ErrorCode


@dataclass(frozen=True, slots=True)
class Reading:
    """One partition a query would read next."""

    query: str
    source: str
    topic: str
    partition: int
    next_offset: int
    end_offset: int

    @property
    def lag(self) -> int:
        return max(0, self.end_offset - self.next_offset)


class Preflight:
    """Questions to the cluster of one pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._cluster = connect(pipeline)
        self._admin = Admin(self._cluster)
        self._topics: dict[str, TopicDescription] | None = None

    def check_topics(self) -> None:
        """Every topic that is read exists; a misspelt one is told with its line."""
        known = self.topics()
        mistakes = [
            Mistake(
                source.place, f"there is no topic {source.topic}{suggestion(source.topic, _plain(known))}"
            )
            for source in self._pipeline.sources
            if isinstance(source, TopicSource) and source.topic not in known
        ]
        if mistakes:
            raise PipelineMistakes(mistakes)

    def create_targets(self) -> list[str]:
        """Makes the topics that are written to and not there yet; their names."""
        made = []
        for topic, partitions in self._targets():
            if topic in self.topics() or topic in made:
                continue
            try:
                self._admin.create_topic(topic, partitions or -1)
            except ApiError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
            made.append(topic)
        return made

    def readings(self, checkpoint: Checkpoint) -> list[Reading]:
        """What each query would read next: from its checkpoint, or from where the file says to start."""
        rows = []
        for query, sources in self._queries():
            positions = checkpoint.positions(query)
            for place, source in enumerate(sources):
                if source is not None:
                    rows += self._of_source(
                        query, source, positions[place] if place < len(positions) else None
                    )
        return rows

    def topics(self) -> dict[str, TopicDescription]:
        if self._topics is None:
            try:
                self._topics = {topic.name: topic for topic in self._admin.describe_topics()}
            except ClientError as error:
                raise PipelineError(
                    f"no broker answers at {self._pipeline.bootstrap}: {error}; start one with braid serve,"
                    f" or set bootstrap in {self._pipeline.place.file}"
                ) from error
        return self._topics

    def close(self) -> None:
        self._cluster.close()

    def _targets(self) -> Iterator[tuple[str, int | None]]:
        for sink in self._pipeline.sinks:
            if isinstance(sink, TopicSink):
                yield sink.topic, sink.partitions
        for source in self._pipeline.sources:
            if isinstance(source, TopicSource) and source.bad_topic is not None:
                yield source.bad_topic, None

    def _queries(self) -> Iterator[tuple[str, list[TopicSource | None]]]:
        """Each query with its streams in Spark's order; None stands for one that is no topic."""
        for sink in self._pipeline.sinks:
            streams = self._pipeline.sources_named(graph.streams_of(self._pipeline, sink.source))
            yield sink.name, [stream if isinstance(stream, TopicSource) else None for stream in streams]
        for source in self._pipeline.sources:
            if isinstance(source, TopicSource) and source.bad_records is BadRecords.SIDE_TOPIC:
                yield f"{source.name}_bad", [source]

    def _of_source(self, query: str, source: TopicSource, at: Offsets | None) -> list[Reading]:
        topic = self.topics()[source.topic]
        if at is not None:
            reached = {int(index): offset for index, offset in at.get(source.topic, {}).items()}
        else:
            reached = self._starts(source, topic)
        return [
            Reading(query, source.name, topic.name, each.index, next_offset, each.end_offset)
            for each in topic.partitions
            for next_offset in [reached.get(each.index, each.start_offset)]
        ]

    def _starts(self, source: TopicSource, topic: TopicDescription) -> dict[int, int]:
        if source.start is Start.EARLIEST:
            return {each.index: each.start_offset for each in topic.partitions}
        ends = {each.index: each.end_offset for each in topic.partitions}
        if source.start is Start.LATEST:
            return ends
        wanted = {TopicPartition(topic.name, index): int(source.start) for index in ends}
        found = list_offsets(self._cluster, wanted)
        return {
            at.partition: spot.offset if spot.offset >= 0 else ends[at.partition]
            for at, spot in found.items()
        }


def _plain(topics: dict[str, TopicDescription]) -> list[str]:
    return [
        topic.name for topic in topics.values() if not topic.internal and not topic.name.startswith("__")
    ][:20]
