"""What a user sees of a failure: one sentence that says what is wrong, and no way through our files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def told(sentence: str) -> Iterator[None]:
    """Something fails with a message that matches, without a traceback of Python inside of it."""
    with pytest.raises(Exception, match=f"(?s){sentence}") as failed:
        yield
    assert "Traceback" not in str(failed.value)
