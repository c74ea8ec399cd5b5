"""The cluster that a job's driver asks for topics, offsets and groups, reached the way its tasks reach it."""

from __future__ import annotations

from collections.abc import Mapping

from braidmq.client.cluster import Cluster
from braidmq.client.security import SecurityError, parse_security
from braidmq.spark.options import OptionError

CLIENT_ID = "braid-spark"
TIMEOUT_MS = 30_000


def reach(bootstrap: str, options: Mapping[str, str]) -> Cluster:
    """With the security that options of `format("braid")` describe; nothing is sent before a question."""
    settings = {name.removeprefix("kafka."): text for name, text in options.items()}
    client_id = settings.get("client.id", CLIENT_ID)
    try:
        security = parse_security(settings)
        timeout_s = int(settings.get("request.timeout.ms", TIMEOUT_MS)) / 1000
    except SecurityError as error:
        raise OptionError(str(error)) from None
    except ValueError:
        raise OptionError(f"request.timeout.ms: {settings['request.timeout.ms']!r} is no number") from None
    return Cluster(bootstrap, client_id=client_id, timeout_s=timeout_s, security=security)
