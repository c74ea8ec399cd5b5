"""Well-formed requests with bad intent: names that are paths, floods of ids, a client posing as a replica."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.hostile import batches, calls, raw
from tests.hostile.conftest import FOREIGN_SERVER, MEBIBYTE, Victim, peak_bytes
from tests.hostile.raw import Connection, array, i8, i16, i32, i64, string

from braidmq.testing import broker

UNKNOWN_TOPIC, OFFSET_OUT_OF_RANGE, INVALID_TOPIC, INVALID_REQUIRED_ACKS = 3, 1, 17, 21
INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_CONFIG, UNKNOWN_TOPIC_ID = 37, 38, 40, 100
INVALID_REQUEST, POLICY_VIOLATION = 42, 44

BAD_NAMES = [
    b"../x",
    b"..",
    b".",
    b"a/b",
    b"/etc/passwd",
    b"a\\b",
    b"nul\x00nul",
    b"line\nbreak",
    b"",
    b"x" * 250,
    b"x" * 30_000,
    "ünïcode".encode(),
    b"space here",
    b"%2e%2e",
    b"~root",
    b"$(reboot)",
    b"a:b*?",
]
name_ids = [
    name[:20].decode(errors="replace").encode("ascii", "backslashreplace").decode() for name in BAD_NAMES
]
every_bad_name = pytest.mark.parametrize("name", BAD_NAMES, ids=name_ids)


@every_bad_name
def test_a_bad_topic_name_is_refused_by_every_api(connection: Connection, name: bytes) -> None:
    """W5 L1: INVALID_TOPIC_EXCEPTION where a topic would be made, unknown where one is used."""
    code, text = calls.create_topic(connection, name)
    assert code == INVALID_TOPIC
    assert text
    assert calls.metadata_code(connection, name) in (INVALID_TOPIC, UNKNOWN_TOPIC)
    assert calls.produce(connection, name, batches.simple(b"v")).code in (INVALID_TOPIC, UNKNOWN_TOPIC)
    assert calls.delete_topic(connection, name) in (INVALID_TOPIC, UNKNOWN_TOPIC)
    with_offsets = i32(-1) + array(string(name) + array(i32(0) + i64(-1)))
    connection.call(raw.LIST_OFFSETS, 1, with_offsets)


def test_no_name_reaches_outside_the_data_directory(tmp_path: Path) -> None:
    """W5: after every bad name, by every way, the directory around the data holds nothing new."""
    with broker(data=tmp_path / "inside") as server:
        with Connection(server.bootstrap) as connection:
            for name in BAD_NAMES:
                calls.create_topic(connection, name)
                calls.metadata_code(connection, name)
                calls.produce(connection, name, batches.simple(b"v"))
        assert [path.name for path in tmp_path.iterdir()] == ["inside"]
        files = [path.relative_to(server.data).as_posix() for path in server.data.rglob("*")]
        assert not [file for file in files if "xxx" in file or "passwd" in file or "nul" in file]


def test_the_longest_name_works(connection: Connection) -> None:
    """L1: 249 characters are allowed, and survive the file system's limits."""
    name = "n" * 249
    assert calls.create_topic(connection, name)[0] == 0
    assert calls.produce(connection, name, batches.simple(b"v")).code == 0
    assert calls.delete_topic(connection, name) == 0


@pytest.mark.parametrize("partitions", [0, -2, -(2**31), 2**31 - 1, 1_000_000])
def test_a_partition_count_that_cannot_be_is_refused(
    connection: Connection, new_name: Callable[[], str], partitions: int
) -> None:
    """W5 L12: negative, none, and more than the broker will hold."""
    code, text = calls.create_topic(connection, new_name(), partitions=partitions)
    assert code in (INVALID_PARTITIONS, POLICY_VIOLATION)
    assert text


def test_partitions_are_not_grown_past_the_limit(connection: Connection, topic: str) -> None:
    """W5 L12: CreatePartitions obeys the same limit."""
    for count in (2**31 - 1, 1_000_000, 0, -1):
        body = array(string(topic) + i32(count) + i32(-1)) + i32(1000) + i8(0)
        answer = connection.call(raw.CREATE_PARTITIONS, 1, body)
        answer.i32()
        assert answer.i32() == 1
        answer.string()
        assert answer.i16() in (INVALID_PARTITIONS, POLICY_VIOLATION)
        assert answer.string()


@pytest.mark.parametrize("replicas", [0, 2, 32_767, -2])
def test_a_replication_factor_that_cannot_be_is_refused(
    connection: Connection, new_name: Callable[[], str], replicas: int
) -> None:
    """W5: there is one broker."""
    code, text = calls.create_topic(connection, new_name(), replicas=replicas)
    assert code == INVALID_REPLICATION_FACTOR
    assert text


