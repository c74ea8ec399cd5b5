"""The fuzzers' corpus replayed, and a short slice of fuzzing from a new seed each time."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from fuzz import broker, run, targets

from braidmq.faces.kafka.session import KafkaSession
from braidmq.wire import records
from braidmq.wire.records import build_batch

TARGETS = ("batches", "messages", "frames")
SLICE_S = 2.0


@pytest.fixture(autouse=True)
def _clean_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # The batches target lowers the cap for speed; the next test wants the real one.
    monkeypatch.setattr(records, "INFLATED_BYTES_MAX", records.INFLATED_BYTES_MAX)
    yield
    broker.close()


@pytest.mark.parametrize("target", TARGETS)
def test_every_promise_holds_for_the_corpus(target: str) -> None:
    """W5: sound inputs, and those that once broke something."""
    inputs = run.corpus(target)
    assert len(inputs) > 20
    for name, content in inputs.items():
        assert run.attempt(target, content) is None, name


@pytest.mark.parametrize("target", TARGETS)
def test_a_slice_of_fuzzing_finds_nothing(target: str) -> None:
    """W5: damaged and strange inputs; the output names the seed, and a finding lies in fuzz/findings."""
    seed = random.SystemRandom().randrange(2**32)
    assert run.run_random(target, SLICE_S, seed) == 0, f"seed {seed}"


PLANTED: dict[str, tuple[str, object, str, object]] = {
    "part of a batch": ("batches", records, "fault", lambda *_: None),
    "recompressing": ("batches", records, "recompress", lambda *_: build_batch([(None, b"", [], 0)])),
    "ProtocolError": ("messages", targets, "encode", lambda *_: b"\0"),
    "the broker failed": ("frames", KafkaSession, "on_frame", lambda *_: 1 // 0),
    "has an answer": ("frames", KafkaSession, "on_frame", lambda *_: None),
    "begins with its header": ("frames", KafkaSession, "on_frame", lambda *_: [b"\0\0\0\4abcd"]),
}


@pytest.mark.parametrize("complaint", PLANTED)
def test_a_planted_bug_is_found(complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """W5: the fuzzers can fail, and say what broke."""
    target, owner, name, wrong = PLANTED[complaint]
    monkeypatch.setattr(owner, name, wrong)
    found = [run.attempt(target, content) for content in run.corpus(target).values()]
    assert any(complaint in text for text in found if text)
