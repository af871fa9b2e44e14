"""A moving average of weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from metrix.train.distributed import in_shares


class Average:
    """The exponential moving average of a module's parameters, and its buffers as they are."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module, self.decay = module, decay
        self.tensors = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
        self._parameters = {name for name, p in module.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update(self) -> None:
        """Move a little towards the weights as they are now."""
        for name, tensor in self.module.state_dict().items():
            if name in self._parameters:
                self.tensors[name].lerp_(tensor, 1.0 - self.decay)
            else:
                self.tensors[name].copy_(tensor)

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over saved averages."""
        for name, tensor in tensors.items():
            self.tensors[name].copy_(in_shares(tensor, self.tensors[name]))

    def copy_to_model(self) -> None:
        """Make the average the weights."""
        self.module.load_state_dict(self.tensors)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The average as the weights, for a while."""
        own = {name: tensor.detach().clone() for name, tensor in self.module.state_dict().items()}
        self.copy_to_model()
        try:
            yield
        finally:
            self.module.load_state_dict(own)
