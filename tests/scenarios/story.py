"""Plays stories about a classic group: text files that say what happens when, and what comes of it.

A line such as `3.5 ann join topics=orders` is a command: at 3.5 seconds ann joins. The lines under it that
begin with `|` are what the group answers, with the time where it is not the command's own. Playing a story
gives its text again with the answers the group really gives, so a story is right if it stays the same.

Actors play a consumer's part: they remember their member id and generation, join again with the id they are
given, and as leaders assign by range. To write a story, leave out the answers and run
`python -m scenarios.playing FILE`, which fills them in; then read whether you agree.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import count

from braidmq.group.classic import ClassicGroup
from braidmq.group.events import (
    NO_MEMBER,
    Effect,
    Join,
    Joined,
    Leaver,
    MemberProtocol,
    Reply,
    Sync,
    Synced,
    WriteSnapshot,
)
from braidmq.group.settings import GroupSettings
from braidmq.group.subscription import subscribed_topics
from braidmq.wire.errors import ApiError, ErrorCode

SECOND_MS = 1000


class Actor:
    """One consumer process, as far as its group is concerned."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.forget()

    def forget(self) -> None:
        self.member_id = NO_MEMBER
        self.generation = -1
        self.instance: str | None = None
        self.joined: Joined | None = None


class Story:
    """A group, its actors, and the answers so far."""

    def __init__(self) -> None:
        ids = count(1)
        self.now_ms = 0
        self.options: dict[str, str] = {}
        self.group = ClassicGroup("g", GroupSettings(), lambda: str(next(ids)), 0)
        self.partitions: dict[str, int] = {}
        self.actors: dict[str, Actor] = {}
        self.out: list[str] = []
        self.repeat: dict[Actor, Callable[[], None]] = {}

    def play(self, line: str) -> list[str]:
        """Runs one command and returns the lines that come of it."""
        when, who, verb, *rest = line.split()
        self.out = []
        self.pass_time(round(float(when) * SECOND_MS))
        self.options = dict(word.split("=", 1) for word in rest if "=" in word)
        self.words = [word for word in rest if "=" not in word]
        if who == "topic":
            self.partitions[verb] = int(rest[0])
        elif who == "group":
            self.show()
        else:
            actor = self.actors.setdefault(who, Actor(who))
            getattr(self, f"do_{verb}")(actor)
        return self.out

    def pass_time(self, until_ms: int) -> None:
        while (due_ms := self.group.next_deadline()) is not None and due_ms <= until_ms:
            self.now_ms = max(due_ms, self.now_ms)
            before = len(self.out)
            self.take(self.group.tick(self.now_ms))
            stamp = f"{self.now_ms / SECOND_MS:g}: "
            self.out[before:] = [stamp + text for text in self.out[before:]]
        self.now_ms = until_ms

    # Verbs

    def do_join(self, actor: Actor) -> None:
        options = self.options
        actor.instance = options.get("instance", actor.instance)
        topics = options.get("topics", "orders").split(",")
        names = options.get("protocols", "range").split(",")
        request = Join(
            member_id=actor.member_id,
            client_id=actor.name,
            client_host="/host",
            session_timeout_ms=int(options.get("session", "10")) * SECOND_MS,
            rebalance_timeout_ms=int(options.get("rebalance", "60")) * SECOND_MS,
            protocol_type=options.get("type", "consumer"),
            protocols=tuple(MemberProtocol(name, subscription(topics)) for name in names),
            instance_id=actor.instance,
            version=int(options.get("version", "9")),
        )
        saved = dict(options)

        def again() -> None:
            self.options = saved
            self.do_join(actor)

        self.repeat[actor] = again
        self.take(self.group.join(request, (actor, "join"), self.now_ms))

    def do_sync(self, actor: Actor) -> None:
        leads = actor.joined is not None and actor.joined.leader == actor.member_id
        plan = self.range(actor.joined) if leads and actor.joined else {}
        request = Sync(
            actor.member_id,
            int(self.options.get("generation", actor.generation)),
            tuple((member_id, text.encode()) for member_id, text in plan.items()),
            actor.instance,
            self.options.get("type"),
            self.options.get("protocol"),
        )
        self.take(self.group.sync(request, (actor, "sync"), self.now_ms))

    def do_beat(self, actor: Actor) -> None:
        generation = int(self.options.get("generation", actor.generation))
        self.say(self.group.heartbeat(actor.member_id, actor.instance, generation, self.now_ms).name)

    def do_leave(self, actor: Actor) -> None:
        by_instance = "instance" in self.options
        leaver = Leaver(NO_MEMBER if by_instance else actor.member_id, self.options.get("instance"))
        codes, effects = self.group.leave([leaver], self.now_ms)
        self.say(codes[0].name)
        self.take(effects)
        actor.forget()

    def do_crash(self, actor: Actor) -> None:
        """The process is gone: it sends nothing, and one that starts in its place remembers nothing."""
        actor.forget()

    def do_commit(self, actor: Actor) -> None:
        generation = int(self.options.get("generation", actor.generation))
        try:
            self.group.check_commit(actor.member_id, actor.instance, generation, self.now_ms)
            self.say("commits")
        except ApiError as error:
            self.say(error.code.name)

    def show(self) -> None:
        group = self.group.describe()
        self.say(f"{group.state}, generation {self.group.generation}, leader {self.group.leader or 'none'}")
        for one in group.members:
            self.say(f"  {one.member_id}: {one.assignment.decode() or 'nothing'}")

    # Answers

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, WriteSnapshot):
                members = len(effect.snapshot.members)
                self.say(f"stored: generation {effect.snapshot.generation}, {members} members")
            elif isinstance(effect, Reply):
                self.answer(effect)

    def answer(self, reply: Reply) -> None:
        assert isinstance(reply.token, tuple)
        actor, verb = reply.token
        if isinstance(reply.answer, Joined):
            self.answer_join(actor, reply.answer)
        else:
            self.answer_sync(actor, verb, reply.answer)

    def answer_join(self, actor: Actor, answer: Joined) -> None:
        if answer.code is ErrorCode.MEMBER_ID_REQUIRED:
            actor.member_id = answer.member_id
            self.repeat[actor]()
        elif answer.code is not ErrorCode.NONE:
            self.say(f"{actor.name} join: {answer.code.name}")
        else:
            actor.member_id, actor.generation, actor.joined = answer.member_id, answer.generation, answer
            leads = answer.leader == answer.member_id
            skips = " and skips the assignment" if answer.skip_assignment else ""
            role = f"leads {len(answer.members)}{skips}" if leads else f"follows {answer.leader}"
            self.say(
                f"{actor.name} join: {answer.member_id} in generation {answer.generation}, "
                f"{answer.protocol_name}, {role}"
            )

    def answer_sync(self, actor: Actor, verb: str, answer: Synced) -> None:
        text = answer.assignment.decode() or "nothing" if answer.code is ErrorCode.NONE else answer.code.name
        self.say(f"{actor.name} {verb}: {text}")

    def say(self, text: str) -> None:
        self.out.append(text)

    def range(self, joined: Joined) -> dict[str, str]:
        """Per topic, neighbouring partitions to each member that reads it, in the order of their ids."""
        plan: dict[str, list[str]] = {one.member_id: [] for one in joined.members}
        for topic, partitions in sorted(self.partitions.items()):
            readers = sorted(
                one.member_id for one in joined.members if topic in (subscribed_topics(one.metadata) or ())
            )
            for partition in range(partitions):
                if readers:
                    reader = readers[partition * len(readers) // partitions]
                    plan[reader].append(f"{topic}/{partition}")
        return {member_id: " ".join(places) for member_id, places in plan.items()}


def subscription(topics: list[str]) -> bytes:
    """ConsumerProtocolSubscription, version 0."""
    parts = [struct.pack(">hi", 0, len(topics))]
    parts += [struct.pack(">h", len(topic.encode())) + topic.encode() for topic in topics]
    return b"".join(parts) + struct.pack(">i", -1)
