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
        trained = {name for name, p in module.named_parameters() if p.requires_grad}
        self._averaged = [name for name in self.tensors if name in trained]
        self._copied = [name for name in self.tensors if name not in trained]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the current weights: decay · average + (1 - decay) · weights."""
        current = self.module.state_dict()

        def both(names: list[str]) -> tuple[list[Tensor], list[Tensor]]:
            return [_local(self.tensors[name]) for name in names], [_local(current[name]) for name in names]

        if self._averaged:
            torch._foreach_lerp_(*both(self._averaged), 1.0 - self.decay)
        if self._copied:
            torch._foreach_copy_(*both(self._copied))

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


def _local(tensor: Tensor) -> Tensor:
    """This process's shard of a sharded tensor, else the tensor itself."""
    shard: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return shard
