"""Plays stories about server-assigned groups (KIP-848), in the notation of `story`.

`0 ann beat topics=orders` is a heartbeat; an actor that is no member joins with it. Then it has what it was
told to read, but holds on to what it has to give up until `ann settle`. `ann leave`, `ann pause` (a static
member that will be back) and `ann crash` end it. The story says every answer, and who was removed in silence.
"""

from __future__ import annotations

from braidmq.group.assignors import Partitions
from braidmq.group.consumer_group import Beat, ConsumerGroup
from braidmq.group.consumer_member import Heartbeat
from braidmq.group.settings import GroupSettings
from braidmq.wire.errors import ApiError, ErrorCode
from unit.group.catalogs import FakeCatalog

SECOND_MS = 1000


class Actor:
    """One consumer process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.starts = 0
        self.forget()

    def forget(self) -> None:
        """The process is gone; the next one has another member id."""
        self.starts += 1
        self.instance: str | None = None
        self.abandon()

    def abandon(self) -> None:
        """It is a member no longer, owns nothing, and will join again."""
        self.epoch = 0
        self.owned: Partitions = frozenset()
        self.told: Partitions = frozenset()

    @property
    def member_id(self) -> str:
        return f"{self.name}{self.starts}"


class Story:
    """A group, its actors, and the topics."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.group = ConsumerGroup("g", GroupSettings(), lambda: "unused", 0)
        self.actors: dict[str, Actor] = {}
        self.catalog = FakeCatalog()
        self.out: list[str] = []

    def play(self, line: str) -> list[str]:
        """Runs one command and returns the lines that come of it."""
        when, who, verb, *rest = line.split()
        self.out = []
        self.pass_time(round(float(when) * SECOND_MS))
        options = dict(word.split("=", 1) for word in rest) if who != "topic" else {}
        if who == "topic":
            self.catalog.put(verb, int(rest[0]))
        elif who == "group":
            self.show()
        else:
            getattr(self, f"do_{verb}")(self.actors.setdefault(who, Actor(who)), options)
        return self.out

    def pass_time(self, until_ms: int) -> None:
        while (due_ms := self.group.next_deadline()) is not None and due_ms <= until_ms:
            for member_id in self.group.tick(due_ms):
                self.out.append(f"{due_ms / SECOND_MS:g}: {member_id} is removed")
        self.now_ms = until_ms

    def do_beat(self, actor: Actor, options: dict[str, str]) -> None:
        actor.instance = options.get("instance", actor.instance)
        joins = actor.epoch == 0
        topics = options.get("topics", "orders" if joins and "pattern" not in options else None)
        request = Heartbeat(
            actor.member_id,
            int(options.get("epoch", actor.epoch)),
            instance_id=actor.instance,
            rebalance_timeout_ms=int(options.get("rebalance", "60")) * SECOND_MS if joins else -1,
            topics=frozenset(topics.split(",")) if topics else None,
            pattern=options.get("pattern"),
            assignor=options.get("assignor"),
            owned=actor.owned,
        )
        self.send(actor, request)

    def do_settle(self, actor: Actor, options: dict[str, str]) -> None:
        """It has finished with what it had to give up, and says so with a heartbeat."""
        actor.owned = actor.told
        self.do_beat(actor, options)

    def do_leave(self, actor: Actor, _: dict[str, str]) -> None:
        self.send(actor, Heartbeat(actor.member_id, -1, instance_id=actor.instance))
        actor.forget()

    def do_pause(self, actor: Actor, _: dict[str, str]) -> None:
        self.send(actor, Heartbeat(actor.member_id, -2, instance_id=actor.instance))
        actor.forget()

    def do_crash(self, actor: Actor, _: dict[str, str]) -> None:
        actor.forget()

    def send(self, actor: Actor, request: Heartbeat) -> None:
        try:
            answer = self.group.heartbeat(request, self.catalog, self.now_ms)
        except ApiError as error:
            self.out.append(error.code.name)
            if error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
                actor.abandon()
            return
        if request.member_epoch < 0:
            self.out.append("has left")
            return
        self.out.append(self.take(actor, answer))

    def take(self, actor: Actor, answer: Beat) -> str:
        actor.epoch = answer.member_epoch
        if answer.assignment is None:
            return f"epoch {answer.member_epoch}"
        actor.told = answer.assignment
        gives_up = actor.owned - actor.told
        actor.owned |= actor.told
        text = f"epoch {answer.member_epoch}, reads {spelled(actor.told)}"
        return f"{text}, gives up {spelled(gives_up)}" if gives_up else text

    def show(self) -> None:
        group = self.group
        self.out.append(f"{group.state}, epoch {group.epoch}, target of epoch {group.target_epoch}")
        for member in group.members.values():
            self.out.append(f"  {member.member_id} in epoch {member.epoch}: {spelled(member.assigned)}")


def spelled(partitions: Partitions) -> str:
    return (
        " ".join(f"{topic.decode().rstrip('.')}/{number}" for topic, number in sorted(partitions))
        or "nothing"
    )
