"""Speaks the Kafka protocol to a session of an embedded broker: a message in, the answering message out."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar, cast

from braidmq.broker.broker import Broker
from braidmq.faces.kafka.face import KafkaFace
from braidmq.faces.kafka.session import KafkaSession
from braidmq.log.files import FileSlice
from braidmq.net.connection import Connection, PendingReply
from braidmq.net.outbox import Parts
from braidmq.wire import header, schema
from braidmq.wire.api import response_class
from braidmq.wire.schema import Message
from unit.embedded import embedded

R = TypeVar("R", bound=Message)


class Speaker:
    """A client without a socket."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.face = KafkaFace(broker)
        self.face.advertise("broker.example.com", 9092)
        self.closed: list[str] = []
        """Why the broker closed the connection; the next request comes on it all the same."""
        connection = SimpleNamespace(
            peer="127.0.0.1", address="127.0.0.1:1", last_active=0.0, sent_bytes=0, close=self.closed.append
        )
        self.session = KafkaSession(self.face, cast(Connection, connection))

    def close(self) -> None:
        """As if the connection were gone; the next request comes on it all the same."""
        self.session.on_closed()

    async def ask(self, request: Message, expected: type[R], version: int | None = None) -> R:
        """Sends `request` in its newest version, or the one given, and reads the answer."""
        spoken = request.versions[1] if version is None else version
        answer = self.send(request, spoken)
        if isinstance(answer, PendingReply):
            for _ in range(1000):
                if answer.done:
                    break
                await asyncio.sleep(0.005)
            answer = answer.parts
        assert answer is not None, "no answer came"
        whole = b"".join(part.read() if isinstance(part, FileSlice) else part for part in answer)
        assert response_class(request.api) is expected
        at = 8 + (1 if header.has_response_tags(request.api, spoken) else 0)
        return schema.decode(expected, spoken, whole[at:])

    def tell(self, request: Message, version: int | None = None) -> None:
        """Sends `request`, which has no answer."""
        answer = self.send(request, request.versions[1] if version is None else version)
        assert answer is None, "an answer came"

    def send(self, request: Message, version: int) -> Parts | PendingReply | None:
        """What the session gives the connection for `request`."""
        body = header.request(request.api, version, 7, "test") + schema.encode(request, version)
        return self.session.on_frame(memoryview(bytearray(struct.pack(">i", len(body)) + body)))


@asynccontextmanager
async def speaker(data: Path, **options: object) -> AsyncIterator[Speaker]:
    async with embedded(data, **options) as broker:
        yield Speaker(broker)
