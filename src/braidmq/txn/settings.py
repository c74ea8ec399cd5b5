"""The limits of transactions: the same names, units and defaults as Kafka's broker options."""

from __future__ import annotations

from dataclasses import dataclass

from braidmq.wire.errors import ApiError, ErrorCode

MS_PER_MINUTE = 60_000


@dataclass(slots=True)
class TransactionSettings:
    """What an operator may set about transactions. The first fields are Kafka's options with dots.

    The broker changes the fields while it runs; nobody keeps copies.
    """

    transaction_max_timeout_ms: int = 15 * MS_PER_MINUTE
    transactional_id_expiration_ms: int = 7 * 24 * 60 * MS_PER_MINUTE

    transactional_ids_max: int = 100_000
    """Transactional ids remembered at once; Kafka has no such limit."""
    transactional_id_bytes_max: int = 1_000
    transaction_partitions_max: int = 10_000
    """Partitions in one transaction: its record names all of them and must fit a batch."""
    retry_ms: int = 500
    """When a marker or a state that could not be written is tried again."""

    def check_id(self, transactional_id: str) -> None:
        """Raises ApiError if this cannot be a transactional id."""
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        if len(transactional_id.encode()) > self.transactional_id_bytes_max:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"the transactional id is longer than {self.transactional_id_bytes_max} bytes",
            )

    def check_timeout(self, timeout_ms: int) -> None:
        """Raises ApiError if a producer may not ask for such a time-out."""
        if not 0 < timeout_ms <= self.transaction_max_timeout_ms:
            raise ApiError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"transaction.timeout.ms={timeout_ms} is not between 1 and"
                f" transaction.max.timeout.ms={self.transaction_max_timeout_ms}",
            )
