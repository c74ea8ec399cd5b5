"""How a topic wants its batches: checked, under its codec, with its clock, and with keys where it compacts.

A plain topic takes a batch as it is. Any other may have to open one, which takes as long as what is inside
is large; nothing here touches a log, so that it can be done in any thread.
"""

from __future__ import annotations

from braidmq.broker.record_checks import check_keys, refuse_times
from braidmq.config import TimestampType, TopicConfig
from braidmq.wire.compress import Codec
from braidmq.wire.records import (
    CODEC_MASK,
    HEADER_BYTES,
    BatchHeader,
    check_produced,
    parse_header,
    recompress,
    restamp_append_time,
)

INLINE_BYTES_MAX = 64 * 1024
"""What is not compressed and no larger is prepared on the loop: handing it over would cost as much."""
_CODEC_AT = 22

_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}

Prepared = tuple[memoryview, BatchHeader]
"""A batch as its topic wants it, and its header."""


class BatchPreparer:
    """What the options of a topic say about its batches."""

    __slots__ = ("_codec", "_config", "_stamps", "plain")

    def __init__(self, config: TopicConfig) -> None:
        self._config = config
        self._codec = _CODECS.get(config.compression_type)
        self._stamps = config.message_timestamp_type == TimestampType.APPEND.value
        self.plain = self._codec is None and not self._stamps and not config.compacts
        """Whether batches are stored as they come."""

    def takes_long(self, batch: bytearray | memoryview) -> bool:
        """Whether a batch has to be opened, and that may take long; how long only shows when it is open."""
        if self._codec is None and not self._config.compacts:
            return False
        compressed = len(batch) >= HEADER_BYTES and batch[_CODEC_AT] & CODEC_MASK != Codec.NONE
        return compressed or len(batch) > INLINE_BYTES_MAX

    def prepare(self, partition: object, batch: memoryview, now_ms: int) -> Prepared:
        """The batch, checked and changed as need be. ApiError, which names `partition`, if it is refused."""
        config = self._config
        header = check_produced(batch, config.max_message_bytes)
        if not self._stamps and (
            header.max_timestamp - now_ms > config.message_timestamp_after_max_ms
            or now_ms - header.base_timestamp > config.message_timestamp_before_max_ms
        ):
            # A batch that takes long is prepared in a thread.
            raise refuse_times(partition, batch, config, now_ms, may_inflate=self.takes_long(batch))
        if self.plain:
            return batch, header
        if self._codec is not None and header.codec is not self._codec:
            # Stored inflated, a batch may not become larger than what is accepted anyway.
            cap = config.max_message_bytes if self._codec is Codec.NONE else None
            batch = memoryview(recompress(batch, self._codec, cap))
            header = check_produced(batch, config.max_message_bytes)
        if self._stamps:
            restamp_append_time(batch, now_ms)
            header = parse_header(batch)
        if config.compacts:
            check_keys(partition, batch)
        return batch, header
