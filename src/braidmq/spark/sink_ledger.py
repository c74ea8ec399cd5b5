"""Where a batch is decided: its number and who wrote it, so that anyone can bring it to its end.

A decision is the number of a batch and, of each task that wrote rows, the identity of its transaction and a
checksum of its rows. It is kept as committed offsets of a group that belongs to the query alone: the offset
is the batch's number, the text beside it holds the rest, in as many partitions of one topic as it needs. It
is committed in a transaction of its own, whose id (the chief's) belongs to the query too. That makes it
atomic, and fences drivers against each other: whoever takes the chief's id and then reads knows that nobody
can decide behind its back.
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
from braidmq.wire.errors import ApiError, ErrorCode

TEXT_BYTES_MAX = 4_096
"""What a broker takes beside an offset by default (offset.metadata.max.bytes)."""
PART_BYTES = TEXT_BYTES_MAX - len("1000/1000 ")
OPENED_BYTES_MAX = 16_777_216
PART = re.compile(r"([1-9]\d*)/([1-9]\d*) [\w!#$%&()*+\-;<=>?@^`{|}~]+", re.ASCII)
"""What stands beside an offset of a ledger: which part of how many, and base 85."""
BEING_ENDED = ("PrepareCommit", "PrepareAbort")
DECISION_S_MAX = 1.0
"""A decision takes two requests. One that is open for longer was left by a driver that died in between."""


class SinkError(RuntimeError):
    """A write that cannot go on; the message says why and what to do."""


class SinkInterrupted(SinkError):
    """A broker is away, or not ready: the same write may succeed later."""


def sink_error(cause: ApiError | ClientError, text: str) -> SinkError:
    """For a write that failed by this cause; the kind says whether it may pass by itself."""
    if isinstance(cause, ApiError):
        # A topic that is not there was waited for already.
        may_pass = cause.code.retriable and cause.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        may_pass = isinstance(cause, Unreachable | TimedOut)
    return SinkInterrupted(text) if may_pass else SinkError(text)


class Overtaken(SinkError):
    """Another driver has taken the chief's id since we held it."""


@dataclass(frozen=True, slots=True)
class Written:
    """What one task wrote: its transaction, and a checksum over its rows."""

    identity: Identity
    digest: int


@dataclass(frozen=True, slots=True)
class Decision:
    """A batch that is to be visible, by the number of its tasks; kept with offsets of `topic`."""

    batch: int
    topic: str
    tasks: Mapping[int, Written]


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
        """The last decision. One being made is waited for, one that was left half made is undone.

        That is done by taking the chief's id: a driver that lives is told so, and begins its decision again.
        """
        began_s = self._cluster.clock.monotonic()
        for attempt in self._cluster.attempts():
            offsets = self._client.stable_offsets(self.scope)
            if offsets:
                return _parsed(self.scope, offsets)
            # A group's first offset does not show while its transaction is open or being ended.
            chief = self._client.described([self.scope]).get(self.scope)
            state = None if chief is None else chief.transaction_state
            if offsets is not None and state not in BEING_ENDED:
                # Asked once more: it may have ended between the two answers.
                offsets = self._client.stable_offsets(self.scope)
                if offsets is not None:
                    return _parsed(self.scope, offsets)
            if state == ONGOING and self._cluster.clock.monotonic() - began_s > DECISION_S_MAX:
                self._client.take(self.scope, self._timeout_ms)
            attempt.failed(
                ApiError(ErrorCode.CONCURRENT_TRANSACTIONS, f"{self.scope} is being decided"), retriable=True
            )
        raise AssertionError("attempts end by raising")

    def decide(self, decision: Decision) -> None:
        """Writes a decision for good. Overtaken when the chief's id is no longer ours: nothing is decided."""
        assert self._chief is not None
        parts = _parts(decision, self._cluster.partition_count(decision.topic))
        offsets = {
            TopicPartition(decision.topic, number): Offset(decision.batch, text)
            for number, text in enumerate(parts)
        }
        try:
            self._client.commit_offsets(self._chief, self.scope, offsets)
            self._chief = self._client.end(self._chief, commit=True)
        except ApiError as error:
            self._chief = None
            if error.code in FENCED:
                raise Overtaken(f"another driver writes as {self.scope}: {error}") from None
            raise
        except BaseException:
            self._chief = None
            raise


def _parts(decision: Decision, partitions: int) -> list[str]:
    rows = [
        [number, *dataclasses.astuple(each.identity), each.digest]
        for number, each in sorted(decision.tasks.items())
    ]
    packed = b85encode(zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 9)).decode()
    cut = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]
    if len(cut) > partitions:
        raise SinkError(
            f"{len(rows)} tasks wrote this batch, too many to be noted with the {partitions} partitions of"
            f" topic {decision.topic}; write with fewer tasks (.coalesce(100)) or add partitions"
        )
    return [f"{number + 1}/{len(cut)} {text}" for number, text in enumerate(cut)]


def _parsed(scope: str, offsets: Mapping[TopicPartition, Offset]) -> Decision | None:
    if not offsets:
        return None
    batch = max(each.offset for each in offsets.values())
    found = sorted((at, each.text) for at, each in offsets.items() if each.offset == batch)
    heads, _, bodies = zip(*(text.partition(" ") for _, text in found), strict=True)
    if list(heads) != [f"{number + 1}/{len(found)}" for number in range(len(found))]:
        raise _unreadable(scope)
    try:
        opened = zlib.decompressobj().decompress(b85decode("".join(bodies)), OPENED_BYTES_MAX)
        tasks = {
            int(number): Written(Identity(str(name), int(producer_id), int(epoch)), int(digest))
            for number, name, producer_id, epoch, digest in json.loads(opened)
        }
    except (ValueError, zlib.error):
        raise _unreadable(scope) from None
    return Decision(batch, found[0][0].topic, tasks)


def _unreadable(scope: str) -> SinkError:
    return SinkError(
        f"the offsets of group {scope} were not written by this sink, or only in part; nothing else may"
        " commit to that group. To begin anew, set the option transactionalIdPrefix"
    )


def is_ledger(texts: Iterable[str]) -> bool:
    """Whether a group with these texts beside its offsets is a ledger; its name says nothing about that.

    Its offsets are no positions: whoever moves them takes a query's memory of what it has written.
    """
    parts = (PART.fullmatch(text) for text in texts)
    return any(part is not None and int(part[1]) <= int(part[2]) for part in parts)
