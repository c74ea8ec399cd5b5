"""The group coordinator: what is told to whom, and when, while the disk is slow."""

from __future__ import annotations

import asyncio
from pathlib import Path

from braidmq.group.events import Join, MemberProtocol, Sync
from braidmq.group.records import OFFSETS_TOPIC
from braidmq.wire.errors import ErrorCode
from unit.embedded import embedded
from unit.held_disk import HeldDisk

TURNS = 20
"""More turns of the loop than a request needs that waits for nothing."""


def joining(client_id: str, member_id: str = "") -> Join:
    return Join(member_id, client_id, "/host", 10_000, 60_000, "consumer", (MemberProtocol("range", b""),))


async def some_turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def test_a_follower_is_told_its_assignment_when_that_is_on_disk(tmp_path: Path) -> None:
    """C2: a crash must not take back what a member works by."""
    disk = HeldDisk()

    async def story() -> None:
        async with embedded(tmp_path, disk=disk, group_initial_rebalance_delay_ms=0) as broker:
            groups = await broker.groups.reach("g")
            ids = [(await groups.join("g", joining(name))).member_id for name in ("ann", "bob")]
            first = await groups.join("g", joining("ann", ids[0]))
            both = (groups.join("g", joining("bob", ids[1])), groups.join("g", joining("ann", ids[0])))
            bob, ann = await asyncio.gather(*both)
            assert (first.generation, ann.generation, bob.generation) == (1, 2, 2)
            disk.hold(OFFSETS_TOPIC)
            plan = tuple((member_id, member_id.encode()) for member_id in ids)
            assert ann.leader == ids[0]
            leading = asyncio.ensure_future(groups.sync("g", Sync(ids[0], 2, plan)))
            await some_turns()
            following = asyncio.ensure_future(groups.sync("g", Sync(ids[1], 2)))
            await some_turns()
            told = (leading.done(), following.done())
            disk.let_go()
            answers = [await leading, await following]
            assert told == (False, False)
            assert [(each.code, each.assignment) for each in answers] == [
                (ErrorCode.NONE, member_id.encode()) for member_id in ids
            ]

    asyncio.run(story())
