"""Each broker's own view of the cluster, and the clients that are connected to it now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct, error

from braidmq.address import Address
from braidmq.client import share_groups
from braidmq.client.cluster import Cluster
from braidmq.client.connection import Connection
from braidmq.client.errors import ClientError
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from braidmq.wire.messages.groups import DescribeGroupsRequest, DescribeGroupsResponse
from braidmq.wire.messages.live import DescribeBrokerRequest, DescribeBrokerResponse, LiveClient

PAGE = 500
CLIENTS_MAX = 1_000_000
"""Of one broker; an answer without an end is not believed."""
CLASSIC_VERSION_MAX = 5

_INT16, _INT32 = Struct(">h"), Struct(">i")

Member = tuple[str, str]
"""Group and member."""
Assignment = dict[str, list[int]]
"""Partitions by topic."""


@dataclass(frozen=True, slots=True)
class BrokerView:
    """What one broker answered, or why it did not."""

    node_id: int
    address: Address
    answer: DescribeBrokerResponse | None
    failure: str = ""
    asked_ms: int = 0
    """The wall clock here, halfway between question and answer."""


def views(cluster: Cluster) -> list[BrokerView]:
    """The view of every broker that is up, in the order of their ids."""
    cluster.refresh([])
    return [_view(cluster, node_id, cluster.brokers[node_id]) for node_id in sorted(cluster.brokers)]


def _view(cluster: Cluster, node_id: int, address: Address) -> BrokerView:
    before_ms = cluster.clock.wall_ms()
    try:
        answer = describe(cluster.connection(node_id))
    except (ApiError, ClientError) as failure:
        return BrokerView(node_id, address, None, str(failure))
    return BrokerView(node_id, address, answer, asked_ms=(before_ms + cluster.clock.wall_ms()) // 2)


def describe(connection: Connection) -> DescribeBrokerResponse:
    """A broker's view, without its clients."""
    return _ask(connection, DescribeBrokerRequest())


def clients(connection: Connection) -> Iterator[LiveClient]:
    """All connections of a broker, page by page."""
    after = -1
    for _ in range(0, CLIENTS_MAX, PAGE):
        page = _ask(connection, DescribeBrokerRequest(clients_max=PAGE, after_client=after))
        yield from page.clients
        if page.next_client <= after:
            return
        after = page.next_client


def _ask(connection: Connection, request: DescribeBrokerRequest) -> DescribeBrokerResponse:
    answer = connection.call(request, DescribeBrokerResponse)
    if answer.error_code != ErrorCode.NONE:
        code = ErrorCode(answer.error_code)
        raise ApiError(code, answer.error_message or code.name.lower().replace("_", " "))
    return answer


def assignments(connection: Connection, groups: dict[str, str]) -> dict[Member, Assignment]:
    """What each member has, of those groups that this broker coordinates; `groups` is kinds by id."""
    found: dict[Member, Assignment] = {}
    for group_id, kind in groups.items():
        try:
            found |= _shared(connection, group_id) if kind == "share" else _assigned(connection, group_id)
        except ApiError:
            # Another broker coordinates it, or it is gone by now.
            continue
    return found


def _shared(connection: Connection, group_id: str) -> dict[Member, Assignment]:
    return {
        (group_id, member.member_id): {
            topic.topic_name: sorted(topic.partitions) for topic in member.assignment.topic_partitions
        }
        for member in share_groups.members(connection, group_id)
    }


def _assigned(connection: Connection, group_id: str) -> dict[Member, Assignment]:
    request = ConsumerGroupDescribeRequest(group_ids=[group_id])
    group = connection.call(request, ConsumerGroupDescribeResponse).groups[0]
    if group.error_code == ErrorCode.NONE:
        return {
            (group_id, member.member_id): {
                topic.topic_name: sorted(topic.partitions) for topic in member.assignment.topic_partitions
            }
            for member in group.members
        }
    classic = connection.call(
        DescribeGroupsRequest(groups=[group_id]), DescribeGroupsResponse, CLASSIC_VERSION_MAX
    ).groups[0]
    if classic.error_code != ErrorCode.NONE:
        raise ApiError(ErrorCode(classic.error_code), f"group {group_id}")
    return {
        (group_id, member.member_id): read_assignment(member.member_assignment) for member in classic.members
    }


def read_assignment(content: bytes) -> Assignment:
    """What a classic consumer got from its leader; nothing if it is in no form that we know."""
    found: Assignment = {}
    try:
        at = 6
        for _ in range(_INT32.unpack_from(content, 2)[0]):
            size = _INT16.unpack_from(content, at)[0]
            name = content[at + 2 : at + 2 + size].decode()
            at += 2 + size
            count = _INT32.unpack_from(content, at)[0]
            if not 0 <= count <= len(content) // 4:
                return {}
            found[name] = sorted(Struct(f">{count}i").unpack_from(content, at + 4))
            at += 4 + 4 * count
    except (error, UnicodeDecodeError, OverflowError):
        return {}
    return found
