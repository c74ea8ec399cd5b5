"""TLS and SASL in front of a broker that speaks neither: a listener that lets in who shows the right things.

TLS is the real one. Of SASL there is PLAIN with one user; until somebody has proved to be that user, only the
questions that lead there are answered, and everything else ends the connection. What follows is passed on as
it is. Start the broker with `advertise` set to the address of this door, or clients go around it.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self

from braidmq.address import Address, parse_address
from braidmq.wire import schema
from braidmq.wire.api import Api
from braidmq.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from braidmq.wire.messages.versions import ApiVersion, ApiVersionsResponse

SASL_AUTHENTICATION_FAILED = 58
UNSUPPORTED_SASL_MECHANISM = 33
CHUNK_BYTES = 65_536


class Certificate(NamedTuple):
    """A chain and its key, in files."""

    chain: Path
    key: Path


class User(NamedTuple):
    name: str
    password: str

    def as_plain(self) -> bytes:
        return f"\0{self.name}\0{self.password}".encode()


def make_certificate(place: Path) -> Certificate:
    """One for 127.0.0.1 that signs itself."""
    chain, key = place / "chain.pem", place / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=broker", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(key), "-out", str(chain)]
    subprocess.run(command, check=True, capture_output=True)
    return Certificate(chain, key)


class Door:
    """Listens from the start; `leads_to` names the broker behind it, as soon as there is one."""

    def __init__(
        self, certificate: Certificate | None = None, *, asks_for_one: bool = False, user: User | None = None
    ) -> None:
        self.leads_to = ""
        self._user = user
        self._context: ssl.SSLContext | None = None
        if certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(*certificate)
            if asks_for_one:
                self._context.verify_mode = ssl.CERT_REQUIRED
                self._context.load_verify_locations(certificate.chain)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self.let_in = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._admit, args=(plain,), daemon=True).start()

    def _admit(self, plain: socket.socket) -> None:
        try:
            client = plain if self._context is None else self._context.wrap_socket(plain, server_side=True)
        except (ssl.SSLError, OSError):
            plain.close()
            return
        broker = socket.create_connection(parse_address(self.leads_to))
        try:
            admitted = self._user is None or _authenticated(client, broker, self._user)
        except (OSError, EOFError):
            admitted = False
        if not admitted:
            client.close()
            broker.close()
            return
        self.let_in += 1
        for source, sink in ((client, broker), (broker, client)):
            threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while content := source.recv(CHUNK_BYTES):
            sink.sendall(content)
    except OSError:
        pass
    for each in (source, sink):
        each.close()


def _authenticated(client: socket.socket, broker: socket.socket, user: User) -> bool:
    """Versions, handshake, authentication; False at the first thing that is something else."""
    # Unbuffered: what comes behind the last of these frames is not ours.
    stream = client.makefile("rwb", buffering=0)
    while True:
        frame = _read_frame(stream)
        api, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
        correlation, body = frame[4:8], frame[10 + int.from_bytes(frame[8:10], "big") :]
        if api == Api.API_VERSIONS and version == 0:
            _write_frame(stream, correlation + _versions(broker, frame))
        elif api == Api.SASL_HANDSHAKE:
            wanted = schema.decode(SaslHandshakeRequest, version, memoryview(body)).mechanism
            code = 0 if wanted == "PLAIN" else UNSUPPORTED_SASL_MECHANISM
            answer = SaslHandshakeResponse(error_code=code, mechanisms=["PLAIN"])
            _write_frame(stream, correlation + schema.encode(answer, version))
        elif api == Api.SASL_AUTHENTICATE:
            shown = schema.decode(SaslAuthenticateRequest, version, memoryview(body)).auth_bytes
            if shown == user.as_plain():
                _write_frame(stream, correlation + schema.encode(SaslAuthenticateResponse(), version))
                return True
            refusal = SaslAuthenticateResponse(
                error_code=SASL_AUTHENTICATION_FAILED, error_message="no such pair"
            )
            _write_frame(stream, correlation + schema.encode(refusal, version))
        else:
            return False


def _versions(broker: socket.socket, frame: bytes) -> bytes:
    """What the broker serves, and what the door does."""
    with broker.makefile("rwb", buffering=0) as stream:
        _write_frame(stream, frame)
        answer = schema.decode(ApiVersionsResponse, 0, memoryview(_read_frame(stream)[4:]))
    answer.api_keys += [
        ApiVersion(api_key=api, min_version=0, max_version=1)
        for api in (Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE)
    ]
    return schema.encode(answer, 0)


def _read_frame(stream: IO[bytes]) -> bytes:
    return _read(stream, int.from_bytes(_read(stream, 4), "big"))


def _read(stream: IO[bytes], size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = stream.read(size - len(content))
        if not part:
            raise EOFError
        content += part
    return content


def _write_frame(stream: IO[bytes], content: bytes) -> None:
    stream.write(len(content).to_bytes(4, "big") + content)
