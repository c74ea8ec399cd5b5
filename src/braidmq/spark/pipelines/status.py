"""The status of a run, kept in the checkpoint for `braid pipeline status`.

The run writes it after each batch, and every second. A run that was killed leaves the state `running`, but no
longer holds the lock of its checkpoint; so a reader can see that it died.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from braidmq.platform.lock import is_held
from braidmq.spark.pipelines.checkpoint import Checkpoint

FILE = "status.json"
SILENT_MAX_MS, STARTING_MAX_MS = 30_000, 600_000
"""How long a run on another machine may be silent; on a cluster it may wait before it starts."""


class RunState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    DIED = "died"


@dataclass(slots=True)
class QueryStatus:
    """One query, as of its last batch."""

    name: str
    state: RunState = RunState.STARTING
    batch: int | None = None
    rows: int = 0
    rows_per_s: float = 0.0
    batch_rows: int = 0
    batch_ms: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    lag: int | None = None
    watermark: str | None = None
    restarts: int = 0
    error: str | None = None


@dataclass(slots=True)
class RunStatus:
    """One run of a pipeline."""

    pipeline: str
    version: int
    state: RunState = RunState.STARTING
    pid: int = 0
    host: str = ""
    started_ms: int = 0
    updated_ms: int = 0
    ui: str | None = None
    error: str | None = None
    queries: list[QueryStatus] = field(default_factory=list)

    def save(self, checkpoint: Checkpoint) -> None:
        checkpoint.write(FILE, asdict(self))


def load_status(checkpoint: Checkpoint) -> RunStatus | None:
    """The last run's status; `died` if it says running and the run no longer exists."""
    written = checkpoint.read(FILE)
    if written is None:
        return None
    queries = [_query(each) for each in written.pop("queries")]
    status = RunStatus(**{**written, "state": RunState(written["state"])}, queries=queries)
    unended = status.state in (RunState.STARTING, RunState.RUNNING, RunState.RESTARTING)
    if unended and not _is_alive(status, checkpoint):
        status.state = RunState.DIED
        for query in queries:
            query.state = RunState.DIED
    return status


def _query(written: dict[str, Any]) -> QueryStatus:
    return QueryStatus(**{**written, "state": RunState(written["state"])})


def _is_alive(status: RunStatus, checkpoint: Checkpoint) -> bool:
    """By the lock of a run; from another machine, which may not see the lock, by its last update."""
    with suppress(OSError):
        if is_held(checkpoint.directory):
            return True
        if status.host == os.uname().nodename:
            return False
    silent_ms = time.time_ns() // 1_000_000 - status.updated_ms
    return silent_ms < (STARTING_MAX_MS if status.state is RunState.STARTING else SILENT_MAX_MS)
