from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from metrix import data

HEAVY = ("torchvision", "matplotlib", "scipy", "pyarrow", "pandas", "PIL.Image")


def test_importing_is_cheap() -> None:
    code = f"import sys, torch; before = set(sys.modules); import metrix.data; print([m for m in {HEAVY!r} if m in set(sys.modules) - before])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_public_names_exist() -> None:
    assert sorted(data.__all__, key=str.lower) == sorted(set(data.__all__), key=str.lower)
    assert all(hasattr(data, name) for name in data.__all__)


def test_the_loading_benchmark_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "loading.py"
    spec = importlib.util.spec_from_file_location("loading_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    loading = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loading)
    for name, value in {"CLASSES": 2, "PER_CLASS": 4, "BATCH": 4, "EPOCHS": 1}.items():
        monkeypatch.setattr(loading, name, value)
    rows = loading.run()
    assert all(set(row) == {"name", "value", "unit", "target", "reached"} for row in rows)
    assert [row["target"] for row in rows if row["target"]] == [3.0, 3.0]
    assert all(row["value"] > 0 for row in rows)
