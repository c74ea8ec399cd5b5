"""How long a broker takes to come back with a large log after kill -9: only the tail may be checked.

Batches of a megabyte are pipelined into a few partitions until the log has the wanted size; then the broker
is killed and the time to its `ready` line, and to the first answered fetch of the newest record, is taken.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from tests.hostile import batches, calls, raw
from tests.hostile.raw import Connection, framed, request

from braidmq.testing import broker

PARTITIONS = 4
IN_FLIGHT = 8
BATCH_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Recovered:
    log_bytes: int
    ready_s: float
    first_fetch_s: float

    def __str__(self) -> str:
        return (
            f"{self.log_bytes / 1e9:.1f} GB: ready after {self.ready_s:.2f} s, "
            f"newest record fetched after {self.first_fetch_s:.2f} s"
        )


def measure(gigabytes: float) -> Recovered:
    with broker(flush="async") as server:
        with Connection(server.bootstrap, wait_s=60) as connection:
            assert calls.create_topic(connection, "large", PARTITIONS)[0] == 0
            count = int(gigabytes * 1e9 / BATCH_BYTES)
            _fill(connection, count)
            ends = [
                calls.list_offset(connection, "large", partition=number)[1] for number in range(PARTITIONS)
            ]
        server.kill()
        began = time.monotonic()
        server.restart()
        ready_s = time.monotonic() - began
        with Connection(server.bootstrap, wait_s=60) as connection:
            for number, end in enumerate(ends):
                assert calls.list_offset(connection, "large", partition=number) == (0, end)
                assert calls.fetch(connection, "large", end - 1, number).code == 0
        return Recovered(count * BATCH_BYTES, ready_s, time.monotonic() - began)


def _fill(connection: Connection, count: int) -> None:
    block = batches.simple(os.urandom(BATCH_BYTES))
    bodies = [
        framed(request(raw.PRODUCE, 7, calls.produce_body("large", block, number, acks=1)))
        for number in range(PARTITIONS)
    ]
    for sent in range(count + IN_FLIGHT):
        if sent < count:
            connection.send(bodies[sent % PARTITIONS])
        if sent >= IN_FLIGHT:
            assert connection.frame() is not None
