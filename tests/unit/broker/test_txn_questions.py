"""Questions to coordinators elsewhere: one request a turn, and an answer to each whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from braidmq.broker.txn_questions import Codes, TxnQuestions
from braidmq.net.peer import PeerUnavailable
from braidmq.net.txn_peer import Question
from braidmq.txn.events import AddPartitions
from braidmq.wire.errors import ErrorCode


class FakePeers:
    """Brokers that answer what a test says."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[str]]] = []
        self.answers: list[Sequence[Codes] | Exception] = []

    async def ask(self, node_id: int, questions: Sequence[Question]) -> Sequence[Codes]:
        self.asked.append((node_id, [one.asked.transactional_id for one in questions]))
        await asyncio.sleep(0)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def question(transactional_id: str) -> Question:
    return Question(AddPartitions(transactional_id, 1, 0, frozenset({("t", 0)}), 5), verify_only=False)


def test_the_questions_of_one_turn_are_one_request() -> None:
    """T2: per broker; one that is asked later does not wait for the answers before it."""

    async def story() -> None:
        peers = FakePeers()
        peers.answers = [[{("t", 0): ErrorCode.NONE}, {("t", 0): ErrorCode.PRODUCER_FENCED}], [{}]]
        questions = TxnQuestions(peers)
        answers: dict[str, Codes] = {}
        for node_id, name in ((2, "a"), (2, "b"), (3, "c")):
            questions.ask(node_id, question(name), lambda codes, name=name: answers.update({name: codes}))
        await asyncio.sleep(0)
        await questions.stop()
        assert peers.asked == [(2, ["a", "b"]), (3, ["c"])]
        assert {name: codes["t", 0] for name, codes in answers.items()} == {
            "a": ErrorCode.NONE,
            "b": ErrorCode.PRODUCER_FENCED,
            "c": ErrorCode.COORDINATOR_NOT_AVAILABLE,
        }

    asyncio.run(story())


def test_a_coordinator_that_is_away_is_an_answer() -> None:
    """T2: one that producers try again, also if the answer was lost or cannot be read."""

    async def story() -> None:
        peers = FakePeers()
        questions = TxnQuestions(peers)
        for failure in (PeerUnavailable("gone", sent=True), ValueError("planted")):
            peers.answers = [failure]
            answers: list[Codes] = []
            questions.ask(2, question("a"), answers.append)
            await asyncio.sleep(0)
            await questions.stop()
            assert answers == [{("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}]

    asyncio.run(story())
