"""The kinds of groups a broker coordinates, and what each of them leaves in the internal topic."""

from __future__ import annotations

from typing import NamedTuple

from braidmq.group import consumer_records, streams_records
from braidmq.group.classic import ClassicGroup
from braidmq.group.consumer_group import ConsumerGroup, ConsumerGroupState
from braidmq.group.events import Effect, KeyValue, WriteRecords
from braidmq.group.offsets import TopicPartition
from braidmq.group.rebalance import ClassicGroupState
from braidmq.group.records import group_key, offset_record
from braidmq.group.share_group import ShareGroup, ShareGroupState
from braidmq.group.share_records import share_record, tombstone
from braidmq.group.streams_group import StreamsGroup, StreamsGroupState

Group = ClassicGroup | ConsumerGroup | ShareGroup | StreamsGroup
WrittenGroup = ConsumerGroup | StreamsGroup
"""Groups whose members the server assigns and writes down."""

EMPTY_STATES = (
    ClassicGroupState.EMPTY,
    ConsumerGroupState.EMPTY,
    ShareGroupState.EMPTY,
    StreamsGroupState.EMPTY,
)


class Expired(NamedTuple):
    """Offsets to forget, whether the group goes with them, and the tombstones to be written first."""

    group_id: str
    partitions: list[TopicPartition]
    group_too: bool
    records: tuple[KeyValue, ...]


def written(group: WrittenGroup) -> list[Effect]:
    """What changed in the group, to be written down."""
    if isinstance(group, StreamsGroup):
        records = tuple(streams_records.changed_records(group, group.take_changes()))
    else:
        records = tuple(consumer_records.changed_records(group, group.take_changes()))
    return [WriteRecords(records)] if records else []


def noted(group: ShareGroup) -> list[Effect]:
    """That the group is there, unless that is written down."""
    if group.noted:
        return []
    group.noted = True
    return [WriteRecords((share_record(group.group_id, group.epoch),))]


def after_classic(group_id: str, effects: list[Effect]) -> WriteRecords:
    """What a group writes that was a classic one: in one batch, so that a crash leaves one or the other."""
    records = tuple(record for one in effects if isinstance(one, WriteRecords) for record in one.records)
    return WriteRecords(((group_key(group_id), None), *records))


def ending(group: WrittenGroup) -> tuple[KeyValue, ...]:
    """The end of a group and of the members it still has."""
    if isinstance(group, StreamsGroup):
        return tuple(streams_records.ending(group))
    return tuple(consumer_records.ending(group))


def deserted(group: Group) -> bool:
    """Whether nobody is in the group or about to be."""
    if isinstance(group, ClassicGroup):
        return group.state is ClassicGroupState.EMPTY and not group.roster.expected
    return not group.members


def tombstones(group: Group, partitions: list[TopicPartition], group_too: bool) -> tuple[KeyValue, ...]:
    """The end of these offsets, and of the group if it goes with them."""
    records = [offset_record(group.group_id, topic, partition, None) for topic, partition in partitions]
    if group_too and isinstance(group, ClassicGroup):
        records.append((group_key(group.group_id), None))
    elif group_too and isinstance(group, ConsumerGroup):
        records += consumer_records.tombstones(group.group_id)
    elif group_too and isinstance(group, StreamsGroup):
        records += streams_records.tombstones(group.group_id)
    elif group_too and isinstance(group, ShareGroup):
        records.append(tombstone(group.group_id))
    return tuple(records)
