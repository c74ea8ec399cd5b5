"""What brokers know about a pipeline before Spark starts: topics, offsets, lag."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from braidmq.client.admin import Admin, TopicDescription
from braidmq.client.cluster import TopicPartition
from braidmq.client.consumer import Start as ConsumerStart
from braidmq.client.errors import AuthenticationFailed, ClientError
from braidmq.client.offsets import list_offsets
from braidmq.spark.pipelines import graph
from braidmq.spark.pipelines.checkpoint import Checkpoint, Offsets
from braidmq.spark.pipelines.clusters import connect, connection_options, topic_options
from braidmq.spark.pipelines.mistakes import Mistake, PipelineError, PipelineMistakes, suggestion
from braidmq.spark.pipelines.model import BadRecords, Pipeline, TopicSink, TopicSource, TopicStart
from braidmq.wire.errors import ApiError, ErrorCode

Part = TopicSource | TopicSink
READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Where a query would continue to read a partition."""

    query: str
    source: str
    topic: str
    partition: int
    next_offset: int
    end_offset: int

    @property
    def lag(self) -> int:
        return max(0, self.end_offset - self.next_offset)


class PipelineCluster:
    """One of the clusters of a pipeline's topics; most pipelines have one."""

    def __init__(self, pipeline: Pipeline, part: Part) -> None:
        self.bootstrap = topic_options(pipeline, part.options)["bootstrap.servers"]
        self.cluster = connect(pipeline, part)
        self.admin = Admin(self.cluster)
        self._file = pipeline.location.file
        self._topics: dict[str, TopicDescription] | None = None

    def topics(self) -> dict[str, TopicDescription]:
        if self._topics is None:
            try:
                self._topics = {topic.name: topic for topic in self.admin.describe_topics()}
            except AuthenticationFailed as error:
                raise PipelineError(f"{error}; check the credentials in options of {self._file}") from error
            except ClientError as error:
                what = str(error).partition("; is a broker running")[0]
                raise PipelineError(
                    f"{what}; start a broker there (braid serve), or set bootstrap in {self._file}"
                ) from error
        return self._topics


