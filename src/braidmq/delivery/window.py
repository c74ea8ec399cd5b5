"""The delivery window of one group on one partition: a pure state machine on the caller's time.

    offsets   … settled │ start ………… window ………… end │ not looked at yet …
                        └ first unsettled              └ next to be handed out for the first time

The backlog after `end` costs nothing: the window grows only by what is handed out, at most `in_flight_max`
messages that are not settled. It is kept in runs (`runs`), so what it costs goes with the number of different
neighbours: a long stretch of settled messages after one that is held is one run. Its start moves as the
messages at its head are settled.

How it is used: ask `fetch_offset` where to read, read the log there, `acquire` with what was found, send it;
later `acknowledge`. Call `tick` at `next_deadline_ms`. `take_archived` gives what goes to the dead-letter
stage, `take_delta` what must be stored so that a restart continues here. Store dead letters before the delta,
and the delta before an acknowledgement is confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from braidmq.delivery import window_codec
from braidmq.delivery.runs import Runs
from braidmq.delivery.status import (
    SETTLED,
    Acknowledgement,
    Acquired,
    Archived,
    DeliveryLimits,
    DeliveryState,
    DeliveryStatus,
    LogRange,
    NotHeld,
    Reason,
    Verdict,
)
from braidmq.delivery.window_codec import StoredRun

NEVER_MS = 2**63 - 1
NOWHERE = -2
RUNS_PER_MESSAGE = 4
"""Two suffice while settled neighbours are equal. Past this, why a message was settled is forgotten."""

_ACKED = DeliveryStatus(DeliveryState.ACKED)
_GAP = DeliveryStatus(DeliveryState.ARCHIVED)
_ARCHIVED = DeliveryStatus(DeliveryState.ARCHIVED, 1)


class DeliveryWindow:
    """Per-message delivery of one partition to one group."""

    __slots__ = ("_archived", "_available_from", "_changes", "_deadline_ms", "_runs", "_unsettled", "limits")

    def __init__(self, start_offset: int, limits: DeliveryLimits) -> None:
        self.limits = limits
        """May be replaced at any time."""
        self._runs: Runs[DeliveryStatus] = Runs(start_offset)
        self._unsettled = 0
        self._available_from = start_offset
        self._deadline_ms = NEVER_MS
        self._archived: list[Archived] = []
        self._changes: list[tuple[int, int]] = []

    @property
    def start_offset(self) -> int:
        """Everything before it is settled."""
        return self._runs.start

    @property
    def end_offset(self) -> int:
        """The first offset that was never handed out."""
        return self._runs.end

    @property
    def in_flight(self) -> int:
        """Messages that were handed out and are not settled."""
        return self._unsettled

    @property
    def run_count(self) -> int:
        """What the window costs; at most `RUNS_PER_MESSAGE` for each message that may be in flight."""
        return len(self._runs)

    def runs(self) -> Iterator[tuple[int, int, DeliveryStatus]]:
        """First offset, last offset and status of each run, for people and tests."""
        return iter(self._runs)

    # -- handing out ----------------------------------------------------------------------------

    def fetch_offset(self, now_ms: int) -> int | None:
        """Where to read for the next `acquire`; None while the window is full and all of it is taken."""
        self.tick(now_ms)
        offset = self._first_available()
        if offset == self.end_offset and self.in_flight >= self.limits.in_flight_max:
            return None
        return offset

    def acquire(
        self, consumer: str, now_ms: int, records_max: int, reading: LogRange, lock_ms: int | None = None
    ) -> list[Acquired]:
        """Hands out up to `records_max` available messages of `reading`, lowest offsets first."""
        self.tick(now_ms)
        deadline_ms = now_ms + (self.limits.lock_ms if lock_ms is None else lock_ms)
        self._archive_gaps(reading)
        acquired = self._acquire_again(consumer, deadline_ms, records_max, reading)
        records_max -= sum(last - first + 1 for first, last, _ in acquired)
        acquired += self._acquire_new(consumer, deadline_ms, records_max, reading)
        if acquired:
            self._deadline_ms = min(self._deadline_ms, deadline_ms)
        self._settle_head()
        return joined(acquired)

    def _archive_gaps(self, reading: LogRange) -> None:
        """Messages that came back but are no longer in the log (compacted meanwhile) are settled."""
        gap_first = max(reading.first, self.start_offset)
        if gap_first >= self.end_offset:
            return
        for base, last in _stretches(reading, gap_first):
            self._lose(gap_first, base - 1)
            gap_first = last + 1
        self._lose(gap_first, reading.last)

    def _lose(self, first: int, last: int) -> None:
        found = [run for run in self._runs.between(first, last) if run[2].state is DeliveryState.AVAILABLE]
        for run_first, run_last, _ in found:
            self._set(run_first, run_last, _GAP)

    def _acquire_again(
        self, consumer: str, deadline_ms: int, records_max: int, reading: LogRange
    ) -> list[Acquired]:
        acquired = []
        first = max(reading.first, self._first_available())
        for run_first, run_last, status in self._runs.between(first, reading.last):
            if records_max <= 0:
                break
            if status.state is DeliveryState.AVAILABLE:
                run_last = min(run_last, run_first + records_max - 1)
                acquired.append(Acquired(run_first, run_last, status.deliveries + 1))
                records_max -= run_last - run_first + 1
        for run_first, run_last, deliveries in acquired:
            self._set(
                run_first, run_last, DeliveryStatus(DeliveryState.ACQUIRED, deliveries, consumer, deadline_ms)
            )
        return acquired

    def _acquire_new(
        self, consumer: str, deadline_ms: int, records_max: int, reading: LogRange
    ) -> list[Acquired]:
        acquired: list[Acquired] = []
        if reading.first > self.end_offset:
            return acquired
        held = DeliveryStatus(DeliveryState.ACQUIRED, 1, consumer, deadline_ms)
        left = min(records_max, self.limits.in_flight_max - self.in_flight)
        for base, last in _stretches(reading, self.end_offset):
            if left <= 0:
                return acquired
            self._append_gap(base - 1)
            taken_last = min(last, base + left - 1)
            left -= taken_last - base + 1
            self._append(taken_last, held)
            self._unsettled += taken_last - base + 1
            acquired.append(Acquired(base, taken_last, 1))
            if taken_last < last:
                return acquired
        self._append_gap(reading.last)
        return acquired

    def _append_gap(self, last: int) -> None:
        if last >= self.end_offset:
            self._append(last, _GAP)

    def _append(self, last: int, status: DeliveryStatus) -> None:
        self._note(self.end_offset, last)
        self._runs.append(last, status)
        self._bound_runs()

    # -- verdicts -------------------------------------------------------------------------------

    def acknowledge(
        self,
        consumer: str,
        now_ms: int,
        acknowledgements: Iterable[Acknowledgement],
        lock_ms: int | None = None,
    ) -> None:
        """Takes a consumer's verdicts: all of them, or none and NotHeld.

        Offsets before the window are passed over: they were settled before. `lock_ms`
        is for renewals.
        """
        self.tick(now_ms)
        verdicts = [run for given in acknowledgements for run in self._verdict_runs(given)]
        self._check_held(consumer, verdicts)
        until_ms = now_ms + (self.limits.lock_ms if lock_ms is None else lock_ms)
        for first, last, verdict in verdicts:
            self._apply(first, last, verdict, until_ms)
        self._settle_head()

    def _verdict_runs(self, given: Acknowledgement) -> Iterator[tuple[int, int, Verdict]]:
        first, last, verdicts = given
        count = last - first + 1
        if count <= 0 or len(verdicts) not in (1, count):
            raise ValueError(f"offsets {first} to {last} cannot have {len(verdicts)} verdicts")
        begun = first = max(first, self.start_offset)
        if len(verdicts) == 1:
            if first <= last:
                yield first, last, verdicts[0]
            return
        for offset in range(first, last + 1):
            verdict = verdicts[offset - given.first]
            if offset == last or verdicts[offset + 1 - given.first] != verdict:
                yield begun, offset, verdict
                begun = offset + 1

    def _check_held(self, consumer: str, verdicts: list[tuple[int, int, Verdict]]) -> None:
        reached = -1
        for first, last, _ in sorted(verdicts):
            if first <= reached:
                raise NotHeld(first, consumer, "it got two verdicts at once")
            reached = last
            if last >= self.end_offset:
                raise NotHeld(last, consumer, "it was not handed out yet")
            for run_first, _, status in self._runs.between(first, last):
                if status.state is not DeliveryState.ACQUIRED:
                    raise NotHeld(run_first, consumer, f"it is {status.state.name.lower()}")
                if status.consumer != consumer:
                    raise NotHeld(run_first, consumer, "another consumer holds it")

    def _apply(self, first: int, last: int, verdict: Verdict, until_ms: int) -> None:
        if verdict is Verdict.RENEW:
            self._runs.rewrite(first, last, lambda held: held._replace(deadline_ms=until_ms))
            # The deadlines before may have been later: a renewal may also shorten.
            self._deadline_ms = min(self._deadline_ms, until_ms)
        elif verdict is Verdict.ACCEPT:
            self._set(first, last, _ACKED)
        elif verdict is Verdict.GAP:
            self._set(first, last, _GAP)
        elif verdict is Verdict.RELEASE:
            self._release(first, last)
        else:
            for run_first, run_last, status in self._runs.between(first, last):
                self._archived.append(Archived(run_first, run_last, status.deliveries, Reason.REJECTED))
            self._set(first, last, _ARCHIVED)

    def release_consumer(self, consumer: str, now_ms: int) -> None:
        """Takes back everything a consumer holds, because it is gone.

        The deliveries count: a message that kills its consumers must come to an end.
        """
        self.tick(now_ms)
        held = [
            run
            for run in self._runs
            if run[2].state is DeliveryState.ACQUIRED and run[2].consumer == consumer
        ]
        for first, last, _ in held:
            self._release(first, last)
        self._settle_head()

    def _release(self, first: int, last: int) -> None:
        """Makes acquired messages available again, or archives them after their last delivery."""
        for run_first, run_last, status in list(self._runs.between(first, last)):
            if status.deliveries >= self.limits.deliveries_max:
                self._archived.append(Archived(run_first, run_last, status.deliveries, Reason.EXHAUSTED))
                self._set(run_first, run_last, _ARCHIVED)
            else:
                self._set(run_first, run_last, DeliveryStatus(DeliveryState.AVAILABLE, status.deliveries))
                self._available_from = min(self._available_from, run_first)

    def take_archived(self) -> list[Archived]:
        """Messages archived since the last call, in the order it happened."""
        archived, self._archived = self._archived, []
        return archived

    # -- time -----------------------------------------------------------------------------------

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` should be called; None if nobody holds anything. It may turn out to be too early."""
        return None if self._deadline_ms == NEVER_MS else self._deadline_ms

    def tick(self, now_ms: int) -> None:
        """Takes back what was held for too long."""
        if now_ms < self._deadline_ms:
            return
        held = [run for run in self._runs if run[2].state is DeliveryState.ACQUIRED]
        for first, last, status in held:
            if status.deadline_ms <= now_ms:
                self._release(first, last)
        later = [status.deadline_ms for _, _, status in held if status.deadline_ms > now_ms]
        self._deadline_ms = min(later, default=NEVER_MS)
        self._settle_head()

    # -- the window -----------------------------------------------------------------------------

    def skip_to(self, offset: int) -> None:
        """Forgets everything before `offset`, held or not: the log does not have it any more."""
        if offset <= self.start_offset:
            return
        self._unsettled -= _count_unsettled(self._runs.between(0, offset - 1))
        self._runs.drop_before(offset)
        self._available_from = max(self._available_from, offset)
        self._note(offset, offset)
        self._settle_head()

    def _first_available(self) -> int:
        """The lowest available offset, or the end; remembered, so that the search continues from there."""
        for first, _, status in self._runs.between(self._available_from, self.end_offset - 1):
            if status.state is DeliveryState.AVAILABLE:
                self._available_from = first
                return first
        self._available_from = self.end_offset
        return self.end_offset

    def _settle_head(self) -> None:
        start = self.start_offset
        for first, last, status in self._runs:
            if status.state not in SETTLED:
                start = first
                break
            start = last + 1
        self._runs.drop_before(start)

    def _set(self, first: int, last: int, status: DeliveryStatus) -> None:
        """Gives messages that are not settled another status."""
        if status.state in SETTLED:
            self._unsettled -= last - first + 1
            assert self._unsettled >= 0, "a message was settled twice"
        self._runs.rewrite(first, last, _always(status))
        self._note(first, last)
        self._bound_runs()

    def _bound_runs(self) -> None:
        """Makes all settled runs equal when there are too many, so that neighbours merge."""
        if len(self._runs) > RUNS_PER_MESSAGE * self.limits.in_flight_max:
            self._runs.rewrite(self.start_offset, self.end_offset - 1, _settled_as_acked)

    # -- storing --------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """All of the state, compact; what was noted for a delta is in it."""
        self._changes.clear()
        return window_codec.encode(self.start_offset, self._stored(self.start_offset, self.end_offset - 1))

    def take_delta(self) -> bytes | None:
        """What changed since the last snapshot or delta; None if nothing did."""
        if not self._changes:
            return None
        self._join_changes()
        changes, self._changes = self._changes, []
        return window_codec.encode(
            self.start_offset, [run for first, last in changes for run in self._stored(first, last)]
        )

    def _stored(self, first: int, last: int) -> list[StoredRun]:
        """Runs as a restart shall find them: nobody holds anything, but deliveries count."""
        return [
            StoredRun(
                first,
                last,
                DeliveryState.AVAILABLE if held.state is DeliveryState.ACQUIRED else held.state,
                held.deliveries,
            )
            for first, last, held in self._runs.between(first, last)
        ]

    def _note(self, first: int, last: int) -> None:
        self._changes.append((first, last))
        if len(self._changes) > 2 * self.limits.in_flight_max:
            self._join_changes()
            if len(self._changes) > self.limits.in_flight_max:
                # What lies between them is stored once more, which does no harm.
                self._changes = [(self._changes[0][0], self._changes[-1][1])]

    def _join_changes(self) -> None:
        joined: list[tuple[int, int]] = []
        for first, last in sorted(self._changes):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
            else:
                joined.append((first, last))
        self._changes = [change for change in joined if change[1] >= self.start_offset]

    @classmethod
    def restore(
        cls, snapshot: bytes, deltas: Iterable[bytes], limits: DeliveryLimits, now_ms: int
    ) -> DeliveryWindow:
        """The window as stored; `stored.BadState` if the bytes are not what was written.

        A message whose last allowed delivery was cut off by the crash is not delivered once more: it is
        held by nobody until `now_ms`, so that the next call archives and reports it.
        """
        start_offset, runs = window_codec.decode(snapshot)
        window = cls(start_offset, limits)
        window._take(runs)
        for delta in deltas:
            start_offset, runs = window_codec.decode(delta)
            window._runs.drop_before(start_offset)
            window._take(runs)
        window._unsettled = _count_unsettled(window._runs)
        window._available_from = window.start_offset
        for first, last, status in list(window._runs):
            if status.state is DeliveryState.AVAILABLE and status.deliveries >= limits.deliveries_max:
                window._set(
                    first, last, DeliveryStatus(DeliveryState.ACQUIRED, status.deliveries, None, now_ms)
                )
                window._deadline_ms = now_ms
        window._changes.clear()
        window._settle_head()
        return window

    def _take(self, stored_runs: Iterable[StoredRun]) -> None:
        for first, last, state, deliveries in stored_runs:
            status = DeliveryStatus(state, deliveries)
            first = max(first, self.start_offset)
            if first > self.end_offset:
                raise window_codec.BadState(f"offsets {self.end_offset} to {first - 1} are missing")
            if first <= (known_last := min(last, self.end_offset - 1)):
                self._runs.rewrite(first, known_last, _always(status))
            if last >= self.end_offset:
                self._runs.append(last, status)


