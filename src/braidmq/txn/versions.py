"""Which code a client gets: newer ones only where its version of the request knows them.

Inside there is one word for a producer whose place was taken, PRODUCER_FENCED, and one for a transaction
that can only be aborted, TRANSACTION_ABORTABLE. Older versions know the first as INVALID_PRODUCER_EPOCH and
the second as INVALID_TXN_STATE (KIP-588, KIP-890).
"""

from __future__ import annotations

from typing import NamedTuple

from braidmq.wire.api import Api
from braidmq.wire.errors import ErrorCode

NEVER = 1 << 15


class Since(NamedTuple):
    """From which version of a request on each code is known."""

    fenced: int
    abortable: int


KNOWN = {
    Api.PRODUCE: Since(NEVER, 11),
    Api.TXN_OFFSET_COMMIT: Since(NEVER, 4),
    Api.INIT_PRODUCER_ID: Since(4, 5),
    Api.ADD_PARTITIONS_TO_TXN: Since(2, 5),
    Api.ADD_OFFSETS_TO_TXN: Since(2, 4),
    Api.END_TXN: Since(2, 4),
}


def code_for(code: ErrorCode, api: Api, version: int) -> ErrorCode:
    """The code for a client that sent `api` in `version`."""
    since = KNOWN[api]
    if code is ErrorCode.PRODUCER_FENCED and version < since.fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < since.abortable:
        return ErrorCode.INVALID_TXN_STATE
    return code
