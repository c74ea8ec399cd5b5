"""`braid doctor` on what real brokers left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as StockConsumer
from confluent_kafka import KafkaError, TopicPartition

from braidmq.cli import main
from braidmq.client import Consumer, Producer
from braidmq.testing import broker
from braidmq.testing.process import BrokerFailed
from braidmq.wire.errors import ApiError
from braidmq.wire.records import parse_header

RECORDS = 200


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a broker that was stopped cleanly, with one topic of one partition."""
    with broker(data=tmp_path, num_partitions=1, segment_bytes=4096) as running:
        with Producer(running.bootstrap) as producer:
            for number in range(RECORDS):
                producer.send("orders", b"order %d" % number)
                if number % 10 == 9:
                    producer.flush()
        return running.data


def examine(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> Any:
    capsys.readouterr()
    assert main(["doctor", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def flip(path: Path, byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 0x10
    path.write_bytes(content)


def segments(data: Path) -> list[Path]:
    return sorted(data.rglob("*.log"))


def test_a_clean_directory_has_nothing_wrong(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """O1 L6: and says how much was looked at."""
    report = examine(capsys, 0, str(data))
    assert (report["partitions"], report["findings"]) == (1, [])
    assert main(["doctor", str(data)]) == 0
    assert "1 partitions verified, nothing is wrong" in capsys.readouterr().out


def test_a_flipped_bit_is_found_mended_and_the_rest_is_served(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """O1 L6: which file, which byte, what was lost; then the broker serves all other records."""
    damaged = segments(data)[1]
    flip(damaged, 70)
    report = examine(capsys, 1, str(data))
    assert [(row["file"], row["byte"]) for row in report["findings"]] == [(damaged.name, 0)]
    assert main(["doctor", str(data)]) == 1
    assert f"{damaged.name}: byte 0: " in capsys.readouterr().out

    report = examine(capsys, 0, str(data), "--repair", "--yes")
    assert report["left"] == []
    assert any("are lost" in row["what"] for row in report["repaired"])
    assert examine(capsys, 0, str(data))["findings"] == []

    with broker(data=data.parent) as running, Consumer(running.bootstrap) as consumer:
        consumer.assign("orders", [0])
        found: list[int] = []
        while consumer.position("orders", 0) < RECORDS:
            found += [message.offset for message in consumer.poll()]
    lost = set(range(RECORDS)) - set(found)
    assert len(lost) == 10
    assert found == sorted(found)


def test_a_damaged_index_is_made_anew_and_loses_nothing(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """O1 L3: an index can always be made from its log."""
    index = segments(data)[0].with_suffix(".index")
    flip(index, 3)
    assert examine(capsys, 1, str(data))["findings"][0]["file"] == index.name
    assert examine(capsys, 0, str(data), "--repair", "--yes")["left"] == []
    assert examine(capsys, 0, str(data))["findings"] == []


def read_by_librdkafka(bootstrap: str) -> list[int]:
    """Offsets of all records from the first to the end of the partition, by a stock client."""
    config = {"bootstrap.servers": bootstrap, "group.id": "g", "enable.partition.eof": True}
    stock = StockConsumer(config)
    stock.assign([TopicPartition("orders", 0, 0)])
    offsets: list[int] = []
    while True:
        message = stock.poll(20)
        assert message is not None, "the client waits for records that never come"
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            stock.close()
            return offsets
        offsets.append(message.offset() or 0)


@pytest.mark.parametrize("repaired", [False, True])
def test_every_reader_gets_past_a_lost_tail(
    data: Path, capsys: pytest.CaptureFixture[str], repaired: bool
) -> None:
    """O1 L6: the offsets that were lost stay empty, and what is sent then comes after them."""
    last = segments(data)[-1]
    last.write_bytes(last.read_bytes()[:-5])
    assert any(row["file"] == last.name for row in examine(capsys, 1, str(data))["findings"])
    if repaired:
        assert examine(capsys, 0, str(data), "--repair", "--yes")["left"] == []
        assert examine(capsys, 0, str(data))["findings"] == []
    with broker(data=data.parent) as running:
        with Producer(running.bootstrap) as producer:
            producer.send("orders", b"one more")
        found = read_by_librdkafka(running.bootstrap)
        assert found == [*range(RECORDS - 10), RECORDS]
        capsys.readouterr()
        assert (
            main(["tail", "orders", "-n", "999", "--format", "{offset}", "--bootstrap", running.bootstrap])
            == 0
        )
        assert capsys.readouterr().out.split() == [str(offset) for offset in found]
        if not repaired:
            assert f"offsets {RECORDS - 10} to {RECORDS - 1} are lost" in running.stderr
    assert examine(capsys, 0, str(data))["findings"] == []


def test_a_hole_is_logged_with_file_and_byte_and_mended(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """O1 L6: clients get the records before it and then an error; after a repair all others are served."""
    first, second = segments(data)
    content = first.read_bytes()
    headers = [(0, parse_header(content))]
    while (at := headers[-1][0] + headers[-1][1].size) < len(content):
        headers.append((at, parse_header(content, at)))
    position, header = headers[-2]
    first.write_bytes(content[:position])
    hole = range(header.base_offset, int(second.stem))
    with broker(data=data.parent) as running, Consumer(running.bootstrap) as consumer:
        consumer.assign("orders", [0])
        found: list[int] = []
        while len(found) < hole[0]:
            found += [message.offset for message in consumer.poll()]
        assert found == [*range(hole[0])]
        with pytest.raises(ApiError, match=f"offset {hole[0]}: CORRUPT_MESSAGE"):
            consumer.poll()
        assert f"{first.name}: batch at byte {position}: " in running.stderr
        assert "run braid doctor" in running.stderr
    report = examine(capsys, 0, str(data), "--repair", "--yes")
    assert report["left"] == []
    assert any(f"offsets {hole[0]} to {hole[-1]} are lost" in row["what"] for row in report["repaired"])
    assert examine(capsys, 0, str(data))["findings"] == []
    with broker(data=data.parent) as running:
        assert read_by_librdkafka(running.bootstrap) == [*range(hole[0]), *range(hole[-1] + 1, RECORDS)]


def test_a_broker_does_not_start_without_the_offsets_that_groups_have_committed(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """O1 L6: its own topics are damaged: it says where, and starts after a repair."""
    with broker(data=data.parent) as running:
        stock = StockConsumer({"bootstrap.servers": running.bootstrap, "group.id": "g"})
        stock.commit(offsets=[TopicPartition("orders", 0, 7)], asynchronous=False)
        stock.close()
    (own,) = data.glob("topics/__consumer_offsets*/0/*.log")
    flip(own, 70)
    with pytest.raises(BrokerFailed) as failed, broker(data=data.parent):
        pass
    said = str(failed.value)
    assert f"segment {own.name}: batch at byte 0: " in said
    assert "run braid doctor" in said
    assert "Traceback" not in said
    assert examine(capsys, 0, str(data), "--repair", "--yes")["left"] == []
    with broker(data=data.parent):
        pass


def test_a_cut_metadata_journal_is_found_and_mended(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """O1 N4: a change that was cut off was never reported as done."""
    journal = data / "metadata.store"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b"\x00\x00\x00\x09torn")
    assert examine(capsys, 1, str(data))["findings"][0]["byte"] == len(whole)
    assert journal.read_bytes() != whole
    assert examine(capsys, 0, str(data), "--repair", "--yes")["left"] == []
    assert journal.read_bytes() == whole


def test_a_journal_damaged_in_the_middle_is_not_mended_silently(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """O1 N4: skipping it could bring deleted topics back; the broker refuses to start on it too."""
    flip(data / "metadata.store", 12)
    report = examine(capsys, 1, str(data), "--repair", "--yes")
    assert "restore the file from a backup" in report["left"][0]["what"]
    assert main(["serve", "--data", str(data), "--listen", "127.0.0.1:0"]) == 1
    said = capsys.readouterr().err
    assert "restore the file from a backup" in said
    assert "Traceback" not in said


def test_a_running_broker_is_not_examined(capsys: pytest.CaptureFixture[str]) -> None:
    """O1: it would find what is only half written."""
    with broker() as running:
        assert main(["doctor", str(running.data)]) == 2
    assert "in use by a broker; stop it first" in capsys.readouterr().err


def test_a_directory_that_is_no_brokers_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """O1: and nothing is created in it."""
    assert main(["doctor", str(tmp_path)]) == 2
    assert "is not a data directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