@pytest.mark.parametrize(
    "config",
    [
        {"retention.ms": "x"},
        {"retention.ms": "9" * 40},
        {"retention.ms": ""},
        {"max.message.bytes": "-1"},
        {"compression.type": "rar"},
        {"cleanup.policy": "compact,shred"},
        {"message.timestamp.type": "Yesterday"},
        {"no.such.option": "1"},
        {"log.dirs": "/etc"},
        {"": ""},
        {"retention.ms\x00": "1"},
    ],
)
def test_a_bad_option_is_refused_with_a_text(
    connection: Connection, new_name: Callable[[], str], config: dict[str, str]
) -> None:
    """W5: INVALID_CONFIG, the text names the option, and the topic is not made."""
    topic = new_name()
    code, text = calls.create_topic(connection, topic, config=config)
    assert code == INVALID_CONFIG
    assert text is not None
    assert next(iter(config)) in text
    assert calls.metadata_code(connection, topic, create=False) == UNKNOWN_TOPIC


@pytest.mark.parametrize("resource_type", [0, 2, 4, 8, 127, -1])
@pytest.mark.parametrize("option", ["log.dirs", "num.partitions", "net.frame.bytes.max", "listeners"])
def test_no_client_changes_the_broker_itself(connection: Connection, resource_type: int, option: str) -> None:
    """W5: only a topic's options can be set from outside; no paths, no commands (CVE-2023-33246)."""
    for name in ("1", ""):
        pieces = {
            raw.ALTER_CONFIGS: array(string(option) + string("/etc")),
            raw.INCREMENTAL_ALTER_CONFIGS: array(string(option) + i8(0) + string("/etc")),
        }
        for api, entries in pieces.items():
            body = array(i8(resource_type) + string(name) + entries) + i8(0)
            answer = connection.call(api, 0, body)
            answer.i32()
            assert answer.i32() == 1
            assert answer.i16() != 0
            assert answer.string()


@pytest.mark.parametrize("acks", [2, -2, 32_767, -32_768])
def test_acks_that_do_not_exist_are_refused(connection: Connection, topic: str, acks: int) -> None:
    """P4: INVALID_REQUIRED_ACKS, and nothing is written."""
    assert calls.produce(connection, topic, batches.simple(b"v"), acks=acks).code == INVALID_REQUIRED_ACKS
    assert calls.list_offset(connection, topic) == (0, 0)


@pytest.mark.parametrize("partition", [1, -1, 2**31 - 1, -(2**31)])
def test_a_partition_that_does_not_exist_is_unknown(
    connection: Connection, topic: str, partition: int
) -> None:
    """W1: UNKNOWN_TOPIC_OR_PARTITION, in every data API."""
    assert calls.produce(connection, topic, batches.simple(b"v"), partition).code == UNKNOWN_TOPIC
    assert calls.fetch(connection, topic, 0, partition).code == UNKNOWN_TOPIC
    assert calls.list_offset(connection, topic, partition=partition)[0] == UNKNOWN_TOPIC


def test_a_topic_that_does_not_exist_is_unknown(connection: Connection, new_name: Callable[[], str]) -> None:
    """W1: only metadata creates topics by itself; producing to a name does not."""
    topic = new_name()
    assert calls.produce(connection, topic, batches.simple(b"v")).code == UNKNOWN_TOPIC
    assert calls.fetch(connection, topic, 0).code == UNKNOWN_TOPIC
    assert calls.list_offset(connection, topic)[0] == UNKNOWN_TOPIC
    assert calls.delete_topic(connection, topic) == UNKNOWN_TOPIC


def test_a_topic_id_that_does_not_exist_is_unknown(connection: Connection) -> None:
    """W1: UNKNOWN_TOPIC_ID in Fetch v13."""
    home = i32(0) + i32(-1) + i64(0) + i32(-1) + i64(-1) + i32(1000) + raw.NO_TAGS
    limits = i32(-1) + i32(0) + i32(1) + i32(1000) + i8(0) + i32(0) + i32(-1)
    body = (
        limits + b"\x02" + bytes(range(16)) + b"\x02" + home + raw.NO_TAGS + b"\x01" + b"\x01" + raw.NO_TAGS
    )
    connection.send(raw.framed(raw.request(raw.FETCH, 13, body, flexible=True, correlation=9)))
    answer = connection.frame()
    assert answer is not None
    assert struct.pack(">h", UNKNOWN_TOPIC_ID) in answer


