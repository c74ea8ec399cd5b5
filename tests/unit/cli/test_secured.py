"""Every command against a broker that lets in only clients that use TLS and prove who they are.

A command that connects without its settings is refused at the door, so one that forgets them fails here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.secured import Certificate, Door, User, make_certificate

from braidmq.testing import broker
from unit.cli.conftest import Braid

BOB = User("bob", "secret")
PIPELINE = """\
pipeline: copies
bootstrap: nowhere.invalid:1
sources: {orders: {topic: orders, format: text}}
sinks: {out: {from: orders, topic: copies, format: text}}
"""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def door(certificate: Certificate) -> Iterator[Door]:
    with Door(certificate, user=BOB) as made, broker(advertise=str(made.address), num_partitions=1) as behind:
        made.leads_to = behind.bootstrap
        yield made


@pytest.fixture
def settings(certificate: Certificate) -> list[str]:
    return [
        "security.protocol=SASL_SSL",
        "sasl.mechanism=PLAIN",
        "sasl.username=bob",
        "sasl.password=secret",
        f"ssl.ca.location={certificate.chain}",
    ]


@pytest.fixture
def command_config(settings: list[str], tmp_path: Path) -> str:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=nowhere.invalid:1\n" + "\n".join(settings) + "\n")
    return str(file)


STEPS = (
    "topic create orders -p 2",
    "topic list",
    "topic alter orders -o retention.ms=5000",
    "topic describe orders --json",
    "send orders --value one",
    "produce orders --value two",
    "tail orders",
    "consume orders --from 1h",
    "group reset kitchen --topic orders --to-earliest --yes",
    "group list",
    "group describe kitchen",
    "group delete kitchen --yes",
    "txn list",
    "txn hanging",
    "perf produce -n 1000",
    "perf consume",
    "perf latency -n 5",
    "pipeline plan FILE --bootstrap ADDRESS",
    "pipeline status FILE --bootstrap ADDRESS",
    "topic delete orders braid-perf --yes",
)


@pytest.mark.parametrize("way", ["file", "one by one"])
def test_commands_prove_who_they_are(
    braid: Braid, door: Door, settings: list[str], command_config: str, tmp_path: Path, way: str
) -> None:
    """O1 F1: by a file as Kafka's tools take it, or by -X; the file's address is ignored."""
    file = tmp_path / "copies.yaml"
    file.write_text(PIPELINE)
    as_given = ("--command-config", command_config) if way == "file" else [f"-X{each}" for each in settings]
    for step in STEPS:
        words = [{"FILE": str(file), "ADDRESS": str(door.address)}.get(word, word) for word in step.split()]
        where = () if "--bootstrap" in step else ("--bootstrap-server", str(door.address))
        out, _ = braid(*words, *where, *as_given)
        if step in ("tail orders", "consume orders --from 1h"):
            assert len(out.splitlines()) == 2
        if step.startswith("pipeline plan"):
            assert "Would read" in out


def test_a_setting_by_itself_wins_over_the_file(braid: Braid, door: Door, command_config: str) -> None:
    """O1: so that one file serves for several users."""
    words = ("topic", "list", "-b", str(door.address), "--command-config", command_config)
    _, err = braid(*words, "-X", "sasl.password=wrong", code=1)
    assert "refused PLAIN bob" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ((), 1, "if it expects TLS, set security.protocol"),
        (("-X", "security.protocol=SSL"), 1, "the TLS handshake with "),
        (("-X", "security.protocol=TLS"), 2, "it must be one of PLAINTEXT, SSL"),
        (("-X", "sasl.pasword=x"), 2, "-X has no option 'sasl.pasword'; did you mean 'sasl.password'?"),
        (("-X", "sasl.password"), 2, "not of the form NAME=VALUE"),
        (("-X", "request.timeout.ms=soon"), 2, "request.timeout.ms is 'soon'"),
        (("-X", "bootstrap.servers=a:1"), 2, "use --bootstrap a:1"),
        (("-X", "security.protocol=SSL", "-X", "ssl.ca.location=/nowhere"), 2, "cannot be used"),
        (("--command-config", "/nowhere"), 2, "--command-config /nowhere: No such file"),
    ],
)
def test_settings_that_do_not_work_are_one_line(
    braid: Braid, door: Door, given: tuple[str, ...], code: int, said: str
) -> None:
    """O1: a mistake in the settings is 2, a refusal by the broker 1."""
    for words in (("topic", "list"), ("send", "x", "-v", "1"), ("tail", "x"), ("perf", "latency")):
        out, err = braid(*words, "-b", str(door.address), *given, code=code)
        assert (out, said in err, len(err.splitlines())) == ("", True, 1), err
