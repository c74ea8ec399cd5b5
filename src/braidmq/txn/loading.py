"""Reading the internal topic when a broker starts: the last word on each transactional id counts.

What cannot be read is counted and passed over: one bad record must not keep all transactions away.
"""

from __future__ import annotations

from braidmq.txn.records import parse
from braidmq.txn.transaction import Transaction
from braidmq.wire.errors import ProtocolError


class TransactionLoader:
    """What the records read so far say."""

    def __init__(self) -> None:
        self.unreadable = 0
        self.transactions: dict[str, Transaction] = {}

    def record(self, key: bytes, value: bytes | None) -> None:
        """Takes in one record, in the order of the log."""
        try:
            stored = parse(key, value)
        except ProtocolError:
            self.unreadable += 1
            return
        if stored is None:
            return
        transactional_id, transaction = stored
        if transaction is None:
            self.transactions.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = transaction
