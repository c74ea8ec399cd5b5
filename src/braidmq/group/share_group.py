"""Membership of a share group (KIP-932): who takes part, and whom the server sends to which partitions.

Several members may be sent to one partition, because what each of them has acquired is kept record by record
in the delivery engine. So nobody has to give anything up before others may have it, and a new target counts
at once: with its next heartbeat a member is in the newest epoch. Membership is not written down, only that
there is such a group (`share_records`). Members of a broker that has restarted are unknown, join again, and
lose nothing by it.
"""

from __future__ import annotations

from enum import StrEnum

from braidmq.group.admission import weight_of_topics
from braidmq.group.assignors import NOTHING, Partitions, Reader, assign_shared
from braidmq.group.catalog import Catalog, CatalogTopic
from braidmq.group.consumer_group import Beat
from braidmq.group.consumer_member import JOINING_EPOCH, LEAVING_EPOCH, Heartbeat
from braidmq.group.settings import GroupSettings
from braidmq.wire.errors import ApiError, ErrorCode


class ShareGroupState(StrEnum):
    """In the words of ListGroups."""

    EMPTY = "Empty"
    STABLE = "Stable"


class ShareMember:
    """What the group knows about one member."""

    __slots__ = ("client_host", "client_id", "deadline_ms", "epoch", "member_id", "previous_epoch", "rack_id",
                 "sent", "topics")  # fmt: skip

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.client_id = ""
        self.client_host = ""
        self.rack_id: str | None = None
        self.epoch = JOINING_EPOCH
        self.previous_epoch = JOINING_EPOCH
        self.topics: frozenset[str] = frozenset()
        self.sent: Partitions = NOTHING
        self.deadline_ms = 0


class ShareGroup:
    """Members and target of one share group."""

    group_type = "share"
    protocol_type = "share"

    def __init__(self, group_id: str, settings: GroupSettings, noted: bool = False) -> None:
        self.group_id = group_id
        self.noted = noted
        """Whether it is written down that the group is there."""
        self.epoch = 0
        self.members: dict[str, ShareMember] = {}
        self.targets: dict[str, Partitions] = {}
        self.subscribed_topics: dict[str, CatalogTopic] = {}
        self._settings = settings
        self._catalog_version: int | None = None
        self._target_epoch = 0
        self._earliest_ms: int | None = None

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def target_epoch(self) -> int:
        """The epoch for which partitions were last assigned."""
        return self._target_epoch

    def heartbeat(self, beat: Heartbeat, catalog: Catalog, now_ms: int) -> Beat:
        """Joins, stays, or leaves, as the member epoch says. Raises ApiError."""
        _check_request(beat)
        if beat.member_epoch == LEAVING_EPOCH:
            self._remove(self._known(beat.member_id))
            return Beat(beat.member_id, LEAVING_EPOCH, 0, None)
        member = self._member_of(beat)
        self._take(member, beat, catalog)
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch
        settings = self._settings.of(self.group_id)
        member.deadline_ms = now_ms + settings.group_share_session_timeout_ms
        self._earliest_ms = min(self._earliest_ms or member.deadline_ms, member.deadline_ms)
        target = self.targets.get(member.member_id, NOTHING)
        tell = beat.topics is not None or target != member.sent
        member.sent = target
        interval_ms = settings.group_share_heartbeat_interval_ms
        return Beat(member.member_id, member.epoch, interval_ms, target if tell else None)

    def _member_of(self, beat: Heartbeat) -> ShareMember:
        if beat.member_epoch != JOINING_EPOCH:
            member = self._known(beat.member_id)
            if beat.member_epoch not in (member.epoch, member.previous_epoch):
                raise ApiError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    f"epoch {beat.member_epoch} is not {member.epoch}; join again",
                )
            return member
        if beat.member_id not in self.members:
            most = self._settings.group_share_max_size
            if len(self.members) >= most:
                raise ApiError(
                    ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group is full: it may have {most} members"
                )
            self.members[beat.member_id] = ShareMember(beat.member_id)
        return self.members[beat.member_id]

    def _known(self, member_id: str) -> ShareMember:
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is not a member of the group")
        return member

    def check_member(self, member_id: str) -> None:
        """Raises ApiError if a ShareFetch or ShareAcknowledge comes from nobody in the group."""
        self._known(member_id)

    def _take(self, member: ShareMember, beat: Heartbeat, catalog: Catalog) -> None:
        """Takes over what the member says, and computes the target again where that changes something."""
        member.client_id, member.client_host = beat.client_id, beat.client_host
        member.rack_id = beat.rack_id if beat.rack_id is not None else member.rack_id
        changed = member.epoch == JOINING_EPOCH or beat.topics not in (None, member.topics)
        member.topics = beat.topics if beat.topics is not None else member.topics
        if changed or catalog.version != self._catalog_version:
            self._catalog_version = catalog.version
            names = frozenset().union(*(one.topics for one in self.members.values()))
            found = {name: catalog.topics[name] for name in names if name in catalog.topics}
            if changed or found != self.subscribed_topics:
                self.subscribed_topics = found
                self.epoch += 1
        if self.epoch > self._target_epoch:
            self._compute_target()

    def _compute_target(self) -> None:
        found = self.subscribed_topics
        readers = {
            one.member_id: Reader(frozenset(found[name].topic_id for name in one.topics if name in found))
            for one in self.members.values()
        }
        counts = {topic.topic_id: topic.partitions for topic in found.values()}
        self.targets = assign_shared(readers, counts)
        self._target_epoch = self.epoch

    def weight_bytes(self) -> int:
        """What is kept for its members."""
        return sum(weight_of_topics(one.topics, "") for one in self.members.values())

    def next_deadline(self) -> int | None:
        """When `tick` is to be called."""
        return self._earliest_ms

    def tick(self, now_ms: int) -> list[str]:
        """Removes members that have been silent for a session; returns their ids."""
        silent = [member for member in self.members.values() if member.deadline_ms <= now_ms]
        for member in silent:
            self._remove(member)
        self._earliest_ms = min((one.deadline_ms for one in self.members.values()), default=None)
        return [member.member_id for member in silent]

    def _remove(self, member: ShareMember) -> None:
        del self.members[member.member_id]
        self.targets.pop(member.member_id, None)
        self.epoch += 1


def _check_request(beat: Heartbeat) -> None:
    if not beat.member_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "the member id is empty; the member makes its own")
    if beat.member_epoch < LEAVING_EPOCH:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{beat.member_epoch} is not a member epoch")
    if beat.rack_id == "":
        raise ApiError(ErrorCode.INVALID_REQUEST, "the rack id is empty; leave it out instead")
    if beat.member_epoch == JOINING_EPOCH and not beat.topics:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a member that joins must subscribe to topics")
