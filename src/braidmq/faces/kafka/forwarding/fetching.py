"""Fetch from several leaders at once.

A leader that has nothing keeps a fetch until its wait is over; the client must not wait for it when another
leader has records. So the first answer that has something ends the client's wait, and partitions whose
leaders have not answered are shown as unchanged. What was asked of those stays asked: the client's next fetch
finds the same question under way, or already answered, as long as it wants the same of that leader.

There are no fetch sessions here. Each fetch names all its partitions, which the protocol leaves to the
broker: an answer without a session id says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, cast

from braidmq.faces.kafka.forwarding.parts import changed, refusal, topic_key, without_addresses
from braidmq.faces.kafka.forwarding.routes import Route
from braidmq.net.peer_wire import PeerUnavailable
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from braidmq.wire.schema import encode

SLACK_S = 0.1
"""Past the client's wait, for answers that are on their way."""

Asked = asyncio.Future[object]
Ask = Callable[[int, bytes], Asked]
Seen = dict[tuple[str | bytes, int], tuple[int, int, int]]


class _Question(NamedTuple):
    body: bytes
    part: FetchRequest
    answer: Asked


class Fetching:
    """The fetches of one client."""

    def __init__(self, route: Route, bytes_max: int) -> None:
        self._route = route
        self._bytes_max = bytes_max
        self._asked: dict[int, _Question] = {}
        self._seen: Seen = {}
        """Watermarks and log start that the client was last shown of its partitions."""

    def without_session(self, request: FetchRequest) -> FetchRequest:
        """The same for a broker that is to keep nothing of it."""
        return cast(
            "FetchRequest", changed(request, session_id=0, session_epoch=-1, forgotten_topics_data=[])
        )

    async def fetch(self, parts: dict[int, FetchRequest], version: int, ask: Ask) -> FetchResponse:
        """What the leaders have, as soon as one of them has something."""
        loop = asyncio.get_running_loop()
        questions = {
            node_id: self._ask(node_id, part, version, len(parts), ask) for node_id, part in parts.items()
        }
        news: asyncio.Future[None] = loop.create_future()

        def look(_: object = None) -> None:
            if not news.done() and (
                any(_has_news(one.answer) for one in questions.values())
                or all(one.answer.done() for one in questions.values())
            ):
                news.set_result(None)

        for question in questions.values():
            question.answer.add_done_callback(look)
        wait_s = max(part.max_wait_ms for part in parts.values()) / 1000 + SLACK_S
        timer = loop.call_later(wait_s, _end, news)
        look()
        await news
        timer.cancel()
        for question in questions.values():
            question.answer.remove_done_callback(look)
        return self._answer(questions, version)

    def _ask(self, node_id: int, part: FetchRequest, version: int, count: int, ask: Ask) -> _Question:
        share = max(min(part.max_bytes, self._bytes_max) // count, 1)
        body = encode(changed(part, max_bytes=share, min_bytes=min(part.min_bytes, 1)), version)
        question = self._asked.get(node_id)
        if question is None or question.body != body:
            question = self._asked[node_id] = _Question(body, _kept(part), ask(node_id, body))
            question.answer.add_done_callback(_not_lost)
        return question

    def _answer(self, questions: dict[int, _Question], version: int) -> FetchResponse:
        whole = FetchResponse()
        seen: Seen = {}
        topics: dict[str | bytes, FetchableTopicResponse] = {}
        for node_id, question in questions.items():
            if question.answer.done():
                self._asked.pop(node_id, None)
                answer = self._result(question, version)
            else:
                answer = self._unchanged(question.part)
            whole.error_code = whole.error_code or answer.error_code
            whole.throttle_time_ms = max(whole.throttle_time_ms, answer.throttle_time_ms)
            for topic in answer.responses:
                key = topic_key(topic)
                first = topics.setdefault(key, topic)
                if first is not topic:
                    first.partitions += topic.partitions
                for one in topic.partitions:
                    seen[key, one.partition_index] = (
                        one.high_watermark, one.last_stable_offset, one.log_start_offset
                    )  # fmt: skip
        whole.responses = list(topics.values())
        self._seen = seen
        return whole

    def _result(self, question: _Question, version: int) -> FetchResponse:
        try:
            answer = cast("FetchResponse", without_addresses(cast("FetchResponse", question.answer.result())))
        except PeerUnavailable:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return cast("FetchResponse", refusal(self._route, question.part, version, code))
        answer.session_id = 0
        return answer

    def _unchanged(self, part: FetchRequest) -> FetchResponse:
        return FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic=topic.topic,
                    topic_id=topic.topic_id,
                    partitions=[self._unchanged_partition(topic, one.partition) for one in topic.partitions],
                )
                for topic in part.topics
            ]
        )

    def _unchanged_partition(self, topic: FetchTopic, index: int) -> PartitionData:
        high, stable, start = self._seen.get((topic_key(topic), index), (-1, -1, -1))
        return PartitionData(
            partition_index=index,
            high_watermark=high,
            last_stable_offset=stable,
            log_start_offset=start,
            records=b"",
        )


def _end(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)


def _kept(part: FetchRequest) -> FetchRequest:
    """The partitions alone, for when the answer does not come."""
    return FetchRequest(max_wait_ms=part.max_wait_ms, topics=part.topics)


def _has_news(answer: Asked) -> bool:
    """Whether it is there and says something: records, an error, or that nobody answers."""
    if not answer.done():
        return False
    if answer.cancelled() or answer.exception() is not None:
        return True
    found = cast("FetchResponse", answer.result())
    return found.error_code != ErrorCode.NONE or any(
        one.error_code != ErrorCode.NONE or one.records
        for topic in found.responses
        for one in topic.partitions
    )


def _not_lost(answer: Asked) -> None:
    """An answer that nobody wants any more may fail."""
    if not answer.cancelled():
        answer.exception()
