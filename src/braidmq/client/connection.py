"""One TCP connection to one broker: frames out, frames in, answers in the order of the questions.

On connecting, the broker is asked which versions it serves; `version` then picks the newest both sides know.
Requests may be pipelined: `send` several, then `receive` as many. Any failure closes the connection, because
where the next answer would begin is no longer known.
"""

from __future__ import annotations

import socket
import ssl
from types import TracebackType
from typing import Self, TypeVar

from braidmq.address import Address
from braidmq.client.errors import AuthenticationFailed, ClientError, TimedOut, Unreachable
from braidmq.client.sasl import SaslFailed, exchange
from braidmq.client.security import Credentials, Security, tls_context
from braidmq.wire import header, schema
from braidmq.wire.api import PRIVATE_FROM, Api, flexible_from
from braidmq.wire.errors import ErrorCode, ProtocolError
from braidmq.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from braidmq.wire.messages.versions import ApiVersionsRequest, ApiVersionsResponse
from braidmq.wire.primitives import skip_tagged_fields
from braidmq.wire.schema import Message

CLIENT_ID = "braid"
TIMEOUT_S = 30.0
FRAME_BYTES_MAX = 268_435_456
"""An answer that claims to be larger than this is not one of a Kafka broker."""

UNPROTECTED = Security()

R = TypeVar("R", bound=Message)


