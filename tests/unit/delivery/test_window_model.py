"""The delivery window against a naive model: random consumers, time, verdicts, compaction and crashes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.delivery.naive import NaiveWindow

from braidmq.delivery.status import (
    SETTLED,
    Acknowledgement,
    DeliveryLimits,
    DeliveryState,
    LogRange,
    NotHeld,
    Verdict,
)
from braidmq.delivery.window import RUNS_PER_MESSAGE, DeliveryWindow

CONSUMERS = st.sampled_from(("ada", "bob", "cyd"))
LIMITS = DeliveryLimits(in_flight_max=12, deliveries_max=2, lock_ms=100)
LOG_END = 400


class DeliveryMachine(RuleBasedStateMachine):
    """Both implementations side by side, a log with gaps, and a store that a crash goes back to."""

    @initialize(sizes=st.lists(st.integers(1, 6), min_size=60, max_size=60), start=st.integers(0, 5))
    def begin(self, sizes: list[int], start: int) -> None:
        self.now_ms = 1_000
        self.batches: list[tuple[int, int]] = []
        offset = 0
        for number, size in enumerate(sizes):
            if number % 4:
                self.batches.append((offset, offset + size - 1))
            offset += size
        self.window = DeliveryWindow(start, LIMITS)
        self.model = NaiveWindow(start, LIMITS)
        self.readings: list[LogRange] = []
        self.acked: set[int] = set()
        self.dead: set[int] = set()
        self.excused = set(range(start))
        self.save_snapshot()

    # -- handing out ----------------------------------------------------------------------------

    @rule(consumer=CONSUMERS, records_max=st.integers(0, 8), batch_count=st.integers(1, 3))
    def fetch(self, consumer: str, records_max: int, batch_count: int) -> None:
        offset = self.window.fetch_offset(self.now_ms)
        self.model.tick(self.now_ms)
        available = [
            at for at, found in self.model.messages.items() if found.state is DeliveryState.AVAILABLE
        ]
        full = self.model.in_flight >= LIMITS.in_flight_max
        assert offset == min(available, default=None if full else self.model.end)
        if offset is None:
            return
        found = [batch for batch in self.batches if batch[1] >= offset][:batch_count]
        reading = LogRange(offset, max((last for _, last in found), default=offset), tuple(found))
        self.readings.append(reading)
        self.acquire(consumer, records_max, reading)

    @precondition(lambda self: self.readings)
    @rule(consumer=CONSUMERS, records_max=st.integers(0, 8), number=st.integers(0, 1_000))
    def use_an_old_reading(self, consumer: str, records_max: int, number: int) -> None:
        """A read may take long; the window has moved on when it returns."""
        self.acquire(consumer, records_max, self.readings[number % len(self.readings)])

    def acquire(self, consumer: str, records_max: int, reading: LogRange) -> None:
        acquired = self.window.acquire(consumer, self.now_ms, records_max, reading)
        expected = self.model.acquire(consumer, self.now_ms, records_max, reading)
        handed = {at: count for first, last, count in acquired for at in range(first, last + 1)}
        assert handed == expected
        assert not handed.keys() & self.acked, "an acked message was handed out again"
        assert all(count <= LIMITS.deliveries_max for count in handed.values())
        there = {at for base, last in reading.batches for at in range(base, last + 1)}
        self.excused |= set(range(reading.first, reading.last + 1)) - there

    # -- verdicts and time ----------------------------------------------------------------------

    @rule(
        consumer=CONSUMERS,
        verdicts=st.lists(st.sampled_from(Verdict), min_size=1, max_size=6),
        at=st.integers(0, 30),
    )
    def acknowledge(self, consumer: str, verdicts: list[Verdict], at: int) -> None:
        """Anywhere near the window, held or not: both agree on what is refused."""
        first = max(self.model.start - 3 + at % (self.model.end - self.model.start + 6), 0)
        self.judge(consumer, first, verdicts)

    @rule(consumer=CONSUMERS, verdicts=st.lists(st.sampled_from(Verdict), min_size=1, max_size=12))
    def acknowledge_what_is_held(self, consumer: str, verdicts: list[Verdict]) -> None:
        self.window.tick(self.now_ms)
        self.model.tick(self.now_ms)
        held = sorted(at for at, found in self.model.messages.items() if found.consumer == consumer)
        while held and verdicts:
            run = [at for number, at in enumerate(held) if at == held[0] + number][: len(verdicts)]
            self.judge(consumer, run[0], verdicts[: len(run)])
            held, verdicts = held[len(run) :], verdicts[len(run) :]

    def judge(self, consumer: str, first: int, verdicts: list[Verdict]) -> None:
        given = Acknowledgement(first, first + len(verdicts) - 1, tuple(verdicts))
        by_offset = {first + number: verdict for number, verdict in enumerate(verdicts)}
        refused = False
        try:
            self.model.acknowledge(consumer, self.now_ms, by_offset)
        except NotHeld:
            refused = True
        try:
            self.window.acknowledge(consumer, self.now_ms, [given])
            assert not refused
        except NotHeld:
            assert refused
            return
        self.acked |= {at for at, verdict in by_offset.items() if verdict is Verdict.ACCEPT}
        self.excused |= {at for at, verdict in by_offset.items() if verdict is Verdict.GAP}

    @rule(consumer=CONSUMERS)
    def lose_a_consumer(self, consumer: str) -> None:
        self.window.release_consumer(consumer, self.now_ms)
        self.model.release_consumer(consumer, self.now_ms)

    @rule(passed_ms=st.integers(1, 150))
    def let_time_pass(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.window.tick(self.now_ms)
        self.model.tick(self.now_ms)

    # -- the log --------------------------------------------------------------------------------

    @rule(number=st.integers(0, 44))
    def compact_a_batch_away(self, number: int) -> None:
        if number < len(self.batches) - 10:
            del self.batches[number]

    @rule(distance=st.integers(0, 4))
    def delete_the_oldest(self, distance: int) -> None:
        offset = self.model.start + distance
        self.excused |= set(range(offset))
        self.window.skip_to(offset)
        self.model.skip_to(offset)

    # -- crashes --------------------------------------------------------------------------------

    @rule()
    def save_snapshot(self) -> None:
        self.snapshot, self.deltas = self.window.snapshot(), list[bytes]()
        self.remember()

    @rule()
    def save_delta(self) -> None:
        delta = self.window.take_delta()
        if delta is not None:
            self.deltas.append(delta)
        self.remember()

    def remember(self) -> None:
        self.collect_dead()
        self.stored = self.model.copy(), set(self.acked), set(self.dead), set(self.excused)

    @rule()
    def crash(self) -> None:
        self.window = DeliveryWindow.restore(self.snapshot, self.deltas, LIMITS, self.now_ms)
        model, acked, dead, excused = self.stored
        self.model = model.copy()
        self.acked, self.dead, self.excused = set(acked), set(dead), set(excused)
        self.model.crash(self.now_ms)

    # -- what always holds ----------------------------------------------------------------------

    @invariant()
    def both_agree(self) -> None:
        if not hasattr(self, "window"):
            return
        assert (self.window.start_offset, self.window.end_offset) == (self.model.start, self.model.end)
        for first, last, status in self.window.runs():
            for offset in range(first, last + 1):
                message = self.model.messages[offset]
                assert (status.state in SETTLED) is message.settled
                if not message.settled:
                    assert status.state is message.state
                    assert (status.deliveries, status.consumer) == (message.deliveries, message.consumer)
                    assert status.deadline_ms == message.deadline_ms

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "window"):
            self.collect_dead()
            assert set(range(self.window.start_offset)) <= self.acked | self.dead | self.excused

    def collect_dead(self) -> None:
        archived = self.window.take_archived()
        dead = [offset for first, last, *_ in archived for offset in range(first, last + 1)]
        assert sorted(dead) == sorted(self.model.dead), "the same messages are reported"
        self.model.dead.clear()
        self.dead |= set(dead)

    @invariant()
    def it_stays_small(self) -> None:
        if hasattr(self, "window"):
            runs = [(first, last, status) for first, last, status in self.window.runs()]
            assert self.window.in_flight == self.model.in_flight <= LIMITS.in_flight_max
            assert self.window.run_count == len(runs) <= RUNS_PER_MESSAGE * LIMITS.in_flight_max
            assert all(runs[at][1] + 1 == runs[at + 1][0] for at in range(len(runs) - 1))
            assert all(runs[at][2] != runs[at + 1][2] for at in range(len(runs) - 1)), "neighbours not merged"

    @invariant()
    def the_deadline_is_never_late(self) -> None:
        if hasattr(self, "window"):
            held = [
                found.deadline_ms
                for found in self.model.messages.values()
                if found.state is DeliveryState.ACQUIRED
            ]
            announced = self.window.next_deadline_ms
            assert not held or (announced is not None and announced <= min(held))


DeliveryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


class TestAgainstTheModel(DeliveryMachine.TestCase):  # type: ignore[misc, name-defined]
    """C3: what a random history does to the engine it does to the model."""
