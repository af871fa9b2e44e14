"""Network, loss, objective and optimizer of a configuration."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from metrix.core.choices import find
from metrix.core.objective import Clean, Objective
from metrix.core.table1 import ProxyAnchor
from metrix.errors import InvalidInput
from metrix.model import Embedder
from metrix.train.config import Config, LossChoice, Mixing
from metrix.train.names import LOSSES, METHODS

PROXY_LR_FACTOR = 100.0  # as the authors of proxy anchor train


def build_embedder(config: Config) -> Embedder:
    """The network of a configuration before training; random weights are drawn from torch's global generator."""
    model = config.model
    return Embedder(
        model.backbone,
        model.dim,
        model.pool,
        model.weights,
        model.freeze_to,
        frozen_bn=model.frozen_bn,
        image_size=config.data.image_size,
    )


def build_loss(choice: LossChoice, num_classes: int, dim: int, generator: torch.Generator | None = None) -> nn.Module:
    """The loss by name, with the parameters that were given; `generator` is for losses that draw."""
    make = find("loss", choice.loss, LOSSES).make
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
    """The loss with its mixing method, or clean."""
    mixing, train = config.mixing, config.train
    if not mixing.mixup:
        objective: Objective = Clean(loss)
    else:
        check_mixing(mixing)
        objective = METHODS[mixing.mixup_method].build(loss, mixing, generator)
    if train.memory is None:
        if train.memory_after > 0:
            raise InvalidInput(f"memory_after={train.memory_after} without memory: give memory, such as 8192, too")
        return objective
    if train.scheme != "none":
        raise InvalidInput(
            f"memory={train.memory} with scheme {train.scheme!r}: its batches train slices of the embedding, "
            "which do not compare; leave memory out"
        )
    return objective.with_memory(train.memory, config.model.dim, train.memory_after)


def check_mixing(mixing: Mixing) -> None:
    """Only what the method can do was asked for."""
    name, method = mixing.mixup_method, METHODS[mixing.mixup_method]
    for key, accepted in (("mixup", method.mixup), ("pairs", method.pairs)):
        for given in getattr(mixing, key):
            if given not in accepted:
                raise InvalidInput(f"{key} {given!r} with mixup_method {name!r}: accepted: {', '.join(accepted)}")
    for key, why in method.fixed.items():
        value, only = getattr(mixing, key), method.defaults.get(key)
        if value != only:
            words = "leave it out" if only is None else f"accepted is {only}"
            raise InvalidInput(f"{key}={value} with mixup_method {name!r}: {why}; {words}")
    if name != "metrix" and len(mixing.mixup) > 1:
        raise InvalidInput(f"mixup={mixing.mixup} with mixup_method {name!r}: accepted is one mixup type")
    if name != "imix" and mixing.instance_temperature is not None:
        raise InvalidInput(f"instance_temperature with mixup_method {name!r}: only 'imix' has a loss over instances")


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
