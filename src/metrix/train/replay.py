"""Repeat a training step whose loss or gradient was not finite, and look at each of its terms."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from metrix.core.objective import Objective, StepOutput
from metrix.errors import EmbeddingError, InvalidInput
from metrix.machine.devices import VARIABLE
from metrix.model.mlp import MLP_BACKBONE
from metrix.train import distributed
from metrix.train.batches import FromActivations
from metrix.train.checkpoint import select_prefix
from metrix.train.config import Config
from metrix.train.distributed import Launch, Team
from metrix.train.divide_and_conquer import Slices
from metrix.train.mixing_schedule import set_strength
from metrix.train.nonfinite import TERMS, BrokenStep, as_json_number, list_steps, read_step
from metrix.train.run_folder import open_run_folder
from metrix.train.state import build_parts, connect, restore_random


@dataclass
class Replay:
    """A step that was repeated, beside what the run saved of it.

    losses      loss, clean and mixed loss; all NaN if the embeddings were refused
    refusal     why they were, or ""
    inputs      the smallest and the largest finite number of the inputs
    embeddings  which rows of the embeddings are finite and not zero
    gradients   for each parameter with a gradient, its largest absolute value; NaN or infinite where it is not finite
    rows        for each item, whether the gradient of its embedding is finite
    mixup, pairs, left_out_clean, left_out_mixed   what was drawn, and anchors left out, as in `StepOutput`
    note        what could not be repeated as it was, or ""
    """

    saved: BrokenStep
    losses: dict[str, float]
    refusal: str
    inputs: tuple[float, float]
    embeddings: list[bool]
    gradients: dict[str, float]
    rows: list[bool]
    mixup: str = "none"
    pairs: str = "none"
    left_out_clean: int = 0
    left_out_mixed: int = 0
    note: str = ""

    @property
    def same(self) -> bool:
        """Whether the losses are those that the run had, bit for bit."""
        return all(self.saved.losses[name] == as_json_number(self.losses[name]) for name in TERMS)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON; numbers that are not finite are text."""
        return {
            "step": self.saved.step,
            "epoch": self.saved.epoch,
            "batch": self.saved.batch,
            "broken": self.saved.broken,
            "said": self.saved.said,
            "same": self.same,
            "losses": {name: as_json_number(value) for name, value in self.losses.items()},
            "saved_losses": self.saved.losses,
            "refusal": self.refusal,
            "mixup": self.mixup,
            "pairs": self.pairs,
            "left_out": {"clean": self.left_out_clean, "mixed": self.left_out_mixed},
            "inputs": list(self.inputs),
            "gradients": {name: as_json_number(value) for name, value in self.gradients.items()},
            "items": [
                {**item, "embedding_finite": embedding, "gradient_finite": gradient}
                for item, embedding, gradient in zip(self.saved.items, self.embeddings, self.rows, strict=True)
            ],
            "note": self.note,
        }


