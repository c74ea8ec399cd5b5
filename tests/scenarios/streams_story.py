"""Plays stories about streams groups (KIP-1071), in the notation of `story`.

`0 ann beat` is a heartbeat of a thread that runs a word count: subtopology 0 reads the topic `lines` and
writes a repartition topic, subtopology 1 reads that and keeps counts, with a changelog. An actor that is no
member joins with it, in the process `process=…` or one of its own. It has the tasks it was told to have, but
holds on to what it has to give up until `ann settle`. `ann leave`, `ann end` (shuts the application down and
leaves) and `ann crash` end it. Internal topics are created when a heartbeat asks for them, unless
`create=no` is said. The story says every answer, and who was removed in silence. `0 group standbys 1` sets
an option, `0 group delay 3` another, `0 group restart` has the group read from what it has written, `0 group
show` shows it.

A task is subtopology_partition, as Kafka Streams calls it; one in brackets is a standby.
"""

from __future__ import annotations

from braidmq.group.settings import GroupSettings
from braidmq.group.streams_group import StreamsBeat, StreamsGroup, StreamsOptions
from braidmq.group.streams_member import StreamsHeartbeat
from braidmq.group.streams_records import StreamsLoader, changed_records
from braidmq.group.streams_tasks import NO_TASKS, Role, Tasks
from braidmq.wire.errors import ApiError, ErrorCode
from unit.group.applications import word_count
from unit.group.catalogs import FakeCatalog

SECOND_MS = 1000


class Actor:
    """One thread of an application."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.starts = 0
        self.process = name
        self.forget()

    def forget(self) -> None:
        """The process is gone; the next one has another member id."""
        self.starts += 1
        self.abandon()

    def abandon(self) -> None:
        """It is a member no longer, owns nothing, and will join again."""
        self.epoch = 0
        self.owned: Tasks = NO_TASKS
        self.told: Tasks = NO_TASKS

    @property
    def member_id(self) -> str:
        return f"{self.name}{self.starts}"


class Story:
    """A group, its actors, and the topics."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.options = StreamsOptions(initial_rebalance_delay_ms=0)
        self.group = self.new_group()
        self.loader = StreamsLoader()
        self.actors: dict[str, Actor] = {}
        self.catalog = FakeCatalog()
        self.out: list[str] = []

    def new_group(self) -> StreamsGroup:
        return StreamsGroup("g", GroupSettings(), lambda _: self.options, self.now_ms)

    def play(self, line: str) -> list[str]:
        """Runs one command and returns the lines that come of it."""
        when, who, verb, *rest = line.split()
        self.out = []
        self.pass_time(round(float(when) * SECOND_MS))
        if who == "topic":
            self.do_topic(verb, rest[0])
        elif who == "group":
            getattr(self, f"group_{verb}")(*rest)
        else:
            options = dict(word.split("=", 1) for word in rest)
            getattr(self, f"do_{verb}")(self.actors.setdefault(who, Actor(who)), options)
        self.store()
        return self.out

    def pass_time(self, until_ms: int) -> None:
        while (due_ms := self.group.next_deadline()) is not None and due_ms <= until_ms:
            for member_id in self.group.tick(due_ms):
                self.out.append(f"{due_ms / SECOND_MS:g}: {member_id} is removed")
        self.now_ms = until_ms

    def store(self) -> None:
        for record in changed_records(self.group, self.group.take_changes()):
            self.loader.take(*record)

    def do_topic(self, name: str, partitions: str) -> None:
        if partitions == "gone":
            self.catalog.drop(name)
        else:
            self.catalog.put(name, int(partitions))

    def do_beat(self, actor: Actor, options: dict[str, str]) -> None:
        actor.process = options.get("process", actor.process)
        joins = actor.epoch == 0
        request = StreamsHeartbeat(
            actor.member_id,
            int(options.get("epoch", actor.epoch)),
            rebalance_timeout_ms=int(options.get("rebalance", "60")) * SECOND_MS if joins else -1,
            topology=word_count(int(options.get("topology", "0"))) if joins else None,
            owned=actor.owned,
            process_id=actor.process if joins else None,
        )
        self.send(actor, request, options.get("create") != "no")

    def do_settle(self, actor: Actor, options: dict[str, str]) -> None:
        """It has closed the tasks it had to give up, and says so with a heartbeat."""
        actor.owned = actor.told
        self.do_beat(actor, options)

    def do_leave(self, actor: Actor, _: dict[str, str]) -> None:
        self.send(actor, StreamsHeartbeat(actor.member_id, -1))
        actor.forget()

    def do_end(self, actor: Actor, _: dict[str, str]) -> None:
        self.send(actor, StreamsHeartbeat(actor.member_id, -1, ends_application=True))
        actor.forget()

    def do_crash(self, actor: Actor, _: dict[str, str]) -> None:
        actor.forget()

    def send(self, actor: Actor, request: StreamsHeartbeat, creates: bool = False) -> None:
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
        self.out.extend(f"  {status.code.name}: {status.detail}" for status in answer.statuses)
        for topic in answer.to_create if creates else ():
            self.out.append(f"  create {topic.name} with {topic.partitions} partitions")
            self.catalog.put(topic.name, topic.partitions)

    def take(self, actor: Actor, answer: StreamsBeat) -> str:
        actor.epoch = answer.member_epoch
        if answer.tasks is None:
            return f"epoch {answer.member_epoch}"
        actor.told = answer.tasks
        gives_up = actor.owned - actor.told
        actor.owned |= actor.told
        text = f"epoch {answer.member_epoch}, has {spelled(actor.told)}"
        return f"{text}, gives up {spelled(gives_up)}" if gives_up else text

    def group_standbys(self, number: str) -> None:
        self.options = self.options._replace(num_standby_replicas=int(number))

    def group_delay(self, seconds: str) -> None:
        self.options = self.options._replace(initial_rebalance_delay_ms=int(seconds) * SECOND_MS)

    def group_restart(self) -> None:
        self.group = self.new_group()
        self.group.restore(self.loader.groups()["g"], self.now_ms)

    def group_show(self) -> None:
        group = self.group
        self.out.append(f"{group.state}, epoch {group.epoch}, target of epoch {group.target_epoch}")
        for member in group.members.values():
            self.out.append(f"  {member.member_id} in epoch {member.epoch}: {spelled(member.assigned)}")


def spelled(tasks: Tasks) -> str:
    names = [(task, f"{task.subtopology}_{task.partition}") for task in sorted(tasks)]
    shown = [name if task.role is Role.ACTIVE else f"({name})" for task, name in names]
    return " ".join(shown) or "nothing"
