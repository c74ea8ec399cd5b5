"""Plays stories about transactions, in the notation of `story`.

Actors are producers. `0 ann init app` gives ann the transactional id app; `protocol=1` makes her a client
from before KIP-890, `timeout=5` are seconds, `goes-on` asks to resume with the epoch she has. Then
`ann add orders/0` (AddPartitionsToTxn), `ann offsets readers`, `ann verify orders/0`, `ann write orders/0`,
`ann commit` and `ann abort`. `ann send orders/0 as=x` sends a batch that is on its way until `ann lands x`.
`eve copies ann` makes eve a zombie: a process that believes what ann believes now.

The broker writes everything at once, unless `broker holds records` or `broker holds markers` is said, until
`broker writes records` (or `markers`; one `marker` may be let through). `broker fails records` lets the held
ones fail. `broker crash` is kill -9 and a restart, `broker expires` its round through idle ids. `show` tells
what is known of each transactional id, and what a reader of each partition sees.
"""

from __future__ import annotations

from itertools import count

from braidmq.txn.events import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    Added,
    AddPartitions,
    Answer,
    End,
    Ended,
    Init,
    TopicPartition,
)
from braidmq.txn.records import parse
from braidmq.txn.settings import TransactionSettings
from braidmq.wire.api import Api
from braidmq.wire.errors import ErrorCode
from unit.txn.small_broker import Produce, SmallBroker, batch_of

SECOND_MS = 1000
DAY_S = 24 * 3600