class FrameRoom:
    """A buffer for large answers, each over the last: fresh memory costs as much as filling it."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def take(self, size: int) -> memoryview:
        """Room for `size` bytes; what was received here before is gone."""
        if len(self._buffer) < size:
            self._buffer = bytearray(size + size // 4)
        return memoryview(self._buffer)[:size]


class Connection:
    """A connection in use by one thread. `timeout_s` bounds connecting and every wait for an answer."""

    def __init__(
        self,
        address: Address,
        *,
        client_id: str = CLIENT_ID,
        timeout_s: float = TIMEOUT_S,
        security: Security = UNPROTECTED,
    ) -> None:
        self.address = address
        self._client_id = client_id
        self._security = security
        self._timeout_s = timeout_s
        self._correlation_id = 0
        self.closed = False
        self._socket = self._connect()
        self._reader = self._socket.makefile("rb")
        self._versions: dict[int, tuple[int, int]] = {}
        try:
            self._versions = self._ask_versions()
            if security.credentials is not None:
                self._authenticate(security.credentials)
        except BaseException:
            self.close()
            raise

    @property
    def is_local(self) -> bool:
        """Whether both ends have the same address, which only a broker on this machine can have."""
        if self.closed or self._socket.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        return bool(self._socket.getpeername()[0] == self._socket.getsockname()[0])

    def version(self, request: type[Message], newest: int | None = None) -> int:
        """The newest version of a request both sides speak, at most `newest`."""
        ours_oldest, ours_newest = request.versions
        # Nobody advertises verbs of Braid's own; one that does not know them closes the connection.
        unknown = request.versions if request.api >= PRIVATE_FROM else (0, -1)
        theirs_oldest, theirs_newest = self._versions.get(request.api, unknown)
        best = min(ours_newest, theirs_newest, ours_newest if newest is None else newest)
        if best < max(ours_oldest, theirs_oldest):
            raise ClientError(f"{self.address} does not serve a version of {request.api.name} that we know")
        return best

    def call(
        self, request: Message, answer: type[R], newest: int | None = None, timeout_s: float | None = None
    ) -> R:
        """Sends one request and waits for its answer."""
        version = self.version(type(request), newest)
        self.send(request, version)
        return self.receive(answer, version, timeout_s)

    def send(self, request: Message, version: int) -> None:
        """Sends a request whose answer is received later, or never asked for."""
        self.send_frame(self.frame(request.api, version, schema.encode(request, version)))

    def frame(self, api: Api, version: int, body: bytes) -> bytes:
        """Size, header and body, ready for `send_frame`."""
        self._correlation_id += 1
        head = header.request(api, version, self._correlation_id, self._client_id)
        return (len(head) + len(body)).to_bytes(4, "big") + head + body

    def send_frame(self, frame: bytes) -> None:
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(frame)
        except OSError as error:
            raise self._broken(error) from None

    def receive(
        self, answer: type[R], version: int, timeout_s: float | None = None, room: FrameRoom | None = None
    ) -> R:
        """The next answer, which must be of the kind and version that was asked for first.

        With `room`, what it holds of records is valid until the next answer is received there.
        """
        frame = self.receive_frame(timeout_s, room)
        try:
            at = 4
            if version >= flexible_from(answer.api) and answer.api is not Api.API_VERSIONS:
                at = skip_tagged_fields(frame, at + 1, frame[at])
            return schema.decode(answer, version, frame[at:])
        except (ProtocolError, IndexError) as error:
            self.close()
            raise ClientError(f"{self.address} sent an answer that cannot be read: {error}") from None

    def receive_frame(self, timeout_s: float | None = None, room: FrameRoom | None = None) -> memoryview:
        """One answer without its size, beginning with the correlation id."""
        try:
            self._socket.settimeout(self._timeout_s if timeout_s is None else timeout_s)
            size = int.from_bytes(self._read(4), "big", signed=True)
            if not 4 <= size <= FRAME_BYTES_MAX:
                self.close()
                raise ClientError(f"{self.address} does not speak Kafka's protocol: frame of {size} bytes")
            return self._read(size, room)
        except OSError as error:
            raise self._broken(error) from None

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._reader.close()
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self) -> socket.socket:
        try:
            connected = socket.create_connection(self.address, timeout=self._timeout_s)
        except OSError as error:
            self.closed = True
            reason = error.strerror or str(error)
            raise Unreachable(f"cannot reach {self.address}: {reason}; is a broker running there?") from None
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._encrypted(connected) if self._security.protocol.encrypted else connected

    def _encrypted(self, plain: socket.socket) -> socket.socket:
        try:
            context = tls_context(self._security.certificates)
            return context.wrap_socket(plain, server_hostname=self.address.host)
        except (ssl.CertificateError, ssl.SSLError) as error:
            reason = f"the TLS handshake with {self.address} failed: {error}"
            raise AuthenticationFailed(f"{reason}; check security.protocol and the certificates") from None
        except OSError as error:
            raise Unreachable(f"lost the connection to {self.address}: {error.strerror or error}") from None
        finally:
            # Wrapping detaches the plain socket; where it failed, nothing else would close it.
            plain.close()

    def _authenticate(self, credentials: Credentials) -> None:
        """SASL over SaslAuthenticate frames (KIP-152); AuthenticationFailed with the broker's reason."""
        who = f"{credentials.mechanism.value} {credentials.username}".strip()
        handshake = SaslHandshakeRequest(mechanism=credentials.mechanism.value)
        agreed = self.call(handshake, SaslHandshakeResponse)
        if agreed.error_code != ErrorCode.NONE:
            offered = ", ".join(agreed.mechanisms) or "none"
            raise AuthenticationFailed(
                f"{self.address} does not offer {credentials.mechanism.value}: {offered}"
            )
        messages = exchange(credentials)
        try:
            message = next(messages)
            while True:
                answer = self.call(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse)
                if answer.error_code != ErrorCode.NONE:
                    why = answer.error_message or ErrorCode(answer.error_code).name.lower()
                    raise AuthenticationFailed(f"{self.address} refused {who}: {why}")
                message = messages.send(answer.auth_bytes)
        except StopIteration:
            return
        except SaslFailed as error:
            raise AuthenticationFailed(f"{self.address}, {who}: {error}") from None

    def _ask_versions(self) -> dict[int, tuple[int, int]]:
        try:
            # Version 0 is the one every broker answers.
            self.send(ApiVersionsRequest(), 0)
            answer = self.receive(ApiVersionsResponse, 0)
        except Unreachable as error:
            if self._security.protocol.encrypted:
                raise
            raise Unreachable(f"{error}; if it expects TLS, set security.protocol") from None
        if answer.error_code != ErrorCode.NONE:
            raise ClientError(f"{self.address} refused to say which versions it serves: {answer.error_code}")
        return {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}

    def _read(self, size: int, room: FrameRoom | None = None) -> memoryview:
        frame = memoryview(bytearray(size)) if room is None else room.take(size)
        at = 0
        while at < size:
            count = self._reader.readinto(frame[at:])
            if count == 0:
                raise ConnectionResetError("the broker closed the connection")
            at += count
        return frame

    def _broken(self, error: OSError) -> ClientError:
        was_closed = self.closed
        self.close()
        if isinstance(error, TimeoutError):
            waited = f"{self.address} did not answer in {self._timeout_s:g} s"
            return TimedOut(f"{waited}; it is stopped, overloaded or cut off")
        reason = "closed already" if was_closed else error.strerror or str(error)
        return Unreachable(f"lost the connection to {self.address}: {reason}")
