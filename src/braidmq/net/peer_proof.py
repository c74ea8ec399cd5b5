"""How two brokers of a cluster prove to each other who they are.

Both know the cluster's secret. The caller says hello: who it is, whom it means to reach, what for, and a
nonce. The called side answers who it is, a nonce of its own, and an HMAC-SHA256 with the secret over
everything said so far; the caller then gives its own. The secret is never on the wire.

A proof covers both messages whole, so both node ids, both broker epochs, the cluster, the purpose and both
nonces: it is good for this one conversation. It begins with the role of who gives it, so that it cannot be
sent back to its author. What follows on the connection is not encrypted.

The messages travel as the bytes of SaslAuthenticate, after a SaslHandshake for `BRAID-PEER`. This module is
the conversation without a connection; `net/peer_link.py` calls, `faces/kafka/peer_proof.py` is called.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from braidmq.platform.randomness import random_bytes
from braidmq.wire.errors import ProtocolError
from braidmq.wire.schema import M, Message, data, decode, encode, int8, int32, int64, string

MECHANISM = "BRAID-PEER"
VERSION = 1
NONCE_BYTES = 32
SECRET_BYTES_MIN = 32
MESSAGE_BYTES_MAX = 1024
_CALLER = b"braid peer 1 caller"
_CALLED = b"braid peer 1 called"


class ProofRefused(Exception):
    """The other side is not the broker it should be, or does not take us for one; the message says why."""


class Purpose(StrEnum):
    """What a connection between brokers is for."""

    CONTROL = "control"
    BULK = "bulk"
    """Large answers, which would delay a small question on the same connection."""
    FORWARD = "forward"
    """Requests of one client, with no more rights than it has."""


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """A broker that has proved itself."""

    node_id: int
    epoch: int
    purpose: Purpose
    client_host: str = ""
    """Where the client is whose requests are forwarded."""


class PeerDirectory(Protocol):
    """What a broker knows of itself and of the others."""

    node_id: int

    @property
    def epoch(self) -> int:
        """Its own broker epoch; -1 before it is registered."""
        ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def secret(self) -> bytes:
        """The cluster's secret; empty while it is not known."""
        ...

    def epoch_of(self, node_id: int) -> int:
        """The epoch of a broker that runs; else -1."""
        ...

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        """Where a broker accepts connections; None while it does not run."""
        ...


class _Hello(Message):
    version: int = int8()
    cluster_id: str = string()
    node_id: int = int32()
    epoch: int = int64()
    target: int = int32()
    purpose: str = string()
    client_host: str = string()
    nonce: bytes = data()


class _Challenge(Message):
    node_id: int = int32()
    epoch: int = int64()
    nonce: bytes = data()
    proof: bytes = data()


class CallerProof:
    """The side that connects: `hello`, then `answer` to what comes back."""

    def __init__(
        self, directory: PeerDirectory, target: int, purpose: Purpose, client_host: str = ""
    ) -> None:
        self._directory = directory
        self._target = target
        self.epoch = directory.epoch
        """Under which this side proves itself."""
        self.hello = encode(
            _Hello(
                version=VERSION,
                cluster_id=directory.cluster_id,
                node_id=directory.node_id,
                epoch=self.epoch,
                target=target,
                purpose=purpose.value,
                client_host=client_host,
                nonce=random_bytes(NONCE_BYTES),
            ),
            0,
        )

    def answer(self, message: bytes) -> bytes:
        """Our proof, once the other side's is right."""
        challenge = _read(_Challenge, message)
        if challenge.node_id != self._target:
            raise ProofRefused(f"it is broker {challenge.node_id}, not {self._target}")
        if len(challenge.nonce) != NONCE_BYTES:
            raise ProofRefused(f"its nonce has {len(challenge.nonce)} bytes")
        said = bytes(challenge.proof)
        challenge.proof = b""
        about = _about(self.hello, encode(challenge, 0))
        secret = _checked_secret(self._directory)
        if not hmac.compare_digest(_mac(secret, _CALLED, about), said):
            raise ProofRefused("it does not know this cluster's secret")
        if challenge.epoch < self._directory.epoch_of(self._target):
            raise ProofRefused(f"it runs under epoch {challenge.epoch}, which another run has replaced")
        return _mac(secret, _CALLER, about)


