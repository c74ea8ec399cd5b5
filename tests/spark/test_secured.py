"""Every job on Spark against a broker that lets in who comes over TLS and proves who it is.

A question that a job asks without its security settings is refused at the door, so one that forgets them
fails here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.secured import Certificate, Door, User, make_certificate

from braidmq.cli import main
from braidmq.client import Producer
from braidmq.client.cluster import Cluster
from braidmq.client.security import parse_security
from braidmq.spark.pipelines import load
from braidmq.spark.pipelines.runner import run
from braidmq.testing import broker

BOB = User("bob", 'p"=w')
Braid = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def settings(certificate: Certificate) -> dict[str, str]:
    """What a client needs, but for the address."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": r'x.PlainLoginModule required username="bob" password="p\"=w";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificate.chain),
    }


@pytest.fixture(scope="module")
def door(certificate: Certificate) -> Iterator[Door]:
    with Door(certificate, user=BOB) as made, broker(advertise=str(made.address), num_partitions=1) as behind:
        made.leads_to = behind.bootstrap
        yield made


@pytest.fixture
def command_config(settings: dict[str, str], tmp_path: Path) -> Path:
    file = tmp_path / "client.properties"
    lines = [f"{name}={text}".replace("\\", "\\\\") for name, text in settings.items()]
    file.write_text("# as for Kafka's own tools\n" + "\n".join(lines) + "\n")
    return file


@pytest.fixture
def braid(
    spark: SparkSession, door: Door, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Braid:
    """Runs a command: exit code, stdout, stderr."""
    assert spark is not None
    monkeypatch.setenv("BRAID_BOOTSTRAP", str(door.address))

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return call


def send(door: Door, settings: dict[str, str], topic: str, values: list[str]) -> None:
    security = parse_security(settings)
    with Cluster(str(door.address), security=security) as cluster, Producer(cluster) as producer:
        for value in values:
            producer.send(topic, value.encode(), key=b"k")


def test_commands_prove_who_they_are(
    braid: Braid, door: Door, settings: dict[str, str], command_config: Path, tmp_path: Path
) -> None:
    """S5 S6 S1: an archive over the network with a group for its lag; a topic resharded, groups moved."""
    send(door, settings, "orders", ["a", "b", "c"])
    secret = ("--command-config", command_config)
    archived = ("lake", "archive", "orders", "--to-dir", tmp_path / "lake", "--once", "--group", "archiver")
    code, out, err = braid(*archived, *secret, "-X", "localLog=never")
    assert (code, out) == (0, f"archived 3 rows into {tmp_path / 'lake'}\n"), err
    moved = ("topic", "reshard", "orders", "-p", 2, "--switch", "--yes", "--checkpoint", tmp_path / "place")
    code, out, err = braid(*moved, "--json", *secret)
    assert code == 0, err
    done = json.loads(out)
    assert (done["copied"], [each["group"] for each in done["groups"]]) == (3, ["archiver"])


PIPELINE = """\
pipeline: secured
bootstrap: ADDRESS
options: AT_THE_TOP
sources:
  values:
    topic: values
    schema: infer
    bad_records: {topic: values.bad}
    options: OF_PARTS
sinks:
  out: {from: values, topic: values.out, options: OF_PARTS}
"""


def written(place: Path, door: Door, at_the_top: dict[str, str], of_parts: dict[str, str]) -> Path:
    text = PIPELINE.replace("ADDRESS", str(door.address))
    text = text.replace("AT_THE_TOP", json.dumps(at_the_top)).replace("OF_PARTS", json.dumps(of_parts))
    file = place / "secured.yaml"
    file.write_text(text)
    return file


def test_a_pipeline_proves_who_it_is(
    braid: Braid,
    spark: SparkSession,
    door: Door,
    settings: dict[str, str],
    command_config: Path,
    tmp_path: Path,
) -> None:
    """S4 S1: by options for every topic, by a file of settings, or by those of a source and a sink."""
    send(door, settings, "values", ['{"n": 1}', "no number", '{"n": 2}'])
    prefixed = {f"kafka.{name}": text for name, text in settings.items()}
    code, out, err = braid("pipeline", "plan", written(tmp_path, door, prefixed, {}), "--json")
    assert (code, len(json.loads(out or "{}").get("reads", []))) == (0, 2), err
    nobody = {"security.protocol": "PLAINTEXT"}
    secret = ("--command-config", command_config)
    code, out, err = braid("pipeline", "plan", written(tmp_path, door, nobody, {}), "--json", *secret)
    assert (code, len(json.loads(out or "{}").get("reads", []))) == (0, 2), err

    run(load(written(tmp_path, door, nobody, prefixed)), once=True, spark=spark)
    for topic, expected in (("values.out", [b'{"n":1}', b'{"n":2}']), ("values.bad", [b"no number"])):
        reader = spark.read.format("braid").options(**settings).option("subscribe", topic)
        rows = reader.option("bootstrap.servers", str(door.address)).option("localLog", "never").load()
        assert sorted(bytes(row.value) for row in rows.select("value").collect()) == expected


def test_whoever_cannot_prove_it_is_told_in_a_line(
    braid: Braid, settings: dict[str, str], tmp_path: Path
) -> None:
    """S1 O1: the broker's word, and what to look at; a misspelt setting is found before anybody is asked."""
    wrong = {**settings, "sasl.jaas.config": 'x required username="bob" password="no";'}
    file = tmp_path / "wrong.properties"
    for content, told in (
        (wrong, "refused PLAIN bob: no such pair"),
        ({**settings, "sasl.pasword": "x"}, "has no option 'sasl.pasword'; did you mean 'sasl.password'?"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is ''; it must be one of PLAIN"),
        ({"security.protocol": "SSL"}, "the TLS handshake with "),
        ({}, "if it expects TLS, set security.protocol"),
    ):
        file.write_text("".join(f"{name}={text}\n" for name, text in content.items()))
        for words in (
            ("lake", "archive", "orders", "--to-dir", tmp_path / "l", "--once"),
            ("topic", "audit", "a", "b"),
        ):
            code, _, err = braid(*words, "--command-config", file)
            assert code in (1, 2)
            assert told in err
            assert len(err.splitlines()) == 1
    code, _, err = braid("topic", "audit", "a", "b", "--command-config", tmp_path / "none")
    assert (code, "No such file" in err, len(err.splitlines())) == (2, True, 1)
