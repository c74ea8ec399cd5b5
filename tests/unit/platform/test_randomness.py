"""Random identifiers, and where they come from."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from braidmq.platform.randomness import new_uuid, random_below, random_bytes, replace_source


@pytest.fixture
def seeded() -> Iterator[None]:
    before = replace_source(random.Random(7).randbytes)
    yield
    replace_source(before)


@pytest.mark.usefixtures("seeded")
def test_a_seeded_source_gives_the_same_identifiers_again() -> None:
    """N4: all randomness of a broker comes from the one source, which a simulation can replace."""
    first = (new_uuid(), random_bytes(8), random_below(1000))
    replace_source(random.Random(7).randbytes)
    assert (new_uuid(), random_bytes(8), random_below(1000)) == first


def test_identifiers_are_random_unless_replaced() -> None:
    """N4: version 4, and no two alike."""
    made = {new_uuid() for _ in range(100)}
    assert len(made) == 100
    assert all(one[6] >> 4 == 4 for one in made)
