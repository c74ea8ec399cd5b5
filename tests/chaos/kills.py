"""kill -9 and SIGTERM of a loaded broker, again and again, with the history checked at the end.

One broker, by default under `flush=sync`; several producers and consumers work on several partitions; it is
killed at random moments, sometimes again while it still recovers, and sometimes told to stop: once, twice, or
killed while it stops. After a stop that came to its end the next start may have nothing to recover. Segments
are small and checkpoints frequent, so that kills fall into rolls and checkpoints too. The run ends with a
full read.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.chaos.load import WAIT_S, ChaosFailed, Follower, Journal, Sender, read_again, read_everything
from tests.history.checker import History

from braidmq.testing import BrokerFailed, BrokerProcess, broker

TOPIC = "chaos"
CHECKPOINT_INTERVAL_MS = 300
TOPIC_OPTIONS = {"segment.bytes": str(4 << 20)}
KILL_WITHIN_RECOVERY = 0.2
TERMINATE = 0.35
TERMINATE_TWICE = 0.3
KILL_WITHIN_STOP = 0.2
RECOVERING = "partitions after an unclean stop"
READ_AGAIN_EVERY = 5


@dataclass(frozen=True, slots=True)
class Plan:
    kills: int
    seed: int
    seconds: float | None = None
    """The run ends after this long even if kills are left."""
    partitions: int = 6
    senders: int = 3
    load_s_max: float = 0.4
    """The broker runs up to this long under load between two kills."""
    flush: str = "sync"
    """With async a power loss may take what was acked; a dead process alone must not."""
    only_stops: bool = False
    """SIGTERM each time, and no kill within the stop."""


@dataclass(slots=True)
class Progress:
    kills: int
    history: History
    elapsed_s: float
    what: str = "kills"
    recoveries: int = 0
    """How often the broker said that it had something to recover."""

    def __str__(self) -> str:
        history = self.history
        return (
            f"{self.what} {self.kills:,}  acked {history.acked_count:,}  polled {history.polled_count:,}  "
            f"verified {history.read_count:,}  violations {sum(history.counts.values()):,}  "
            f"{self.elapsed_s:,.0f} s"
        )


def run(
    plan: Plan,
    report: Callable[[Progress], None] = lambda _: None,
    serve: Callable[..., AbstractContextManager[BrokerProcess]] = broker,
) -> Progress:
    """Carries the plan out; raises ChaosFailed when a promise was broken."""
    chance = random.Random(plan.seed)
    journal = Journal()
    began = time.monotonic()
    with serve(log_checkpoint_interval_ms=CHECKPOINT_INTERVAL_MS, flush=plan.flush) as server:
        create_topic(server.bootstrap, plan.partitions, TOPIC_OPTIONS)
        senders = [
            Sender(journal, server.bootstrap, TOPIC, plan.partitions, number)
            for number in range(plan.senders)
        ]
        followers = [Follower(journal, server.bootstrap, TOPIC, plan.partitions, "follower")]
        progress = Progress(0, journal.history, 0.0)
        try:
            while progress.kills < plan.kills and not journal.stop.is_set():
                if plan.seconds is not None and time.monotonic() - began > plan.seconds:
                    break
                let_work(journal, chance, plan.load_s_max)
                if plan.only_stops:
                    progress.kills += stop_and_restart(server, chance)
                else:
                    progress.kills += kill_and_restart(server, chance)
                progress.elapsed_s = time.monotonic() - began
                if progress.kills % READ_AGAIN_EVERY == 0:
                    _read_somewhere_again(journal, server.bootstrap, chance, plan.partitions, progress.kills)
                report(progress)
        except BaseException:
            journal.stop.set()
            raise
        journal.finish([*senders, *followers])
        read_everything(journal, server.bootstrap, TOPIC, plan.partitions)
        progress.recoveries = server.stderr.count(RECOVERING)
    journal.history.conclude()
    progress.elapsed_s = time.monotonic() - began
    report(progress)
    judge(plan, journal.history)
    return progress


def create_topic(bootstrap: str, partitions: int, options: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(TOPIC, partitions, 1, config=options)
    admin.create_topics([new])[TOPIC].result(WAIT_S)


def let_work(journal: Journal, chance: random.Random, seconds_max: float) -> None:
    """Waits until something new is acked, so that each life of the broker did work, and then a little."""
    before, deadline = journal.history.acked_count, time.monotonic() + WAIT_S
    while journal.history.acked_count == before:
        journal.check()
        if time.monotonic() > deadline:
            raise ChaosFailed(f"nothing was acked for {WAIT_S} s after a restart")
        time.sleep(0.005)
    time.sleep(chance.uniform(0, seconds_max))


def kill_and_restart(server: BrokerProcess, chance: random.Random) -> int:
    """SIGTERM or kill -9; after that another kill may hit the broker that is recovering.

    Returns how often it died.
    """
    if chance.random() < TERMINATE:
        if chance.random() < KILL_WITHIN_STOP:
            return _kill_within_stop(server, chance.uniform(0, 0.2))
        return stop_and_restart(server, chance)
    server.kill()
    kills = 1
    if chance.random() < KILL_WITHIN_RECOVERY:
        kills += _kill_within_start(server, chance.uniform(0, 0.3))
    server.restart()
    return kills


def _kill_within_stop(server: BrokerProcess, after_s: float) -> int:
    os.kill(server.pid, signal.SIGTERM)
    time.sleep(after_s)
    server.kill()
    server.start()
    return 1


def stop_and_restart(server: BrokerProcess, chance: random.Random) -> int:
    """SIGTERM, or two of them; ChaosFailed if the next start has something to recover."""
    recoveries = server.stderr.count(RECOVERING)
    if chance.random() < TERMINATE_TWICE:
        os.kill(server.pid, signal.SIGTERM)
        time.sleep(chance.uniform(0, 0.05))
    server.stop()
    server.start()
    if server.stderr.count(RECOVERING) != recoveries:
        raise ChaosFailed("the broker had to recover after it had stopped by itself")
    return 1


def _kill_within_start(server: BrokerProcess, after_s: float) -> int:
    def start() -> None:
        with suppress(BrokerFailed):
            server.start()

    starting = threading.Thread(target=start)
    starting.start()
    time.sleep(after_s)
    with suppress(BrokerFailed, ProcessLookupError):
        os.kill(server.pid, signal.SIGKILL)
    starting.join()
    server.kill()
    return 1


def _read_somewhere_again(
    journal: Journal, bootstrap: str, chance: random.Random, partitions: int, kill: int
) -> None:
    partition = chance.randrange(partitions)
    end = journal.history.next_offset(partition)
    if end:
        home = TopicPartition(TOPIC, partition, chance.randrange(end))
        read_again(journal, bootstrap, home, 2_000, f"reader after kill {kill}")


def judge(plan: Plan, history: History) -> None:
    if history.findings:
        counts = ", ".join(f"{count} {violation}" for violation, count in history.counts.items())
        lines = "\n".join(str(finding) for finding in history.findings[:20])
        raise ChaosFailed(f"seed {plan.seed}: {counts}\n{lines}")
