"""Checkpoints: the whole state of a run in one safetensors file, replaced atomically.

Tensors are named after what they belong to (`model/…`, `loss/…`, `memory/…`, `ema/…`, `optimizer/…`, `scheme/…`,
`random/…`); numbers are JSON in the file's header. Nothing is pickled.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from metrix.errors import InvalidInput
from metrix.files import write_atomically
from metrix.train.collapse import CollapseWatch
from metrix.train.distributed import shard_like

_HEADER = "metrix_progress"


@dataclass
class Progress:
    """Where a run stands: it has trained on `batch` batches of epoch `epoch`, and on `step` in all.

    sums            loss, clean and mixed loss, summed over the batches of this epoch
    done            whether training is over
    best            the best score of a validation, found after epoch `best_epoch`
    without_better  validations since then
    seconds         time spent, interruptions left out
    activation_seconds  of these, on the activations of a frozen trunk
    skipped         steps whose loss or gradient was not finite, and that changed no weights
    skipped_here    those of this epoch
    skipped_last    those since the last step that was not skipped
    separation      of positives and negatives, to notice a collapse: see `metrix.train.collapse`
    scaler          state of the gradient scaler (16-mixed)
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    done: bool = False
    best: float | None = None
    best_epoch: int | None = None
    without_better: int = 0
    seconds: float = 0.0
    activation_seconds: float = 0.0
    skipped: int = 0
    skipped_here: int = 0
    skipped_last: int = 0
    separation: CollapseWatch = field(default_factory=CollapseWatch)
    scaler: dict[str, Any] | None = None

    def count_step(self, losses: list[float]) -> None:
        """Count a step with its loss, clean and mixed loss."""
        self.step += 1
        self.batch += 1
        self.skipped_last = 0
        self.sums = [total + value for total, value in zip(self.sums, losses, strict=True)]

    def count_skipped(self) -> None:
        """Count a step that was not finite, so that it changed no weights."""
        self.step += 1
        self.batch += 1
        self.skipped += 1
        self.skipped_here += 1
        self.skipped_last += 1

    def end_epoch(self) -> list[float]:
        """Go to the next epoch; returns the means of the losses of this one, skipped steps left out."""
        means = [total / max(1, self.batch - self.skipped_here) for total in self.sums]
        self.epoch, self.batch, self.sums, self.skipped_here = self.epoch + 1, 0, [0.0, 0.0, 0.0], 0
        return means


def write(path: Path, tensors: dict[str, Tensor], progress: Progress) -> None:
    """Write a checkpoint; if this is interrupted, the previous one stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    header = {_HEADER: json.dumps(asdict(progress))}
    write_atomically(path, lambda temporary: save_file(plain, temporary, metadata=header))


def read(path: Path) -> tuple[dict[str, Tensor], Progress]:
    """The tensors and the progress of a checkpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(_HEADER)
            if header is None:
                raise InvalidInput(f"{path} is not a checkpoint of metrix: its header has no progress")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, FileNotFoundError) as error:
        raise InvalidInput(f"{path} cannot be read as a checkpoint: {error}") from error
    return tensors, _parse_progress(header, path)


def read_progress(path: Path) -> Progress:
    """The progress of a checkpoint, without its tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(_HEADER)
    except (SafetensorError, FileNotFoundError) as error:
        raise InvalidInput(f"{path} cannot be read as a checkpoint: {error}") from error
    if header is None:
        raise InvalidInput(f"{path} is not a checkpoint of metrix: its header has no progress")
    return _parse_progress(header, path)


def _parse_progress(header: str, path: Path) -> Progress:
    """The progress in the header of a checkpoint; `InvalidInput` if it is damaged."""

    def is_number(value: object, whole: bool = False) -> bool:
        return isinstance(value, int if whole else int | float) and not isinstance(value, bool)

    try:
        values = json.loads(header)
        separation = CollapseWatch(**values.pop("separation", {}))
        found = Progress(**values, separation=separation)
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"{path} is damaged: its header has no progress that can be read ({error})") from error
    skipped = (found.skipped, found.skipped_here, found.skipped_last)
    counts = (found.epoch, found.batch, found.step, found.without_better, *skipped)
    sound = (
        all(is_number(count, whole=True) and count >= 0 for count in counts)
        and isinstance(found.sums, list)
        and len(found.sums) == 3
        and all(is_number(value) for value in (*found.sums, found.seconds, found.activation_seconds))
        and isinstance(found.done, bool)
        and (found.best is None or is_number(found.best))
        and (found.best_epoch is None or is_number(found.best_epoch, whole=True))
        and separation.is_sound
        and (found.scaler is None or isinstance(found.scaler, dict))
    )
    if not sound:
        raise InvalidInput(f"{path} is damaged: the progress in its header has values of the wrong kind")
    return found


def select_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose name starts with `prefix/`, by the rest of their name.

    >>> select_prefix("loss", {"loss/proxies": torch.zeros(2), "model/w": torch.ones(1)})
    {'proxies': tensor([0., 0.])}
    """
    return {k.removeprefix(f"{prefix}/"): v for k, v in tensors.items() if k.startswith(f"{prefix}/")}


def add_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by their name after `prefix/`: the reverse of `select_prefix`."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The moments of AdamW, named after the number of their parameter."""
    state = optimizer.state_dict()["state"]
    return {f"{i}/{name}": torch.as_tensor(value) for i, s in state.items() for name, value in s.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore the moments that `optimizer_tensors` gave; parameters without moments stay without."""
    state: dict[int, dict[str, Tensor]] = {}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for key, value in tensors.items():
        number, name = key.split("/")
        like = parameters[int(number)]
        moment = shard_like(value, like)
        if value.shape == like.shape and moment is value:  # fused AdamW expects the memory layout of the parameter
            moment = torch.empty_like(like, device=value.device, dtype=value.dtype).copy_(value)
        state.setdefault(int(number), {})[name] = moment
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
