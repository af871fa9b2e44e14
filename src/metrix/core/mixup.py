"""Mixup types: what is mixed, and the shortest way to the embeddings of the mixed examples.

closed form   embed mixup; feature mixup under a linear head
max-plus      feature mixup under max or avg+max pooling and a linear layer
chunks        input mixup, and feature mixup under any other head

A mixup type is one entry of `MIXUP_TYPES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metrix.core.choices import METRIX_PAPER, Choice, by_name, find
from metrix.core.closed_form import Interpolated
from metrix.core.compute.derivatives import without_autocast
from metrix.core.compute.max_plus import compiled_kernel, max_plus_linear
from metrix.core.compute.recompute import Mix, in_chunks, interpolate
from metrix.core.head import PoolLinear, positions
from metrix.core.mixed import EmbeddedPairs, Mixture
from metrix.core.split_model import AnyModel, SplitModel, check_model
from metrix.core.validation import at_least_float32

Gather = Callable[[Tensor], Tensor]


def _as_it_is(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class MixtureOptions:
    """How mixed examples are formed.

    Args:
        renormalise: bring mixed embeddings to unit norm (embed mixup).
        budget: bytes that the activations of mixed examples may take at a time.
        gather: makes the inputs or features of all processes from those of this one.
    """

    renormalise: bool = True
    budget: int = 2**28
    gather: Gather = _as_it_is


@dataclass(frozen=True)
class Route:
    """How the mixed examples of a mixup type are computed for a model, and why in this way."""

    name: str
    why: str


@dataclass(frozen=True)
class MixupType(Choice):
    """A mixup type.

    Args:
        name, line, reference: as in every table.
        mixes: what the two partners of a mixture are: inputs, features or unit embeddings.
        mixture: makes the `Mixture` from a model and what is mixed.
        route: says how mixed examples are computed, without computing anything.
        hard_negatives: how many negatives of an anchor are mixed by default; None: all.
    """

    mixes: Literal["inputs", "features", "embeddings"]
    mixture: Callable[[SplitModel | None, Tensor, MixtureOptions], Mixture]
    route: Callable[[AnyModel | None], Route]
    hard_negatives: int | None = None


def mixture_of_embeddings(model: SplitModel | None, embeddings: Tensor, options: MixtureOptions) -> Mixture:
    """eq. mix-embed, embedding mixup: mix_λ(f(x), f(x')), from the unit embeddings of all processes."""
    return Interpolated(embeddings, normalise=options.renormalise)


def _route_of_embeddings(model: AnyModel | None) -> Route:
    return Route("closed form", "mixed embeddings enter a loss only through products of clean embeddings")


def mixture_of_features(model: SplitModel | None, features: Tensor, options: MixtureOptions) -> Mixture:
    """eq. mix-embed, feature mixup: f_m(mix_λ(g_m(x), g_m(x')))."""
    model, route = check_model(model), _route_of_features(model)
    head, gather, budget = model.head, options.gather, options.budget
    if type(head) is nn.Linear:
        with without_autocast(features):
            x, weight = at_least_float32(features), at_least_float32(head.weight)
            bias = None if head.bias is None else head.bias.to(x.dtype)
            return Interpolated(gather(F.linear(x, weight.to(x.dtype), bias)), unit=False)
    if not _is_pool_linear(head):
        owner = next((part for part in (head, model) if isinstance(part, nn.Module)), None)
        network = _under_ambient_autocast(head, features.device.type)
        mixed = gather(features)
        return EmbeddedPairs(lambda i, j, lam: in_chunks(network, mixed, i, j, lam, budget, owner))
    pool = head.pool
    x = at_least_float32(positions(features))
    weight = at_least_float32(head.linear.weight).to(x.dtype)
    bias = None if head.linear.bias is None else head.linear.bias.to(x.dtype)
    if route.name == "closed form" or x.shape[1] == 1:
        with without_autocast(x):
            return Interpolated(gather(F.linear(head.pooled(x), weight, bias)), unit=False)
    x = gather(x)

    def embed(i: Tensor, j: Tensor, lam: Tensor) -> Tensor:
        out = max_plus_linear(x, weight, i, j, lam.to(x.dtype), budget)
        if pool == "avg+max":
            average = F.linear(x.mean(1), weight, bias)
            left, right = average.index_select(0, i), average.index_select(0, j)
            out = out + torch.lerp(right, left, lam.to(x.dtype).unsqueeze(1))
        elif bias is not None:
            out = out + bias
        return F.normalize(out, dim=1)

    return EmbeddedPairs(embed)


def _is_pool_linear(head: object) -> TypeGuard[PoolLinear]:
    """Exactly ours: a subclass may compute something else."""
    return type(head) is PoolLinear and type(head.linear) is nn.Linear


def _route_of_features(model: AnyModel | None) -> Route:
    head = check_model(model).head
    if type(head) is nn.Linear:
        return Route("closed form", "a linear layer turns mixed features into mixed outputs")
    if not _is_pool_linear(head):
        kind = type(head).__name__ if isinstance(head, nn.Module) else "a function"
        return Route(
            "chunks",
            f"the head is {kind}: only a linear layer, after pooling (metrix.PoolLinear) or not, has a shorter way",
        )
    if head.pool == "avg":
        return Route("closed form", "average pooling and a linear layer turn mixed features into mixed outputs")
    kernel = "compiled by numba on the CPU" if compiled_kernel() is not None else "in plain torch"
    return Route("max-plus", f"{head.pool} pooling needs the maximum over positions of each pair; {kernel}")


def mixture_of_inputs(
    model: SplitModel | None, inputs: Tensor, options: MixtureOptions, mix: Mix = interpolate
) -> Mixture:
    """eq. mix-embed, input mixup: f(mix_λ(x, x'))."""
    split = check_model(model)
    network = _under_ambient_autocast(lambda x: split.head(split.features(x)), inputs.device.type)
    module = model if isinstance(model, nn.Module) else None
    mixed = options.gather(inputs)
    return EmbeddedPairs(lambda i, j, lam: in_chunks(network, mixed, i, j, lam, options.budget, module, mix))


def _route_of_inputs(model: AnyModel | None) -> Route:
    check_model(model)
    return Route("chunks", "the whole network embeds each distinct mixed input once")


MIXUP_TYPES: dict[str, MixupType] = by_name(
    MixupType(
        "input",
        "images are mixed, the whole network embeds the mixture",
        METRIX_PAPER,
        mixes="inputs",
        mixture=mixture_of_inputs,
        route=_route_of_inputs,
        hard_negatives=3,
    ),
    MixupType(
        "feature",
        "the last feature maps are mixed, the head embeds the mixture",
        METRIX_PAPER,
        mixes="features",
        mixture=mixture_of_features,
        route=_route_of_features,
    ),
    MixupType(
        "embed",
        "embeddings are mixed; costs next to nothing",
        METRIX_PAPER,
        mixes="embeddings",
        mixture=mixture_of_embeddings,
        route=_route_of_embeddings,
    ),
)


def route_for(mixup: str, model: AnyModel | None) -> Route:
    """How a mixup type is computed with a model, which only types that mix embeddings do without."""
    return find("mixup", mixup, MIXUP_TYPES).route(model)


def _under_ambient_autocast(network: Callable[[Tensor], Tensor], device: str) -> Callable[[Tensor], Tensor]:
    """The network as the caller would run it now: losses are computed with autocast off."""
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    def run(x: Tensor) -> Tensor:
        with torch.autocast(device, dtype=dtype, enabled=enabled):
            return network(x)

    return run
