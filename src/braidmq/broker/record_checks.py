"""What single records must keep to, and which of a batch do not (KIP-467).

A batch is stored whole or refused whole. A refusal names the records that are to blame, so that a client can
report them apart from those that merely travelled with them.
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.config import TopicConfig
from braidmq.wire.compress import Codec
from braidmq.wire.errors import ApiError, ErrorCode, RecordError, RecordsRefused
from braidmq.wire.records import Buffer, Record, parse_header, records

EXPLAINED_MAX = 100
"""How many records get a text of their own: a small batch of many records must not make a large answer."""


def check_keys(partition: object, batch: Buffer) -> None:
    """A compacted topic keeps the newest of each key; a record without one could only be lost."""
    why = f"{partition} is compacted: every record needs a key"
    blamed = _blamed(batch, lambda record: why if record.key is None else None)
    if blamed:
        raise RecordsRefused(ErrorCode.INVALID_RECORD, f"{why}; {len(blamed)} have none", blamed)


def refuse_times(
    partition: object, batch: Buffer, config: TopicConfig, now_ms: int, *, may_inflate: bool
) -> RecordsRefused:
    """The refusal of a batch whose header says that a record's time is outside of what the topic allows.

    On the loop, compressed records are not named: a client must not make it inflate what is refused anyway.
    """
    oldest = now_ms - config.message_timestamp_before_max_ms
    newest = now_ms + config.message_timestamp_after_max_ms

    def blame(record: Record) -> str | None:
        return None if oldest <= record.timestamp <= newest else f"its time is {record.timestamp}"

    try:
        readable = may_inflate or parse_header(batch).codec is Codec.NONE
        blamed = _blamed(batch, blame) if readable else ()
    except ApiError:
        blamed = ()  # it cannot be read either, and is refused as it is
    return RecordsRefused(
        ErrorCode.INVALID_TIMESTAMP,
        f"{partition}: records have times outside of what the topic allows around the broker's {now_ms};"
        " see message.timestamp.before.max.ms and message.timestamp.after.max.ms",
        blamed,
    )


def _blamed(batch: Buffer, blame: Callable[[Record], str | None]) -> tuple[RecordError, ...]:
    blamed: list[RecordError] = []
    for index, record in enumerate(records(batch)):
        why = blame(record)
        if why is not None:
            blamed.append(RecordError(index, why if len(blamed) < EXPLAINED_MAX else None))
    return tuple(blamed)
