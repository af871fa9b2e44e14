"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = ("cli.evaluate", "runs.analysis", "runs.comparison", "runs.export", "evaluate.metrics")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"metrix.{name}"))
    assert found.attempted > 0
    assert found.failed == 0
