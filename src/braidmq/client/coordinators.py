"""Which broker coordinates a group or a transactional id, and asking it until it answers.

A coordinator is found once and remembered until it says that it is another, or cannot be reached.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TypeVar

from braidmq.client.cluster import Cluster
from braidmq.client.connection import Connection
from braidmq.client.errors import TimedOut, Unreachable
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from braidmq.wire.schema import Message

MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})

T = TypeVar("T")
R = TypeVar("R", bound=Message)


class CoordinatorKind(IntEnum):
    """What is coordinated, as FindCoordinator numbers it."""

    GROUP = 0
    TRANSACTION = 1


class Coordinators:
    """The coordinators of one cluster. Belongs to one thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._nodes: dict[tuple[CoordinatorKind, str], int] = {}

    def connection(self, kind: CoordinatorKind, key: str) -> Connection:
        """A connection to the coordinator of a group or a transactional id."""
        node_id = self._nodes.get((kind, key))
        if node_id is None:
            node_id = self._nodes[kind, key] = self._find(kind, key)
        return self._cluster.connection(node_id)

    def ask(self, kind: CoordinatorKind, key: str, question: Callable[[Connection], T]) -> T:
        """What the coordinator answers; asked again while that may help, within the cluster's `timeout_s`.

        `question` raises ApiError for what the answer reports.
        """
        for attempt in self._cluster.attempts():
            try:
                return question(self.connection(kind, key))
            except (Unreachable, TimedOut) as error:
                self._nodes.pop((kind, key), None)
                attempt.failed(error, retriable=bool(self._cluster.brokers))
            except ApiError as error:
                if error.code in MOVED:
                    self._nodes.pop((kind, key), None)
                attempt.failed(error, retriable=error.code.retriable)
        raise AssertionError("attempts end by raising")

    def _find(self, kind: CoordinatorKind, key: str) -> int:
        # Up to version 3 the key is in one field, from 4 on in the other; so is the answer.
        request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
        answer = self._cluster.call(request, FindCoordinatorResponse)
        found = answer.coordinators[0] if answer.coordinators else answer
        code = ErrorCode(found.error_code)
        if code is not ErrorCode.NONE:
            raise ApiError(code, found.error_message or f"no coordinator for {key}")
        if found.node_id not in self._cluster.brokers:
            self._cluster.refresh([])
        return found.node_id
