"""The cluster of a topic in a pipeline, from which the driver reads topics, offsets and samples.

`options` at the top of a file are for every topic; a source or sink may add its own, or override them.
"""

from __future__ import annotations

from collections.abc import Collection

from braidmq.client.cluster import Cluster
from braidmq.spark.cluster import open_cluster
from braidmq.spark.options import CLIENT_OPTIONS, PREFIX, OptionError, merged
from braidmq.spark.options import Options as CheckedOptions
from braidmq.spark.pipelines.mistakes import PipelineError
from braidmq.spark.pipelines.model import Options, Pipeline, TopicSink, TopicSource

CLIENT_ID = "braid-pipeline"
TIMEOUT_S = 10.0
OF_THE_VALUE = "value."
"""The prefix of options for the parser or writer of values."""


def topic_options(pipeline: Pipeline, own: Options = ()) -> dict[str, str]:
    """The options of `format("braid")` for a topic that has these options."""
    first = {"bootstrap.servers": pipeline.bootstrap}
    return merged(first, dict(pipeline.options), dict(about_topics(own)))


def about_topics(own: Options) -> Options:
    """Options that are not for a parser."""
    return tuple((name, text) for name, text in own if not name.startswith(OF_THE_VALUE))


def about_values(own: Options) -> dict[str, str]:
    """Options for the parser or writer of values, such as `value.sep`, by Spark's names."""
    return {name.removeprefix(OF_THE_VALUE): text for name, text in own if name.startswith(OF_THE_VALUE)}


def mistake_in(own: Options, known: Collection[str]) -> str | None:
    """Checks the names of options: `known` and those of connections are right."""
    try:
        CheckedOptions(dict(about_topics(own)), known, "a topic")
    except OptionError as error:
        return str(error)
    return None


def connection_options(own: Options) -> Options:
    """The options of the connection, for another topic on the same cluster."""
    return tuple((name, text) for name, text in own if name.lower().removeprefix(PREFIX) in CLIENT_OPTIONS)


def connect(pipeline: Pipeline, part: TopicSource | TopicSink | None = None) -> Cluster:
    """Connected with the same settings as the queries of that source or sink."""
    location = part.location if part is not None else pipeline.location.file
    try:
        options = topic_options(pipeline, part.options if part is not None else ())
        return open_cluster(options["bootstrap.servers"], options, CLIENT_ID, TIMEOUT_S)
    except OptionError as error:
        raise PipelineError(f"{location}: options: {error}") from None
