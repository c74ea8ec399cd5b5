"""The Java client, where Java and its jars are at hand: BRAID_COMPAT_JARS names their directory.

`scripts/compat` gets the jars through Maven and sets it. The client is of the newest Kafka, so it uses the
newest version of every API: topic ids in Produce and Fetch, ApiVersions 4 and so on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

JARS = os.environ.get("BRAID_COMPAT_JARS")
SOURCES = Path(__file__).parent / "java"
WAIT_S = 110

pytestmark = pytest.mark.skipif(
    JARS is None or shutil.which("javac") is None,
    reason="needs a JDK and BRAID_COMPAT_JARS, which scripts/compat sets",
)


def test_the_java_client_administers_produces_consumes_and_seeks(
    bootstrap: str, new_name: Callable[[], str]
) -> None:
    """F1 P3 P4 P5 C7: every codec, every acks, idempotence, headers, seeks, configs, deletion, refusals."""
    run("RoundTrip.java", bootstrap, new_name())


def test_the_java_client_works_in_a_share_group_and_administers_it(
    bootstrap: str, new_name: Callable[[], str]
) -> None:
    """C1 C7 F1: records accepted, released and rejected; its place shown and moved; options, deletion."""
    run("ShareRoundTrip.java", bootstrap, new_name())


def test_the_java_client_works_in_transactions_and_administers_them(
    bootstrap: str, new_name: Callable[[], str]
) -> None:
    """T2 F1: commit, abort, isolation, offsets, fencing, time-outs; listed, described and aborted."""
    run("TransactionRoundTrip.java", bootstrap, new_name())


def test_the_java_client_administers_the_cluster(bootstrap: str, new_name: Callable[[], str]) -> None:
    """F1 O1: operations, options of brokers, loggers and groups, quorum, features, elections, directories."""
    run("AdminRoundTrip.java", bootstrap, new_name())


def run(source: str, *arguments: str) -> None:
    command = ["java", "-cp", f"{JARS}/*", str(SOURCES / source), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "ok"
