"""The frames target: a real broker in this process, fed a stream of bytes through a real connection.

What must come back is known beforehand. `expected` reads the stream with the decoders alone and says which
requests deserve an answer and whether the connection must be closed; the broker has to give exactly those
answers, in that order, each one readable as the response of its request. It is fed twice, whole and byte by
byte, and the outcome must be the same. Between inputs a well-behaved client must not notice anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from braidmq.broker.broker import Broker
from braidmq.config import configure
from braidmq.faces.kafka.face import _HANDLERS as HANDLERS
from braidmq.faces.kafka.face import KafkaFace
from braidmq.faces.kafka.session import FRAME_BYTES_MIN, KafkaSession
from braidmq.net.buffers import BufferPool
from braidmq.net.connection import Connection, Limits
from braidmq.platform.network import SocketNetwork
from braidmq.wire import fetch, header, produce, records
from braidmq.wire.api import Api, request_class, response_class
from braidmq.wire.errors import ProtocolError
from braidmq.wire.messages.fetch import FetchResponse
from braidmq.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from braidmq.wire.messages.versions import ApiVersionsRequest
from braidmq.wire.schema import decode, decoder
from fuzz.seeds import TOPIC, TOPIC_ID, framed
from fuzz.targets import INFLATED_BYTES_MAX, Broken, require

FRAME_BYTES_MAX = 64 * 1024
CASES_PER_BROKER = 2000
CASES_PER_NEIGHBOUR = 50
SINGLE_BYTES_MAX = 400
ANSWER_S = 10.0
SETTINGS = {
    "net.frame.bytes.max": FRAME_BYTES_MAX,
    "partitions.max": 64,
    "num.partitions": 1,
    "fetch.wait.max.ms": 0,
    "flush": "async",
    "segment.bytes": 1 << 20,
    "disk.clean.percent": 100,
    "disk.force.percent": 100,
    "disk.full.percent": 100,
}


SERVED = [Api.PRODUCE, Api.FETCH, *HANDLERS]


class Answer(NamedTuple):
    """A response that a request deserves."""

    api: Api
    version: int
    correlation_id: int


class Outcome(NamedTuple):
    answers: list[Answer]
    closed: bool
    may_close: bool = False
    """There was a Produce with acks=0, whose refusal is the end of the connection."""


def frames(content: bytes) -> None:
    """One stream of requests; see the top of this module."""
    global _under_test
    records.INFLATED_BYTES_MAX = INFLATED_BYTES_MAX
    if _under_test is None or _under_test.cases >= CASES_PER_BROKER:
        close()
        _under_test = BrokerUnderTest()
    try:
        _under_test.judge(content.replace(TOPIC_ID, _under_test.topic_id()))
    except Exception:
        # What one finding left behind must not look like the next one.
        broken, _under_test = _under_test, None
        broken.abandon()
        raise


def close() -> None:
    """Stops the broker, if one runs."""
    global _under_test
    if _under_test is not None:
        _under_test.stop()
        _under_test = None


class BrokerUnderTest:
    """A broker over a directory of its own, the loop it runs on, and what went wrong in it."""

    def __init__(self) -> None:
        self.cases = 0
        self._failures: list[str] = []
        self._data = Path(tempfile.mkdtemp(prefix="braid-fuzz-"))
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._on_loop_error)
        self._log = _ErrorLog(self._failures)
        logging.getLogger("braid").addHandler(self._log)
        self._pool = BufferPool(1 << 24)
        self._limits = Limits(requests_max=100, send_bytes_max=1 << 20)
        self._broker, self._face = self._loop.run_until_complete(self._start())
        topic = CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1, assignments=[], configs=[])
        request = CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
        self._create = framed(Api.CREATE_TOPICS, 4, request)

    async def _start(self) -> tuple[Broker, KafkaFace]:
        broker = Broker(configure(SETTINGS), self._data)
        await broker.start()
        face = KafkaFace(broker)
        face.advertise("127.0.0.1", 9092)
        return broker, face

    def topic_id(self) -> bytes:
        """What the broker has chosen as the id of the topic; inputs carry a fixed id in its place."""
        topic = self._broker.topics.find(TOPIC)
        if topic is None:
            # At the start, and whenever an input has deleted it.
            self._compare(
                expected(self._create, self._face), self._feed([self._create]), "creating the topic"
            )
            topic = self._broker.topics.find(TOPIC)
        return TOPIC_ID if topic is None else topic.id

    def stop(self) -> None:
        try:
            self._loop.run_until_complete(self._broker.stop())
        finally:
            self._loop.close()
            logging.getLogger("braid").removeHandler(self._log)
            shutil.rmtree(self._data, ignore_errors=True)

    def abandon(self) -> None:
        """Stops a broker in which something is broken already."""
        with contextlib.suppress(Exception):
            self.stop()

    def judge(self, content: bytes) -> None:
        self.cases += 1
        wanted = expected(content, self._face)
        self._compare(wanted, self._feed([content]), "fed whole")
        if len(content) <= SINGLE_BYTES_MAX:
            self._compare(wanted, self._feed(bytes([byte]) for byte in content), "fed byte by byte")
        if self.cases % CASES_PER_NEIGHBOUR == 0:
            hello = framed(
                Api.API_VERSIONS, 3, ApiVersionsRequest(client_software_name="a", client_software_version="1")
            )
            self._compare(expected(hello, self._face), self._feed([hello]), "a neighbour's request")

    def _compare(self, wanted: Outcome, received: tuple[bytes, bool], how: str) -> None:
        answers, closed = received
        require(not self._failures, f"{how}: the broker failed: {self._failures[:1]}")
        right = closed == wanted.closed or (closed and wanted.may_close)
        require(right, f"{how}: the connection is {'closed' if closed else 'open'}")
        at = 0
        for answer in wanted.answers:
            if closed and at == len(answers):
                break  # answers under way may be lost with the connection
            size = int.from_bytes(answers[at : at + 4], "big")
            require(0 < size <= len(answers) - at - 4, f"{how}: {answer} has an answer")
            _read_answer(answer, answers[at + 4 : at + 4 + size])
            at += 4 + size
        require(at == len(answers), f"{how}: nothing is answered that was not asked")

    def _feed(self, pieces: Iterable[bytes]) -> tuple[bytes, bool]:
        """What the broker answers to these bytes, and whether it closed the connection."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        closings: list[str] = []
        connection = Connection(
            theirs,
            "fuzz",
            SocketNetwork(),
            self._loop,
            self._pool,
            self._limits,
            lambda _, why, __: closings.append(why),
            self._broker.readers.submit,
        )
        try:
            return self._loop.run_until_complete(self._converse(connection, ours, pieces, closings))
        finally:
            connection.close("the case is over")
            ours.close()
            require(self._pool.lent_bytes == 0, "a closed connection holds no buffer")

    async def _converse(
        self, connection: Connection, ours: socket.socket, pieces: Iterable[bytes], closings: list[str]
    ) -> tuple[bytes, bool]:
        answers = bytearray()
        connection.start(KafkaSession(self._face, connection))
        for piece in pieces:
            await self._send(ours, piece, answers, closings)
        deadline = self._loop.time() + ANSWER_S
        quiet_turns = 0
        while quiet_turns < 4 and not closings:
            require(self._loop.time() < deadline, "every answer comes in time")
            read = _receive(ours, answers)
            quiet_turns = quiet_turns + 1 if connection.settled and not read else 0
            await asyncio.sleep(0 if connection.settled else 0.0005)
        _receive(ours, answers)
        return bytes(answers), bool(closings)

    async def _send(self, ours: socket.socket, piece: bytes, answers: bytearray, closings: list[str]) -> None:
        while piece and not closings:
            try:
                piece = piece[ours.send(piece) :]
            except BlockingIOError:
                _receive(ours, answers)
            except ConnectionError:
                return
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def _on_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._failures.append(f"{context.get('message')}: {context.get('exception')!r}")


