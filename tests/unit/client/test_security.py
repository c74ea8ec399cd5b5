"""TLS and SASL of the client: real TLS before a real broker, the server's half of SASL played here."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from braidmq.address import Address, parse_address
from braidmq.client.cluster import Cluster
from braidmq.client.connection import Connection
from braidmq.client.errors import AuthenticationFailed
from braidmq.client.sasl import SaslFailed, exchange
from braidmq.client.security import Credentials, Mechanism, Security, SecurityError, parse_security
from braidmq.wire import schema
from braidmq.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from braidmq.wire.messages.versions import ApiVersion, ApiVersionsResponse

SCRAM = {Mechanism.SCRAM_SHA_256: "sha256", Mechanism.SCRAM_SHA_512: "sha512"}


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    place = tmp_path_factory.mktemp("tls")
    chain, key = place / "chain.pem", place / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=broker",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(chain)]
    subprocess.run(command, check=True, capture_output=True)
    return chain, key


@pytest.fixture
def tls_broker(bootstrap: str, certificate: tuple[Path, Path]) -> Iterator[Callable[[bool], Address]]:
    """Starts TLS in front of the shared broker; `True` asks clients for a certificate."""
    listeners = []

    def start(ask: bool) -> Address:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        if ask:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(certificate[0])
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threading.Thread(target=_serve, args=(listener, context, bootstrap), daemon=True).start()
        return Address("127.0.0.1", listener.getsockname()[1])

    yield start
    for listener in listeners:
        listener.close()


def _serve(listener: socket.socket, context: ssl.SSLContext, bootstrap: str) -> None:
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        try:
            client = context.wrap_socket(plain, server_side=True)
        except (ssl.SSLError, OSError):
            plain.close()
            continue
        server = socket.create_connection(parse_address(bootstrap))
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while content := source.recv(65536):
            sink.sendall(content)
    except OSError:
        pass
    for each in (source, sink):
        each.close()


def test_a_broker_behind_tls_is_reached(
    tls_broker: Callable[[bool], Address], certificate: tuple[Path, Path]
) -> None:
    """S1: trusting a file or the text of it; an unknown authority is refused."""
    address = tls_broker(False)
    for ca in (
        {"ssl.ca.location": str(certificate[0])},
        {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": certificate[0].read_text()},
        {"ssl.truststore.location": str(certificate[0])},
    ):
        with Connection(address, security=parse_security({"security.protocol": "SSL"} | ca)) as connection:
            assert connection.is_local
    with pytest.raises(AuthenticationFailed, match=r"not over TLS.*self.signed certificate"):
        Connection(address, security=parse_security({"security.protocol": "SSL"}))


def test_a_client_shows_its_own_certificate(
    tls_broker: Callable[[bool], Address], certificate: tuple[Path, Path]
) -> None:
    """S1: from files, or as text in the settings."""
    chain, key = certificate
    address = tls_broker(True)
    trust = {"security.protocol": "SSL", "ssl.ca.location": str(chain)}
    for own in (
        {"ssl.certificate.location": str(chain), "ssl.key.location": str(key)},
        {"ssl.keystore.certificate.chain": chain.read_text(), "ssl.keystore.key": key.read_text()},
    ):
        with Cluster(str(address), security=parse_security(trust | own)) as cluster:
            assert cluster.any_connection().address == address


def test_the_name_in_the_certificate_counts(
    tls_broker: Callable[[bool], Address], certificate: tuple[Path, Path]
) -> None:
    """S1: unless the check is turned off, as Kafka's clients do it."""
    address = Address("localhost", tls_broker(False).port)
    trust = {"security.protocol": "SSL", "ssl.ca.location": str(certificate[0])}

    with pytest.raises(AuthenticationFailed, match="localhost"):
        Connection(address, security=parse_security(trust))
    unchecked = parse_security(trust | {"ssl.endpoint.identification.algorithm": ""})
    with Connection(address, security=unchecked) as connection:
        assert not connection.closed


@pytest.mark.parametrize("mechanism", SCRAM)
def test_scram_proves_the_password_both_ways(mechanism: Mechanism) -> None:
    """S1: the proof is what RFC 5802 says, and a server that does not know the password is refused."""
    credentials = Credentials(mechanism, "a,b=c", "pencil")
    client = exchange(credentials)
    first = next(client).decode()
    server_first, verify = _scram_server(first, "pencil", SCRAM[mechanism])
    final = client.send(server_first.encode()).decode()

    assert first.startswith("n,,n=a=2Cb=3Dc,r=")
    signature = verify(final)
    with pytest.raises(StopIteration):
        client.send(signature)

    impostor = exchange(credentials)
    server_first, _ = _scram_server(next(impostor).decode(), "pencil", SCRAM[mechanism])
    impostor.send(server_first.encode())
    with pytest.raises(SaslFailed, match="impostor"):
        impostor.send(b"v=" + base64.b64encode(bytes(32)))


