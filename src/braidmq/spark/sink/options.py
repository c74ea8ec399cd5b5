"""What a user may write in `.option(…)` when writing: names, defaults, checks.

The names are those of Spark's Kafka sink and of Kafka's producer, with or without the prefix `kafka.`; a name
that is unknown is an error that suggests the closest known one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from braidmq.client.cluster import Cluster
from braidmq.client.producer import Acks
from braidmq.client.security import SecurityError, parse_security
from braidmq.spark.options import DEFAULT_REQUEST_TIMEOUT_MS, OptionError, Options, bootstrap
from braidmq.wire.compress import Codec
from braidmq.wire.errors import ApiError, ErrorCode

WHAT = 'writing to format("braid")'
CLIENT_ID = "braid-spark-sink"
PREFIX = "braid-spark"
DEFAULT_BATCH_BYTES = 524_288
DEFAULT_REQUEST_BYTES = 1_048_576
DEFAULT_DELIVERY_TIMEOUT_MS = 120_000
DEFAULT_TRANSACTION_TIMEOUT_MS = 900_000
"""The brokers' default maximum: it is open from a task's first row until the batch is committed."""

WRITE_OPTIONS = (
    "topic",
    "deliveryGuarantee",
    "writeId",
    "writeNumber",
    "transactionalIdPrefix",
    "acks",
    "batch.size",
    "compression.type",
    "delivery.timeout.ms",
    "max.request.size",
    "transaction.timeout.ms",
)
WITHOUT_EFFECT = (
    "checkpointLocation",
    "queryName",
    "includeHeaders",
    "buffer.memory",
    "enable.idempotence",
    "linger.ms",
    "max.block.ms",
    "max.in.flight.requests.per.connection",
)
"""Options of Spark or of Kafka's producer that are accepted and have no effect here."""
SINK_OPTIONS = (*WRITE_OPTIONS, *WITHOUT_EFFECT)

ACKS = {"all": Acks.ALL, "-1": Acks.ALL, "1": Acks.LEADER, "0": Acks.NONE}


class Guarantee(Enum):
    """What a retried task, a restarted driver or a second attempt may do to the output."""

    EXACTLY_ONCE = "exactly-once"
    """Every row once, visible to readers of committed records when the batch is committed."""
    AT_LEAST_ONCE = "at-least-once"
    """Rows are visible as they are written; what is retried is written again."""


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write, parsed; plain values, since it is pickled into tasks."""

    bootstrap: str
    client_settings: Mapping[str, str]
    topic: str | None
    guarantee: Guarantee
    write_id: str | None
    prefix: str
    acks: Acks
    codec: Codec
    batch_bytes: int
    request_bytes_max: int
    delivery_timeout_s: float
    transaction_timeout_ms: int
    timeout_s: float

    @property
    def scope(self) -> str | None:
        """The name of a write with `writeId`, which is also the group of its ledger."""
        if self.write_id is None:
            return None
        # With the topic, so that one name for writes to several topics does not make them one. None of the
        # three has a slash in it.
        return f"{self.prefix}/{self.topic or ''}/{self.write_id}"


def parse_sink(given: Mapping[str, str], *, streaming: bool, overwrite: bool) -> SinkOptions:
    """The write that the options describe; OptionError if one is wrong."""
    if overwrite:
        raise OptionError("a topic cannot be overwritten; use .mode('append'), or delete and create it")
    options = Options(given, SINK_OPTIONS, WHAT)
    guarantee = Guarantee(
        options.one_of("deliveryGuarantee", "exactly-once", [each.value for each in Guarantee])
    )
    acks = ACKS[options.one_of("acks", "all", ACKS)]
    if guarantee is Guarantee.EXACTLY_ONCE and acks is not Acks.ALL:
        raise OptionError(
            "acks must be all for exactly-once; leave it out, or add"
            ' .option("deliveryGuarantee", "at-least-once")'
        )
    write_id = (options.text("writeId") or "").strip() or None
    for name in ("writeId", "transactionalIdPrefix"):
        if "/" in (options.text(name) or ""):
            raise OptionError(f"option {name} is {options.text(name)!r}; it must not contain a slash")
    if write_id is not None and (streaming or guarantee is not Guarantee.EXACTLY_ONCE):
        raise OptionError(
            "writeId names an exactly-once batch write;"
            + (" a stream is known by its checkpoint" if streaming else " deliveryGuarantee is at-least-once")
        )
    try:
        parse_security(options.client_settings())
    except SecurityError as error:
        raise OptionError(str(error)) from None
    request_bytes_max = options.count("max.request.size", least=1_024) or DEFAULT_REQUEST_BYTES
    return SinkOptions(
        bootstrap=bootstrap(options),
        client_settings=options.client_settings(),
        topic=(options.text("topic") or "").strip() or None,
        guarantee=guarantee,
        write_id=write_id,
        prefix=(options.text("transactionalIdPrefix") or "").strip() or PREFIX,
        acks=acks,
        codec=Codec[
            options.one_of("compression.type", "none", [each.name.lower() for each in Codec]).upper()
        ],
        batch_bytes=min(options.count("batch.size") or DEFAULT_BATCH_BYTES, request_bytes_max),
        request_bytes_max=request_bytes_max,
        delivery_timeout_s=(options.count("delivery.timeout.ms") or DEFAULT_DELIVERY_TIMEOUT_MS) / 1000,
        transaction_timeout_ms=options.count("transaction.timeout.ms") or DEFAULT_TRANSACTION_TIMEOUT_MS,
        timeout_s=(options.count("request.timeout.ms") or DEFAULT_REQUEST_TIMEOUT_MS) / 1000,
    )


def write_number(given: Mapping[str, str]) -> int:
    """The number of this write among those named `writeId`: one no greater than the last writes nothing.

    Not one of the parsed options, which identify connections: it differs with every batch.
    """
    options = Options(given, SINK_OPTIONS, WHAT)
    if "writeNumber" in options and not options.text("writeId"):
        raise OptionError("writeNumber counts the writes of one writeId; give that too")
    return options.count("writeNumber", least=0) or 0


def connect(options: SinkOptions) -> Cluster:
    """The cluster to write to; it connects on first use."""
    client_id = options.client_settings.get("client.id", CLIENT_ID)
    security = parse_security(options.client_settings)
    return Cluster(options.bootstrap, client_id=client_id, timeout_s=options.timeout_s, security=security)


def check_topic(cluster: Cluster, topic: str) -> None:
    """OptionError if a topic is missing and the cluster does not create it on request."""
    # The first request may create a topic; the second one shows whether it did.
    answer = cluster.refresh([topic], create=True)
    if answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        raise OptionError(f"{topic!r} is not a topic name; use letters, digits, dots, dashes and underscores")
    try:
        cluster.partition_count(topic)
    except ApiError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise OptionError(
            f"topic {topic!r} does not exist, and the broker does not create topics;"
            f" create it: braid topic create {topic} --partitions 8"
        ) from None
