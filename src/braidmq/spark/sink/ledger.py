"""Where a batch is decided: its number and its transactions, so that any process can complete it.

A decision is the number of a batch and, of each task that wrote rows, the identity of its transaction, a
checksum of its rows and the time that rows without one got. It is kept as committed offsets of a group that
belongs to the query alone: the offset is the batch's number, its metadata holds a part of the rest, in as
many partitions of one topic as needed. If the topic has too few, further groups hold the other parts. It is
committed in a transaction of its own, whose id (the chief's) belongs to the query too. That makes it atomic,
and fences drivers against each other: after a driver takes the chief's id and reads, no other can decide.

Every part begins with its number and how many there are, `2/3 `. A batch that is decided again may need fewer
parts than before: the first part says how many there are, and later ones of an earlier decision are ignored.
"""

from __future__ import annotations

import dataclasses
import json
import re
import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.errors import ClientError, TimedOut, Unreachable
from braidmq.client.transactional import FENCED, Identity, Offset, TransactionalClient
from braidmq.client.transactions import ONGOING
from braidmq.spark.errors import UserError
from braidmq.wire.errors import ApiError, ErrorCode

TEXT_BYTES_MAX = 4_096
"""The broker's default limit for the metadata of an offset (offset.metadata.max.bytes)."""
PART_BYTES = TEXT_BYTES_MAX - len("10000/10000 ")
PARTS_MAX = 10_000
OPENED_BYTES_MAX = 16_777_216
PART = re.compile(r"([1-9]\d*)/([1-9]\d*) [\w!#$%&()*+\-;<=>?@^`{|}~]+", re.ASCII)
"""The metadata of an offset in a ledger: which part of how many, and base 85."""
BEING_ENDED = ("PrepareCommit", "PrepareAbort")
DECISION_S_MAX = 1.0
"""A decision takes two requests. One that is open for longer was left by a driver that died."""


class SinkError(UserError):
    """A write that cannot continue; the message says why and what to do."""


class SinkInterrupted(SinkError):
    """A broker is unreachable or not ready; the same write may succeed later."""


def sink_error(cause: ApiError | ClientError, text: str) -> SinkError:
    """The error of a write with this cause; SinkInterrupted if a retry may succeed."""
    if isinstance(cause, ApiError):
        # The write has already waited for a missing topic.
        may_pass = cause.code.retriable and cause.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        may_pass = isinstance(cause, Unreachable | TimedOut)
    return SinkInterrupted(text) if may_pass else SinkError(text)


class Overtaken(SinkError):
    """Another driver has taken the chief's id since we held it."""


@dataclass(frozen=True, slots=True)
class TaskWrite:
    """What one task wrote: its transaction, and a checksum over its rows."""

    identity: Identity
    digest: int
    written_ms: int | None = None
    """The time of rows without one; None in older ledgers."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decided batch with its tasks by number; stored with offsets of `topic`."""

    batch: int
    topic: str
    tasks: Mapping[int, TaskWrite]


