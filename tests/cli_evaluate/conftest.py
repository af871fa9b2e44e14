"""Two tiny runs on glyphs-mini, and the command line in this process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(scope="package", autouse=True)
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    before = os.environ.get("METRIX_CACHE")
    os.environ["METRIX_CACHE"] = str(folder / "cache")
    yield folder
    os.environ.pop("METRIX_CACHE")
    if before is not None:
        os.environ["METRIX_CACHE"] = before


def trained(folder: Path, **values: Any) -> Path:
    from metrix.train import train
    from metrix.train.presets import preset

    settings = {"data": "glyphs-mini", "mixup": ("embed",), "lam_per": "pair", "max_steps": 20, "pool": "avg", **values}
    return train(preset("glyphs").with_values(settings), folder).path


@pytest.fixture(scope="package")
def run(workspace: Path) -> Path:
    return trained(workspace / "run")


@pytest.fixture(scope="package")
def other_run(workspace: Path) -> Path:
    return trained(workspace / "other", seed=1, max_steps=3, holdout=0.1)


@pytest.fixture(scope="session")
def metrix() -> Any:
    """`metrix ARGUMENTS` as typed: its exit code, standard output and standard error."""

    def call(*arguments: object) -> Outcome:
        from metrix.cli.app import main

        out, err = io.StringIO(), io.StringIO()
        before, code = sys.argv, 0
        sys.argv = ["metrix", *map(str, arguments)]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            sys.argv = before
        return Outcome(code, out.getvalue(), err.getvalue())

    return call


@pytest.fixture
def refused(metrix: Any) -> Any:
    """A mistake: exit code 2, one line that says all of `words`, no traceback."""

    def call(*arguments: object, words: tuple[str, ...]) -> None:
        outcome = metrix(*arguments)
        assert outcome.code == 2, outcome
        assert "Traceback" not in outcome.err
        assert outcome.out == ""
        for word in words:
            assert word in outcome.err, outcome.err

    return call
