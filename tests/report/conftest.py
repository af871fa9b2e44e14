"""Small runs to report on: clean, mixed, of other data, and not finished."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trained_runs import own_copy


@pytest.fixture(scope="session")
def runs(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs: clean, mixed, elsewhere (other test classes), unfinished."""
    folder = tmp_path_factory.mktemp("reported")
    settings: dict[str, Any] = {
        "holdout": 0.1,
        "train_classes": 12,
        "validate_every": 1,
        "max_steps": 4,
        "select_from": 1,
    }
    own_copy(shared_folder, folder, "clean", **settings, mixup=())
    own_copy(shared_folder, folder, "mixed", **settings, loss="multi-similarity", reduction=None)
    own_copy(shared_folder, folder, "elsewhere", **settings, split_seed=3)
    shutil.copytree(folder / "mixed", folder / "unfinished")
    (folder / "unfinished" / "results.json").unlink()
    shutil.rmtree(folder / "unfinished" / "model")
    return folder
