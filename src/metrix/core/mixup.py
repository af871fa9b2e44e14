"""Which way mixed examples are computed: the one place that decides.

closed form   embed mixup; feature mixup under a linear head
max-plus      feature mixup under max or avg+max pooling and a linear layer
chunks        input mixup, and feature mixup under any other head
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metrix.core.closed_form import Interpolated
from metrix.core.compute.max_plus import compiled_kernel, max_plus_linear
from metrix.core.compute.recompute import in_chunks
from metrix.core.head import PoolLinear, positions
from metrix.core.mixed import Embedded, Mixture
from metrix.core.validation import at_least_float32
from metrix.errors import ModelError

MIXUP_TYPES = ("input", "feature", "embed")
Gather = Callable[[Tensor], Tensor]


def _as_it_is(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class Path:
    """How the mixed examples of one mixup type are computed, and why."""

    name: str
    why: str


def path_for(mixup: str, model: Any) -> Path:
    """The path of a mixup type for a model (not needed for embed mixup)."""
    if mixup == "embed":
        return Path("closed form", "mixed embeddings enter a loss only through products of clean embeddings")
    check_model(model)
    if mixup == "input":
        return Path("chunks", "the whole network embeds each distinct mixed input once")
    head = model.head
    if type(head) is not PoolLinear or type(head.linear) is not nn.Linear:
        kind = type(head).__name__ if isinstance(head, nn.Module) else "a function"
        return Path("chunks", f"the head is {kind}: only pooling + linear layer (metrix.PoolLinear) has a shorter way")
    if head.pool == "avg":
        return Path("closed form", "average pooling and a linear layer turn mixed features into mixed outputs")
    kernel = "compiled by numba on the CPU" if compiled_kernel() is not None else "in plain torch"
    return Path("max-plus", f"{head.pool} pooling needs the maximum over positions of each pair; {kernel}")


def check_model(model: Any) -> None:
    """A model offers `features(x)` and `head(z)`."""
    missing = [name for name in ("features", "head") if not callable(getattr(model, name, None))]
    if missing:
        raise ModelError(
            f"{type(model).__name__} has no {' and no '.join(missing)}: accepted is a module with "
            "features(x) and head(z), such as metrix.Embedder, or metrix.split(module, at=LAYER)"
        )


def mixture(
    mixup: str,
    model: Any,
    inputs: Tensor,
    features: Tensor | None,
    embeddings: Tensor,
    renormalise: bool,
    budget: int,
    gather: Gather = _as_it_is,
) -> Mixture:
    """eq. mix-embed of a mixup type, from what a step has: inputs, their features and their unit embeddings.

    Inputs and features are those of this process, `gather` makes those of all of them. Embeddings are gathered.
    """
    if mixup == "input":
        return mixture_of_inputs(model, inputs, budget, gather)
    if mixup == "feature":
        assert features is not None, "features are kept where they are mixed"
        return mixture_of_features(model, features, budget, gather)
    return mixture_of_embeddings(embeddings, renormalise)


def mixture_of_embeddings(embeddings: Tensor, renormalise: bool) -> Mixture:
    """eq. mix-embed, embedding mixup: mix_λ(f(x), f(x'))."""
    return Interpolated(embeddings, normalise=renormalise)


def mixture_of_features(model: Any, features: Tensor, budget: int, gather: Gather = _as_it_is) -> Mixture:
    """eq. mix-embed, feature mixup: f_m(mix_λ(g_m(x), g_m(x'))).

    `gather` makes the rows of all processes from those of this one; what is mixed is all that it is given.
    """
    path = path_for("feature", model)
    head = model.head
    if path.name == "chunks":
        module = head if isinstance(head, nn.Module) else model
        network = _under_ambient_autocast(head, features.device.type)
        mixed = gather(features)
        return Embedded(lambda i, j, lam: in_chunks(network, mixed, i, j, lam, budget, module))
    x = at_least_float32(positions(features))
    weight = at_least_float32(head.linear.weight).to(x.dtype)
    bias = None if head.linear.bias is None else head.linear.bias.to(x.dtype)
    if path.name == "closed form" or x.shape[1] == 1:
        with torch.autocast(x.device.type, enabled=False):
            return Interpolated(gather(F.linear(head.pooled(x), weight, bias)), unit=False)
    x = gather(x)

    def embed(i: Tensor, j: Tensor, lam: Tensor) -> Tensor:
        out = max_plus_linear(x, weight, i, j, lam.to(x.dtype), budget)
        if head.pool == "avg+max":
            average = F.linear(x.mean(1), weight, bias)
            out = out + torch.lerp(average[j], average[i], lam.to(x.dtype).unsqueeze(1))
        elif bias is not None:
            out = out + bias
        return F.normalize(out, dim=1)

    return Embedded(embed)


def mixture_of_inputs(model: Any, inputs: Tensor, budget: int, gather: Gather = _as_it_is) -> Mixture:
    """eq. mix-embed, input mixup: f(mix_λ(x, x'))."""
    check_model(model)

    network = _under_ambient_autocast(lambda x: model.head(model.features(x)), inputs.device.type)
    module = model if isinstance(model, nn.Module) else None
    mixed = gather(inputs)
    return Embedded(lambda i, j, lam: in_chunks(network, mixed, i, j, lam, budget, module))


def _under_ambient_autocast(network: Callable[[Tensor], Tensor], device: str) -> Callable[[Tensor], Tensor]:
    """The network as the caller would run it now: losses are computed with autocast off."""
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    def run(x: Tensor) -> Tensor:
        with torch.autocast(device, dtype=dtype, enabled=enabled):
            return network(x)

    return run
