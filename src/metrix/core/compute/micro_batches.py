"""Batches too large for memory, by cached gradients.

The batch goes through the network in pieces whose activations are forgotten; only the embeddings are kept (and
the features, where these are mixed). The loss is that of the whole batch. In the backward pass each piece goes
through the network once more, with the random state of the first time, and takes the gradient of its own
embeddings from there to the weights:

    first pass     f(x) of each piece, without a graph
    loss           of all embeddings: ∂loss/∂f
    second pass    f(x) of each piece again, ∂loss/∂f · ∂f/∂weights added up

So the gradient is that of the whole batch, in the memory of one piece, for one more forward pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from metrix.core.compute.recompute import keep_running_statistics
from metrix.core.split_model import AnyModel, SplitModel, check_model, is_split
from metrix.errors import MetrixWarning, check_integer


class MicroBatched(nn.Module):
    """A model that takes a batch in pieces, with the gradient of the whole batch and the activations of one piece.

    `model(inputs)` are the embeddings, for any other loss. Batch norm in training mode normalises over the piece, as
    it does when gradients are accumulated; a warning says so once.

    Args:
        model: has `features(x)` and `head(z)`.
        micro_batch: how many examples go through the network at a time.

    >>> from metrix import Metrix, PoolLinear, losses
    >>> from metrix.model.split import Split
    >>> model = MicroBatched(Split(nn.Conv2d(3, 8, 3), PoolLinear(8, 4)), micro_batch=2)
    >>> objective = Metrix(losses.MultiSimilarity(), mixup="embed")
    >>> out = objective.step(model, torch.randn(6, 3, 8, 8), torch.tensor([0, 0, 1, 1, 2, 2]))
    >>> out.loss.backward()  # of all six, two at a time
    """

    def __init__(self, model: AnyModel, micro_batch: int) -> None:
        super().__init__()
        self.model, self.micro_batch = check_model(model), check_integer("micro_batch", micro_batch, least=1)
        self._warned = False

    def forward(self, x: Tensor) -> Tensor:
        """Unit embeddings (n, d); features are not kept."""
        return self._in_pieces(lambda piece: self.model.head(self.model.features(piece)), x)

    def features(self, x: Tensor) -> Tensor:
        """Features of the whole batch."""
        return self._in_pieces(self.model.features, x)

    @property
    def head(self) -> Callable[[Tensor], Tensor]:
        """The head of the model."""
        return self.model.head

    def of_features(self, features: Tensor) -> Tensor:
        """Unit embeddings (n, d) of features of the whole batch."""
        return self._in_pieces(self.model.head, features)

    def extra_repr(self) -> str:
        """The size of a piece."""
        return f"micro_batch={self.micro_batch}"

    def _in_pieces(self, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        count = -(-len(x) // self.micro_batch)
        if count <= 1:
            return run(x)
        edges = [len(x) * k // count for k in range(count + 1)]  # of nearly equal size
        pieces = [x[start:stop] for start, stop in pairwise(edges)]
        if not torch.is_grad_enabled():
            return torch.cat([run(piece) for piece in pieces])
        self._warn_of_batch_norm()
        return torch.cat([checkpoint(run, piece, use_reentrant=False, context_fn=self._contexts) for piece in pieces])

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """The contexts of the first and of the second pass; running statistics move in the first only."""
        return nullcontext(), _Again(self.model if isinstance(self.model, nn.Module) else None)

    def _warn_of_batch_norm(self) -> None:
        if self._warned or not isinstance(self.model, nn.Module):
            return
        norms = [name for name, m in self.model.named_modules() if isinstance(m, _BatchNorm) and m.training]
        if norms:
            self._warned = True
            warnings.warn(
                f"{len(norms)} layers of batch norm ({norms[0]} …) in training mode normalise over micro-batches of "
                f"{self.micro_batch}, not over the batch: the gradient is that of the loss so computed, and running "
                "statistics move with every micro-batch; freeze them (frozen_bn, --frozen-bn, or .eval() of these "
                "layers) for the gradient of the whole batch (this is said once)",
                MetrixWarning,
                stacklevel=4,
            )


class _Again(AbstractContextManager[None]):
    """Keeps running statistics in every pass but the first; unlike a generator's context, it can be entered again."""

    def __init__(self, module: nn.Module | None) -> None:
        self.module = module

    def __enter__(self) -> None:
        self.context = keep_running_statistics(self.module)
        self.context.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.context.__exit__(*error)


def without_micro_batches(model: SplitModel) -> SplitModel:
    """The model that a `MicroBatched` wraps, or the model itself: mixed examples have a memory budget of their own."""
    return model.model if isinstance(model, MicroBatched) else model


def embed_alone(model: AnyModel, inputs: Tensor) -> Tensor:
    """Embeddings of a batch; a model without `features(x)` and `head(z)` is called itself."""
    if is_split(model):
        return embed(check_model(model), inputs, keep_features=False)[1]
    assert isinstance(model, nn.Module), "a model has features and head, or is a module that embeds"
    found: Tensor = model(inputs)
    return found


def embed(model: SplitModel, inputs: Tensor, keep_features: bool) -> tuple[Tensor | None, Tensor]:
    """Features and embeddings of a batch; features may be None where they need not be kept."""
    if not isinstance(model, MicroBatched):
        features = model.features(inputs)
        return features, model.head(features)
    if not keep_features:
        return None, model(inputs)
    features = model.features(inputs)
    return features, model.of_features(features)
