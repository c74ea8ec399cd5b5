"""A broker as its supervisor sees it: a locked directory, a registration, a `ready` line, an end at SIGTERM.

`python tests/unit/supervised.py supervise DIR N` is a supervisor of N of them;
`python tests/unit/supervised.py --data DIR --listen HOST:PORT -o node.id=1 -o store=unix:PATH …`. The file
`mood` beside its data says how it behaves: `refuses` ends it with exit code 2, `crashes` with 3, `stubborn`
makes it ignore SIGTERM, `late` lets another one be first.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
from pathlib import Path

from braidmq.address import Address, parse_address
from braidmq.cluster import records
from braidmq.cluster.membership import Identity, LeaseTimes, Membership
from braidmq.cluster.node_file import NodeFile, read_node_file, write_node_file
from braidmq.cluster.records import Listener
from braidmq.cluster.served_store import ServedStore
from braidmq.platform.clock import SystemClock
from braidmq.platform.disk import RealDisk
from braidmq.platform.lock import DirectoryInUse, holder_of
from braidmq.platform.randomness import new_uuid, random_bytes
from braidmq.supervise import Plan, run


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def plan(data: Path, brokers: int = 3, port: int = 0, arguments: tuple[str, ...] = ()) -> Plan:
    return Plan(
        brokers=brokers,
        first_id=1,
        data=data,
        listen=Address("127.0.0.1", port),
        advertise=None,
        cluster_name="braid",
        arguments=arguments,
        program=(sys.executable, __file__),
    )


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--listen")
    parser.add_argument("-o", action="append", default=[])
    asked, _ = parser.parse_known_args()
    options = dict(one.split("=", 1) for one in asked.o)
    node_id, data, disk = int(options["node.id"]), asked.data, RealDisk()
    data.mkdir(parents=True, exist_ok=True)
    mood = data / "mood"
    moods = mood.read_text().split() if mood.exists() else []
    for word, code in (("refuses", 2), ("crashes", 3)):
        if word in moods:
            return code
    if "late" in moods:
        mood.unlink()
        while holder_of(data) is None:
            await asyncio.sleep(0.01)
    try:
        lock = disk.lock(data)
    except DirectoryInUse:
        return 2
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, (lambda: None) if "stubborn" in moods else stopping.set)
    store = ServedStore(options["store"])
    await store.start()
    kept = read_node_file(disk, data)
    run = new_uuid().hex()
    uuid = kept.uuid if kept else new_uuid().hex()
    former = kept.run if kept else None
    write_node_file(disk, data, NodeFile(node_id, "braid", uuid, run, former, "boot", None))
    identity = Identity(node_id, uuid, run, former, None, "here", "boot")
    membership = Membership(
        store, records.prefix("braid"), identity, SystemClock().monotonic, random_bytes, LeaseTimes(ttl_s=30)
    )
    await membership.join()
    address = parse_address(asked.listen)
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
        port = listening.getsockname()[1]
        await membership.appear((Listener("kafka", address.host, port),))
        say(f"ready {address.host}:{port} node={node_id} data={data}")
        await stopping.wait()
    with (data.parent / "stops").open("a") as stops:
        stops.write(f"{node_id}\n")
    await membership.leave()
    await store.close()
    lock.release()
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "supervise":
        run(plan(Path(sys.argv[2]), int(sys.argv[3])), say)
    else:
        sys.exit(asyncio.run(main()))
