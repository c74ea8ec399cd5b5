"""What `scripts/chaos --spark-kills 20` checks at its end; the kills themselves take minutes."""

from __future__ import annotations

import pytest
from tests.chaos.spark_kills import PARTITIONS, SINK, check

from braidmq.client import Admin, Producer
from braidmq.testing import broker


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
