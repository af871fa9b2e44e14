"""Small runs to report on: clean, mixed, of other data, and not finished."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli_evaluate.conftest import metrix, refused, trained

__all__ = ["metrix", "refused"]


@pytest.fixture(scope="package")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with runs: clean, mixed, elsewhere (other test classes), unfinished."""
    folder = tmp_path_factory.mktemp("reported")
    before = os.environ.get("METRIX_CACHE")
    os.environ["METRIX_CACHE"] = str(folder / "cache")
    settings: dict[str, Any] = {"holdout": 0.1, "train_classes": 12, "validate_every": 1, "max_steps": 4}
    trained(folder / "clean", **settings, mixup=())
    trained(folder / "mixed", **settings, loss="multi-similarity", reduction=None)
    trained(folder / "elsewhere", **settings, split_seed=3)
    shutil.copytree(folder / "mixed", folder / "unfinished")
    (folder / "unfinished" / "results.json").unlink()
    shutil.rmtree(folder / "unfinished" / "model")
    yield folder
    os.environ.pop("METRIX_CACHE")
    if before is not None:
        os.environ["METRIX_CACHE"] = before
