"""Mixed examples through any head or network, within a budget of memory.

The memory of a mixed example's activations is measured. Where that of all examples exceeds the budget, they go through
the network in chunks, whose activations are computed again in the backward pass.

Examples are picked with `index_select`: the backward pass of `x[i]` adds up in any order on several threads of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from metrix.core.compute.derivatives import use_twin
from metrix.core.distributed.batch_norm import refuse_waiting
from metrix.core.distributed.ranks import ALONE

Mix = Callable[[Tensor, Tensor, Tensor], Tensor]


def interpolate(left: Tensor, right: Tensor, lam: Tensor) -> Tensor:
    """mix_λ of eq. mixing: λ x + (1-λ) x' of tensors (pairs, …), with one λ for each pair (pairs,)."""
    return torch.lerp(right, left, lam.view(-1, *[1] * (left.ndim - 1)))


def in_chunks(
    embed: Callable[[Tensor], Tensor],
    x: Tensor,
    i: Tensor,
    j: Tensor,
    lam: Tensor,
    budget: int,
    module: nn.Module | None = None,
    mix: Mix = interpolate,
) -> Tensor:
    """embed(mix_λ(x_i, x_j)) for each pair (i, j).

    Args:
        embed: the network or head, from mixed examples to embeddings.
        x: examples or their features (n, …).
        i, j, lam: the pairs and their λ, each (pairs,).
        budget: bytes that activations may take at a time.
        module: whose batch norms keep their running statistics.
        mix: how two examples are mixed.

    Returns:
        Embeddings (pairs, d).
    """

    def mixed(i: Tensor, j: Tensor, lam: Tensor) -> Tensor:
        with keep_running_statistics(module):
            return embed(mix(x.index_select(0, i), x.index_select(0, j), lam.to(x.dtype)))

    if len(i) == 0 or use_twin():  # a process without anchors of its own; tensors of torch.func cannot be measured
        return mixed(i, j, lam)
    if not torch.is_grad_enabled():
        per_example = 4 * x[0].numel() * x.element_size()
        chunks = _chunks(len(i), per_example, budget)
        return torch.cat([mixed(i[at], j[at], lam[at]) for at in chunks])
    held = {p.data_ptr() for p in module.parameters()} if module is not None else set()
    probe = _saved_bytes(lambda: mixed(i[:2], j[:2], lam[:2]), held | {x.data_ptr()}, x.device)
    per_example = probe // min(2, len(i))
    chunks = _chunks(len(i), per_example, budget)
    if len(chunks) == 1:
        return mixed(i, j, lam)
    outs = [checkpoint(mixed, i[at], j[at], lam[at], use_reentrant=False) for at in chunks]
    return torch.cat(outs)


def _chunks(pairs: int, per_example: int, budget: int) -> list[slice]:
    """Chunks of nearly equal size (batch norm should see no tiny last one), each within the budget."""
    most = max(2, budget // max(1, per_example))
    count = -(-pairs // most)
    edges = [round(pairs * k / count) for k in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def _saved_bytes(run: Callable[[], Tensor], held: set[int], device: torch.device) -> int:
    """Bytes that autograd keeps for the backward pass of `run`, besides tensors held anyway."""
    sizes: dict[tuple[int, int], int] = {}

    def count(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in held:
            sizes[(tensor.data_ptr(), tensor.numel())] = tensor.numel() * tensor.element_size()
        return tensor

    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
        run()
    return sum(sizes.values())


@contextmanager
def keep_running_statistics(module: nn.Module | None) -> Iterator[None]:
    """Within this context batch norm normalises as usual, but its running statistics stay those of clean examples.

    Each of several processes normalises over its own mixed examples: they come in chunks whose number differs between
    processes, so that none may wait for another's statistics.
    """
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm)] if module is not None else []
    refuse_waiting(norms)
    before = [(m.momentum, m.num_batches_tracked, getattr(m, "across", ALONE)) for m in norms]
    for m in norms:
        m.momentum, m.across = 0.0, ALONE  # type: ignore[assignment]
        if m.num_batches_tracked is not None:
            m.num_batches_tracked = m.num_batches_tracked.clone()
    try:
        yield
    finally:
        for m, (momentum, tracked, across) in zip(norms, before, strict=True):
            m.momentum, m.num_batches_tracked, m.across = momentum, tracked, across  # type: ignore[assignment]