def _stretches(reading: LogRange, first: int) -> list[tuple[int, int]]:
    """Where messages are in [first, reading.last]: batches that follow each other are one stretch."""
    stretches: list[tuple[int, int]] = []
    begun = reached = NOWHERE
    for base, last in reading.batches:
        if last >= first:
            if base != reached + 1:
                if reached != NOWHERE:
                    stretches.append((begun, reached))
                begun = base if base > first else first
            reached = last
    if reached != NOWHERE and begun <= reading.last:
        stretches.append((begun, min(reached, reading.last)))
    return stretches


def _count_unsettled(runs: Iterable[tuple[int, int, DeliveryStatus]]) -> int:
    return sum(last - first + 1 for first, last, status in runs if status.state not in SETTLED)


def _settled_as_acked(status: DeliveryStatus) -> DeliveryStatus:
    return _ACKED if status.state in SETTLED else status


def _always(status: DeliveryStatus) -> Callable[[DeliveryStatus], DeliveryStatus]:
    return lambda _: status


def joined(acquired: list[Acquired]) -> list[Acquired]:
    """What follows without a gap and was delivered as often is one range."""
    ranges: list[Acquired] = []
    for one in acquired:
        if ranges and ranges[-1].last + 1 == one.first and ranges[-1].deliveries == one.deliveries:
            ranges[-1] = ranges[-1]._replace(last=one.last)
        else:
            ranges.append(one)
    return ranges
