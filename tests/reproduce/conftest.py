from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metrix.experiments.cells import Cell, CellStore, make_cell
from metrix.reproduce.datasets import ReproductionData, build_config

MINI = ReproductionData("glyphs-mini", "glyphs-mini")
# a run in less than a second
TINY: dict[str, Any] = {"train_classes": 8, "batch_size": 12, "per_class": 3, "max_steps": 2}


@pytest.fixture
def store(tmp_path: Path) -> CellStore:
    return CellStore(tmp_path / "grid")


def cells_of(count: int, **changes: Any) -> list[Cell]:
    return [
        make_cell(build_config(MINI, {"loss": "contrastive"}, seed, 512, {**TINY, **changes}), MINI)
        for seed in range(count)
    ]