class Ledger:
    """The decisions of one query, or of one named write. `scope` names both its group and its chief."""

    def __init__(self, cluster: Cluster, client: TransactionalClient, scope: str, timeout_ms: int) -> None:
        self.scope = scope
        self._cluster = cluster
        self._client = client
        self._timeout_ms = timeout_ms
        self._chief: Identity | None = None

    @property
    def is_held(self) -> bool:
        """Whether the chief's id was ours when we last used it."""
        return self._chief is not None

    def hold(self) -> Decision | None:
        """Takes the chief's id, so that no other driver can decide, and reads the last decision."""
        self._chief = self._client.take(self.scope, self._timeout_ms)
        return self.read()

    def read(self) -> Decision | None:
        """The last decision. Waits for one in progress; aborts one that was abandoned.

        It aborts by taking the chief's id: a driver that is alive is fenced, and begins its decision again.
        """
        began_s = self._cluster.clock.monotonic()
        for attempt in self._cluster.attempts():
            offsets = self._client.stable_offsets(self.scope)
            if offsets and (parts := self._parts(offsets)) is not None:
                return _parsed(self.scope, *parts)
            # A group's first offset is invisible while its transaction is open or being ended.
            chief = self._client.described([self.scope]).get(self.scope)
            state = None if chief is None else chief.transaction_state
            if offsets is not None and state not in BEING_ENDED:
                # Read again: it may have ended between the two responses.
                offsets = self._client.stable_offsets(self.scope)
                if offsets is not None:
                    parts = self._parts(offsets)
                    if parts is None:
                        raise _unreadable(self.scope)
                    return _parsed(self.scope, *parts)
            if state == ONGOING and self._cluster.clock.monotonic() - began_s > DECISION_S_MAX:
                self._client.take(self.scope, self._timeout_ms)
            attempt.failed(
                ApiError(ErrorCode.CONCURRENT_TRANSACTIONS, f"{self.scope} is being decided"), retriable=True
            )
        raise AssertionError("attempts end by raising")

    def _parts(self, offsets: Mapping[TopicPartition, Offset]) -> tuple[int, str, list[str]] | None:
        """Batch, topic and parts of the last decision; None if a further group lacks its parts."""
        if not offsets:
            return -1, "", []
        batch = max(each.offset for each in offsets.values())
        first = min(at for at, each in offsets.items() if each.offset == batch)
        wanted = _count(offsets[first].text)
        if not 1 <= wanted <= PARTS_MAX:
            raise _unreadable(self.scope)
        parts: list[str] = []
        for number in range(wanted):
            texts = self._texts(number, first.topic, batch, offsets)
            if not texts:
                return None
            parts += texts
            if len(parts) >= wanted:
                return batch, first.topic, parts[:wanted]
        return None

    def _texts(
        self, number: int, topic: str, batch: int, offsets: Mapping[TopicPartition, Offset]
    ) -> list[str]:
        """The parts in one of the ledger's groups, in order."""
        found = offsets if number == 0 else self._client.stable_offsets(self._group(number))
        rows = sorted((found or {}).items())
        return [each.text for at, each in rows if at.topic == topic and each.offset == batch]

    def _group(self, number: int) -> str:
        """The group for parts that do not fit the ones before it."""
        return self.scope if number == 0 else f"{self.scope}#{number}"

    def decide(self, decision: Decision) -> None:
        """Commits a decision. Overtaken if the chief's id is no longer ours: then nothing is decided."""
        assert self._chief is not None
        parts = _cut(decision)
        room = self._cluster.partition_count(decision.topic)
        try:
            for number, start in enumerate(range(0, len(parts), room)):
                offsets = {
                    TopicPartition(decision.topic, partition): Offset(decision.batch, text)
                    for partition, text in enumerate(parts[start : start + room])
                }
                self._client.commit_offsets(self._chief, self._group(number), offsets)
            self._chief = self._client.end(self._chief, commit=True)
        except ApiError as error:
            self._chief = None
            if error.code in FENCED:
                raise Overtaken(f"another driver writes as {self.scope}: {error}") from None
            raise
        except BaseException:
            self._chief = None
            raise


def _cut(decision: Decision) -> list[str]:
    """A decision as texts that fit the metadata of an offset."""
    rows = [
        [number, *dataclasses.astuple(each.identity), each.digest, each.written_ms]
        for number, each in sorted(decision.tasks.items())
    ]
    packed = b85encode(zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 9)).decode()
    cut = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]
    if len(cut) > PARTS_MAX:
        raise SinkError(f"{len(rows):,} tasks wrote this batch, too many for a ledger; use fewer tasks")
    return [f"{number + 1}/{len(cut)} {text}" for number, text in enumerate(cut)]


def _count(text: str) -> int:
    """How many parts the first part says there are; 0 if it is no part."""
    head = text.partition(" ")[0]
    number, _, count = head.partition("/")
    return int(count) if number == "1" and count.isdecimal() else 0


def _parsed(scope: str, batch: int, topic: str, parts: list[str]) -> Decision | None:
    if not parts:
        return None
    heads, _, bodies = zip(*(text.partition(" ") for text in parts), strict=True)
    if list(heads) != [f"{number + 1}/{len(parts)}" for number in range(len(parts))]:
        raise _unreadable(scope)
    try:
        opened = zlib.decompressobj().decompress(b85decode("".join(bodies)), OPENED_BYTES_MAX)
        tasks = {
            int(number): TaskWrite(Identity(str(name), int(producer_id), int(epoch)), int(digest), *written)
            for number, name, producer_id, epoch, digest, *written in json.loads(opened)
        }
    except (TypeError, ValueError, zlib.error):
        raise _unreadable(scope) from None
    return Decision(batch, topic, tasks)


def _unreadable(scope: str) -> SinkError:
    return SinkError(
        f"the offsets of group {scope} were not written by this sink, or only in part; nothing else may"
        " commit to that group. To start over, set another transactionalIdPrefix"
    )


def is_ledger(texts: Iterable[str]) -> bool:
    """Whether a group whose offsets have these metadata is a ledger; its name does not show that.

    Its offsets are no positions: to move them erases what a query has written.
    """
    parts = (PART.fullmatch(text) for text in texts)
    return any(part is not None and int(part[1]) <= int(part[2]) for part in parts)
