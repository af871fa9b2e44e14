"""The examples in the docstrings of the whole package are true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
import torch

import metrix

PACKAGE = Path(metrix.__file__).parent
MODULES = sorted(
    ".".join(("metrix", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if ">>>" in path.read_text("utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, reader_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with data and finished runs (conftest.py), from the same random state each time."""
    monkeypatch.chdir(reader_folder)
    torch.manual_seed(0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    said: list[str] = []
    module = importlib.import_module(name)
    for test in doctest.DocTestFinder().find(module):
        runner.run(test, out=said.append)
    found = runner.summarize(verbose=False)
    assert found.failed == 0, "".join(said)
    assert found.attempted > 0


def test_no_example_is_skipped() -> None:
    assert [path for path in PACKAGE.rglob("*.py") if "doctest: +SKIP" in path.read_text("utf-8")] == []
    assert len(MODULES) > 30