def _scram_server(first: str, password: str, digest: str) -> tuple[str, Callable[[str], bytes]]:
    """The server's first message, and what checks the client's proof and gives the server's."""
    bare = first.removeprefix("n,,")
    nonce = bare.partition(",r=")[2] + "server"
    salt = b"0123456789abcdef"
    server_first = f"r={nonce},s={base64.b64encode(salt).decode()},i=4096"

    def verify(final: str) -> bytes:
        without_proof, _, proof = final.partition(",p=")
        assert without_proof == f"c=biws,r={nonce}"
        signed = f"{bare},{server_first},{without_proof}".encode()
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, 4096)
        stored = hashlib.new(digest, hmac.new(salted, b"Client Key", digest).digest()).digest()
        mask = hmac.new(stored, signed, digest).digest()
        client_key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), mask, strict=True))
        assert hashlib.new(digest, client_key).digest() == stored
        server_key = hmac.new(salted, b"Server Key", digest).digest()
        return b"v=" + base64.b64encode(hmac.new(server_key, signed, digest).digest())

    return server_first, verify


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"r=somebody else's,s=c2FsdA==,i=4096", "nonce that is not ours"),
        (b"r=%s+,s=c2FsdA==,i=1", "1 iterations"),
        (b"r=%s+,s=c2FsdA==,i=99999999", "99999999 iterations"),
        (b"e=unknown-user", "refused bob: unknown-user"),
        (b"nonsense", "cannot be read"),
    ],
)
def test_a_strange_scram_server_is_refused(answer: bytes, complaint: str) -> None:
    """S1: foreign nonces and iteration counts that weaken the proof or burn time."""
    client = exchange(Credentials(Mechanism.SCRAM_SHA_256, "bob", "pw"))
    nonce = next(client).partition(b",r=")[2]

    with pytest.raises(SaslFailed, match=complaint):
        client.send(answer.replace(b"%s", nonce))


def test_plain_and_bearer_tokens_are_one_message() -> None:
    """S1: as RFC 4616 and 7628 write them."""
    assert next(exchange(Credentials(Mechanism.PLAIN, "bob", "pw"))) == b"\0bob\0pw"
    bearer = exchange(Credentials(Mechanism.OAUTHBEARER, token="abc"))
    assert next(bearer) == b"n,,\x01auth=Bearer abc\x01\x01"
    with pytest.raises(SaslFailed, match="invalid_token"):
        bearer.send(b'{"status":"invalid_token"}')


@pytest.mark.parametrize(("password", "refused"), [("pw", False), ("wrong", True)])
def test_a_connection_says_who_it_is_before_anything_else(password: str, refused: bool) -> None:
    """S1: handshake and authentication on the wire, and the broker's own words when it says no."""
    security = parse_security(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'x.PlainLoginModule required username="bob" password="{password}";',
        }
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=_plain_server, args=(listener,), daemon=True)
        server.start()
        address = Address("127.0.0.1", listener.getsockname()[1])
        if refused:
            with pytest.raises(AuthenticationFailed, match=f"{address} refused PLAIN bob: no such pair"):
                Connection(address, security=security)
        else:
            Connection(address, security=security).close()
        server.join(10)
    assert not server.is_alive()


def _plain_server(listener: socket.socket) -> None:
    connected, _ = listener.accept()
    with connected, connected.makefile("rwb") as stream:

        def answer(body: bytes) -> None:
            stream.write((len(body) + 4).to_bytes(4, "big") + correlation + body)
            stream.flush()

        for _ in range(3):
            frame = stream.read(int.from_bytes(stream.read(4), "big"))
            api, version, correlation = (
                int.from_bytes(frame[:2], "big"),
                int.from_bytes(frame[2:4], "big"),
                frame[4:8],
            )
            body = frame[10 + int.from_bytes(frame[8:10], "big") :]
            if api == 18:
                keys = [
                    ApiVersion(api_key=key, min_version=0, max_version=1) for key in (17, 18, 36)
                ]
                answer(schema.encode(ApiVersionsResponse(api_keys=keys), 0))
            elif api == 17:
                assert schema.decode(SaslHandshakeRequest, version, memoryview(body)).mechanism == "PLAIN"
                answer(schema.encode(SaslHandshakeResponse(mechanisms=["PLAIN"]), version))
            else:
                sent = schema.decode(SaslAuthenticateRequest, version, memoryview(body)).auth_bytes
                right = sent == b"\0bob\0pw"
                reply = SaslAuthenticateResponse(
                    error_code=0 if right else 58, error_message=None if right else "no such pair"
                )
                answer(schema.encode(reply, version))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"security.protocol": "TLS"}, "must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
            "must be one of PLAIN, SCRAM-SHA-256",
        ),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "PLAIN needs a user"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "needs a token"),
        (
            {"security.protocol": "SSL", "ssl.truststore.location": __file__},
            "is a JKS store, which only Java reads",
        ),
        ({"security.protocol": "SSL", "ssl.keystore.location": "/not/there"}, "/not/there: No such file"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, str], complaint: str) -> None:
    """S1: before anything is sent."""
    with pytest.raises(SecurityError, match=complaint):
        parse_security(settings)


def test_nothing_is_said_about_security_by_default() -> None:
    """S1: a plain connection, and secrets that do not show when printed."""
    assert parse_security({"client.id": "x"}) == Security()
    assert "hunter2" not in repr(Credentials(Mechanism.PLAIN, "bob", "hunter2"))