@pytest.mark.parametrize("offset", [1, 2**62, -1, -(2**63), 2**63 - 1])
def test_an_offset_outside_the_log_is_out_of_range(connection: Connection, topic: str, offset: int) -> None:
    """C7: OFFSET_OUT_OF_RANGE for an empty partition at anything but zero."""
    assert calls.fetch(connection, topic, offset).code == OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("stamp_ms", [2**63 - 1, -(2**63), -100])
def test_a_time_outside_all_time_finds_nothing(connection: Connection, topic: str, stamp_ms: int) -> None:
    """C7: no such offset, or an error; never an offset that does not exist."""
    assert calls.produce(connection, topic, batches.simple(b"v")).code == 0
    code, offset = calls.list_offset(connection, topic, stamp_ms)
    assert code != 0 or offset in (-1, 0)


@pytest.mark.parametrize("replica_id", [0, 1, 2, 7, 2**31 - 1])
def test_a_client_posing_as_a_replica_gains_nothing(
    connection: Connection, topic: str, replica_id: int
) -> None:
    """W5: neither bytes above the high watermark nor a say in where it is (CVE-2018-1288)."""
    assert calls.produce(connection, topic, batches.simple(b"one")).code == 0
    ahead = calls.fetch(connection, topic, 500, replica_id=replica_id)
    assert ahead.code != 0
    calls.fetch(connection, topic, 1, replica_id=replica_id)
    after = calls.fetch(connection, topic, 0)
    assert (after.code, after.high_watermark) == (0, 1)
    assert calls.produce(connection, topic, batches.simple(b"two")) == (0, 1)


def test_records_are_not_deleted_outside_the_log(connection: Connection, topic: str) -> None:
    """L7: OFFSET_OUT_OF_RANGE, and everything is still there."""
    assert calls.produce(connection, topic, batches.simple(b"one")).code == 0
    for offset in (2, 2**62, -2, -(2**63)):
        body = array(string(topic) + array(i32(0) + i64(offset))) + i32(1000)
        answer = connection.call(raw.DELETE_RECORDS, 1, body)
        answer.take(4 + 4)
        answer.string()
        answer.take(4 + 4 + 8)
        assert answer.i16() == OFFSET_OUT_OF_RANGE
    assert calls.list_offset(connection, topic, -2) == (0, 0)


def test_a_flood_of_producer_ids_is_bounded(victim: Victim, connection: Connection, topic: str) -> None:
    """W5 P4: five thousand producers of one batch each; the broker remembers the last thousand."""
    for number in range(5_000):
        forged = batches.simple(b"v", producer_id=1_000_000 + number, epoch=0, sequence=0)
        assert calls.produce(connection, topic, forged, acks=1).code == 0
    if victim.process is not None:
        assert peak_bytes(victim.process.pid) < 200 * MEBIBYTE


def test_producer_ids_are_never_given_twice(connection: Connection) -> None:
    """P4: three thousand in a row, all different."""
    given = [calls.new_producer_id(connection) for _ in range(3_000)]
    assert {code for code, _, _ in given} == {0}
    assert len({producer_id for _, producer_id, _ in given}) == 3_000


@pytest.mark.skipif(FOREIGN_SERVER in os.environ, reason="restarts the broker")
def test_producer_ids_are_not_given_again_after_a_crash() -> None:
    """P4 L6: two producers with one id would take each other's records for duplicates."""
    with broker() as server:
        given: list[int] = []
        for _ in range(3):
            with Connection(server.bootstrap) as connection:
                given += [calls.new_producer_id(connection)[1] for _ in range(5)]
            server.kill()
            server.restart()
        assert len(set(given)) == len(given)


def test_a_request_with_many_topics_is_limited_by_its_size_only(connection: Connection) -> None:
    """W4: ten thousand unknown partitions in one produce get ten thousand answers."""
    piece = string("hostile-nowhere") + array(i32(0) + i32(4) + b"junk")
    body = raw.NULL_STRING + i16(-1) + i32(1000) + array(*[piece] * 10_000)
    answer = connection.call(raw.PRODUCE, 7, body)
    assert answer.i32() in (1, 10_000)


def test_topics_made_by_metadata_stop_at_the_limit_of_partitions() -> None:
    """L12 N3: auto-creation obeys partitions.max like everybody."""
    with broker(partitions_max=10, num_partitions=4) as server, Connection(server.bootstrap) as connection:
        codes = [calls.metadata_code(connection, f"flood-{number}") for number in range(6)]
        assert codes[-1] not in (0, 5)
        assert calls.produce(connection, "flood-0", batches.simple(b"v")).code == 0
