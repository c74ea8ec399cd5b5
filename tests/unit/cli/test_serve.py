"""`braid serve` as a process, and every way to call it wrongly."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from braidmq.cli import main
from braidmq.client import Admin, Cluster
from braidmq.testing import BrokerProcess, broker
from patience import wait_until


def test_serve_prints_one_ready_line_and_stops_cleanly_on_sigterm(tmp_path: Path) -> None:
    """O1: the line a supervisor waits for, with the port that was free."""
    process = _serve("--data", str(tmp_path / "log"), "--listen", "127.0.0.1:0", "-o", "node.id=7")
    assert process.stdout is not None
    line = process.stdout.readline().split()
    assert line[0] == "ready"
    assert line[2:] == ["node=7", f"data={tmp_path / 'log'}"]
    with Cluster(line[1]) as cluster:
        cluster.refresh(None)
        assert list(cluster.brokers) == [7]
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=30)
    assert (process.returncode, rest) == (0, "")


def test_a_broker_whose_ready_line_nobody_reads_serves_all_the_same(tmp_path: Path) -> None:
    """W2: its supervisor may be killed while it starts; that takes no broker with it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = _serve("--data", str(tmp_path), "--listen", f"127.0.0.1:{port}", "--stop-on-eof")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    wait_until(lambda: process.poll() is not None or _accepts(port))
    time.sleep(0.2)
    with Cluster(f"127.0.0.1:{port}") as cluster:
        cluster.refresh(None)
        assert list(cluster.brokers) == [1]
    _, log = process.communicate(timeout=30)
    assert process.returncode == 0, log
    assert "Broken pipe" not in log


def test_the_advertised_address_is_what_clients_are_told(tmp_path: Path) -> None:
    """O1: for NAT and containers."""
    process = _serve(
        "--data",
        str(tmp_path),
        "--listen",
        "127.0.0.1:0",
        "--advertise",
        "queue.example:1234",
        "--stop-on-eof",
    )
    assert process.stdout is not None
    with Cluster(process.stdout.readline().split()[1]) as cluster:
        cluster.refresh(None)
        assert [str(address) for address in cluster.brokers.values()] == ["queue.example:1234"]
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_broker_on_all_interfaces_logs_the_address_it_gives_to_clients(tmp_path: Path) -> None:
    """O1: it is a guess, and the first thing to look at when a client connects and then times out."""
    process = _serve("--data", str(tmp_path), "--listen", "0.0.0.0:0", "--stop-on-eof")
    assert process.stdout is not None
    port = process.stdout.readline().split()[1].rpartition(":")[2]
    _, log = process.communicate(timeout=30)
    assert f"clients are sent to {socket.gethostname()}:{port}; use --advertise" in log


def test_options_come_from_the_file_the_environment_and_the_command_line_in_that_order(
    tmp_path: Path,
) -> None:
    """O1: later ones win."""
    file = tmp_path / "braid.toml"
    file.write_text('"num.partitions" = 2\n[retention]\nms = 1000\nbytes = 1000000\n')
    process = _serve(
        *("--data", str(tmp_path / "log"), "--listen", "127.0.0.1:0", "--stop-on-eof"),
        *("--config", str(file), "-o", "retention.bytes=3000000"),
        environment={"BRAID_RETENTION_BYTES": "2000000", "BRAID_RETENTION_MS": "2000"},
    )
    assert process.stdout is not None
    with Admin(process.stdout.readline().split()[1]) as admin:
        admin.create_topic("t")
        assert admin.partition_indexes("t") == [0, 1]
        values = {entry.name: entry.value for entry in admin.topic_configs("t")}
    assert (values["retention.ms"], values["retention.bytes"]) == ("2000", "3000000")
    process.communicate(timeout=30)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dta", "x"], "unknown option --dta; did you mean --data?"),
        (["-o", "retention.m=5"], "unknown option retention.m; did you mean retention.ms?"),
        (["-o", "retention.ms=soon"], "retention.ms=soon is not a number"),
        (["-o", "num.partitions=0"], "num.partitions=0 is out of bounds; it must be from 1 to 10,000"),
        (["-o", "flush"], "'flush' is not of the form name=value"),
        (["--listen", "localhost:http"], "the port must be a number"),
        (["--config", "/nowhere/braid.toml"], "cannot read /nowhere/braid.toml: No such file or directory"),
        (["now"], "does not take 'now'"),
        (["--data"], "expected one argument"),
        (["--log-level", "loud"], "invalid choice: 'loud'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """O1: no traceback, what is wrong, what would be right."""
    assert main(["serve", *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("braid serve: ")
    assert shown.out == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("retention = 5", "unknown option retention; did you mean retention.ms?"),
        ("[retention]\nms = 'soon'", "retention.ms=soon is not a number; it must be from -1"),
        ("retention.ms =", "Invalid value (at "),
    ],
)
def test_a_mistake_in_a_file_is_shown_with_the_file(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """O1: there may be variables and -o as well; the line says where to look."""
    file = tmp_path / "braid.toml"
    file.write_text(text)
    assert main(["serve", "--config", str(file)]) == 2
    assert f"braid serve: {file}: {message}" in capsys.readouterr().err


def test_a_port_in_use_is_a_mistake(braid_broker: BrokerProcess, tmp_path: Path) -> None:
    """O1: said with the address."""
    process = _serve("--data", str(tmp_path), "--listen", braid_broker.bootstrap)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert said.splitlines()[-1].startswith(f"braid serve: {braid_broker.bootstrap} is in use")
    assert "Traceback" not in said


def test_a_forwarding_port_in_use_is_a_mistake(braid_broker: BrokerProcess, tmp_path: Path) -> None:
    """O1 N5: named as the option's, not as the address of --listen."""
    taken = braid_broker.bootstrap
    process = _serve("--data", str(tmp_path), "--listen", "127.0.0.1:0", "-o", f"forward.listen={taken}")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert said.splitlines()[-1].startswith(f"braid serve: forward.listen: {taken}: Address already in use")


def test_a_data_directory_another_broker_holds_is_a_mistake(tmp_path: Path) -> None:
    """O1: two brokers on one directory would destroy it."""
    with broker(data=tmp_path) as first:
        process = _serve("--data", str(first.data), "--listen", "127.0.0.1:0")
        _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "in use by another broker process" in said
    assert "Traceback" not in said


def test_a_data_directory_that_is_a_file_is_a_mistake(tmp_path: Path) -> None:
    """O1: whatever the system says, in one line."""
    (tmp_path / "file").write_text("")
    process = _serve("--data", str(tmp_path / "file"), "--listen", "127.0.0.1:0")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    expected = (
        f"cannot use the data directory {tmp_path / 'file'}: Not a directory; choose another with --data"
    )
    assert said.splitlines()[-1] == f"braid serve: {expected}"
    assert "Traceback" not in said


def test_a_broker_loads_no_terminal_library() -> None:
    """O1: start-up time and memory of `braid serve`."""
    look = "print(sorted({'typer', 'rich', 'click'} & set(sys.modules)))"
    code = f"import sys, braidmq.cli.serve, braidmq.serve; {look}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment()
    )
    assert done.stdout.strip() == "[]"


def _accepts(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BRAID_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path)}


def _serve(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "braidmq", "serve", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**_environment(), **(environment or {})},
    )