_under_test: BrokerUnderTest | None = None


class _ErrorLog(logging.Handler):
    """Errors the broker logs are findings: bytes from outside must not be able to cause one."""

    def __init__(self, failures: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._failures = failures

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        self._failures.append(f"{record.getMessage()}: {cause!r}")


def expected(content: bytes, face: KafkaFace) -> Outcome:
    """The answers a stream deserves, told from its bytes alone."""
    answers: list[Answer] = []
    may_close = False
    at = 0
    while len(content) - at >= 4:
        size = int.from_bytes(content[at : at + 4], "big", signed=True)
        if not FRAME_BYTES_MIN <= size <= FRAME_BYTES_MAX:
            return Outcome(answers, True)
        frame = memoryview(content)[at + 4 : at + 4 + size]
        if len(frame) < size:
            break
        try:
            answer = _deserved(frame, face)
        except ProtocolError:
            return Outcome(answers, True)
        if answer is not None:
            answers.append(answer)
        else:
            may_close = True
        at += 4 + size
    return Outcome(answers, False, may_close)


def _deserved(frame: memoryview, face: KafkaFace) -> Answer | None:
    """The answer to one request, None for Produce with acks=0; ProtocolError to close the connection."""
    request = header.parse_request(frame)
    api_key, version = request.api_key, request.api_version
    verb = face.verbs.get(api_key)
    if verb is None or not verb.lowest <= version <= verb.highest:
        if api_key == Api.API_VERSIONS:
            return Answer(Api.API_VERSIONS, 0, request.correlation_id)
        raise ProtocolError("not served")
    if api_key == Api.PRODUCE:
        if produce.decode(frame, request.body_at, version).acks == 0:
            return None
    elif api_key == Api.FETCH:
        fetch.decode(frame, request.body_at, version)
    else:
        # Bytes behind a request are not looked at, as in Kafka.
        decoder(request_class(verb.api), version)(frame, request.body_at)
    return Answer(verb.api, version, request.correlation_id)


def _read_answer(answer: Answer, body: bytes) -> None:
    prefix = header.response(answer.api, answer.version, answer.correlation_id)
    require(body.startswith(prefix), f"{answer} begins with its header")
    try:
        response = decode(response_class(answer.api), answer.version, body[len(prefix) :])
    except ProtocolError as error:
        raise Broken(f"{answer} can be read: {error}") from None
    if isinstance(response, FetchResponse):
        for topic in response.responses:
            for partition in topic.partitions:
                _judge_fetched(memoryview(partition.records or b""))


def _judge_fetched(view: memoryview) -> None:
    """Nothing is served that is not sound; only the last batch may be cut."""
    at = 0
    while len(view) - at >= records.HEADER_BYTES and records.parse_header(view, at).size <= len(view) - at:
        complaint = records.fault(view, at, len(view))
        require(complaint is None, f"a fetched batch is sound: {complaint}")
        at += records.parse_header(view, at).size


def _receive(ours: socket.socket, answers: bytearray) -> bool:
    """Takes what has arrived; whether anything had."""
    before = len(answers)
    try:
        while piece := ours.recv(1 << 16):
            answers += piece
    except (BlockingIOError, ConnectionError):
        pass
    return len(answers) > before
