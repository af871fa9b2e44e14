from __future__ import annotations

from pathlib import Path

import pytest

from metrix.cli.terminal import next_steps


def test_commands_that_follow_can_be_typed_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(tmp_path / ".venv" / "bin" / "metrix"), "demo"])
    monkeypatch.setattr("shutil.which", lambda name: None)  # as after `make demo`
    next_steps.print_next(("metrix report run", "a page"))
    assert "next: .venv/bin/metrix report run" in capsys.readouterr().err
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/metrix")
    next_steps.print_next(("metrix report run", "a page"))
    assert "next: metrix report run" in capsys.readouterr().err
