"""From offsets to splits, on the driver: finds lost records, and where each split is read from."""

from __future__ import annotations

from collections.abc import Mapping

from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.consumer import Start
from braidmq.spark.options import LocalLog, OptionError
from braidmq.spark.source import positions
from braidmq.spark.source.data_loss import RecordsLost, report_loss
from braidmq.spark.source.local_log import find_directories, machine
from braidmq.spark.source.positions import Offsets, PartitionMap
from braidmq.spark.source.query import ReadQuery
from braidmq.spark.source.splits import Range, Split, cut, ranges


def plan(
    cluster: Cluster,
    query: ReadQuery,
    starts: Offsets,
    ends: Offsets,
    directories: Mapping[TopicPartition, str],
) -> list[Split]:
    """The splits that read from `starts` to `ends`."""
    whole = survivors(cluster, query, ranges(starts, ends))
    here = machine() if directories else ""
    splits = []
    for piece in cut(whole, query.partitions_min, query.split_records_max):
        leader_id, leader = cluster.leader_of(piece.at) or (-1, None)
        splits.append(
            Split(*piece.at, piece.start, piece.end, leader_id, leader, directories.get(piece.at), here)
        )
    return splits


def survivors(cluster: Cluster, query: ReadQuery, whole: list[Range]) -> list[Range]:
    """The ranges without what retention removed; RecordsLost if that is a failure."""
    if not whole:
        return []
    firsts = positions.edges(cluster, [each.at for each in whole], Start.EARLIEST, query.isolation)
    kept = []
    for each in whole:
        first = firsts[each.at]
        if first > each.start:
            report_loss(RecordsLost(each.at, each.start, each.end, first), query.fail_on_data_loss)
        if max(first, each.start) < each.end:
            kept.append(Range(each.at, max(first, each.start), each.end))
    return kept


def directories(cluster: Cluster, query: ReadQuery, topology: PartitionMap) -> dict[TopicPartition, str]:
    """The directories of partitions on this machine, if the query may read them."""
    if query.local_log is LocalLog.NEVER:
        return {}
    found = find_directories(cluster, topology.topic_ids, topology.partitions)
    if query.local_log is LocalLog.ALWAYS and (
        missing := [at for at in topology.partitions if at not in found]
    ):
        raise OptionError(
            f"option localLog is always, but this machine cannot read the segments of {missing[0]}:"
            " the broker runs elsewhere, or its files belong to another user; use auto"
        )
    return found
