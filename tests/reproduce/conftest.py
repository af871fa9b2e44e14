from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metrix.reproduce.cells import Cell, Store, cell
from metrix.reproduce.datasets import Data, settings

MINI = Data("glyphs-mini", "glyphs-mini")
# a run in less than a second
TINY: dict[str, Any] = {"train_classes": 8, "batch_size": 12, "per_class": 3, "max_steps": 2}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "grid")


def cells_of(count: int, **changes: Any) -> list[Cell]:
    return [
        cell(settings(MINI, {"loss": "contrastive"}, seed, 512, {**TINY, **changes}), MINI) for seed in range(count)
    ]
