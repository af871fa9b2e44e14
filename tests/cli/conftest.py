from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from metrix.cli import app


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Metrix = Callable[..., Ended]


@pytest.fixture
def metrix(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Metrix:
    """The command in this process: arguments in; exit code, output and errors out."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["metrix", *map(str, arguments)])
        code: object = 0
        try:
            app.main()
        except SystemExit as ended:
            code = ended.code or 0
        out, err = capsys.readouterr()
        assert isinstance(code, int)
        return Ended(code, out, err)

    return run
