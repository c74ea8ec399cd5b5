"""Questions to coordinators on other brokers: whether a batch may begin a transaction in a partition here.

All questions of one turn of the loop that go to the same broker are one request. Whatever happens, each has
an answer: a coordinator that is away is COORDINATOR_NOT_AVAILABLE, which the producer tries again. Nothing is
appended on an answer that did not come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from braidmq.net.peer import PeerUnavailable
from braidmq.net.txn_peer import Question
from braidmq.txn.events import TopicPartition
from braidmq.wire.errors import ErrorCode

TOGETHER_MAX = 500
"""Questions in one request."""

log = logging.getLogger("braid.transactions")

Codes = Mapping[TopicPartition, ErrorCode]
Answered = Callable[[Codes], None]


class QuestionPeers(Protocol):
    """Other brokers, which coordinate transactions; see `net.txn_peer`."""

    async def ask(self, node_id: int, questions: Sequence[Question]) -> Sequence[Codes]: ...


class _Waiting(NamedTuple):
    question: Question
    answered: Answered


class TxnQuestions:
    """What this broker asks others about transactions."""

    def __init__(self, peers: QuestionPeers) -> None:
        self._peers = peers
        self._loop = asyncio.get_running_loop()
        self._due: dict[int, list[_Waiting]] = {}
        self._under_way: dict[asyncio.Task[None], None] = {}

    def ask(self, node_id: int, question: Question, answered: Answered) -> None:
        """Calls `answered` once, with a code for each partition, in the very moment of the answer."""
        due = self._due.get(node_id)
        if due is None:
            due = self._due[node_id] = []
            self._loop.call_soon(self._send, node_id)
        due.append(_Waiting(question, answered))

    async def stop(self) -> None:
        """What is under way has its answer on return: the connections are closed before."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def _send(self, node_id: int) -> None:
        due = self._due.pop(node_id)
        for at in range(0, len(due), TOGETHER_MAX):
            task = self._loop.create_task(self._ask(node_id, due[at : at + TOGETHER_MAX]))
            self._under_way[task] = None
            task.add_done_callback(self._ended)

    async def _ask(self, node_id: int, waiting: list[_Waiting]) -> None:
        answers: Sequence[Codes] = ()
        try:
            answers = await self._peers.ask(node_id, [one.question for one in waiting])
        except PeerUnavailable as error:
            log.info("broker %d does not answer for its transactions: %s", node_id, error)
        except Exception:
            log.exception("broker %d: asking for transactions failed", node_id)
        for at, (question, answered) in enumerate(waiting):
            codes = answers[at] if at < len(answers) else {}
            complete = {
                one: codes.get(one, ErrorCode.COORDINATOR_NOT_AVAILABLE) for one in question.asked.partitions
            }
            try:
                answered(complete)
            except Exception:
                log.exception("transactional id %r: a callback failed", question.asked.transactional_id)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._under_way[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("questions about transactions are not answered", exc_info=error)
