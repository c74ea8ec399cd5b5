"""Kafka makes its internal topics when a coordinator is first asked for, and loads them before it answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from .channel import Channel
from .server import Server
from .wire_groups import (
    GROUP,
    TRANSACTION,
    coordinator_error,
    find_coordinator_frame,
    heartbeat_error,
    heartbeat_frame,
)

SECONDS_MAX = 60.0
RETRY_SECONDS = 0.02
LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
SOON = frozenset((LOADING, NOT_AVAILABLE, NOT_COORDINATOR))


def await_group_coordinators(server: Server, groups: Iterable[str]) -> None:
    """Returns when the coordinator of each of these groups takes requests."""
    channel = Channel(server.address)
    try:
        for group in groups:
            _ask_until(channel, find_coordinator_frame(group, GROUP), coordinator_error, f"group {group}")
            _ask_until(channel, heartbeat_frame(group, 0, "nobody"), heartbeat_error, f"group {group}")
    finally:
        channel.close()


def await_transaction_coordinator(server: Server, transactional_id: str) -> None:
    """Returns when the coordinator of the id can be found; it may still be loading."""
    channel = Channel(server.address)
    try:
        frame = find_coordinator_frame(transactional_id, TRANSACTION)
        _ask_until(channel, frame, coordinator_error, f"transactional id {transactional_id}")
    finally:
        channel.close()


def _ask_until(channel: Channel, frame: bytes, code_of: Callable[[bytes], int], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while code_of(channel.ask(frame)) in SOON:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} has no coordinator after {SECONDS_MAX:.0f} s")
        time.sleep(RETRY_SECONDS)
