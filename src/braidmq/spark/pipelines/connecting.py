"""The cluster of a pipeline, for what is asked of it on the driver: topics, offsets, a sample of records."""

from __future__ import annotations

from braidmq.client.cluster import Cluster
from braidmq.client.security import SecurityError, parse_security
from braidmq.spark.pipelines.mistakes import PipelineError
from braidmq.spark.pipelines.model import Pipeline

CLIENT_ID = "braid-pipeline"
TIMEOUT_S = 10.0


def connect(pipeline: Pipeline) -> Cluster:
    """With the security that `options` of the file describe, as its queries have it."""
    settings = {name.removeprefix("kafka."): text for name, text in pipeline.options}
    try:
        security = parse_security(settings)
    except SecurityError as error:
        raise PipelineError(f"{pipeline.place.file}: options: {error}") from None
    return Cluster(pipeline.bootstrap, client_id=CLIENT_ID, timeout_s=TIMEOUT_S, security=security)
