from __future__ import annotations

import subprocess
import sys

import metrix.evaluate
import metrix.search


def test_importing_the_measures_does_not_import_the_engines() -> None:

    code = "import sys, metrix.evaluate; print([m for m in ('faiss', 'sklearn') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"


def test_what_is_public_is_there_and_explained() -> None:
    for package in (metrix.evaluate, metrix.search):
        for name in package.__all__:
            assert getattr(package, name).__doc__