class CalledProof:
    """The side that was connected to: `challenge` for a hello, then `verify`, once each."""

    def __init__(self, directory: PeerDirectory) -> None:
        self._directory = directory
        self._about: bytes | None = None
        self._claimed: PeerIdentity | None = None

    @property
    def greeted(self) -> bool:
        """Whether a hello was answered, so that a proof is due."""
        return self._about is not None

    def challenge(self, message: bytes) -> bytes:
        """The answer to a hello, with our own proof."""
        assert self._about is None, "one hello in a conversation"
        hello = _read(_Hello, message)
        directory = self._directory
        if hello.version != VERSION:
            raise ProofRefused(f"it speaks version {hello.version} of {MECHANISM}, this broker {VERSION}")
        if hello.cluster_id != directory.cluster_id:
            raise ProofRefused(
                f"it belongs to the cluster {hello.cluster_id!r:.60}, this broker to {directory.cluster_id}"
            )
        if hello.target != directory.node_id:
            raise ProofRefused(f"it looks for broker {hello.target}, this is broker {directory.node_id}")
        if len(hello.nonce) != NONCE_BYTES:
            raise ProofRefused(f"its nonce has {len(hello.nonce)} bytes")
        try:
            purpose = Purpose(hello.purpose)
        except ValueError:
            raise ProofRefused(f"it connects for {hello.purpose!r:.60}, which is unknown") from None
        answer = _Challenge(
            node_id=directory.node_id, epoch=directory.epoch, nonce=random_bytes(NONCE_BYTES), proof=b""
        )
        self._about = _about(message, encode(answer, 0))
        self._claimed = PeerIdentity(hello.node_id, hello.epoch, purpose, hello.client_host)
        answer.proof = _mac(_checked_secret(directory), _CALLED, self._about)
        return encode(answer, 0)

    def verify(self, message: bytes) -> PeerIdentity:
        """Who is calling, if its proof is right."""
        about, claimed = self._about, self._claimed
        assert about is not None, "a hello comes first"
        assert claimed is not None, "a hello comes first"
        if not hmac.compare_digest(_mac(_checked_secret(self._directory), _CALLER, about), message):
            raise ProofRefused(f"it claims to be broker {claimed.node_id} without the cluster's secret")
        if is_stale(self._directory, claimed):
            raise ProofRefused(
                f"broker {claimed.node_id} runs under epoch {claimed.epoch}, which another run has replaced"
            )
        return claimed


def is_stale(directory: PeerDirectory, peer: PeerIdentity) -> bool:
    """Whether a later run, or a later registration, has taken the place of `peer`."""
    return peer.epoch < directory.epoch_of(peer.node_id)


def _checked_secret(directory: PeerDirectory) -> bytes:
    # With an empty or a short one, anybody could prove anything.
    if len(directory.secret) < SECRET_BYTES_MIN:
        raise ProofRefused("the cluster's secret is missing or damaged on this side")
    return directory.secret


def _about(hello: bytes, challenge: bytes) -> bytes:
    return len(hello).to_bytes(4, "big") + hello + challenge


def _mac(secret: bytes, role: bytes, about: bytes) -> bytes:
    return hmac.digest(secret, role + about, "sha256")


def _read(kind: type[M], message: bytes) -> M:
    if len(message) > MESSAGE_BYTES_MAX:
        raise ProofRefused(f"a message of {len(message)} bytes")
    try:
        return decode(kind, 0, memoryview(message))
    except ProtocolError as error:
        raise ProofRefused(f"a message that cannot be read: {error}") from None
