"""Reads a topic again from a point in time: what arrived in the last minutes, in the order of each partition.

python examples/replay_by_time.py 127.0.0.1:9092 orders 10
"""

from __future__ import annotations

import sys
import time

from braidmq.client import Consumer


def main(bootstrap: str, topic: str, minutes: float) -> None:
    since_ms = int((time.time() - minutes * 60) * 1000)
    with Consumer(bootstrap) as consumer:
        consumer.assign(topic)
        consumer.seek_to_time(since_ms)
        while messages := consumer.poll(timeout_s=0.5):
            for message in messages:
                print(message.partition, message.offset, message.key, message.value)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