class Actor:
    """A producer process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.transactional_id = ""
        self.producer_id = NO_PRODUCER_ID
        self.epoch = NO_EPOCH
        self.protocol = 2
        self.written = 0
        self.sent: dict[str, Produce] = {}

    @property
    def end_version(self) -> int:
        return 5 if self.protocol >= 2 else 3


class TellingBroker(SmallBroker):
    """Says what it writes, and holds back what it is told to."""

    def __init__(self, out: list[str]) -> None:
        self.out = out
        self.held: set[str] = set()
        self.named: dict[object, tuple[Actor, str]] = {}
        super().__init__(TransactionSettings())

    def work(self) -> None:
        """Writes what is not held back, and says the answers in the order in which they are given."""
        self.say_answers()
        while True:
            if self.stores and "records" not in self.held:
                self.write_record()
            elif self.markers and "markers" not in self.held:
                self.write_marker()
            else:
                return
            self.say_answers()

    def write_record(self, number: int = 0) -> None:
        store = self.stores[number]
        stored = parse(*store.record)
        assert stored is not None
        transactional_id, now = stored
        if now is None:
            self.out.append(f"record: {transactional_id} is forgotten")
        else:
            partitions = "".join(f" {topic}/{number}" for topic, number in sorted(now.partitions))
            producer = f"producer {now.producer_id} epoch {now.producer_epoch}"
            self.out.append(f"record: {transactional_id} {now.state.label}, {producer}{partitions}")
        super().write_record(number)

    def write_marker(self, number: int = 0) -> None:
        _, marker, (topic, partition) = self.markers[number]
        verb = "commit" if marker.committed else "abort"
        who = f"producer {marker.producer_id} epoch {marker.producer_epoch}"
        before = self.partition((topic, partition)).end_offset
        super().write_marker(number)
        there = "" if self.partition((topic, partition)).end_offset > before else ", which was there"
        self.out.append(f"marker: {verb} of {who} in {topic}/{partition}{there}")

    def say_answers(self) -> None:
        for token, answer in list(self.answers.items()):
            if token in self.named:
                actor, verb = self.named.pop(token)
                self.out.append(f"{actor.name} {verb}: {_told(actor, answer)}")


def _told(actor: Actor, answer: Answer) -> str:
    if answer.code is not ErrorCode.NONE or isinstance(answer, Added):
        return answer.code.name
    if isinstance(answer, Ended) and actor.protocol < 2:
        return answer.code.name
    actor.producer_id, actor.epoch = answer.producer_id, answer.producer_epoch
    actor.written = 0
    return f"{answer.code.name}, producer {answer.producer_id} epoch {answer.producer_epoch}"


class Story:
    """A broker and its producers."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self.broker = TellingBroker(self.out)
        self.actors: dict[str, Actor] = {}
        self.tokens = count()

    def play(self, line: str) -> list[str]:
        """Runs one command and returns the lines that come of it."""
        when, who, *rest = line.split()
        self.out.clear()
        self.pass_time(round(float(when.rstrip("d")) * (DAY_S if when.endswith("d") else 1) * SECOND_MS))
        verb, *words = rest or [""]
        if who == "show":
            self.show()
        elif who == "broker":
            getattr(self, f"broker_{verb}")(*words)
        else:
            options = dict(word.split("=") for word in words if "=" in word)
            plain = [word for word in words if "=" not in word]
            getattr(self, f"do_{verb}")(self.actors.setdefault(who, Actor(who)), plain, options)
        self.broker.work()
        return list(self.out)

    def pass_time(self, until_ms: int) -> None:
        transactions = self.broker.transactions
        while (due_ms := transactions.next_deadline()) is not None and due_ms <= until_ms:
            before = len(self.out)
            self.broker.pass_time(due_ms)
            self.broker.work()
            self.out[before:] = [f"{due_ms / SECOND_MS:g}: {text}" for text in self.out[before:]]
        self.broker.pass_time(until_ms)

    def token(self, actor: Actor, verb: str) -> object:
        token = next(self.tokens)
        self.broker.named[token] = (actor, verb)
        return token

    # Producers

    def do_init(self, actor: Actor, words: list[str], options: dict[str, str]) -> None:
        actor.transactional_id = words[0]
        actor.protocol = int(options.get("protocol", actor.protocol))
        who = (actor.producer_id, actor.epoch) if "goes-on" in words else (NO_PRODUCER_ID, NO_EPOCH)
        timeout_ms = round(float(options.get("timeout", "60")) * SECOND_MS)
        version = int(options.get("version", "5"))
        request = Init(actor.transactional_id, timeout_ms, *who, version=version)
        self.broker.take(self.broker.transactions.init(request, self.token(actor, "init"), self.broker.now))

    def do_add(self, actor: Actor, words: list[str], options: dict[str, str]) -> None:
        version = int(options.get("version", "3"))
        request = AddPartitions(
            actor.transactional_id, actor.producer_id, actor.epoch, frozenset(map(_place, words)), version
        )
        token = self.token(actor, "add")
        self.broker.take(self.broker.transactions.add_partitions(request, token, self.broker.now))

    def do_offsets(self, actor: Actor, words: list[str], options: dict[str, str]) -> None:
        place = ("__consumer_offsets", len(words[0]) % 2)
        version = int(options.get("version", "3"))
        request = AddPartitions(
            actor.transactional_id, actor.producer_id, actor.epoch, frozenset({place}), version
        )
        token = self.token(actor, "offsets")
        effects = self.broker.transactions.add_partitions(
            request, token, self.broker.now, Api.ADD_OFFSETS_TO_TXN
        )
        self.broker.take(effects)

    def do_verify(self, actor: Actor, words: list[str], _: dict[str, str]) -> None:
        partitions = frozenset(map(_place, words))
        request = AddPartitions(actor.transactional_id, actor.producer_id, actor.epoch, partitions, 5)
        for (topic, partition), code in sorted(self.broker.transactions.verify(request).items()):
            self.out.append(f"{topic}/{partition}: {code.name}")

    def do_write(self, actor: Actor, words: list[str], _: dict[str, str]) -> None:
        for word in words:
            self.do_send(actor, [word], {"as": "it"})
            self.broker.work()
            self.do_lands(actor, ["it"], {})

    def do_send(self, actor: Actor, words: list[str], options: dict[str, str]) -> None:
        batch = batch_of(actor.producer_id, actor.epoch, actor.written)
        actor.written += 1
        label = f"{actor.name}{actor.written}.{actor.epoch}"
        produce = Produce(self.broker, actor.transactional_id, _place(words[0]), batch, label, actor.protocol)
        actor.sent[options["as"]] = produce

    def do_lands(self, actor: Actor, words: list[str], _: dict[str, str]) -> None:
        self.out.append(f"{actor.name} write: {actor.sent.pop(words[0]).finish().name}")

    def do_commit(self, actor: Actor, _: list[str], options: dict[str, str]) -> None:
        self.end(actor, True, options)

    def do_abort(self, actor: Actor, _: list[str], options: dict[str, str]) -> None:
        self.end(actor, False, options)

    def end(self, actor: Actor, committed: bool, options: dict[str, str]) -> None:
        version = int(options.get("version", actor.end_version))
        request = End(actor.transactional_id, actor.producer_id, actor.epoch, committed, version)
        token = self.token(actor, "commit" if committed else "abort")
        if options.get("answer") == "lost":
            del self.broker.named[token]
        self.broker.take(self.broker.transactions.end(request, token, self.broker.now))

    def do_copies(self, actor: Actor, words: list[str], _: dict[str, str]) -> None:
        of = self.actors[words[0]]
        actor.transactional_id, actor.producer_id, actor.epoch = of.transactional_id, of.producer_id, of.epoch
        actor.protocol, actor.written = of.protocol, of.written

    # The broker

    def broker_holds(self, what: str) -> None:
        self.broker.held.add(what)

    def broker_writes(self, what: str) -> None:
        if what == "marker":
            self.broker.write_marker()
        self.broker.held.discard(what)

    def broker_fails(self, what: str) -> None:
        self.broker.held.discard(what)
        while what == "records" and self.broker.stores:
            self.broker.fail_record()
        while what == "markers" and self.broker.markers:
            self.broker.fail_marker()

    def broker_crash(self) -> None:
        self.broker.held.clear()
        self.broker.named.clear()
        self.broker.start()

    def broker_expires(self) -> None:
        self.broker.take(self.broker.transactions.expire(self.broker.now))

    def show(self) -> None:
        for one in self.broker.transactions:
            producer = f"producer {one.producer_id} epoch {one.producer_epoch}"
            self.out.append(f"{one.transactional_id}: {one.state.label}, {producer}")
        for (topic, number), partition in sorted(self.broker.partitions.items()):
            stable = partition.transactions.last_stable_offset(partition.end_offset)
            seen = " ".join(map(str, partition.committed())) or "nothing"
            self.out.append(f"{topic}/{number}: stable to {stable} of {partition.end_offset}, reads {seen}")


def _place(word: str) -> TopicPartition:
    topic, partition = word.split("/")
    return topic, int(partition)