class Preflight:
    """Checks with the clusters of one pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._clusters: dict[str, PipelineCluster] = {}

    def _side(self, part: Part) -> PipelineCluster:
        key = repr(sorted(topic_options(self._pipeline, connection_options(part.options)).items()))
        if key not in self._clusters:
            self._clusters[key] = PipelineCluster(self._pipeline, part)
        return self._clusters[key]

    def check_topics(self) -> None:
        """PipelineMistakes if a source's topic does not exist, with its line."""
        mistakes = []
        for source in self._pipeline.sources:
            if not isinstance(source, TopicSource):
                continue
            known = self._side(source).topics()
            if source.topic not in known:
                near = suggestion(source.topic, _plain(known))
                mistakes.append(
                    Mistake(source.location.of("topic"), f"there is no topic {source.topic}{near}")
                )
        if mistakes:
            raise PipelineMistakes(mistakes)

    def create_targets(self) -> list[str]:
        """Creates missing topics of sinks; returns their names."""
        made: list[str] = []
        for part, topic, partitions in self._targets():
            side = self._side(part)
            if topic in side.topics() or topic in made:
                continue
            try:
                side.admin.create_topic(topic, partitions or -1)
            except ApiError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
            made.append(topic)
        return made

    def readings(self, checkpoint: Checkpoint) -> list[ReadPosition]:
        """Where each query would continue: from its checkpoint, or at the start that the file sets."""
        rows = []
        for query, sources in self._queries():
            positions = checkpoint.positions(query)
            for index, source in enumerate(sources):
                if source is not None:
                    at = positions[index] if index < len(positions) else None
                    rows += self._of_source(query, source, at or self._first(source, checkpoint))
        return rows

    def keep_starts(self, checkpoint: Checkpoint) -> None:
        """Fixes once where the queries of a source begin that have not finished a batch yet.

        Otherwise each would find another end of the topic, and another one after a crash in its first batch:
        some or all of them would skip the records in between.
        """
        for source in self._pipeline.sources:
            if (
                not isinstance(source, TopicSource)
                or not source.stream
                or source.start is TopicStart.EARLIEST
            ):
                continue
            queries = self._queries_of(source)
            if any(checkpoint.last_batch(query) is None for query in queries):
                checkpoint.keep_start(source.name, queries, self._first(source, checkpoint))

    def close(self) -> None:
        for side in self._clusters.values():
            side.cluster.close()

    def _targets(self) -> Iterator[tuple[Part, str, int | None]]:
        for sink in self._pipeline.sinks:
            if isinstance(sink, TopicSink):
                yield sink, sink.topic, sink.partitions
        for source in self._pipeline.sources:
            if isinstance(source, TopicSource) and source.bad_topic is not None:
                yield source, source.bad_topic, None

    def _queries(self) -> Iterator[tuple[str, list[TopicSource | None]]]:
        """Each query with its streams in Spark's order; None for one that is no topic."""
        for sink in self._pipeline.sinks:
            streams = self._pipeline.sources_named(graph.streams_of(self._pipeline, sink.source))
            yield sink.name, [stream if isinstance(stream, TopicSource) else None for stream in streams]
        for source in self._pipeline.sources:
            if isinstance(source, TopicSource) and source.bad_records is BadRecords.SIDE_TOPIC:
                yield f"{source.name}_bad", [source]

    def _queries_of(self, source: TopicSource) -> list[str]:
        return [query for query, sources in self._queries() if source in sources]

    def _first(self, source: TopicSource, checkpoint: Checkpoint) -> Offsets:
        """Where a query without a finished batch begins: at the file's `start`, but not after another query.

        Records that the others have not read may be bad, and a new query for bad records must find them.
        """
        topic = self._side(source).topics()[source.topic]
        if source.start is TopicStart.EARLIEST:
            return {topic.name: {str(each.index): each.start_offset for each in topic.partitions}}
        # Older queries read a new partition from its first record.
        firsts = {each.index: each.start_offset for each in topic.partitions}
        kept = self._kept(source, checkpoint)
        found = self._starts(source, topic) if kept is None else _filled(kept, firsts)
        for query, sources in self._queries():
            for reads, at in zip(sources, checkpoint.positions(query), strict=False):
                if reads == source and at is not None:
                    reached = _filled(at.get(topic.name, {}), firsts)
                    found = {index: min(offset, reached[index]) for index, offset in found.items()}
        return {topic.name: {str(index): offset for index, offset in found.items()}}

    def _kept(self, source: TopicSource, checkpoint: Checkpoint) -> dict[str, int] | None:
        """The first offsets of an earlier run, if one of its queries has not finished its first batch."""
        kept = checkpoint.start(source.name)
        if kept is None:
            return None
        queries, offsets = kept
        # If none of them has read anything, look up the end of the topic again.
        begun = any(checkpoint.has_begun(query) for query in queries)
        there = [query for query in self._queries_of(source) if query in queries]
        waiting = any(checkpoint.last_batch(query) is None for query in there)
        return offsets.get(source.topic, {}) if begun and waiting else None

    def _of_source(self, query: str, source: TopicSource, at: Offsets) -> list[ReadPosition]:
        topic = self._side(source).topics()[source.topic]
        reached = {int(index): offset for index, offset in at.get(source.topic, {}).items()}
        return [
            ReadPosition(query, source.name, topic.name, each.index, next_offset, each.end_offset)
            for each in topic.partitions
            for next_offset in [reached.get(each.index, each.start_offset)]
        ]

    def _starts(self, source: TopicSource, topic: TopicDescription) -> dict[int, int]:
        """The ends that read_committed queries can read to."""
        cluster = self._side(source).cluster
        some = [TopicPartition(topic.name, each.index) for each in topic.partitions]
        ends = list_offsets(cluster, dict.fromkeys(some, int(ConsumerStart.LATEST)), READ_COMMITTED)
        if source.start is TopicStart.LATEST:
            return {at.partition: end.offset for at, end in ends.items()}
        found = list_offsets(cluster, dict.fromkeys(some, int(source.start)), READ_COMMITTED)
        return {at.partition: (spot if spot.offset >= 0 else ends[at]).offset for at, spot in found.items()}


def _filled(written: dict[str, int], firsts: dict[int, int]) -> dict[int, int]:
    """The stored offsets, for every partition that exists now."""
    return {index: written.get(str(index), first) for index, first in firsts.items()}


def _plain(topics: dict[str, TopicDescription]) -> list[str]:
    return [
        topic.name for topic in topics.values() if not topic.internal and not topic.name.startswith("__")
    ][:20]
