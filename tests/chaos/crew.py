"""The processes of an exactly-once run and what befalls them: killed, stopped, fenced, replaced.

Each slot of the crew is one transactional id with a living process. When that ends, the next life begins.
One that is stopped may be given a replacement at once, which makes it a zombie: when it wakes up it must find
itself fenced and end. Without one it finds out what has become of its group and its transaction.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tests.chaos.load import ChaosFailed
from tests.chaos.transactor import FENCED, ROOT, Doom, Task

COMPLAINT_CHARS = 2_000
LAST_WORD_S = 1.0
"""What somebody who is woken up at the end has to say, it says within this time."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """What becomes of a process that is stopped."""

    seconds_min: float = 0.1
    seconds_max: float = 4.0
    """From a hiccup to well past session and transaction time-outs."""
    replaced: float = 0.5
    """How likely another takes its place meanwhile."""


@dataclass(slots=True)
class Life:
    """One process."""

    task: Task
    process: subprocess.Popen[bytes]
    wake_at: float | None = None

    @property
    def stopped(self) -> bool:
        try:
            status = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] == "T"

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Slot:
    """One transactional id, life after life."""

    def __init__(self, first: Task, dooms: list[Doom | None], next_life: Callable[[], int]) -> None:
        self._task = first
        self._dooms = dooms
        self._next_life = next_life
        self.life: Life | None = None
        self.done = False

    def begin(self, directory: Path) -> None:
        life = self._next_life()
        doom = self._dooms.pop(0) if self._dooms else None
        task = replace(self._task, life=life, doom=doom)
        if "{life}" in task.transactional_id:
            task = replace(task, transactional_id=task.transactional_id.format(life=life))
        with (directory / f"stderr-{life}").open("ab") as stderr:
            process = subprocess.Popen(task.command(), cwd=ROOT, stdin=subprocess.DEVNULL, stderr=stderr)
        self.life = Life(task, process)


class Crew:
    """All processes of a run. `tend` is called again and again; it never waits."""

    def __init__(self, directory: Path, chance: random.Random, sleep: Sleep) -> None:
        self._directory = directory
        self._chance = chance
        self._sleep = sleep
        self._lives = 0
        self._slots: list[Slot] = []
        self._zombies: list[Life] = []
        self.kills = self.stops = self.fenced = self.hung = self.replaced = 0
        self.transactional_ids: set[str] = set()

    def hire(self, task: Task, dooms: list[Doom | None]) -> Slot:
        """A new slot, whose first processes have these dooms."""
        slot = Slot(replace(task, journal=str(self._journal(task.role))), dooms, self._next_life)
        self._slots.append(slot)
        self._begin(slot)
        return slot

    def tend(self) -> None:
        """Starts what has ended, wakes what has slept long enough."""
        for slot in self._slots:
            self._tend(slot)
        self._wake(self._alive())
        self._zombies = [life for life in self._zombies if self._lives_on(life)]

    def kill(self, role: str) -> None:
        if life := self._choose(role):
            life.send(signal.SIGKILL)

    def stop(self, role: str) -> None:
        if life := self._choose(role):
            life.send(signal.SIGSTOP)

    def let_sleepers_speak(self) -> None:
        """All work is done: whoever still sleeps wakes up now, and may do no harm."""
        asleep = [life for life in self._alive() if life.wake_at is not None]
        for life in asleep:
            life.wake_at = 0.0
        deadline = time.monotonic() + (LAST_WORD_S if asleep else 0.0)
        while time.monotonic() < deadline:
            self.tend()
            time.sleep(0.02)

    def dismiss(self) -> None:
        """Kills everybody."""
        for life in self._alive():
            life.end()
        self._slots, self._zombies = [], []

    def whereabouts(self) -> str:
        """Who lives, and where in its code each of them is; for a run that does not come to an end."""
        alive = [slot.life for slot in self._slots if slot.life is not None]
        lines = [
            f"{life.task.transactional_id}: life {life.task.life}, process {life.process.pid}"
            for life in alive
        ]
        for life in alive:
            life.send(signal.SIGUSR1)
        time.sleep(0.5)
        return "\n".join([*lines, self.complaints()])

    def complaints(self) -> str:
        """What the processes said, the end of it, the newest last."""
        files = sorted(self._directory.glob("stderr-*"), key=lambda path: path.stat().st_mtime)
        return "".join(path.read_text(errors="replace")[-COMPLAINT_CHARS:] for path in files[-10:])

    def journal(self, role: str) -> list[tuple[int, int, int]]:
        """Life, transaction and fate of everything that was confirmed."""
        path = self._journal(role)
        lines = path.read_text().splitlines() if path.exists() else []
        return [tuple(map(int, line.split())) for line in lines]  # type: ignore[misc]

    def _alive(self) -> list[Life]:
        return [*self._zombies, *(slot.life for slot in self._slots if slot.life is not None)]

    def _journal(self, role: str) -> Path:
        return self._directory / f"journal-{role}"

    def _next_life(self) -> int:
        self._lives += 1
        return self._lives

    def _begin(self, slot: Slot) -> None:
        slot.begin(self._directory)
        assert slot.life is not None
        self.transactional_ids.add(slot.life.task.transactional_id)

    def _choose(self, role: str) -> Life | None:
        able = [
            slot.life
            for slot in self._slots
            if slot.life is not None and slot.life.task.role == role and slot.life.wake_at is None
        ]
        return self._chance.choice(able) if able else None

    def _tend(self, slot: Slot) -> None:
        life = slot.life
        if life is None:
            return
        code = life.process.poll()
        if code is None:
            self._lay_down(slot, life)
        elif code == 0:
            slot.life = None
            slot.done = True
        else:
            self._note_end(life, code)
            self._begin(slot)

    def _lay_down(self, slot: Slot, life: Life) -> None:
        """A process that has been stopped, by itself or from outside, gets a time to wake up."""
        if life.wake_at is not None or not life.stopped:
            return
        self.stops += 1
        sleep = self._sleep
        life.wake_at = time.monotonic() + self._chance.uniform(sleep.seconds_min, sleep.seconds_max)
        if self._chance.random() < sleep.replaced:
            self.replaced += 1
            self._zombies.append(life)
            self._begin(slot)

    def _wake(self, lives: list[Life]) -> None:
        for life in lives:
            if life.wake_at is not None and time.monotonic() >= life.wake_at:
                life.wake_at = None
                life.send(signal.SIGCONT)

    def _lives_on(self, life: Life) -> bool:
        code = life.process.poll()
        if code is not None:
            self._note_end(life, code)
        return code is None

    def _note_end(self, life: Life, code: int) -> None:
        if code == -signal.SIGKILL:
            self.kills += 1
        elif code == FENCED:
            self.fenced += 1
        elif code == -signal.SIGALRM:
            self.hung += 1
        elif code != 0:
            raise ChaosFailed(f"life {life.task.life} ended with {code}\n{self.complaints()}")
