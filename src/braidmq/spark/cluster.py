"""The cluster that a job's driver asks for topics, offsets and groups, reached the way its tasks reach it."""

from __future__ import annotations

from collections.abc import Mapping

from braidmq.client.cluster import Cluster
from braidmq.client.connection import TIMEOUT_S
from braidmq.client.security import SecurityError, parse_security
from braidmq.spark.options import READ_OPTIONS, OptionError, Options
from braidmq.spark.sink.options import SINK_OPTIONS

CLIENT_ID = "braid-spark"
WHAT = 'format("braid")'


def open_cluster(
    bootstrap: str, options: Mapping[str, str], client_id: str = CLIENT_ID, timeout_s: float = TIMEOUT_S
) -> Cluster:
    """With the security that options of `format("braid")` describe; nothing is sent before a question.

    Options about reading and writing may be among them, and are left to readers and writers. OptionError
    where one means nothing, or cannot be.
    """
    given = Options(options, (*READ_OPTIONS, *SINK_OPTIONS), WHAT)
    try:
        security = parse_security(given.client_settings())
    except SecurityError as error:
        raise OptionError(str(error)) from None
    timeout_ms = given.count("request.timeout.ms")
    return Cluster(
        bootstrap,
        client_id=given.text("client.id") or client_id,
        timeout_s=timeout_s if timeout_ms is None else timeout_ms / 1000,
        security=security,
    )
