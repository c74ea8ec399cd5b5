"""A short slice of the kills of a Spark driver; `scripts/chaos --spark-kills 20` is the long one."""

from __future__ import annotations

import random

import pytest
from tests.chaos import server
from tests.chaos.spark_kills import PARTITIONS, SINK, Plan, check, run

from braidmq.client import Admin, Producer
from braidmq.testing import broker


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("spark")
def test_a_killed_driver_loses_and_doubles_nothing() -> None:
    """S3 S2: two kills in the midst of batches; every row once, in the order of its key."""
    seed = random.randrange(2**32)
    done = run(server.braid, Plan(2, 8_000, seed), lambda _: None)
    assert done.kills == 2, f"seed {seed}"


@pytest.mark.parametrize("fault", ["lost", "doubled", "reordered"])
def test_the_check_sees_what_is_wrong(fault: str) -> None:
    """S3: rows lost, doubled or out of order are noticed."""
    numbers = {"lost": [0, 8], "doubled": [0, 4, 4, 8], "reordered": [4, 0, 8]}[fault]
    with broker() as running:
        with Admin(running.bootstrap) as admin:
            admin.create_topic(SINK, PARTITIONS)
        with Producer(running.bootstrap) as producer:
            for place in range(PARTITIONS):
                for number in numbers if place == 0 else [place, place + 4, place + 8]:
                    producer.send(SINK, b"%d" % number, key=b"%d" % place, partition=place)
        (wrong,) = check(running.bootstrap, 12)
        assert wrong.startswith("key 0: ")
