"""Settings of a client by the names of Kafka's own: which there are, and the cluster they lead to.

`security.py` reads those about TLS and SASL. A name may have the prefix `kafka.`, as in Spark's Kafka source.
A name that is not known is an error that suggests the closest one: a misspelt `sasl.pasword` would otherwise
show only as a refusal by the broker.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from braidmq.client.cluster import Cluster
from braidmq.client.connection import CLIENT_ID, TIMEOUT_S
from braidmq.client.security import SecurityError, parse_security

PREFIX = "kafka."
CLIENT_OPTIONS = (
    "bootstrap.servers",
    "client.id",
    "group.id",
    "isolation.level",
    "request.timeout.ms",
    "fetch.max.bytes",
    "max.partition.fetch.bytes",
    "security.protocol",
    "sasl.mechanism",
    "sasl.jaas.config",
    "sasl.username",
    "sasl.password",
    "sasl.oauthbearer.token",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
)
WITHOUT_EFFECT = (
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "auto.offset.reset",
    "check.crcs",
    "connections.max.idle.ms",
    "default.api.timeout.ms",
    "enable.auto.commit",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "max.poll.records",
    "metadata.max.age.ms",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retries",
    "retry.backoff.ms",
    "send.buffer.bytes",
    "session.timeout.ms",
)
"""Known to Kafka's own client or source, and settled here in another way: accepted, so queries move over."""


class SettingError(ValueError):
    """A setting that is not known or cannot be used; the message names it and what would be right."""


def merged(*layers: Mapping[str, str]) -> dict[str, str]:
    """Settings by their plain names (small letters, no prefix); a later layer wins over an earlier one."""
    return {written.lower().removeprefix(PREFIX): text for layer in layers for written, text in layer.items()}


def check_names(settings: Mapping[str, str], where: str) -> None:
    """SettingError if a name is not one of a client's settings."""
    for written in settings:
        plain = written.lower().removeprefix(PREFIX)
        if plain not in CLIENT_OPTIONS and plain not in {name.lower() for name in WITHOUT_EFFECT}:
            close = difflib.get_close_matches(plain, CLIENT_OPTIONS, n=1, cutoff=0.5)
            advice = f"; did you mean {close[0]!r}?" if close else "; docs/reference/cli.md lists them"
            raise SettingError(f"{where} has no option {written!r}{advice}")


def connect(
    bootstrap: str, settings: Mapping[str, str], *, client_id: str = CLIENT_ID, timeout_s: float = TIMEOUT_S
) -> Cluster:
    """The cluster that plain settings describe; nothing is sent before the first request."""
    try:
        security = parse_security(settings)
    except SecurityError as error:
        raise SettingError(str(error)) from None
    return Cluster(
        bootstrap,
        client_id=settings.get("client.id") or client_id,
        timeout_s=_timeout_s(settings, timeout_s),
        security=security,
    )


def _timeout_s(settings: Mapping[str, str], default_s: float) -> float:
    text = settings.get("request.timeout.ms")
    if text is None:
        return default_s
    if not text.strip().isdigit() or int(text) < 1:
        raise SettingError(f"request.timeout.ms is {text!r}; it must be a whole number of at least 1")
    return int(text) / 1000
