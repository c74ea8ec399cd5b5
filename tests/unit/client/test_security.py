"""TLS and SASL of the client: real TLS before a real broker, the server's half of SASL played in tests."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterator

import pytest
from tests.secured import Certificate, Door, User, make_certificate

from braidmq.address import Address
from braidmq.client.cluster import Cluster
from braidmq.client.connection import Connection
from braidmq.client.errors import AuthenticationFailed
from braidmq.client.sasl import SaslFailed, exchange
from braidmq.client.security import Credentials, Mechanism, Security, SecurityError, parse_security
from braidmq.wire.messages.metadata import MetadataRequest, MetadataResponse

SCRAM = {Mechanism.SCRAM_SHA_256: "sha256", Mechanism.SCRAM_SHA_512: "sha512"}


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls_broker(bootstrap: str, certificate: Certificate) -> Iterator[Callable[[bool], Address]]:
    """Starts TLS in front of the shared broker; `True` asks clients for a certificate."""
    doors = []

    def start(ask: bool) -> Address:
        door = Door(certificate, asks_for_one=ask)
        door.leads_to = bootstrap
        doors.append(door)
        return door.address

    yield start
    for door in doors:
        door.close()


def test_a_broker_behind_tls_is_reached(
    tls_broker: Callable[[bool], Address], certificate: Certificate
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
    with pytest.raises(AuthenticationFailed, match=r"TLS handshake.*self.signed certificate"):
        Connection(address, security=parse_security({"security.protocol": "SSL"}))


def test_a_client_shows_its_own_certificate(
    tls_broker: Callable[[bool], Address], certificate: Certificate
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
    tls_broker: Callable[[bool], Address], certificate: Certificate
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
def test_a_connection_says_who_it_is_before_anything_else(
    bootstrap: str, password: str, refused: bool
) -> None:
    """S1: handshake and authentication on the wire, and the broker's own words when it says no."""
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    settings["sasl.jaas.config"] = f'x.PlainLoginModule required username="bob" password="{password}";'
    with Door(user=User("bob", "pw")) as door:
        door.leads_to = bootstrap
        if refused:
            with pytest.raises(AuthenticationFailed, match=f"{door.address} refused PLAIN bob: no such pair"):
                Connection(door.address, security=parse_security(settings))
            return
        with Connection(door.address, security=parse_security(settings)) as connection:
            assert connection.call(MetadataRequest(topics=[]), MetadataResponse).brokers
        with pytest.raises(AuthenticationFailed, match="does not offer SCRAM-SHA-256: PLAIN"):
            Connection(door.address, security=parse_security(settings | {"sasl.mechanism": "SCRAM-SHA-256"}))


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
