"""InitProducerId: the identity under which a producer's retries are recognised."""

from __future__ import annotations

from braidmq.wire.api import Api
from braidmq.wire.schema import Message, boolean, int16, int32, int64, string


class InitProducerIdRequest(Message, api=Api.INIT_PRODUCER_ID, versions=(0, 6), flexible=2):
    transactional_id: str | None = string(nullable=0)
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(since=3, default=-1)
    producer_epoch: int = int16(since=3, default=-1)
    enable_2pc: bool = boolean(since=6)
    keep_prepared_txn: bool = boolean(since=6)


class InitProducerIdResponse(Message, api=Api.INIT_PRODUCER_ID, versions=(0, 6), flexible=2):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
    ongoing_txn_producer_id: int = int64(since=6, default=-1)
    ongoing_txn_producer_epoch: int = int16(since=6, default=-1)
