"""From configuration to loss, objective and optimizer."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from metrix.core.catalog import ProxyAnchor
from metrix.core.objective import Metrix
from metrix.core.step import Clean, Objective
from metrix.errors import InvalidInput, one_of
from metrix.model import Embedder
from metrix.train.config import Config, LossChoice
from metrix.train.registry import LOSSES

PROXY_LR_FACTOR = 100.0  # as the authors of proxy anchor train


def build_loss(choice: LossChoice, num_classes: int, dim: int, generator: torch.Generator | None = None) -> nn.Module:
    """The loss by name, with the parameters that were given; `generator` is for losses that draw."""
    if choice.loss not in LOSSES:
        raise one_of("loss", choice.loss, LOSSES)
    make = LOSSES[choice.loss].make
    given = {k: v for k, v in choice.model_dump(exclude={"loss"}).items() if v is not None}
    accepted = set(inspect.signature(make).parameters)
    if make is ProxyAnchor and given.get("reduction") == "original":
        return ProxyAnchor.original(num_classes, dim, given.get("beta", 32.0), given.get("margin", 0.1))
    for key in given:
        if key not in accepted:
            names = ", ".join(sorted(accepted & set(LossChoice.model_fields))) or "none"
            raise InvalidInput(f"loss {choice.loss!r} has no {key}: accepted are {names}")
    surroundings = {"num_classes": num_classes, "dim": dim, "generator": generator}
    return make(**given, **{k: v for k, v in surroundings.items() if k in accepted})


def build_objective(config: Config, loss: nn.Module, generator: torch.Generator) -> Objective:
    """The loss with its mixup, or clean."""
    mixing = config.mixing
    if not mixing.mixup:
        return Clean(loss)
    return Metrix(
        loss,
        mixup=mixing.mixup,
        pairs=mixing.pairs,
        strength=mixing.strength,
        alpha=mixing.alpha,
        hard_negatives=mixing.hard_negatives,
        lam_per=mixing.lam_per,
        generator=generator,
    )


def build_optimizer(config: Config, embedder: Embedder, loss: nn.Module) -> torch.optim.AdamW:
    """AdamW with a group each for backbone, head and the loss's own parameters, such as proxies.

    `base_lr` is what schedules start from.
    """
    train = config.train
    head_lr = train.head_lr or train.lr
    own_lr = train.proxy_lr or LOSSES[config.loss.loss].own_lr or PROXY_LR_FACTOR * head_lr
    groups: list[dict[str, Any]] = [
        _group("backbone", _trained(embedder.backbone), train.lr),
        _group("head", _trained(embedder.head), head_lr),
        _group("proxies", _trained(loss), own_lr),
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], weight_decay=train.weight_decay)


def _group(name: str, parameters: list[nn.Parameter], lr: float) -> dict[str, Any]:
    return {"name": name, "params": parameters, "lr": lr, "base_lr": lr}


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]
