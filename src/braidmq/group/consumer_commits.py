"""Who may commit and fetch offsets of a server-assigned group or a streams group.

A member gives its epoch, and what it may commit depends on it. The epoch goes up with every change of the
group, and most changes leave a member what it has: so one that has not heard of its newest epoch yet may
commit where it has been the reader since before then (KIP-1251), and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable

from braidmq.group.consumer_group import ConsumerGroup
from braidmq.group.offsets import TopicPartition
from braidmq.group.streams_group import StreamsGroup
from braidmq.wire.errors import ApiError, ErrorCode

COMMITS_WITH_EPOCH_SINCE = 9
"""OffsetCommit from this version on knows member epochs."""


def check_commit(
    group: ConsumerGroup | StreamsGroup,
    member_id: str,
    epoch: int,
    version: int,
    partitions: Iterable[TopicPartition],
    transactional: bool = False,
) -> None:
    """Raises the ApiError with which an OffsetCommit (or TxnOffsetCommit) is to be refused."""
    if epoch < 0 and not group.members:
        return
    if member_id not in group.members:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is not a member of the group")
    member = group.members[member_id]
    if not transactional and member.classic is None and version < COMMITS_WITH_EPOCH_SINCE:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION, "members of a server-assigned group commit with OffsetCommit 9"
        )
    if epoch >= member.epoch or not _has_since(group, member_id, epoch, partitions):
        _check_same_epoch(group, member_id, epoch)


def check_fetch(group: ConsumerGroup | StreamsGroup, member_id: str | None, epoch: int) -> None:
    """Raises the ApiError with which an OffsetFetch is to be refused; administrators give no member."""
    if member_id is None and epoch < 0:
        return
    if member_id is None or member_id not in group.members:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is not a member of the group")
    _check_same_epoch(group, member_id, epoch)


def _check_same_epoch(group: ConsumerGroup | StreamsGroup, member_id: str, epoch: int) -> None:
    member = group.members[member_id]
    if epoch != member.epoch:
        code = ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
        raise ApiError(code, f"epoch {epoch} is not the member's {member.epoch}")


def _has_since(
    group: ConsumerGroup | StreamsGroup, member_id: str, epoch: int, partitions: Iterable[TopicPartition]
) -> bool:
    """Whether there are any, and the member got all of them with that epoch or before it."""
    owners = [group.owner(*one) for one in partitions]
    mine = (one is not None and one.member_id == member_id and one.since <= epoch for one in owners)
    return bool(owners) and all(mine)
