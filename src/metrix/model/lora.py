"""Low-rank adapters (LoRA): instead of a weight W, only a low-rank change of it is trained.

    W' = W + (alpha / rank) · B A        A (rank, inputs), B (outputs, rank)

B starts as zero, so that the network starts as it was. Of a layer with a million weights, rank 8 trains 16 thousand,
and only these have gradients and moments in the optimizer. `merge` adds the change to W, which gives a plain network:
what a run saves as its model, embeds with and exports.

Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metrix.errors import ModelError, check_integer, check_number
from metrix.messages import first_few

A, B = "lora_a", "lora_b"


class LowRankLinear(nn.Linear):
    """A linear layer with a low-rank change of its weight, which alone is trained.

    Args:
        layer: the layer, whose weights are taken over and frozen.
        rank: of the change.
        alpha: the change is multiplied by alpha / rank.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.rank, self.scale = rank, alpha / rank
        self.lora_a = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.lora_b = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        self.training = layer.training

    def forward(self, x: Tensor) -> Tensor:
        """W x + b + (alpha / rank) B (A x)."""
        change = F.linear(F.linear(x, self.lora_a), self.lora_b)
        return F.linear(x, self.weight, self.bias) + self.scale * change

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{super().extra_repr()}, rank={self.rank}, scale={self.scale:g}"


def add_adapters(
    backbone: nn.Module, within: Iterable[str] | None, rank: int, alpha: float, targets: Sequence[str] = ()
) -> list[str]:
    """Give linear layers of a backbone low-rank adapters, and freeze everything else of it.

    Args:
        backbone: changed in place.
        within: paths of the modules that are trained; None: all.
        rank: of the adapters.
        alpha: scale of the adapters times their rank.
        targets: the last names of layers, such as `qkv` and `proj`, or their whole paths; all linear layers if empty.

    Returns:
        The paths of the layers.
    """
    rank, alpha = check_integer("lora_rank", rank, least=1), check_number("lora_alpha", alpha, above=0)
    inside = None if within is None else tuple(within)
    linear = [
        path
        for path, module in backbone.named_modules()
        if type(module) is nn.Linear and (inside is None or any(path == p or path.startswith(f"{p}.") for p in inside))
    ]
    names = sorted({path.rpartition(".")[2] for path in linear})
    if not linear:
        raise ModelError(
            "peft 'lora': expected a backbone with linear layers in its trained part, such as a ViT or a ConvNeXt, got "
            f"{type(backbone).__name__} without any; choose another backbone, freeze fewer stages, or leave peft out"
        )
    chosen = [p for p in linear if not targets or p in targets or p.rpartition(".")[2] in targets]
    unused = [t for t in targets if t not in linear and t not in names]
    if unused or not chosen:
        raise ModelError(f"lora_targets: expected names of linear layers ({', '.join(names)}), got {first_few(unused)}")
    backbone.requires_grad_(False)
    for path in chosen:
        parent, _, name = path.rpartition(".")
        owner = backbone.get_submodule(parent) if parent else backbone
        layer = getattr(owner, name)
        setattr(owner, name, LowRankLinear(layer, rank, alpha))
    return chosen


def check_called(backbone: nn.Module, image: Tensor, paths: Sequence[str]) -> None:
    """Raise an error if the network reads a weight without calling its layer, so that its adapter would do nothing."""
    called: set[str] = set()
    handles = [
        backbone.get_submodule(path).register_forward_hook(lambda *_, path=path: called.add(path)) for path in paths
    ]
    training = backbone.training
    try:
        with torch.no_grad():
            backbone.eval().forward_features(image)  # type: ignore[operator]
    finally:
        for handle in handles:
            handle.remove()
        backbone.train(training)
    silent = [path for path in paths if path not in called]
    if silent:
        raise ModelError(
            f"peft 'lora': {type(backbone).__name__} does not call {first_few(silent)}, but reads the weights itself, "
            "so that adapters there would do nothing; name other layers with lora_targets"
        )


def merge(tensors: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The weights of the plain network, with all adapters added to them, from those of a network with adapters.

    >>> layer = LowRankLinear(nn.Linear(2, 2), rank=1, alpha=1.0)
    >>> sorted(merge(layer.state_dict(), layer.scale))
    ['bias', 'weight']
    """
    out = {name: tensor for name, tensor in tensors.items() if name.rpartition(".")[2] not in (A, B)}
    for name, tensor in tensors.items():
        stem, _, last = name.rpartition(".")
        if last == A:
            prefix = f"{stem}." if stem else ""
            weight, b = tensors[f"{prefix}weight"], tensors[f"{prefix}{B}"]
            change = b.cpu().double() @ tensor.cpu().double()  # MPS has no float64
            out[f"{prefix}weight"] = (weight.cpu().double() + scale * change).to(weight.dtype)
    return out
