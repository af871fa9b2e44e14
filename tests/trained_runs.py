"""Tiny training runs on glyphs-mini, trained once and shared by all processes of a test session."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from filelock import FileLock

from faults.material import SETTINGS

SMALL: dict[str, Any] = {**SETTINGS, "max_steps": 12}  # a step in milliseconds; an epoch and a half


def train_tiny(folder: Path, **values: Any) -> Path:
    """Train the preset for glyphs for a few steps into `folder`, and return it."""
    from metrix.train import train
    from metrix.train.presets import preset

    settings = {"data": "glyphs-mini", "mixup": ("embed",), "lam_per": "pair", "max_steps": 20, "pool": "avg"}
    settings |= {"loss": "contrastive", "reduction": "mean_nonzero", "lr": 3e-3, "strength": 0.4, **values}
    return train(preset("glyphs").with_values(settings), folder).path


def own_copy(shared: Path, own: Path, name: str, **values: Any) -> Path:
    """A run that the first process to ask for it trains under `shared`, copied to `own` to be written to at will."""
    with FileLock(shared / f"{name}.lock"):
        if not (shared / name / "results.json").exists():
            train_tiny(shared / name, **values)
    return Path(shutil.copytree(shared / name, own / name))
