"""Records for these pipelines: python examples/pipelines/send.py orders|binlog|clicks [COUNT]."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from braidmq.client import Producer

BOOTSTRAP = os.environ.get("BRAID_BOOTSTRAP", "127.0.0.1:9092")
BEGIN = datetime(2026, 11, 15, 9, tzinfo=UTC)
SHOPS = ("Oslo", "Lima", "Pune", "Kyoto")
Record = tuple[str, bytes | None, bytes]


def orders(count: int, dice: random.Random) -> Iterator[Record]:
    """Four shops, ten minutes; a few are sent twice, a few are late, a few cannot be read."""
    for number in range(count):
        at = BEGIN + timedelta(seconds=600 * number / count - dice.choice([0] * 9 + [45]))
        order = {
            "id": f"o-{number}",
            "shop": dice.choice(SHOPS),
            "amount": round(dice.uniform(3, 90), 2),
            "ordered_at": at.isoformat(),
        }
        yield "orders", order["shop"].encode(), json.dumps(order).encode()
        if number % 100 == 0:
            yield "orders", order["shop"].encode(), json.dumps(order).encode()
        if number % 250 == 0:
            yield "orders", None, dice.choice([b"{", json.dumps({**order, "amount": "much"}).encode()])
    # An hour later: by it every window before it is known to be complete.
    last = {"id": "last", "shop": "Oslo", "amount": 0, "ordered_at": (BEGIN + timedelta(hours=1)).isoformat()}
    yield "orders", b"Oslo", json.dumps(last).encode()


def binlog(count: int, dice: random.Random) -> Iterator[Record]:
    """Changes of customers, some of them overtaken by later ones on the way."""
    changes = []
    for position in range(1, count + 1):
        key = dice.randrange(max(1, count // 10))
        op = dice.choice(["insert", "update", "update", "update", "delete"])
        row = {"op": op, "file": "binlog.000001", "position": position, "id": key}
        if op != "delete":
            row |= {"name": f"customer {key}, change {position}", "city": dice.choice(SHOPS)}
        changes.append(row)
    for place in range(0, len(changes) - 1, 7):
        changes[place], changes[place + 1] = changes[place + 1], changes[place]
    for row in changes:
        yield "mysql.shop.customers", str(row["id"]).encode(), json.dumps(row).encode()


def clicks(count: int, dice: random.Random) -> Iterator[Record]:
    """Visitors who come, look at some pages, and sometimes buy."""
    pages = ("/", "/tea", "/coffee", "/basket", "/logo.png", "/thanks")
    for number in range(count):
        at = BEGIN + timedelta(seconds=3600 * number / count)
        click = {
            "visitor": f"v{number % max(1, count // 8)}",
            "page": dice.choice(pages),
            "at": at.isoformat(),
        }
        yield "clicks", click["visitor"].encode(), json.dumps(click).encode()
    last = {"visitor": "last", "page": "/", "at": (BEGIN + timedelta(hours=6)).isoformat()}
    yield "clicks", b"last", json.dumps(last).encode()


KINDS: dict[str, Callable[[int, random.Random], Iterator[Record]]] = {
    "orders": orders,
    "binlog": binlog,
    "clicks": clicks,
}


def records(kind: str, count: int) -> Iterator[Record]:
    """The same records each time."""
    return KINDS[kind](count, random.Random(7))


def send(kind: str, count: int, bootstrap: str = BOOTSTRAP) -> int:
    """Sends records of a kind; how many."""
    sent = 0
    with Producer(bootstrap) as producer:
        for topic, key, value in records(kind, count):
            producer.send(topic, value, key=key)
            sent += 1
    return sent


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in KINDS:
        raise SystemExit(__doc__)
    print(f"sent {send(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000)} records")
