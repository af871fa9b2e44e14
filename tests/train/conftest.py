from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from metrix.train import Config

# small enough for a step in milliseconds
SMALL: dict[str, Any] = {
    "data": "glyphs-mini",
    "backbone": "glyphs-cnn",
    "dim": 8,
    "batch_size": 12,
    "per_class": 3,
    "train_classes": 8,
    "epochs": 2,
    "checkpoint_steps": 2,
    "lr": 1e-3,
    "mixup": ["embed"],
    "max_steps": 12,  # an epoch and a half
}


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def small() -> Config:
    return Config().with_values(SMALL)
