"""Deep metric learning with mixup.

>>> import torch
>>> from metrix import Metrix, losses
>>> embeddings, labels = torch.randn(6, 128, requires_grad=True), torch.tensor([0, 0, 1, 1, 2, 2])
>>> objective = Metrix(losses.MultiSimilarity(), mixup="embed")
>>> loss = objective(embeddings, labels)
>>> loss.backward()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metrix import data, evaluate, labels, losses
    from metrix.core.compute.micro_batches import MicroBatched
    from metrix.core.distillation import Distil, DistillationLoss
    from metrix.core.head import PoolLinear
    from metrix.core.metrix import Metrix
    from metrix.core.objective import Clean, Objective, StepOutput
    from metrix.core.rivals import IMix, MoCHi, ProxySynthesis, SiMix
    from metrix.errors import MetrixError, MetrixWarning
    from metrix.model import Embedder
    from metrix.model.split import split

__version__ = "0.2.0"
__all__ = [
    "Classifier",
    "Clean",
    "Distil",
    "DistillationLoss",
    "Embedder",
    "IMix",
    "Metrix",
    "MetrixError",
    "MetrixWarning",
    "MicroBatched",
    "MoCHi",
    "Objective",
    "PoolLinear",
    "ProxySynthesis",
    "SiMix",
    "StepOutput",
    "data",
    "evaluate",
    "labels",
    "losses",
    "split",
]

# Where each name is. Importing torch takes seconds, so it happens when a name is first used.
_HOMES = {
    "Classifier": "metrix.retrieve.classify",
    "Clean": "metrix.core.objective",
    "Distil": "metrix.core.distillation",
    "DistillationLoss": "metrix.core.distillation",
    "Embedder": "metrix.model",
    "IMix": "metrix.core.rivals",
    "Metrix": "metrix.core.metrix",
    "MetrixError": "metrix.errors",
    "MetrixWarning": "metrix.errors",
    "MicroBatched": "metrix.core.compute.micro_batches",
    "MoCHi": "metrix.core.rivals",
    "Objective": "metrix.core.objective",
    "PoolLinear": "metrix.core.head",
    "ProxySynthesis": "metrix.core.rivals",
    "SiMix": "metrix.core.rivals",
    "StepOutput": "metrix.core.objective",
    "split": "metrix.model.split",
}
_MODULES = ("data", "evaluate", "labels", "losses")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"metrix.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'metrix' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
