"""A process that holds idle connections: `python -m bench.idle HOST PORT COUNT`.

Each connection shakes hands (ApiVersions) and then says nothing. It is a process of its own so that the
client whose latency is measured meanwhile is the same as without them. It ends when its input does.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .channel import Address, Channel
from .wire import api_versions_frame

PAUSE_EVERY = 200
PAUSE_SECONDS = 0.01


@contextmanager
def held(address: Address, count: int) -> Iterator[None]:
    """While inside, `count` idle connections to the address are open."""
    command = [sys.executable, "-m", "bench.idle", address[0], str(address[1]), str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        if holder.stdout.readline() != b"held\n":
            raise RuntimeError(f"{count} connections to {address[0]}:{address[1]} could not be held")
        yield
        holder.stdin.close()
        if holder.wait():
            raise RuntimeError("some of the idle connections were lost")


def main() -> int:
    host, port, count = sys.argv[1:]
    hello = api_versions_frame()
    channels: list[Channel] = []
    for number in range(int(count)):
        channel = Channel((host, int(port)))
        channel.ask(hello)
        channels.append(channel)
        if number % PAUSE_EVERY == 0:
            time.sleep(PAUSE_SECONDS)  # Kafka's listen backlog is 50
    print("held", flush=True)
    sys.stdin.read()
    # An answer on each shows that none was closed meanwhile.
    for channel in channels:
        channel.ask(hello)
    return 0


if __name__ == "__main__":
    sys.exit(main())
