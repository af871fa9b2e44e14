"""The command line in the process of the tests: `metrix("train", ...)` is `metrix train ...` in a terminal."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest


class Outcome(NamedTuple):
    """What a command leaves behind: its exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What was printed with --json."""
        return json.loads(self.out)


Metrix = Callable[..., Outcome]


def metrix(*arguments: object) -> Outcome:
    """Run the command as typed, on a terminal 200 columns wide."""
    from metrix.cli import app

    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["metrix", *map(str, arguments)])
        patch.setenv("COLUMNS", "200")
        try:
            app.main()
        except SystemExit as ended:
            code = ended.code or 0
    assert isinstance(code, int), f"exit code {code!r}"
    return Outcome(code, out.getvalue(), err.getvalue())


def refused(*arguments: object, words: tuple[str, ...]) -> None:
    """Run a command that is a mistake: exit code 2, all of `words` on standard error, no traceback, no output."""
    outcome = metrix(*arguments)
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.err
    assert outcome.out == ""
    for word in words:
        assert word in outcome.err, outcome.err
