"""Changing a group over to the new protocol while its members are being restarted one by one.

When the first member of the new protocol comes to a classic group, the group changes over at once, members,
assignments and all (`upgrade`). Members that still speak the classic protocol do not notice:
their JoinGroup, SyncGroup and Heartbeat are translated here into what a server-assigned group does.
Generations are member epochs. A join does not wait for others; there is no leader; what comes with the
sync is what the server has assigned. When a classic member has to give something up or has got something, its
heartbeat is answered with REBALANCE_IN_PROGRESS, so it joins again, and says in its subscription what it
still owns.

When the last member of the new protocol has gone and classic ones are left, because somebody goes back, the
group is a classic one again (`downgraded`), and these gather for a rebalance of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from braidmq.group.assignors import NOTHING, Partitions
from braidmq.group.catalog import Catalog
from braidmq.group.classic import KEEPS_ID_SINCE, ClassicGroup
from braidmq.group.consumer_group import ConsumerGroup
from braidmq.group.consumer_member import (
    LEAVING_EPOCH,
    ClassicTraits,
    ConsumerMember,
    Heartbeat,
    MemberState,
)
from braidmq.group.events import (
    NO_MEMBER,
    Effect,
    GroupSnapshot,
    Join,
    Joined,
    Leaver,
    MemberProtocol,
    MemberSnapshot,
    Reply,
    Sync,
    Synced,
)
from braidmq.group.roster import elected
from braidmq.group.subscription import (
    CONSUMER_PROTOCOL_TYPE,
    ConsumerProtocolSubscription,
    read_assignment,
    read_subscription,
    write_assignment,
)
from braidmq.wire.errors import ApiError, ErrorCode


def can_upgrade(group: ClassicGroup) -> bool:
    """Whether the group's members are consumers whose subscriptions can be read."""
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return False
    return all(_subscription(one.protocols) is not None for one in group.roster.members.values())


def dismiss(group: ClassicGroup) -> list[Effect]:
    """Members that wait in a group that has changed over have to join again."""
    effects: list[Effect] = []
    for one in group.roster.members.values():
        if (token := group.roster.end_join(one)) is not None:
            effects.append(Reply(token, Joined(ErrorCode.REBALANCE_IN_PROGRESS, one.member_id)))
        if one.sync_token is not None:
            effects.append(Reply(one.sync_token, Synced(ErrorCode.REBALANCE_IN_PROGRESS)))
            one.sync_token = None
    return effects


def upgrade(group: ClassicGroup, made: ConsumerGroup, catalog: Catalog, now_ms: int) -> None:
    """Makes `made` what the classic group is, which is left as it was."""
    # Epochs continue from the generations, so that no earlier member can take one for its own.
    made.epoch = made.target_epoch = group.generation
    for one in group.roster.members.values():
        member = ConsumerMember(one.member_id)
        member.epoch = member.previous_epoch = group.generation
        member.instance_id = one.instance_id
        member.client_id, member.client_host = one.client_id, one.client_host
        member.rebalance_timeout_ms = one.rebalance_timeout_ms
        member.classic = ClassicTraits(one.session_timeout_ms, one.protocols)
        subscription = _subscription(one.protocols)
        member.topics = frozenset(subscription.topics if subscription is not None else ())
        assigned = _with_ids(read_assignment(one.assignment) or {}, catalog)
        member.assigned = frozenset(partition for partition in assigned if partition not in made.owners)
        made.adopt(member, now_ms, {})
    made.rewrite_all()


def downgraded(group: ConsumerGroup, catalog: Catalog) -> GroupSnapshot | None:
    """The classic group that its members are; None unless all of them are, and have a protocol in common."""
    classic = {one.member_id: one.classic for one in group.members.values() if one.classic is not None}
    if not classic or len(classic) < len(group.members):
        return None
    offers = [traits.protocols for traits in classic.values()]
    shared = reduce(set.intersection, ({one.name for one in offered} for offered in offers))
    if not shared:
        return None
    protocol_name = elected(offers, shared)
    members = tuple(
        _snapshot(group.members[member_id], traits, protocol_name, catalog)
        for member_id, traits in classic.items()
    )
    # What the members know as their generation, so that they have to join again and may commit before.
    generation = max(member.epoch for member in group.members.values())
    return GroupSnapshot(
        group.group_id, CONSUMER_PROTOCOL_TYPE, generation, protocol_name, members[0].member_id, members
    )


def is_last_of_new(group: ConsumerGroup, instance_id: str | None) -> bool:
    """Whether all but the static member with that instance id speak the classic protocol."""
    holder = None if instance_id is None else group.static.get(instance_id)
    if holder is None:
        return False
    return all((one.classic is None) == (one.member_id == holder) for one in group.members.values())


def _snapshot(
    member: ConsumerMember, traits: ClassicTraits, protocol_name: str, catalog: Catalog
) -> MemberSnapshot:
    return MemberSnapshot(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        traits.session_timeout_ms,
        next(one.metadata for one in traits.protocols if one.name == protocol_name),
        _assignment(member, traits, catalog),
    )


