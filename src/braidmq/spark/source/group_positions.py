"""Publishes a query's positions as those of a consumer group, so that tools that show lag show the query's.

Spark's checkpoint decides: nothing is read back from the group, and a failed commit only logs a warning. The
query does not wait for responses either: one is read when the next commit is sent, or at the end of a query
that reads only what is available now.
"""

from __future__ import annotations

import hashlib
import logging
import re

from braidmq.address import Address
from braidmq.client.cluster import Cluster
from braidmq.client.connection import Connection
from braidmq.client.errors import ClientError
from braidmq.spark.source import positions
from braidmq.spark.source.positions import Offsets
from braidmq.spark.source.query import ReadQuery
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from braidmq.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse

# From version 10 on topics have ids only.
COMMIT_VERSION_MAX = 9
FIND_VERSION_MAX = 3
NAME_CHARACTERS_MAX = 60
CLOSE_TIMEOUT_S = 5.0

log = logging.getLogger("braidmq.spark")


def group_name(query: ReadQuery) -> str:
    """The group that a query publishes to; empty if it publishes nothing."""
    if query.group_id is not None:
        return query.group_id
    subscription = query.subscription
    topics = ",".join(subscription.topics or sorted(subscription.assigned)) or subscription.pattern or ""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", topics)
    if readable != topics or len(readable) > NAME_CHARACTERS_MAX:
        readable = f"{readable[:NAME_CHARACTERS_MAX]}-{hashlib.sha256(topics.encode()).hexdigest()[:8]}"
    return f"{query.group_prefix}-{readable}"


class GroupPositions:
    """Publishes what a query has processed; for one thread."""

    def __init__(self, query: ReadQuery) -> None:
        self.name = group_name(query)
        self._query = query
        self._cluster: Cluster | None = None
        self._coordinator: Address | None = None
        self._under_way: tuple[Connection, int] | None = None
        self._processed: Offsets = {}
        self._published: Offsets = {}
        self._complained = False

    def publish(self, processed: Offsets) -> None:
        """Sends the positions that changed; errors of a broker are logged and not raised."""
        self._processed.update(processed)
        if not self.name:
            return
        try:
            self._collect()
        except (ApiError, ClientError) as error:
            # The coordinator just moved; no need to warn, since everything is sent again.
            if not (isinstance(error, ApiError) and error.code.retriable):
                self._complain(error)
        try:
            self._send_changes()
        except (ApiError, ClientError) as error:
            self._complain(error)

    def settle(self) -> None:
        """Publishes, and waits until the last positions are committed."""
        try:
            self._collect()
        except (ApiError, ClientError) as error:
            self._complain(error)

    def close(self) -> None:
        """Commits the last positions, within a few seconds."""
        if self._cluster is None:
            return
        try:
            for attempt in self._cluster.attempts(CLOSE_TIMEOUT_S):
                try:
                    self._send_changes()
                    self._collect()
                except ApiError as error:
                    attempt.failed(error, retriable=error.code.retriable)
        except (ApiError, ClientError) as error:
            self._complain(error)
        self._cluster.close()

    def _send_changes(self) -> None:
        changed = {at: offset for at, offset in self._processed.items() if self._published.get(at) != offset}
        if changed:
            self._send(changed)
            self._published.update(changed)

    def _collect(self) -> None:
        """Reads the response to the last commit, which has usually arrived long ago."""
        if self._under_way is None:
            return
        (connection, version), self._under_way = self._under_way, None
        answer = connection.receive(OffsetCommitResponse, version)
        for topic in answer.topics:
            for part in topic.partitions:
                code = ErrorCode(part.error_code)
                if code is not ErrorCode.NONE:
                    self._coordinator = None
                    self._published.clear()
                    raise ApiError(code, f"{topic.name}-{part.partition_index}: {code.name.lower()}")

    def _send(self, offsets: Offsets) -> None:
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for at, offset in offsets.items():
            topic = topics.setdefault(at.topic, OffsetCommitRequestTopic(name=at.topic, partitions=[]))
            topic.partitions.append(
                OffsetCommitRequestPartition(
                    partition_index=at.partition, committed_offset=offset, committed_metadata=""
                )
            )
        connection = self._connection()
        version = connection.version(OffsetCommitRequest, COMMIT_VERSION_MAX)
        connection.send(OffsetCommitRequest(group_id=self.name, topics=list(topics.values())), version)
        self._under_way = (connection, version)

    def _connection(self) -> Connection:
        if self._cluster is None:
            self._cluster = positions.connect(self._query)
        for attempt in self._cluster.attempts() if self._coordinator is None else ():
            request = FindCoordinatorRequest(key=self.name)
            found = self._cluster.call(request, FindCoordinatorResponse, FIND_VERSION_MAX)
            code = ErrorCode(found.error_code)
            if code is ErrorCode.NONE:
                self._coordinator = Address(found.host, found.port)
            else:
                attempt.failed(ApiError(code, f"group {self.name}: {code.name.lower()}"), code.retriable)
        assert self._coordinator is not None
        return self._cluster.connection_to(self._coordinator)

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            log.warning("positions are not published to group %s: %s; the query continues", self.name, error)
        self._complained = True
