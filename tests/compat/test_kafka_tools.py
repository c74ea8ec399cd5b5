"""Kafka's own command-line tools, where their jars are at hand: BRAID_COMPAT_JARS names the directory."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

JARS = os.environ.get("BRAID_COMPAT_JARS")
WAIT_S = 110
CONFIGS = "kafka.admin.ConfigCommand"
TOOLS = "org.apache.kafka.tools"

pytestmark = pytest.mark.skipif(
    JARS is None or shutil.which("java") is None or not any(Path(JARS).glob("kafka-tools-4*.jar")),
    reason="needs Java and BRAID_COMPAT_JARS with kafka-tools, which scripts/compat sets",
)


def run(bootstrap: str, tool: str, *arguments: str) -> str:
    """What the tool prints; it must succeed."""
    command = ["java", "-Xmx256m", "-cp", f"{JARS}/*", tool, "--bootstrap-server", bootstrap, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kafka_configs_changes_a_broker_and_shows_it(bootstrap: str) -> None:
    """F1 O1: kafka-configs.sh."""
    all_brokers = ("--entity-type", "brokers", "--entity-default")
    run(bootstrap, CONFIGS, "--alter", *all_brokers, "--add-config", "log.retention.ms=444444444")
    shown = run(bootstrap, CONFIGS, "--describe", *all_brokers)
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=444444444" in shown
    run(bootstrap, CONFIGS, "--alter", *all_brokers, "--delete-config", "log.retention.ms")
    assert "444444444" not in run(bootstrap, CONFIGS, "--describe", *all_brokers)


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("FeatureCommand", ("describe",), "Feature: metadata.version"),
        ("MetadataQuorumCommand", ("describe", "--status"), "LeaderId:"),
        ("MetadataQuorumCommand", ("describe", "--replication"), "Leader"),
        ("LogDirsCommand", ("--describe",), '"offsetLag":0'),
        ("reassign.ReassignPartitionsCommand", ("--list",), "No partition reassignments found."),
        ("BrokerApiVersionsCommand", (), "DescribeLogDirs(35): 1 to 5 [usable: 5]"),
    ],
)
@pytest.mark.usefixtures("topic")
def test_a_tool_shows_what_the_cluster_has_to_say(
    bootstrap: str, tool: str, arguments: tuple[str, ...], expected: str
) -> None:
    """F1 O1: kafka-features.sh, kafka-metadata-quorum.sh, kafka-log-dirs.sh and others."""
    assert expected in run(bootstrap, f"{TOOLS}.{tool}", *arguments)


def test_kafka_leader_election_finds_the_leader_in_place(bootstrap: str, topic: str) -> None:
    """F1 O1: kafka-leader-election.sh."""
    chosen = ("--election-type", "PREFERRED", "--topic", topic, "--partition", "0")
    shown = run(bootstrap, f"{TOOLS}.LeaderElectionCommand", *chosen)
    assert "Valid replica already elected" in shown
