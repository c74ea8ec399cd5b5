"""DescribeBroker, a verb of Braid's own: one broker's view of the cluster, and who is connected to it.

Kafka has none that tells what one broker sees; tools ask each broker. The list of clients comes in pages.
"""

from __future__ import annotations

from braidmq.wire.api import Api
from braidmq.wire.schema import Message, array, boolean, int16, int32, int64, string


class DescribeBrokerRequest(Message, api=Api.BRAID_DESCRIBE_BROKER, versions=(0, 0), flexible=0):
    """With `clients_max` 0 no client is listed; `after_client` is `next_client` of the page before."""

    clients_max: int = int32()
    after_client: int = int64(default=-1)


class KnownBroker(Message):
    """A broker of the cluster, up or not. `epoch` is -1 while it is down, then without host and port."""

    node_id: int = int32()
    epoch: int = int64(default=-1)
    state: str = string()
    host: str = string()
    port: int = int32()
    machine: str = string()
    rack: str | None = string(nullable=0)
    version: str = string()
    uuid: str = string()
    leaders: int = int32()
    replicas: int = int32()


class LiveTopic(Message):
    """A topic that a connection reads or writes, and when it last did."""

    name: str = string()
    last_ms: int = int64()


class LiveClient(Message):
    """A connection and what it was used for."""

    number: int = int64()
    address: str = string()
    client_id: str = string()
    software_name: str = string()
    software_version: str = string()
    since_ms: int = int64()
    last_ms: int = int64()
    bytes_in: int = int64()
    bytes_out: int = int64()
    role: str = string()
    group_id: str | None = string(nullable=0)
    member_id: str | None = string(nullable=0)
    transactional_id: str | None = string(nullable=0)
    writes: list[LiveTopic] = array(LiveTopic)
    reads: list[LiveTopic] = array(LiveTopic)


class DescribeBrokerResponse(Message, api=Api.BRAID_DESCRIBE_BROKER, versions=(0, 0), flexible=0):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    node_id: int = int32()
    cluster_id: str = string()
    cluster_name: str = string()
    format_level: int = int32()
    epoch: int = int64(default=-1)
    isolated: bool = boolean()
    since_ms: int = int64()
    wall_ms: int = int64()
    store: str = string()
    image_revision: int = int64()
    image_age_ms: int = int64()
    controller_id: int = int32(default=-1)
    controller_epoch: int = int64(default=-1)
    connections: int = int32()
    topics: int = int32()
    partitions: int = int32()
    leaderless: int = int32()
    brokers: list[KnownBroker] = array(KnownBroker)
    clients: list[LiveClient] = array(LiveClient)
    next_client: int = int64(default=-1)
