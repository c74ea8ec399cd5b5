"""Transactions by our own client: identities handed over, ends told twice, batches sent again in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from braidmq.client import Cluster, TimedOut, Unreachable
from braidmq.client.batch_sender import BatchSender
from braidmq.client.cluster import TopicPartition
from braidmq.client.connection import Connection
from braidmq.client.consumer import Consumer
from braidmq.client.transactional import FENCED, Identity, Offset, TransactionalClient
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import build_batch

TIMEOUT_MS = 60_000
NewTopic = Callable[..., str]


@pytest.fixture
def lines(bootstrap: str) -> Iterator[Cluster]:
    """Connections for batches."""
    with Cluster(bootstrap) as cluster:
        yield cluster


@pytest.fixture(params=[1, 2])
def client(request: pytest.FixtureRequest, bootstrap: str, lines: Cluster) -> Iterator[TransactionalClient]:
    """Speaking the first version of the protocol, and the second."""
    with Cluster(bootstrap) as cluster:
        made = TransactionalClient(cluster)
        assert made.protocol == 2
        made._protocol = request.param
        LINES[made] = lines
        yield made
        del LINES[made]


LINES: dict[TransactionalClient, Cluster] = {}


def sender_for(client: TransactionalClient, identity: Identity) -> BatchSender:
    return BatchSender(
        LINES[client],
        transactional_id=identity.transactional_id,
        announces=client.protocol >= 2,
        first_use=lambda partitions: client.add_partitions(identity, partitions),
        delivery_timeout_s=20,
    )


def send(sender: BatchSender, identity: Identity, at: TopicPartition, values: list[bytes]) -> None:
    rows = [(None, value, (), 1) for value in values]
    sequence = sender.next_sequence(at, len(rows))
    batch = build_batch(
        rows, base_sequence=sequence, producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch, transactional=True,
    )  # fmt: skip
    sender.send(at, batch)


def stored(bootstrap: str, at: TopicPartition, count: int) -> list[bytes | None]:
    with Consumer(bootstrap) as consumer:
        consumer.seek(*at, 0)
        found: list[bytes | None] = []
        while len(found) < count:
            found += [message.value for message in consumer.poll()]
    return found


def test_a_transaction_can_be_ended_by_another_process(
    client: TransactionalClient, bootstrap: str, new_topic: NewTopic
) -> None:
    """T2: who has the identity can end it, once or twice, but not the other way round."""
    at = TopicPartition(new_topic(), 0)
    identity = client.take(f"handed-{at.topic}", TIMEOUT_MS)
    sender = sender_for(client, identity)
    send(sender, identity, at, [b"1", b"2"])
    sender.flush()
    assert client.described([identity.transactional_id, "unknown"]).keys() == {identity.transactional_id}
    with Cluster(bootstrap) as elsewhere:
        other = TransactionalClient(elsewhere)
        other._protocol = client.protocol
        for _ in range(2):
            other.end(identity, commit=True)
        with pytest.raises(ApiError) as refused:
            other.end(identity, commit=False)
    assert refused.value.code in FENCED


def test_whoever_takes_an_id_fences_its_last_holder(client: TransactionalClient, new_topic: NewTopic) -> None:
    """T2: what was open is aborted, and its holder can neither write nor end it."""
    at = TopicPartition(new_topic(), 0)
    first = client.take(f"fenced-{at.topic}", TIMEOUT_MS)
    sender = sender_for(client, first)
    send(sender, first, at, [b"x"])
    sender.flush()
    second = client.take(first.transactional_id, TIMEOUT_MS)
    assert second != first
    assert client.end_all([first], commit=True).keys() == {first}
    send(sender, first, at, [b"y"])
    with pytest.raises(ApiError):
        sender.flush()


def test_offsets_of_a_transaction_count_when_it_is_committed(
    client: TransactionalClient, new_topic: NewTopic
) -> None:
    """T2 C6: with the text beside them; aborted ones never. Nobody can know before that."""
    at = TopicPartition(new_topic(), 0)
    group = f"group-{at.topic}-{client.protocol}"
    identity = client.take(f"offsets-{at.topic}", TIMEOUT_MS)
    client.commit_offsets(identity, group, {at: Offset(7, "seven")})
    identity = client.end(identity, commit=True)
    client.commit_offsets(identity, group, {at: Offset(9, "nine")})
    assert client.stable_offsets(group) is None
    client.end(identity, commit=False)
    found = None
    while not found:
        # A first offset does not show while its transaction is being ended.
        found = client.stable_offsets(group)
    assert found == {at: Offset(7, "seven")}


def test_many_transactions_are_ended_at_once(client: TransactionalClient, new_topic: NewTopic) -> None:
    """T2: more than go into one round of requests."""
    at = TopicPartition(new_topic(), 0)
    identities = [client.take(f"many-{at.topic}-{number}", TIMEOUT_MS) for number in range(70)]
    for identity in identities:
        client.commit_offsets(identity, f"many-{at.topic}", {at: Offset(1, "")})
    assert client.end_all(identities, commit=True) == {}
    described = client.described([identity.transactional_id for identity in identities])
    assert {row.transaction_state for row in described.values()} <= {"PrepareCommit", "CompleteCommit"}


@pytest.mark.parametrize("lost_from", [0, 3, 7])
def test_batches_whose_answers_were_lost_are_stored_once_and_in_order(
    client: TransactionalClient,
    bootstrap: str,
    new_topic: NewTopic,
    monkeypatch: pytest.MonkeyPatch,
    lost_from: int,
) -> None:
    """P4: the connection breaks with five requests under way; all are sent again."""
    places = [TopicPartition(topic, number) for topic in [new_topic(2)] for number in range(2)]
    identity = client.take(f"lost-{places[0].topic}", TIMEOUT_MS)
    sender = sender_for(client, identity)
    receive, answers = Connection.receive, iter(range(1_000))

    def unreliable(self: Connection, *arguments: object, **named: object) -> object:
        answer = receive(self, *arguments, **named)  # type: ignore[arg-type]
        if next(answers) == lost_from:
            self.close()
            raise (Unreachable if lost_from % 2 else TimedOut)("the answer was lost")
        return answer

    monkeypatch.setattr(Connection, "receive", unreliable)
    for number in range(12):
        for at in places:
            send(sender, identity, at, [b"%d" % number])
            sender._dispatch()
    sender.flush()
    monkeypatch.undo()
    client.end(identity, commit=True)
    for at in places:
        assert stored(bootstrap, at, 12) == [b"%d" % number for number in range(12)]


def test_what_no_retry_can_mend_is_raised(client: TransactionalClient, new_topic: NewTopic) -> None:
    """P5: a batch that is too large for its topic."""
    at = TopicPartition(new_topic(**{"max.message.bytes": "1000"}), 0)
    identity = client.take(f"large-{at.topic}", TIMEOUT_MS)
    sender = sender_for(client, identity)
    send(sender, identity, at, [b"x" * 2_000])
    with pytest.raises(ApiError) as refused:
        sender.flush()
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
