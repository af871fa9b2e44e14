"""Network, loss, objective, optimizer and learning rate of a configuration."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import nn

from metrix.core.choices import find
from metrix.core.distillation import DistillationLoss
from metrix.core.objective import Clean, Objective
from metrix.core.table1 import ProxyAnchor
from metrix.errors import InvalidInput
from metrix.model import Embedder
from metrix.model.mlp import MLP_BACKBONE
from metrix.train.config import Config
from metrix.train.mixing_schedule import check_schedule
from metrix.train.names import LOSSES, METHODS
from metrix.train.sections import LossChoice, Mixing, Training

PROXY_LR_FACTOR = 100.0  # as the authors of proxy anchor train


def build_embedder(config: Config, inputs: int | None = None) -> Embedder:
    """The network of a configuration before training; random weights are drawn from torch's global generator.

    Args:
        config: the settings of the run
        inputs: the length of vectors, where the data are vectors
    """
    model = config.model
    of_vectors = {"inputs": inputs, "hidden": model.hidden, "mix_at": model.mix_at}
    embedder = Embedder(
        model.backbone,
        model.dim,
        model.pool,
        model.weights,
        model.freeze_to,
        frozen_bn=model.frozen_bn,
        image_size=config.data.image_size,
        matryoshka=model.matryoshka,
        **(of_vectors if model.backbone == MLP_BACKBONE else {}),  # type: ignore[arg-type]
    )
    if model.frozen_affine:
        freeze_affine(embedder.backbone)
    if model.peft == "none":
        if model.lora_targets:
            raise InvalidInput(f"lora_targets: expected peft=lora with it, got {','.join(model.lora_targets)} alone")
        return embedder
    return embedder.add_adapters(model.lora_rank, model.lora_alpha, model.lora_targets)


def freeze_affine(backbone: nn.Module) -> None:
    """Train neither scale nor shift of any batch norm of a network."""
    for module in backbone.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.requires_grad_(False)


def build_loss(choice: LossChoice, num_classes: int, dim: int, generator: torch.Generator | None = None) -> nn.Module:
    """The loss of a configuration.

    Args:
        choice: its name and parameters; those that are None have the loss's own defaults
        num_classes: of the training data, for losses with proxies or centres
        dim: length of the embedding, for the same
        generator: for losses that draw examples
    """
    make = find("loss", choice.loss, LOSSES).make
    given = {k: v for k, v in choice.model_dump(exclude={"loss"}).items() if v is not None}
    accepted = set(inspect.signature(make).parameters)
    if len(given.get("rank_temperature", ())) == 1:  # a multiple of every k
        given["rank_temperature"] = given["rank_temperature"][0]
    if make is ProxyAnchor and given.get("reduction") == "original":
        return ProxyAnchor.original(num_classes, dim, given.get("beta", 32.0), given.get("margin", 0.1))
    for key in given:
        if key not in accepted:
            names = ", ".join(sorted(accepted & set(LossChoice.model_fields))) or "no parameters"
            raise InvalidInput(f"loss {choice.loss!r} has no {key}; it has {names}")
    surroundings = {"num_classes": num_classes, "dim": dim, "generator": generator}
    return make(**given, **{k: v for k, v in surroundings.items() if k in accepted})


def build_objective(config: Config, loss: nn.Module, generator: torch.Generator) -> Objective:
    """The loss together with its mixing method and memory, as configured; `Clean` without mixup."""
    mixing, train = config.mixing, config.train
    if not mixing.mixup:
        objective: Objective = Clean(loss)
    else:
        check_mixing(mixing)
        check_schedule(config)
        method = METHODS[mixing.mixup_method]
        settings = {parameter: getattr(mixing, key) for parameter, key in method.settings.items()}
        objective = method.make(loss, generator=generator, **settings)
    _train_prefixes(objective, config)
    if train.memory is None:
        if train.memory_after > 0:
            raise InvalidInput(
                f"memory: expected a size, such as 8192, with memory_after={train.memory_after}, got none"
            )
        return objective
    if train.scheme != "none":
        raise InvalidInput(
            f"memory: expected none with scheme {train.scheme!r}, got {train.memory}; its batches train different "
            "slices of the embedding, which cannot be compared with each other"
        )
    return objective.with_memory(train.memory, config.model.dim, train.memory_after)


def _train_prefixes(objective: Objective, config: Config) -> None:
    """Train prefixes of the embedding with the objective, if that is configured."""
    model = config.model
    if not model.matryoshka:
        if model.matryoshka_weight != 1.0:
            raise InvalidInput(
                "matryoshka_weight: expected prefixes with it, such as matryoshka=64,128, got "
                f"{model.matryoshka_weight:g} alone"
            )
        return
    if max(model.matryoshka) > model.dim:
        raise InvalidInput(
            f"matryoshka: expected prefixes of an embedding of dim {model.dim}, got {max(model.matryoshka)}; leave it "
            f"out, or set dim={max(model.matryoshka)}"
        )
    if config.train.scheme != "none":
        raise InvalidInput(
            f"matryoshka: expected none with scheme {config.train.scheme!r}, got "
            f"{','.join(map(str, model.matryoshka))}; its batches train different slices of the embedding"
        )
    objective.with_matryoshka(model.matryoshka, model.matryoshka_weight)


def check_mixing(mixing: Mixing) -> None:
    """Raise `InvalidInput` unless the mixing method can do what the settings ask for."""
    name, method = mixing.mixup_method, METHODS[mixing.mixup_method]
    for key, accepted in (("mixup", method.mixup), ("pairs", method.pairs)):
        for given in getattr(mixing, key):
            if given not in accepted:
                raise InvalidInput(f"{key}: expected {' or '.join(accepted)} with mixup_method {name!r}, got {given!r}")
    for key, why in method.fixed.items():
        value, only = getattr(mixing, key), method.defaults.get(key)
        if value != only:
            expected = "nothing" if only is None else only
            raise InvalidInput(f"{key}: expected {expected} with mixup_method {name!r}, got {value}; {why}")
    if name != "metrix" and len(mixing.mixup) > 1:
        raise InvalidInput(f"mixup: expected one type with mixup_method {name!r}, got {mixing.mixup}")
    if name != "imix" and mixing.instance_temperature is not None:
        raise InvalidInput(
            f"instance_temperature: expected nothing with mixup_method {name!r}, got {mixing.instance_temperature}; "
            "only 'imix' has a loss over instances"
        )


def build_optimizer(
    config: Config, embedder: Embedder, loss: nn.Module, device: torch.device | None = None
) -> torch.optim.AdamW:
    """AdamW with a group each for backbone, head and the loss's own parameters, such as proxies.

    A group's `base_lr` is its learning rate before the schedule. On CUDA, one kernel updates many parameters.
    """
    train = config.train
    head_lr = train.head_lr or train.lr
    own_lr = train.proxy_lr or LOSSES[config.loss.loss].own_lr or PROXY_LR_FACTOR * head_lr
    learnt_map = loss.map if isinstance(loss, DistillationLoss) else None  # from the student's to the teacher's space
    heads = _trained(embedder.head) + ([] if learnt_map is None else _trained(learnt_map))
    groups: list[dict[str, Any]] = [
        _group("backbone", _trained(embedder.backbone), train.lr),
        _group("head", heads, head_lr),
        _group("proxies", [p for p in _trained(loss) if all(p is not other for other in heads)], own_lr),
    ]
    # on the CPU a fused update saves no measurable time
    fused: dict[str, Any] = {"fused": True} if device is not None and device.type == "cuda" else {}
    return torch.optim.AdamW([g for g in groups if g["params"]], weight_decay=train.weight_decay, **fused)


def learning_rate_factor(settings: Training, epoch: int, step: int, total_steps: int) -> float:
    """The factor by which the schedule multiplies all learning rates in a step."""
    if settings.schedule == "step":
        return float(settings.decay_by ** (epoch // settings.decay_every))
    if settings.schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * step / total_steps))
    return 1.0


def _group(name: str, parameters: list[nn.Parameter], lr: float) -> dict[str, Any]:
    return {"name": name, "params": parameters, "lr": lr, "base_lr": lr}


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]