def join(group: ConsumerGroup, request: Join, new_id: str, catalog: Catalog, now_ms: int) -> Joined:
    """JoinGroup of a member that speaks the classic protocol; answered at once. Raises ApiError."""
    subscription = _subscription(request.protocols)
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or subscription is None:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the group takes consumers only")
    member = _member_to_join(group, request, new_id)
    if member is None:
        return Joined(ErrorCode.MEMBER_ID_REQUIRED, new_id)
    owned = {one.topic: one.partitions for one in subscription.owned_partitions}
    timeout_ms = request.rebalance_timeout_ms
    beat = Heartbeat(
        member.member_id,
        member.epoch,
        request.client_id,
        request.client_host,
        request.instance_id,
        rebalance_timeout_ms=timeout_ms if timeout_ms >= 0 else request.session_timeout_ms,
        topics=frozenset(subscription.topics),
        owned=_with_ids(owned, catalog),
    )
    traits = ClassicTraits(request.session_timeout_ms, request.protocols)
    group.advance(member, beat, catalog, now_ms, traits)
    group.rebalance_by(member, now_ms + member.rebalance_timeout_ms)
    return Joined(
        ErrorCode.NONE, member.member_id, member.epoch, CONSUMER_PROTOCOL_TYPE, request.protocols[0].name
    )


def _member_to_join(group: ConsumerGroup, request: Join, new_id: str) -> ConsumerMember | None:
    """The member that joins, new or known; None for one that has to learn its id first."""
    if request.instance_id is not None:
        holder = group.static.get(request.instance_id)
        if request.member_id == NO_MEMBER and holder is not None:
            return group.replace(group.members[holder], new_id)
        if request.member_id != NO_MEMBER:
            return group.check_static(request.member_id, request.instance_id)
        member = group.add(new_id)
        group.static[request.instance_id] = new_id
        return member
    if request.member_id == NO_MEMBER and request.version >= KEEPS_ID_SINCE:
        return None
    return group.members.get(request.member_id) or group.add(request.member_id or new_id)


def sync(group: ConsumerGroup, request: Sync, catalog: Catalog, now_ms: int) -> Synced:
    """SyncGroup: the server's assignment in the words of the classic protocol. Raises ApiError."""
    member, traits = _check(group, request.member_id, request.instance_id, request.generation)
    name = traits.protocols[0].name
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (
        None,
        name,
    ):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the member has joined with {name!r}")
    if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED:
        raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS, "there is a newer assignment")
    member.rebalance_deadline_ms = None
    group.extend_session(member, now_ms)
    return Synced(ErrorCode.NONE, _assignment(member, traits, catalog), CONSUMER_PROTOCOL_TYPE, name)


def _assignment(member: ConsumerMember, traits: ClassicTraits, catalog: Catalog) -> bytes:
    """What the member has, in the words of the classic protocol."""
    names = {catalog.topics[one].topic_id: one for one in member.topics if one in catalog.topics}
    by_topic: dict[str, list[int]] = {}
    for topic_id, partition in sorted(member.assigned):
        if topic_id in names:
            by_topic.setdefault(names[topic_id], []).append(partition)
    return write_assignment(by_topic, traits.protocols[0].metadata)


def heartbeat(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, now_ms: int
) -> ErrorCode:
    """Heartbeat: REBALANCE_IN_PROGRESS if the member has to join again to learn something."""
    try:
        member, _ = _check(group, member_id, instance_id, generation)
    except ApiError as error:
        return error.code
    group.extend_session(member, now_ms)
    outdated = member.epoch < group.epoch or member.state is MemberState.UNREVOKED
    if not outdated and not _has_come_free(group, member):
        return ErrorCode.NONE
    if member.rebalance_deadline_ms is None:
        group.rebalance_by(member, now_ms + member.rebalance_timeout_ms)
    return ErrorCode.REBALANCE_IN_PROGRESS


def leave(group: ConsumerGroup, leavers: Sequence[Leaver], now_ms: int) -> list[ErrorCode]:
    """LeaveGroup: one code for each leaver. Instance ids alone will do, for administrators."""
    codes = []
    for leaver in leavers:
        member_id = leaver.member_id
        if member_id == NO_MEMBER and leaver.instance_id is not None:
            member_id = group.static.get(leaver.instance_id, NO_MEMBER)
        try:
            group.leave(Heartbeat(member_id, LEAVING_EPOCH, instance_id=leaver.instance_id), now_ms)
            codes.append(ErrorCode.NONE)
        except ApiError as error:
            codes.append(error.code)
    return codes


def _check(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[ConsumerMember, ClassicTraits]:
    member = group.members.get(member_id)
    if instance_id is not None:
        member = group.check_static(member_id, instance_id)
    if member is None or member.classic is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is not a classic member of the group")
    if generation != member.epoch:
        raise ApiError(
            ErrorCode.ILLEGAL_GENERATION, f"generation {generation} is not the member's, {member.epoch}"
        )
    return member, member.classic


def _has_come_free(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether something the member waits for is its to have now."""
    missing = group.targets.get(member.member_id, NOTHING) - member.assigned
    return any(partition not in group.owners for partition in missing)


def _subscription(protocols: tuple[MemberProtocol, ...]) -> ConsumerProtocolSubscription | None:
    return read_subscription(protocols[0].metadata) if protocols else None


def _with_ids(partitions: dict[str, list[int]], catalog: Catalog) -> Partitions:
    return frozenset(
        (catalog.topics[name].topic_id, number)
        for name, numbers in partitions.items()
        if name in catalog.topics
        for number in numbers
    )
