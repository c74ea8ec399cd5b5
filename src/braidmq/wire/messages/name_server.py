"""What brokers and people say to a name server. These verbs are Braid's own."""

from __future__ import annotations

from braidmq.wire.api import Api
from braidmq.wire.schema import Message, array, boolean, int8, int16, int32, int64, string, uuid

NOTHING_WANTED = -1


class NameServerHeartbeatRequest(Message, api=Api.BRAID_NAME_SERVER_HEARTBEAT, versions=(0, 0), flexible=0):
    """A broker is alive. Its id and epoch are those that it has proved itself with."""

    cluster_name: str = string()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable=0)
    controller_id: int = int32(default=-1)
    led_partitions: int = int32()
    draining: bool = boolean()
    routes_revision: int = int64()
    """The revision that last changed a topic or a partition, as far as the broker knows."""


class NameServerHeartbeatResponse(Message, api=Api.BRAID_NAME_SERVER_HEARTBEAT, versions=(0, 0), flexible=0):
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    routes_after: int = int64(default=NOTHING_WANTED)
    """Send the routes that have changed after this revision; 0: all of them; -1: none."""


class RoutePartition(Message):
    leader_id: int = int32()
    leader_epoch: int = int32()
    replicas: list[int] = array(int32)
    isr: list[int] = array(int32)


class RouteTopic(Message):
    name: str = string()
    topic_id: bytes = uuid()
    is_internal: bool = boolean()
    partitions: list[RoutePartition] = array(RoutePartition)


class NameServerRoutesRequest(Message, api=Api.BRAID_NAME_SERVER_ROUTES, versions=(0, 0), flexible=0):
    """A page of routes; those of the pages before count when the last one is there."""

    after: int = int64()
    """The revision that these are the changes since; 0: these are all routes."""
    revision: int = int64()
    topics: list[RouteTopic] = array(RouteTopic)
    removed: list[str] = array(string)
    is_first: bool = boolean()
    is_last: bool = boolean()


class NameServerRoutesResponse(Message, api=Api.BRAID_NAME_SERVER_ROUTES, versions=(0, 0), flexible=0):
    error_code: int = int16()
    error_message: str | None = string(nullable=0)


class NameServerConfigRequest(Message, api=Api.BRAID_NAME_SERVER_CONFIG, versions=(0, 0), flexible=0):
    """Reads, puts or deletes; reading without a key answers every entry."""

    operation: int = int8()
    key: str | None = string(nullable=0)
    value: str | None = string(nullable=0)


class ConfigEntry(Message):
    key: str = string()
    value: str = string()


class NameServerConfigResponse(Message, api=Api.BRAID_NAME_SERVER_CONFIG, versions=(0, 0), flexible=0):
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    entries: list[ConfigEntry] = array(ConfigEntry)
