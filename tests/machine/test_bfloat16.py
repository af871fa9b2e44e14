"""bfloat16 on a CPU: what a child process finds out decides."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from metrix.errors import InvalidInput
from metrix.machine import bfloat16
from metrix.machine.bfloat16 import VARIABLE, WITHOUT_AMX, prepare_bfloat16
from metrix.train import Config, train
from metrix.train.watching import Watcher

DIES_OF_AMX = f"""
import os, signal
if os.environ.get({VARIABLE!r}) != {WITHOUT_AMX!r}:
    os.kill(os.getpid(), signal.SIGILL)
"""


@pytest.fixture
def no_variable(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")  # so that it is restored after the test
    monkeypatch.delenv(VARIABLE)


def test_a_processor_that_can(monkeypatch, no_variable):
    monkeypatch.setattr(bfloat16, "_TRIAL", "pass")
    assert prepare_bfloat16() == "bfloat16 works on this processor"
    assert VARIABLE not in os.environ


def test_amx_that_is_announced_and_not_there(monkeypatch, no_variable):
    monkeypatch.setattr(bfloat16, "_TRIAL", DIES_OF_AMX)
    assert "without AMX" in prepare_bfloat16()
    assert os.environ[VARIABLE] == WITHOUT_AMX


def test_a_processor_that_cannot(monkeypatch, no_variable):
    monkeypatch.setattr(bfloat16, "_TRIAL", "import os; os.abort()")
    with pytest.raises(InvalidInput, match="expected '32-true' on this processor, got bf16"):
        prepare_bfloat16()


def test_a_run_in_bfloat16_says_what_it_does(small: Config, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("metrix.train.loop.prepare_bfloat16", lambda: "said")
    notes: list[str] = []

    class Listener(Watcher):
        def note(self, text: str) -> None:
            notes.append(text)

    config = small.with_values({"precision": "bf16", "max_steps": 1})
    assert config.train.precision == "bf16-mixed"
    monkeypatch.setattr("metrix.train.loop.distributed.launch", lambda *_: (_ for _ in ()).throw(InvalidInput("end")))
    with pytest.raises(InvalidInput, match="end"):
        train(config, tmp_path / "run", watcher=Listener())
    assert notes == ["said"]
