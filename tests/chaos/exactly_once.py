"""Consume, transform, produce: exactly once at read_committed, whoever dies.

A feeder writes numbers to a source topic, two transformers in a group write one record for each to a target
topic, all in transactions with their offsets in them, some aborted on purpose. The broker is killed and
started again, processes are killed, stopped and woken up again, at random moments and at chosen steps of a
transaction. Faults are spread over the progress of the work, not over time. A reader at read_committed
follows both topics. When all is done and everybody dead, both topics are read from end to end and handed,
with the committed positions and what was confirmed, to the checker (`tests/history/exactly_once.py`).
"""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.chaos import server as servers
from tests.chaos.crew import Crew, Sleep, Slot
from tests.chaos.load import RECONNECT, WAIT_S, ChaosFailed, Journal, consumer, records
from tests.chaos.server import SESSION_MS, Server
from tests.chaos.transactor import NOT_NOW, Doom, Plant, Step, Task, unpacked
from tests.history.exactly_once import Fate, Place, Stage, Stamp, Work

SOURCE, TARGET = "source", "target"
FEEDERS, TRANSFORMERS = "feeders", "transformers"
STALLED_S = 60.0
TEND_S = 0.02
CHECK_S = 0.25
PROTOCOLS = ("classic", "consumer", "cooperative")


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. The numbers of faults are for the whole of it."""

    seed: int
    messages: int = 100_000
    protocol: str = "classic"
    transformers: int = 2
    source_partitions: int = 4
    target_partitions: int = 3
    batch: int = 250
    aborts: float = 0.05
    broker_kills: int = 8
    feeder_kills: int = 3
    kills: int = 4
    """Transformers killed from outside, at any moment."""
    stops: int = 3
    """Transformers stopped from outside, at any moment."""
    dooms: int = 8
    """Transformers killed or stopped at a chosen step of a transaction."""
    per_s: int = 5_000
    """Numbers the feeder writes per second."""
    sleep: Sleep = field(default_factory=Sleep)
    transaction_timeout_ms: int = 2 * SESSION_MS
    doom: Doom | None = None
    """What befalls the first life of the first transformer, where this is not left to chance."""
    plant: Plant = Plant.NONE
    reads_uncommitted: bool = False
    """A bug planted into the reader that judges."""


@dataclass(slots=True)
class Progress:
    plan: Plan
    feed: Stage = field(default_factory=lambda: Stage("the feeder"))
    transform: Stage = field(default_factory=lambda: Stage("the transformers"))
    broker_kills: int = 0
    kills: int = 0
    stops: int = 0
    fenced: int = 0
    hung: int = 0
    aborted: int = 0
    """Records of aborted transactions in the target topic, which nobody at read_committed may see."""
    elapsed_s: float = 0.0

    @property
    def violations(self) -> int:
        return sum(sum(stage.counts.values()) for stage in (self.feed, self.transform))

    def __str__(self) -> str:
        return (
            f"{self.plan.protocol:11}  fed {self.feed.polled_count:,}  transformed "
            f"{self.transform.polled_count:,}  broker kills {self.broker_kills}  kills {self.kills}  "
            f"stops {self.stops}  fenced {self.fenced}  hung {self.hung}  aborted records {self.aborted:,}  "
            f"violations {self.violations:,}  {self.elapsed_s:,.0f} s"
        )


@dataclass(slots=True)
class Totals:
    """Many runs together."""

    runs: int = 0
    messages: int = 0
    broker_kills: int = 0
    kills: int = 0
    stops: int = 0
    fenced: int = 0
    hung: int = 0
    aborted: int = 0
    elapsed_s: float = 0.0

    def add(self, done: Progress) -> None:
        self.runs += 1
        self.messages += done.transform.read_count
        self.broker_kills += done.broker_kills
        self.kills += done.kills
        self.stops += done.stops
        self.fenced += done.fenced
        self.hung += done.hung
        self.aborted += done.aborted
        self.elapsed_s += done.elapsed_s

    def __str__(self) -> str:
        return (
            f"{self.runs} runs, {self.messages:,} messages: broker killed {self.broker_kills} times, "
            f"processes killed {self.kills}, stopped {self.stops}, fenced {self.fenced}, hung {self.hung}; "
            f"{self.aborted:,} records aborted and never seen; {self.elapsed_s:,.0f} s"
        )


class PromisesBroken(ChaosFailed):
    def __init__(self, text: str, progress: Progress) -> None:
        super().__init__(text)
        self.progress = progress


Report = Callable[[Progress], None]
Serve = Callable[[], AbstractContextManager[Server]]


def run(plan: Plan, report: Report = lambda _: None, serve: Serve = servers.braid) -> Progress:
    """Carries the plan out; raises ChaosFailed when a promise was broken."""
    with tempfile.TemporaryDirectory(prefix="exactly-once-") as directory, serve() as server:
        work = Run(plan, server, Path(directory), report)
        try:
            work.go_through_faults()
            work.crew.let_sleepers_speak()
            work.settle()
        finally:
            work.crew.dismiss()
        work.read_everything()
    judge(plan, work.progress)
    return work.progress


class Run:
    def __init__(self, plan: Plan, server: Server, directory: Path, report: Report) -> None:
        self.plan, self.server, self._report = plan, server, report
        self._chance = random.Random(plan.seed)
        self.crew = Crew(directory, self._chance, plan.sleep)
        self.progress = Progress(plan)
        self._began = time.monotonic()
        self._create_topics()
        self._watch = Watch(self.progress, server.bootstrap, plan)
        self._feeder = self.crew.hire(self._feeding(), self._some_dooms(plan.feeder_kills))
        self._hire_transformers()
        self._faults = sorted(self._draw_faults(), key=lambda fault: fault[0])

    def _create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.server.bootstrap})
        wanted = {SOURCE: self.plan.source_partitions, TARGET: self.plan.target_partitions}
        new = [
            NewTopic(name, count, 1, config={"segment.bytes": str(1 << 20)}) for name, count in wanted.items()
        ]
        for made in admin.create_topics(new).values():
            made.result(WAIT_S)

    def _feeding(self) -> Task:
        return self._task("feed", FEEDERS, "feeder", SOURCE, self.plan.source_partitions)

    def _task(self, role: str, group: str, transactional_id: str, target: str, partitions: int) -> Task:
        plan = self.plan
        return Task(
            role=role,
            bootstrap=self.server.bootstrap,
            life=0,
            transactional_id=transactional_id,
            group=group,
            source=SOURCE,
            target=target,
            target_partitions=partitions,
            journal="",
            batch=plan.batch,
            aborts=plan.aborts,
            session_ms=SESSION_MS,
            transaction_timeout_ms=plan.transaction_timeout_ms,
            protocol=plan.protocol,
            messages=plan.messages,
            per_s=plan.per_s,
            plant=plan.plant,
        )

    def _hire_transformers(self) -> None:
        plan = self.plan
        for number in range(plan.transformers):
            name = f"transformer-{number}"
            if plan.plant is Plant.UNFENCED:
                name += "-{life}"
            share = plan.dooms * (number + 1) // plan.transformers - plan.dooms * number // plan.transformers
            task = self._task("transform", TRANSFORMERS, name, TARGET, plan.target_partitions)
            first = [plan.doom] if plan.doom is not None and number == 0 else []
            self.crew.hire(task, [*first, *self._some_dooms(share)])

    def _some_dooms(self, count: int) -> list[Doom | None]:
        return [self._doom() for _ in range(count)]

    def _doom(self) -> Doom:
        """Early enough in a life that the next ones get their turn."""
        each = max(self.plan.messages // self.plan.batch // (4 * (self.plan.dooms or 1)), 2)
        struck = self._chance.choice([signal.SIGKILL, signal.SIGSTOP])
        return Doom(self._chance.randrange(each), self._chance.choice(list(Step)), struck)

    def _draw_faults(self) -> Iterator[tuple[int, Callable[[], None]]]:
        """What happens from outside, and after how many records."""
        plan = self.plan
        kinds: list[tuple[int, Callable[[], None]]] = [
            (plan.broker_kills, self._crash_broker),
            (plan.kills, lambda: self.crew.kill("transform")),
            (plan.stops, lambda: self.crew.stop("transform")),
        ]
        for count, fault in kinds:
            for _ in range(count):
                yield self._chance.randrange(plan.messages * 9 // 10), fault

    def _crash_broker(self) -> None:
        self.progress.broker_kills += self.server.crash(self._chance)

    # While it lasts

    def go_through_faults(self) -> None:
        """Until everything is transformed and committed, and every fault has happened."""
        seen, since, checked = -1, time.monotonic(), 0.0
        while True:
            self._watch.check()
            self.crew.tend()
            done = self.progress.transform.polled_count
            while self._faults and self._faults[0][0] <= done:
                self._faults.pop(0)[1]()
            now = time.monotonic()
            if done != seen:
                seen, since = done, now
            elif now - since > STALLED_S:
                raise ChaosFailed(f"seed {self.plan.seed}: no progress for {STALLED_S} s\n{self._state()}")
            if now - checked > CHECK_S:
                checked = now
                self._tell()
                # What is transformed is noticed a little later: the last faults may be yet to come.
                if not self._faults and self._watch.fed_everything and self._is_finished(self._feeder):
                    return
            time.sleep(TEND_S)

    def _tell(self) -> None:
        self.progress.kills, self.progress.stops = self.crew.kills, self.crew.stops
        self.progress.fenced, self.progress.hung = self.crew.fenced, self.crew.hung
        self.progress.elapsed_s = time.monotonic() - self._began
        self._report(self.progress)

    def _state(self) -> str:
        return f"{self.progress}\npositions {self._watch.positions()}\n{self.crew.whereabouts()}"

    def _is_finished(self, feeder: Slot) -> bool:
        return feeder.done and self._watch.is_transformed()

    def settle(self) -> None:
        """Everybody is dead; whatever they left open is aborted, as it is when somebody takes their place."""
        self.crew.dismiss()
        self._watch.finish()
        for name in sorted(self.crew.transactional_ids):
            settings = {"bootstrap.servers": self.server.bootstrap, "transactional.id": name, **RECONNECT}
            Producer(settings).init_transactions(WAIT_S)

    def read_everything(self) -> None:
        feed, transform, plan = self.progress.feed, self.progress.transform, self.plan
        for stage, role in ((feed, "feed"), (transform, "transform")):
            for life, number, fate in self.crew.journal(role):
                stage.told(Work(life, number), Fate(fate))
        feed.source((Place(0, number), number) for number in range(plan.messages))
        self._read_stage(feed, SOURCE, plan.source_partitions)
        self._place(feed, FEEDERS, 1)
        transform.source(feed.made())
        self._read_stage(transform, TARGET, plan.target_partitions)
        self._place(transform, TRANSFORMERS, plan.source_partitions)
        for stage in (feed, transform):
            stage.conclude()
        self._tell()
        everything = read_topic(self.server.bootstrap, TARGET, plan.target_partitions, "read_uncommitted")
        self.progress.aborted = sum(1 for _ in everything) - transform.read_count

    def _read_stage(self, stage: Stage, topic: str, partitions: int) -> None:
        level = "read_uncommitted" if self.plan.reads_uncommitted else "read_committed"
        for partition, offset, stamp in read_topic(self.server.bootstrap, topic, partitions, level):
            stage.read(partition, offset, stamp)

    def _place(self, stage: Stage, group: str, partitions: int) -> None:
        for partition, offset in positions(self.server.bootstrap, group, partitions).items():
            stage.position(partition, offset)


class Watch:
    """Follows both topics at read_committed while the run goes on, and knows when the work is done."""

    def __init__(self, progress: Progress, bootstrap: str, plan: Plan) -> None:
        self._progress, self._bootstrap, self._plan = progress, bootstrap, plan
        self._journal = Journal()
        self._last: dict[int, int] = {}
        self._reader = consumer(bootstrap, **{"isolation.level": "read_committed"})
        self._reader.assign(
            [TopicPartition(SOURCE, number, 0) for number in range(plan.source_partitions)]
            + [TopicPartition(TARGET, number, 0) for number in range(plan.target_partitions)]
        )
        self._asker = _asker(bootstrap, TRANSFORMERS)
        self._thread = self._journal.guard(self._follow)

    def check(self) -> None:
        self._journal.check()

    @property
    def fed_everything(self) -> bool:
        return self._progress.feed.polled_count >= self._plan.messages

    def positions(self) -> dict[int, int]:
        return _positions(self._asker, self._plan.source_partitions)

    def is_transformed(self) -> bool:
        """Whether the group has committed past the last record of each partition."""
        committed = self.positions()
        return all(committed.get(partition, 0) > last for partition, last in self._last.items())

    def finish(self) -> None:
        """Reads what is left to read, and stops."""
        time.sleep(2 * CHECK_S)
        self._journal.stop.set()
        self._thread.join(WAIT_S)
        self.check()
        self._reader.close()
        self._asker.close()

    def _follow(self) -> None:
        progress = self._progress
        while not self._journal.stop.is_set():
            for message in records(self._reader.consume(500, timeout=0.1)):
                partition, offset, stamp = message.partition(), message.offset(), unpacked(message.value())
                if message.topic() == SOURCE:
                    progress.feed.polled(partition, offset, stamp)
                    self._last[partition] = offset
                else:
                    progress.transform.polled(partition, offset, stamp)


def read_topic(bootstrap: str, topic: str, partitions: int, level: str) -> Iterator[tuple[int, int, Stamp]]:
    """All records, each partition in order; that the last stable offset is not the end is a failure."""
    reader = consumer(bootstrap, **{"isolation.level": level, "enable.partition.eof": True})
    try:
        homes = [TopicPartition(topic, number, 0) for number in range(partitions)]
        ends = {home.partition: reader.get_watermark_offsets(home, timeout=WAIT_S)[1] for home in homes}
        left = {partition: 0 for partition, end in ends.items() if end}
        reader.assign(homes)
        deadline = time.monotonic() + WAIT_S
        while left:
            for message in reader.consume(1_000, timeout=0.05):
                at, partition = message.offset(), message.partition()
                if message.error() is None:
                    yield partition, at, unpacked(message.value())
                    at, deadline = at + 1, time.monotonic() + WAIT_S
                elif message.error().code() != KafkaError._PARTITION_EOF:
                    continue
                left[partition] = at
                if at >= ends[partition]:
                    del left[partition]
            if time.monotonic() > deadline:
                raise ChaosFailed(f"{topic} cannot be read past {left} at {level}, its ends are {ends}")
    finally:
        reader.close()


def positions(bootstrap: str, group: str, partitions: int) -> dict[int, int]:
    """What the group has committed on the source topic."""
    asker = _asker(bootstrap, group)
    try:
        deadline = time.monotonic() + WAIT_S
        while not (found := _positions(asker, partitions)):
            if time.monotonic() > deadline:
                raise ChaosFailed(f"the positions of {group} cannot be read")
        return found
    finally:
        asker.close()


def _asker(bootstrap: str, group: str) -> Consumer:
    return consumer(bootstrap, **{"group.id": group, "isolation.level": "read_committed"})


def _positions(asker: Consumer, partitions: int) -> dict[int, int]:
    """Nothing while a broker is away, or while a transaction with offsets in it is open."""
    wanted = [TopicPartition(SOURCE, number) for number in range(partitions)]
    try:
        found = asker.committed(wanted, timeout=1.0)
    except KafkaException as failure:
        if failure.args[0].code() in NOT_NOW:
            return {}
        raise
    if any(part.error is not None for part in found):
        return {}
    return {part.partition: max(part.offset, 0) for part in found}


def judge(plan: Plan, progress: Progress) -> None:
    if not progress.violations:
        return
    lines = [f"seed {plan.seed}, {plan.protocol}"]
    for stage in (progress.feed, progress.transform):
        if stage.counts:
            counts = ", ".join(f"{count} {violation}" for violation, count in stage.counts.items())
            lines += [f"{stage.name}: {counts}", *(str(finding) for finding in stage.findings[:20])]
    raise PromisesBroken("\n".join(lines), progress)
