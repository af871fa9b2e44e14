from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import metrix.evaluate
import metrix.search

MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (metrix.evaluate, metrix.search)
    for module in pkgutil.iter_modules(package.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_importing_the_measures_does_not_import_the_engines() -> None:

    code = "import sys, metrix.evaluate; print([m for m in ('faiss', 'sklearn') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"


def test_what_is_public_is_there_and_explained() -> None:
    for package in (metrix.evaluate, metrix.search):
        for name in package.__all__:
            assert getattr(package, name).__doc__
