"""A head that starts as the whitened principal components of the training images: `--head-init whiten`.

Features behind a ReLU all point in much the same direction, so that a random head gives all pairs of images a high
similarity: a loss of pairs starts far above its threshold, and first draws everything together. Principal components,
centred and scaled to equal variance, start with negatives around 0, and retrieve more than a random projection.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from metrix.core.head import PoolLinear
from metrix.errors import InvalidInput

SHRINKAGE = 0.1  # share of the mean variance that is added to each: the last components are mostly noise


def whiten_head(head: nn.Module, embed: Callable[[], object], add_up: Callable[[Tensor], Tensor]) -> None:
    """Set the linear layer of a head to whitened principal components of what goes into it.

    Args:
        head: ends in a `PoolLinear`.
        embed: sends the training images through the head; in each process, its share of them.
        add_up: sums a tensor over the processes.

    Raises:
        InvalidInput: there are fewer principal components than dimensions of the embedding.
    """
    linear = _last_layer(head)
    width, dim = linear.in_features, linear.out_features
    moments = torch.zeros(width + 1, width + 1, dtype=torch.float64)  # Σ x xᵀ of x with a 1 at its end

    def collect(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].detach().cpu().double()  # (n, width); MPS has no float64
        x = torch.cat([x, x.new_ones(len(x), 1)], 1)
        moments.add_(x.T @ x)

    hook = linear.register_forward_pre_hook(collect)
    try:
        embed()
    finally:
        hook.remove()
    total = add_up(moments)
    count, mean = total[-1, -1], total[-1, :-1] / total[-1, -1]
    rank = min(width, int(count) - 1)
    if rank < dim:
        raise InvalidInput(
            f"dim: expected at most {rank} with head_init='whiten', the principal components of {int(count)} training "
            f"examples with {width} features, got {dim}; lower dim, or use head_init='random'"
        )
    variance, directions = torch.linalg.eigh(total[:-1, :-1] / count - torch.outer(mean, mean))  # ascending
    variance, directions = variance[-dim:].flip(0), directions[:, -dim:].flip(1)
    weight = (directions / (variance + SHRINKAGE * variance.mean()).sqrt()).T  # (dim, width)
    with torch.no_grad():
        # Embeddings are normalised, so the scale is free: that of the random layer, for which learning rates are made.
        weight *= linear.weight.cpu().double().square().mean().sqrt() / weight.square().mean().sqrt()
        linear.weight.copy_(weight.to(linear.weight.dtype))
        linear.bias.copy_((-weight @ mean).to(linear.bias.dtype))


def _last_layer(head: nn.Module) -> nn.Linear:
    last = head[-1] if isinstance(head, nn.Sequential) else head
    if not isinstance(last, PoolLinear):
        raise InvalidInput(
            f"head_init='whiten': expected a head that ends in a linear layer, got {type(last).__name__}"
        )
    return last.linear
