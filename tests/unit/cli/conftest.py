"""How commands are run in tests: as `braid` runs them, in this process, against a real broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from braidmq.cli import main


class Braid:
    """Runs a command and reads its JSON."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        self._capsys.readouterr()
        found = main(arguments)
        shown = self._capsys.readouterr()
        assert found == code, shown.err
        return shown.out, shown.err

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json")[0])


@pytest.fixture
def braid(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, bootstrap: str) -> Braid:
    monkeypatch.setenv("BRAID_BOOTSTRAP", bootstrap)
    return Braid(capsys)
