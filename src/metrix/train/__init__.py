"""Training: from a configuration to a run, which is a folder with a trained and measured model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metrix.train.config import Config
from metrix.train.interruption import Interrupted

if TYPE_CHECKING:
    from metrix.train.loop import train

__all__ = ["Config", "Interrupted", "train"]


def __getattr__(name: str) -> Any:
    if name == "train":  # imports torch and Fabric, which the command line's --help can do without
        from metrix.train.loop import train

        return train
    raise AttributeError(f"module 'metrix.train' has no attribute {name!r}")
