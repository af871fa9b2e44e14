"""A short soak: sound requests among garbage, slow and oversized uploads; some hundred steps; memory stays flat."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults import soak
from faults.material import Material, build


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return build(tmp_path_factory.mktemp("material"))


def test_service(made: Material, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(soak, "GARBAGE", 0.2)
    assert soak.soak_service(made, 200, flat=0.1) == []
    said = capsys.readouterr().out
    for words in (
        "p99",
        "garbage 4",
        "oversized 413",
        "slow 408",
        "unfinished headers closed",
        "hanging file 404",
        "hostile filter 422",
    ):
        assert words in said


def test_training(tmp_path: Path) -> None:
    assert soak.soak_training(tmp_path, 200, flat=0.1) == []


def test_growth_is_found() -> None:
    flat, leaking = soak.Samples(0, [100] * 100, [5] * 100), soak.Samples(0, list(range(100, 200)), list(range(100)))
    assert flat.describe()[1] == []
    assert len(leaking.describe()[1]) == 2
