"""The broker for users' tests, used the way users do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from braidmq.client import Admin, Consumer, Producer
from braidmq.config import ConfigError
from braidmq.testing import BrokerFailed, BrokerProcess, broker


def read_all(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    with Consumer(bootstrap) as consumer:
        consumer.assign(topic)
        values: list[bytes | None] = []
        while len(values) < count:
            values += [message.value for message in consumer.poll()]
        return values


def test_a_broker_takes_and_gives_records_and_leaves_nothing_behind() -> None:
    """O6: `with broker() as b` is all a test needs."""
    with broker() as running:
        directory = running.data
        with Producer(running.bootstrap) as producer:
            producer.send("greetings", b"hello")
        assert read_all(running.bootstrap, "greetings", 1) == [b"hello"]
        pid = running.pid
    assert not directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_records_survive_kill_and_restart_at_the_same_address() -> None:
    """O6 L6: what was acknowledged before a kill -9 is there after the restart."""
    with broker() as running:
        bootstrap = running.bootstrap
        with Producer(bootstrap) as producer:
            for number in range(100):
                producer.send("numbers", b"%d" % number, partition=0)
        running.kill()
        assert not running.running
        running.restart()
        assert running.bootstrap == bootstrap
        assert read_all(bootstrap, "numbers", 100) == [b"%d" % number for number in range(100)]


def test_options_are_those_of_braid_config_with_underscores() -> None:
    """O6: options reach the broker."""
    with broker(num_partitions=7) as running, Producer(running.bootstrap) as producer:
        producer.send("seven", b"x").result()
        with Admin(running.bootstrap) as admin:
            assert admin.partition_indexes("seven") == list(range(7))


def test_a_misspelt_option_is_refused_before_anything_starts() -> None:
    """O6: the mistake is named, with the nearest right name."""
    with pytest.raises(ConfigError, match=r"did you mean num\.partitions"), broker(num_partition=1):
        pass


def test_a_broker_that_cannot_start_says_why() -> None:
    """O6: the exception carries what the broker printed."""
    with broker() as running:
        second = broker(listen=running.bootstrap)
        with pytest.raises(BrokerFailed, match="in use by another program"), second:
            pass


def test_a_data_directory_given_by_the_user_stays(tmp_path: Path) -> None:
    """O6: two brokers, one after the other, on the same data."""
    with broker(data=tmp_path) as running, Producer(running.bootstrap) as producer:
        producer.send("kept", b"still here").result()
    with broker(data=tmp_path) as running:
        assert read_all(running.bootstrap, "kept", 1) == [b"still here"]


def test_a_broker_does_not_outlive_a_test_process_that_is_killed() -> None:
    """O6: no stray brokers after a crashed test run."""
    script = "from braidmq.testing import broker\nwith broker() as b:\n print(b.pid, flush=True)\n input()"
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment()
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    parent.stdin.close()
    for _ in range(600):
        if not _alive(pid):
            break
        time.sleep(0.05)
    assert not _alive(pid)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.braid(num_partitions=3)
def test_the_fixture_is_a_running_broker_with_the_marks_options(braid_broker: BrokerProcess) -> None:
    """O6: the pytest fixture."""
    with Producer(braid_broker.bootstrap) as producer:
        producer.send("three", b"x").result()
    with Admin(braid_broker.bootstrap) as admin:
        assert admin.partition_indexes("three") == [0, 1, 2]