def replay(path: Path, step: int | None = None) -> Replay:
    """Repeat a saved step of a run: forward and backward, from the saved batch, weights and random state.

    The data is not needed, and the run does not change. Under torchrun with as many processes as the run had, each
    takes its own share; a single process takes the whole batch.

    Args:
        path: the folder of the run
        step: which of the saved steps; the last one by default

    Raises:
        InvalidInput: the run has no such step, or what it saved is damaged
    """
    run = open_run_folder(path)
    config, steps = run.config, list_steps(run)
    if not steps:
        raise InvalidInput(
            f"{path} has no step to repeat: expected nonfinite/step-N.safetensors, which metrix train writes when a "
            "loss or gradient is not finite"
        )
    step = steps[-1] if step is None else step
    if step not in steps:
        raise InvalidInput(f"{path} has no saved step {step}; expected one of {', '.join(map(str, steps))}")
    saved, file = read_step(run, step), run.nonfinite / f"step-{step}.safetensors"
    # the device that the run had, unless another was asked for
    settings = config.with_values({"device": "auto"}).train if os.environ.get(VARIABLE) else config.train
    team = distributed.launch(settings, Launch())
    try:
        tensors = load_file(file)
        return _repeat(config, saved, tensors, team)
    except (SafetensorError, KeyError, IndexError, TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInput(f"{file} is damaged or of other settings: it does not fit the run ({reason})") from error


def _repeat(config: Config, saved: BrokenStep, tensors: dict[str, Tensor], team: Team) -> Replay:
    generator = torch.Generator()  # of the loss and of the mixing, as in training
    embedder, network, objective = _build(config, saved, tensors, team, generator)
    note, share = _choose_rows(saved, team)
    if config.train.compatible_with is not None:
        said = f"the loss is without the influence of the old model ({config.train.compatible_with})"
        note = f"{note}; {said}" if note else said
    inputs, labels = (tensors[name][share].to(team.device) for name in ("inputs", "labels"))

    restore_random(tensors, generator, team.device)
    out, refusal = None, ""
    try:
        with team.fabric.autocast():
            out = objective.step(network, inputs, labels)
    except EmbeddingError as error:
        refusal = str(error)
    rows = [False] * len(labels)
    if out is not None:
        rows = _backward(out)
        embeddings = out.embeddings
    else:
        restore_random(tensors, generator, team.device)
        with torch.no_grad(), team.fabric.autocast():
            embeddings = network.head(network.features(inputs))  # type: ignore[operator]
    norms = torch.linalg.vector_norm(embeddings.detach().float(), dim=1)
    sound = (torch.isfinite(norms) & (norms > 0)).tolist()
    finite = inputs[torch.isfinite(inputs)].float() if inputs.is_floating_point() else inputs.float()
    span = (float(finite.min()), float(finite.max())) if finite.numel() else (math.nan, math.nan)
    values = [math.nan] * 3 if out is None else [x.item() for x in (out.loss, out.clean, out.mixed)]
    found = Replay(
        saved,
        dict(zip(TERMS, values, strict=True)),
        refusal,
        span,
        _gather(sound, saved, team),
        _gradients(embedder, objective, team),
        _gather(rows, saved, team),
        note=note,
    )
    if out is not None:
        found.mixup, found.pairs = out.mixup, out.pairs
        found.left_out_clean, found.left_out_mixed = out.left_out_clean, out.left_out_mixed
    return found


def _build(
    config: Config, saved: BrokenStep, tensors: dict[str, Tensor], team: Team, generator: torch.Generator
) -> tuple[nn.Module, nn.Module, Objective]:
    """Network and objective as they were before the step; nothing is read but what the step saved."""
    length = tensors["inputs"].shape[1] if config.model.backbone == MLP_BACKBONE else None
    embedder, objective = build_parts(config.with_values({"weights": None}), saved.num_classes, generator, length)
    embedder.load_state_dict(select_prefix("model", tensors))
    objective.loss.load_state_dict(select_prefix("loss", tensors))
    if objective.memory is not None:
        objective.memory.load_state_dict(select_prefix("memory", tensors))
    if saved.strength is not None:
        set_strength(objective, saved.strength)
    embedder.to(team.device)
    objective.to(team.device).train()
    network: nn.Module = FromActivations(embedder) if config.model.views else embedder
    if config.train.scheme != "none":
        network = Slices(network, config.model.dim // config.train.clusters)
        network.learner = saved.learner
    network.train()
    return embedder, connect(config, embedder, network, objective, team), objective


def _choose_rows(saved: BrokenStep, team: Team) -> tuple[str, slice]:
    """What differs from the run, and the rows of the batch that this process takes."""
    if team.size == len(saved.sizes):
        start = sum(saved.sizes[: team.rank])
        return "", slice(start, start + saved.sizes[team.rank])
    if team.size > 1:
        raise InvalidInput(
            f"expected 1 process or {len(saved.sizes)}, as the run had in this step, got {team.size}; start torchrun "
            "with that number"
        )
    return (
        f"the run had {len(saved.sizes)} processes: a single one mixes features and inputs across the whole batch, so "
        f"the mixed loss may be another; repeat it under torchrun with {len(saved.sizes)} processes",
        slice(None),
    )


def _backward(out: StepOutput) -> list[bool]:
    """Compute all gradients; returns which rows of the embeddings have a finite one."""
    if not out.loss.requires_grad:
        return [True] * len(out.embeddings)
    out.embeddings.retain_grad()
    out.loss.backward()  # type: ignore[no-untyped-call]
    grad = out.embeddings.grad
    return [True] * len(out.embeddings) if grad is None else torch.isfinite(grad).all(dim=1).tolist()


def _gradients(embedder: nn.Module, objective: Objective, team: Team) -> dict[str, float]:
    """The largest absolute gradient of each parameter, averaged over processes as in training."""
    found = {}
    for of, module in (("model", embedder), ("loss", objective.loss)):
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                mean = team.sum_tensor(parameter.grad) / team.size
                found[f"{of}.{name}"] = float(torch.linalg.vector_norm(mean, torch.inf))
    return found


def _gather(own: list[bool], saved: BrokenStep, team: Team) -> list[bool]:
    if team.size == 1:
        return own
    return [bool(value) for value in team.gather_rows(torch.tensor(own, dtype=torch.uint8), saved.sizes).tolist()]
