"""One member of a streams group: what it says of itself, and the tasks it has.

A member is one thread of an application; the threads of a process say the same process id. How it comes from
what it has to what it should have is in `reconciliation`, and what is free for it in `streams_tasks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from braidmq.group.reconciliation import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    AssignedMember,
)
from braidmq.group.streams_tasks import Task, TaskOwners, Tasks
from braidmq.group.streams_topology import Topology, check_topology
from braidmq.wire.errors import ApiError, ErrorCode

KNOWS_NO_ENDPOINTS = -1


class Endpoint(NamedTuple):
    """Where a process answers queries about its state (interactive queries)."""

    host: str
    port: int


Tags = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class StreamsHeartbeat:
    """A StreamsGroupHeartbeat; what the member leaves out is None, or -1 for the timeout."""

    member_id: str
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology: Topology | None = None
    owned: Tasks | None = None
    process_id: str | None = None
    endpoint: Endpoint | None = None
    tags: Tags | None = None
    endpoint_epoch: int = KNOWS_NO_ENDPOINTS
    ends_application: bool = False


class StreamsMember(AssignedMember[Task, TaskOwners]):
    """What the group knows about one member."""

    __slots__ = (
        "client_host",
        "client_id",
        "deadline_ms",
        "endpoint",
        "knows_endpoints",
        "process_id",
        "rack_id",
        "rebalance_deadline_ms",
        "rebalance_timeout_ms",
        "tags",
        "topology_epoch",
    )
    classic: ClassVar[None] = None
    """No member of the classic protocol can be in a streams group."""

    def __init__(self, member_id: str) -> None:
        super().__init__(member_id)
        self.rack_id: str | None = None
        self.client_id = ""
        self.client_host = ""
        self.rebalance_timeout_ms = -1
        self.topology_epoch = -1
        self.process_id = ""
        self.endpoint: Endpoint | None = None
        self.tags: Tags = ()
        self.knows_endpoints = False
        """Whether it has heard since the broker started where state can be queried."""
        self.deadline_ms: int | None = None
        self.rebalance_deadline_ms: int | None = None

    def take(self, beat: StreamsHeartbeat) -> bool:
        """Takes over what the heartbeat says; True if an assignor could now decide otherwise."""
        before = (self.process_id, self.rack_id, self.tags, self.topology_epoch)
        self.client_id, self.client_host = beat.client_id, beat.client_host
        self.rack_id = beat.rack_id if beat.rack_id is not None else self.rack_id
        self.process_id = beat.process_id if beat.process_id is not None else self.process_id
        self.endpoint = beat.endpoint if beat.endpoint is not None else self.endpoint
        self.tags = beat.tags if beat.tags is not None else self.tags
        if beat.topology is not None:
            self.topology_epoch = beat.topology.epoch
        if beat.rebalance_timeout_ms >= 0:
            self.rebalance_timeout_ms = beat.rebalance_timeout_ms
        return (self.process_id, self.rack_id, self.tags, self.topology_epoch) != before

    def profile(self) -> tuple[object, ...]:
        """All that is written down about the member besides its tasks."""
        return (
            self.rack_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.topology_epoch,
            self.process_id,
            self.endpoint,
            self.tags,
        )

    def weight_bytes(self) -> int:
        """What the member says about itself, beside what any member weighs."""
        return len(self.process_id) + sum(len(key) + len(text) for key, text in self.tags)

    def claim(self, wanted: Tasks, since: int, owners: TaskOwners) -> Tasks:
        return owners.claim(self, wanted, since)

    def release(self, things: Tasks, owners: TaskOwners) -> None:
        owners.release(self, things)


def check_request(beat: StreamsHeartbeat) -> None:
    """What cannot be right whatever the group looks like."""
    if not beat.member_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "the member id is empty")
    if beat.rack_id == "":
        raise ApiError(ErrorCode.INVALID_REQUEST, "the rack id is empty; leave it out instead")
    if beat.member_epoch < LEAVING_EPOCH:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{beat.member_epoch} is not a member epoch")
    if beat.member_epoch != JOINING_EPOCH:
        if beat.topology is not None:
            raise ApiError(ErrorCode.INVALID_REQUEST, "only a member that joins may give a topology")
        return
    if beat.rebalance_timeout_ms < 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a member that joins must give a rebalance timeout")
    if beat.owned:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a member that joins must not own tasks")
    if beat.topology is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a member that joins must give a topology")
    check_topology(beat.topology)
