"""Transactions as DescribeTransactions and ListTransactions show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from braidmq.txn.coordinator import Transactions
from braidmq.txn.events import Moment
from braidmq.txn.transaction import NOT_STARTED, Transaction, TransactionState
from braidmq.wire.errors import ApiError, ErrorCode

LABELS = frozenset(state.label for state in TransactionState)
NO_DURATION = -1


class DescribedTransaction(NamedTuple):
    """One transactional id, with the partitions of its transaction by topic."""

    transactional_id: str
    state: str
    timeout_ms: int
    started_ms: int
    producer_id: int
    producer_epoch: int
    topics: dict[str, list[int]]


class TransactionFilter(NamedTuple):
    """What to list; what is empty lets everything pass."""

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    longer_than_ms: int = NO_DURATION
    named: Callable[[str], object] | None = None
    """Whether a transactional id is wanted: the pattern a client sent, which the caller compiles."""

    def takes(self, one: Transaction, wall_ms: int) -> bool:
        running_ms = NOT_STARTED if one.started_ms == NOT_STARTED else wall_ms - one.started_ms
        return (
            (not self.states or one.state.label in self.states)
            and (not self.producer_ids or one.producer_id in self.producer_ids)
            and (self.longer_than_ms < 0 or running_ms > self.longer_than_ms)
            and (self.named is None or bool(self.named(one.transactional_id)))
        )


def describe(transactions: Transactions, transactional_id: str) -> DescribedTransaction:
    """Raises ApiError for an id that is not known."""
    transactions.settings.check_id(transactional_id)
    found = transactions.find(transactional_id)
    if found is None:
        raise ApiError(
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {transactional_id!r}"
        )
    return DescribedTransaction(
        found.transactional_id,
        found.state.label,
        found.timeout_ms,
        found.started_ms,
        found.producer_id,
        found.producer_epoch,
        found.topics(),
    )


def listed(transactions: Transactions, wanted: TransactionFilter, now: Moment) -> list[Transaction]:
    """The ids that are wanted. If every state that was asked for is unknown, that is none."""
    return [one for one in transactions if wanted.takes(one, now.wall_ms)]


def unknown_states(wanted: TransactionFilter) -> list[str]:
    """The states that were asked for but do not exist."""
    return sorted(wanted.states - LABELS)
