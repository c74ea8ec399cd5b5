"""The proof between brokers, without a connection: what is accepted, and every way to be refused."""

from __future__ import annotations

import pytest

from braidmq.net.peer_proof import CalledProof, CallerProof, PeerIdentity, ProofRefused, Purpose
from unit.net.peers import Directory


def converse(caller: Directory, called: Directory, target: int = 1) -> PeerIdentity:
    theirs = CalledProof(called)
    ours = CallerProof(caller, target, Purpose.CONTROL)
    return theirs.verify(ours.answer(theirs.challenge(ours.hello)))


def test_two_brokers_of_a_cluster_prove_themselves() -> None:
    """N4: both sides know the secret; the called one learns who calls, under which epoch, and what for."""
    assert converse(Directory(0, epoch=12), Directory(1)) == PeerIdentity(0, 12, Purpose.CONTROL)


@pytest.mark.parametrize(
    ("caller", "called", "why"),
    [
        (Directory(0, cluster_id="two"), Directory(1), "belongs to the cluster 'two'"),
        (Directory(0), Directory(2), "looks for broker 1, this is broker 2"),
        (Directory(0), Directory(1, secret=b"x" * 32), "does not know this cluster's secret"),
        (Directory(0), Directory(1, secret=b""), "missing or damaged"),
        (Directory(0, secret=b"short"), Directory(1), "missing or damaged"),
    ],
)
def test_a_broker_of_somewhere_else_is_refused(caller: Directory, called: Directory, why: str) -> None:
    """N4: another cluster, another node, another secret: each is refused with its reason."""
    with pytest.raises(ProofRefused, match=why):
        converse(caller, called)


def test_an_epoch_that_was_replaced_is_refused_on_both_sides() -> None:
    """N4: a run whose place another has taken can neither call nor be called."""
    called = Directory(1)
    called.epochs[0] = 8
    with pytest.raises(ProofRefused, match="broker 0 runs under epoch 7, which another run has replaced"):
        converse(Directory(0, epoch=7), called)
    caller = Directory(0)
    caller.epochs[1] = 8
    with pytest.raises(ProofRefused, match="it runs under epoch 7"):
        converse(caller, Directory(1, epoch=7))
    assert converse(Directory(0, epoch=9), called).epoch == 9, "the image may be late, the epoch may not"


def test_a_proof_is_good_for_one_conversation_and_one_direction() -> None:
    """N4: what was said in one conversation, or by the other side, proves nothing."""
    secret_holder, called = Directory(0), Directory(1)
    first = CalledProof(called)
    caller = CallerProof(secret_holder, 1, Purpose.CONTROL)
    challenge = first.challenge(caller.hello)
    proof = caller.answer(challenge)
    again = CalledProof(called)
    again.challenge(caller.hello)
    with pytest.raises(ProofRefused, match="without the cluster's secret"):
        again.verify(proof)  # replayed
    reflected = CalledProof(called)
    told = reflected.challenge(caller.hello)
    with pytest.raises(ProofRefused, match="without the cluster's secret"):
        reflected.verify(told[-32:])  # its own proof, sent back
    other = CallerProof(secret_holder, 1, Purpose.CONTROL)
    with pytest.raises(ProofRefused, match="does not know this cluster's secret"):
        other.answer(challenge)


def test_what_is_said_cannot_be_changed_on_the_way() -> None:
    """N4: the proof covers every byte of both messages, the purpose and the client's host, too."""
    theirs = CalledProof(Directory(1))
    ours = CallerProof(Directory(0), 1, Purpose.FORWARD, "10.0.0.1")
    changed = ours.hello.replace(b"10.0.0.1", b"10.0.0.2")
    with pytest.raises(ProofRefused, match="does not know this cluster's secret"):
        ours.answer(theirs.challenge(changed))


@pytest.mark.parametrize("message", [b"", b"\0" * 5, b"\xff" * 300, b"x" * 2000])
def test_bytes_that_are_no_hello_are_refused(message: bytes) -> None:
    """N4: whatever comes is read or refused, and nothing else."""
    with pytest.raises(ProofRefused):
        CalledProof(Directory(1)).challenge(message)
