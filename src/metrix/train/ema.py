"""An exponential moving average of a model's weights.

torch.optim.swa_utils.AveragedModel is not used: its first update copies the weights where this one already averages
with the initial ones, so the same run would end with other weights. Here the average is a dictionary of tensors,
sharded like the model's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from metrix.train.distributed import shard_like


class WeightAverage:
    """The moving average of a module's trained parameters; buffers and frozen parameters are the latest.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(layer.weight)
    >>> average = WeightAverage(layer, decay=0.75)
    >>> _ = nn.init.ones_(layer.weight)
    >>> average.update()
    >>> average.tensors["weight"].item()
    0.25
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module, self.decay = module, decay
        self.tensors = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
        self._parameters = {name for name, p in module.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the current weights: decay · average + (1 - decay) · weights."""
        for name, tensor in self.module.state_dict().items():
            if name in self._parameters:
                self.tensors[name].lerp_(tensor, 1.0 - self.decay)
            else:
                self.tensors[name].copy_(tensor)

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Continue from the averages of a checkpoint."""
        for name, tensor in tensors.items():
            self.tensors[name].copy_(shard_like(tensor, self.tensors[name]))

    def copy_to_model(self) -> None:
        """Replace the model's weights by the average."""
        self.module.load_state_dict(self.tensors)

    @contextmanager
    def swap_in(self) -> Iterator[None]:
        """Let the model have the averaged weights within a block, and its own again after it."""
        own = {name: tensor.detach().clone() for name, tensor in self.module.state_dict().items()}
        self.copy_to_model()
        try:
            yield
        finally:
            self.module.load_state_dict(own)
