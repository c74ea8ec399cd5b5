"""A consumer of old data, as a process of its own, so that the client that is measured beside it is the same.

`python -m bench.cold again DIRECTORY HOST PORT TOPIC PARTITIONS MESSAGES` drops the segments from the page
cache and reads all of them, again and again until its input ends, then prints messages and seconds.
`python -m bench.cold once HOST PORT PARTITIONS TOPIC...` asks for every partition in one Fetch and prints the
seconds until the answer was there. Both begin after a moment, when the client beside them is measured.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .channel import Channel
from .load_consume import drain, evict_segments
from .load_latency import WARMUP_SECONDS
from .server import Server
from .wire import Position, fetch_topics_frame, fetched

FETCH_BYTES_MAX = 1_048_576
FIRST_FETCH_SECONDS_MAX = 300
DELAY_SECONDS = WARMUP_SECONDS + 0.5


@contextmanager
def reading(server: Server, topic: str, partitions: int, messages: int) -> Iterator[list[float]]:
    """While inside, somebody reads the topic from the disk; afterwards the list holds messages per second."""
    host, port = server.address
    words = [str(server.directory), host, str(port), topic, str(partitions), str(messages)]
    found: list[float] = []
    with _process("again", words) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        yield found
        reader.stdin.close()
        count, seconds = reader.stdout.readline().split()
        found.append(int(count) / float(seconds))


@contextmanager
def first_fetch(server: Server, topics: list[str], partitions: int) -> Iterator[list[float]]:
    """Somebody asks for all partitions at once; the list holds the seconds it took, on leaving."""
    host, port = server.address
    found: list[float] = []
    with _process("once", [host, str(port), str(partitions), *topics]) as reader:
        assert reader.stdout is not None
        yield found
        found.append(float(reader.stdout.readline()))


def _process(kind: str, words: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.cold", kind, *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _again(directory: str, host: str, port: str, topic: str, partitions: str, messages: str) -> None:
    taken, seconds = 0, 0.0
    while not select.select([sys.stdin], [], [], 0)[0]:
        evict_segments(Path(directory))
        started = time.perf_counter()
        taken += drain((host, int(port)), topic, int(partitions), int(messages), _input_ended)
        seconds += time.perf_counter() - started
    print(taken, seconds, flush=True)


def _input_ended() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def _once(host: str, port: str, partitions: str, *topics: str) -> None:
    wanted = {topic: [Position(number, 0) for number in range(int(partitions))] for topic in topics}
    frame = fetch_topics_frame(wanted, max_bytes=FETCH_BYTES_MAX)
    channel = Channel((host, int(port)))
    channel.socket.settimeout(FIRST_FETCH_SECONDS_MAX)
    started = time.perf_counter()
    answer = channel.ask(frame)
    seconds = time.perf_counter() - started
    parts = fetched(memoryview(answer))
    if len(parts) != int(partitions) * len(topics) or any(part.code for part in parts):
        raise RuntimeError("some partitions were not answered")
    print(seconds, flush=True)


def main() -> int:
    kind, *words = sys.argv[1:]
    time.sleep(DELAY_SECONDS)
    {"again": _again, "once": _once}[kind](*words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
