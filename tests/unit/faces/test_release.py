"""Clients infer from ApiVersions which Kafka they talk to: what is advertised has to be one release."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path

from braidmq.wire.api import Api
from braidmq.wire.messages.versions import ApiVersionsRequest, ApiVersionsResponse
from unit.faces.spoken import speaker

with warnings.catch_warnings():
    # It loads its schemas with a call that newer Pythons deprecate; only our warnings are errors.
    warnings.simplefilter("ignore")
    from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions

KAFKA_RELEASE = (4, 3)
KAFKA_RANGES = {
    Api.PRODUCE: (0, 13),
    Api.FETCH: (4, 18),
    Api.LIST_OFFSETS: (1, 11),
    Api.METADATA: (0, 13),
    Api.OFFSET_COMMIT: (2, 10),
    Api.OFFSET_FETCH: (1, 10),
    Api.FIND_COORDINATOR: (0, 6),
    Api.JOIN_GROUP: (0, 9),
    Api.HEARTBEAT: (0, 4),
    Api.LEAVE_GROUP: (0, 5),
    Api.SYNC_GROUP: (0, 5),
    Api.DESCRIBE_GROUPS: (0, 6),
    Api.LIST_GROUPS: (0, 5),
    Api.SASL_HANDSHAKE: (0, 1),
    Api.API_VERSIONS: (0, 4),
    Api.CREATE_TOPICS: (2, 7),
    Api.DELETE_TOPICS: (1, 6),
    Api.DELETE_RECORDS: (0, 2),
    Api.INIT_PRODUCER_ID: (0, 5),
    Api.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    Api.ADD_PARTITIONS_TO_TXN: (0, 5),
    Api.ADD_OFFSETS_TO_TXN: (0, 4),
    Api.END_TXN: (0, 5),
    Api.WRITE_TXN_MARKERS: (1, 2),
    Api.TXN_OFFSET_COMMIT: (0, 5),
    Api.DESCRIBE_ACLS: (1, 3),
    Api.CREATE_ACLS: (1, 3),
    Api.DELETE_ACLS: (1, 3),
    Api.DESCRIBE_CONFIGS: (1, 4),
    Api.ALTER_CONFIGS: (0, 2),
    Api.ALTER_REPLICA_LOG_DIRS: (1, 2),
    Api.DESCRIBE_LOG_DIRS: (1, 5),
    Api.SASL_AUTHENTICATE: (0, 2),
    Api.CREATE_PARTITIONS: (0, 3),
    Api.CREATE_DELEGATION_TOKEN: (1, 3),
    Api.RENEW_DELEGATION_TOKEN: (1, 2),
    Api.EXPIRE_DELEGATION_TOKEN: (1, 2),
    Api.DESCRIBE_DELEGATION_TOKEN: (1, 3),
    Api.DELETE_GROUPS: (0, 2),
    Api.ELECT_LEADERS: (0, 2),
    Api.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    Api.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    Api.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    Api.OFFSET_DELETE: (0, 0),
    Api.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    Api.ALTER_CLIENT_QUOTAS: (0, 1),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
    Api.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
    Api.DESCRIBE_QUORUM: (0, 2),
    Api.UPDATE_FEATURES: (0, 2),
    Api.DESCRIBE_CLUSTER: (0, 2),
    Api.DESCRIBE_PRODUCERS: (0, 0),
    Api.UNREGISTER_BROKER: (0, 0),
    Api.DESCRIBE_TRANSACTIONS: (0, 0),
    Api.LIST_TRANSACTIONS: (0, 2),
    Api.CONSUMER_GROUP_HEARTBEAT: (0, 1),
    Api.CONSUMER_GROUP_DESCRIBE: (0, 1),
    Api.LIST_CONFIG_RESOURCES: (0, 1),
    Api.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
    Api.SHARE_GROUP_HEARTBEAT: (1, 1),
    Api.SHARE_GROUP_DESCRIBE: (1, 1),
    Api.SHARE_FETCH: (1, 2),
    Api.SHARE_ACKNOWLEDGE: (1, 2),
    Api.STREAMS_GROUP_HEARTBEAT: (0, 0),
    Api.STREAMS_GROUP_DESCRIBE: (0, 0),
    Api.DESCRIBE_SHARE_GROUP_OFFSETS: (0, 1),
    Api.ALTER_SHARE_GROUP_OFFSETS: (0, 0),
    Api.DELETE_SHARE_GROUP_OFFSETS: (0, 0),
}
"""What a broker of Kafka 4.3.1 advertises to clients, as it answered ApiVersions."""


async def advertised(data: Path) -> dict[int, tuple[int, int]]:
    async with speaker(data) as one:
        answer = await one.ask(ApiVersionsRequest(client_software_name="x"), ApiVersionsResponse)
        return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}


def test_every_advertised_range_lies_within_that_of_one_kafka_release(tmp_path: Path) -> None:
    """W1: no api in a version that this release lacks, and its newest where the api is served at all."""
    ranges = asyncio.run(advertised(tmp_path))
    beyond = {
        Api(key).name: (ours, KAFKA_RANGES.get(Api(key)))
        for key, ours in ranges.items()
        if Api(key) not in KAFKA_RANGES
        or ours[0] < KAFKA_RANGES[Api(key)][0]
        or ours[1] != KAFKA_RANGES[Api(key)][1]
    }
    assert beyond == {}


def test_a_client_that_infers_the_version_finds_that_release(tmp_path: Path) -> None:
    """W1: kafka-python takes Braid for the release whose ranges it advertises."""
    assert infer_broker_version_from_api_versions(asyncio.run(advertised(tmp_path))) == KAFKA_RELEASE
