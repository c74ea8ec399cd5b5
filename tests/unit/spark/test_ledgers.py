"""Which groups hold decisions of the sink instead of positions of a consumer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.groups import GroupAdmin
from braidmq.client.transactional import Identity, TransactionalClient
from braidmq.spark.rescue.report import lags
from braidmq.spark.sink.ledger import Decision, Ledger, TaskWrite, is_ledger


def decided(cluster: Cluster, scope: str, topic: str, tasks: int) -> None:
    ledger = Ledger(cluster, TransactionalClient(cluster), scope, 60_000)
    ledger.hold()
    written = {number: TaskWrite(Identity(f"{scope}/{number}", 7, 0), 12345) for number in range(tasks)}
    ledger.decide(Decision(3, topic, written))
    # Which waits until the transaction has ended in the group, too.
    assert ledger.read() is not None


@pytest.mark.parametrize("prefix", ["braid-spark", "ours"])
@pytest.mark.parametrize("tasks", [1, 300])
def test_a_ledger_is_not_reported_as_a_consumer_that_lags(
    bootstrap: str, new_topic: Callable[..., str], prefix: str, tasks: int
) -> None:
    """S6 S3: it is known by what it holds, whatever it is called."""
    topic = new_topic(partitions=4)
    with Cluster(bootstrap) as cluster:
        decided(cluster, f"{prefix}/{topic}/nightly", topic, tasks)
        groups = GroupAdmin(cluster)
        assert is_ledger(groups.texts(f"{prefix}/{topic}/nightly").values())
        groups.commit(f"braid-spark-{topic}", {TopicPartition(topic, 0): 0})
        assert [each.group for each in lags(cluster, [topic])] == [f"braid-spark-{topic}"]


@pytest.mark.parametrize("text", ["", "1/2", "consumer 1/2 x", "2/1 abc", "1/1 two words", "0/1 abc"])
def test_what_consumers_write_beside_their_offsets_is_no_decision(text: str) -> None:
    """S6: a group that is taken for a ledger would be left in the old topic."""
    assert not is_ledger([text])
