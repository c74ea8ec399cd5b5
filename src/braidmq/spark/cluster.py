"""The cluster that a job's driver asks for topics, offsets and groups, with the settings of its tasks."""

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
    """A client with the security settings among the options of `format("braid")`; it connects on first use.

    Options for reading and writing are allowed and ignored here. OptionError for an unknown option or a
    wrong value.
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
