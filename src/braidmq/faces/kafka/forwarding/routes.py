"""Which verb is answered by whom. What is not in the table, any broker answers."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from braidmq.wire.api import Api
from braidmq.wire.errors import ErrorCode


class By(Enum):
    """What decides which broker is asked."""

    LEADER = auto()
    """Of each partition."""
    GROUP = auto()
    TRANSACTION = auto()
    EVERY = auto()
    """All brokers together."""


class Route(NamedTuple):
    """How a verb is cut and joined."""

    by: By
    field: str = ""
    """Of the request: the key, the keys, or the topics with their partitions."""
    answers: str = ""
    """Of the response: what is joined where a request was cut; empty where that is not done."""
    mirror: tuple[str, str] | None = None
    """Where each part of the request has an error code in the response: the fields of both. Without it,
    there is one error code for the whole."""
    lost: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE
    """The error where the answer was lost, and with it the knowledge of what was done."""


def _leader(topics: str, answers: str, lost: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> Route:
    return Route(By.LEADER, topics, answers, (topics, answers), lost)


def _group(mirror: tuple[str, str] | None = None) -> Route:
    return Route(By.GROUP, "group_id", "", mirror)


def _groups(keys: str, answers: str) -> Route:
    return Route(By.GROUP, keys, answers, (keys, answers))


_TOPICS = ("topics", "topics")
_TRANSACTION = Route(By.TRANSACTION, "transactional_id")
_ROUTES: dict[int, Route] = {
    Api.PRODUCE: _leader("topic_data", "responses", ErrorCode.REQUEST_TIMED_OUT),
    Api.FETCH: _leader("topics", "responses"),
    Api.LIST_OFFSETS: _leader("topics", "topics"),
    Api.OFFSET_FOR_LEADER_EPOCH: _leader("topics", "topics"),
    Api.DELETE_RECORDS: _leader("topics", "topics", ErrorCode.REQUEST_TIMED_OUT),
    Api.DESCRIBE_PRODUCERS: _leader("topics", "topics"),
    Api.OFFSET_COMMIT: _group(_TOPICS),
    Api.TXN_OFFSET_COMMIT: _group(_TOPICS),
    Api.OFFSET_DELETE: _group(),
    Api.JOIN_GROUP: _group(),
    Api.SYNC_GROUP: _group(),
    Api.HEARTBEAT: _group(),
    Api.LEAVE_GROUP: _group(),
    Api.CONSUMER_GROUP_HEARTBEAT: _group(),
    Api.SHARE_GROUP_HEARTBEAT: _group(),
    Api.STREAMS_GROUP_HEARTBEAT: _group(),
    Api.ALTER_SHARE_GROUP_OFFSETS: _group(),
    Api.DELETE_SHARE_GROUP_OFFSETS: _group(),
    Api.OFFSET_FETCH: _groups("groups", "groups"),
    Api.DESCRIBE_GROUPS: _groups("groups", "groups"),
    Api.DELETE_GROUPS: _groups("groups_names", "results"),
    Api.CONSUMER_GROUP_DESCRIBE: _groups("group_ids", "groups"),
    Api.SHARE_GROUP_DESCRIBE: _groups("group_ids", "groups"),
    Api.STREAMS_GROUP_DESCRIBE: _groups("group_ids", "groups"),
    Api.DESCRIBE_SHARE_GROUP_OFFSETS: _groups("groups", "groups"),
    Api.INIT_PRODUCER_ID: _TRANSACTION,
    Api.ADD_OFFSETS_TO_TXN: _TRANSACTION,
    Api.END_TXN: _TRANSACTION,
    Api.DESCRIBE_TRANSACTIONS: Route(
        By.TRANSACTION,
        "transactional_ids",
        "transaction_states",
        ("transactional_ids", "transaction_states"),
    ),
    Api.LIST_GROUPS: Route(By.EVERY, answers="groups"),
    Api.LIST_TRANSACTIONS: Route(By.EVERY, answers="transaction_states"),
}
_NEVER: tuple[int, Route | None] = (-1, None)
_OLDER: dict[int, tuple[int, Route | None]] = {
    # One group, not several.
    Api.OFFSET_FETCH: (7, _group(_TOPICS)),
    # One transaction, of a client. Later versions are spoken between brokers.
    Api.ADD_PARTITIONS_TO_TXN: (
        3,
        Route(
            By.TRANSACTION,
            "v3_and_below_transactional_id",
            mirror=("v3_and_below_topics", "results_by_topic_v3_and_below"),
        ),
    ),
}
"""Routes up to a version, where a verb was another one before."""


def route_of(api_key: int, version: int) -> Route | None:
    """How a request is forwarded; None if any broker may answer it."""
    up_to, older = _OLDER.get(api_key, _NEVER)
    return older if version <= up_to else _ROUTES.get(api_key)
