"""Checkpoints: the whole state of a run in one safetensors file, replaced atomically.

Tensors are named after what they belong to (`model/…`, `loss/…`, `memory/…`, `ema/…`, `optimizer/…`, `scheme/…`,
`random/…`); numbers are JSON in the file's header. Nothing is pickled.
"""

from __future__ import annotations

import json
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from metrix.errors import InvalidInput
from metrix.files import parse_stored, write_atomically
from metrix.train.collapse import CollapseWatch
from metrix.train.distributed import shard_like

_HEADER = "metrix_progress"
Count = Annotated[int, Field(ge=0)]


@dataclass(config=ConfigDict(extra="forbid", strict=True))
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
    hits            shares of batches' images that were nearest to their class, in the last measurements
    mixing_from     the step from which on examples are mixed, once it is known
    scaler          state of the gradient scaler (16-mixed)
    """

    epoch: Count = 0
    batch: Count = 0
    step: Count = 0
    sums: Annotated[list[float], Field(min_length=3, max_length=3)] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    done: bool = False
    best: float | None = None
    best_epoch: int | None = None
    without_better: Count = 0
    seconds: float = 0.0
    activation_seconds: float = 0.0
    skipped: Count = 0
    skipped_here: Count = 0
    skipped_last: Count = 0
    separation: CollapseWatch = field(default_factory=CollapseWatch)
    hits: list[float] = field(default_factory=list)
    mixing_from: Count | None = None
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
    return _read(path, with_tensors=True)


def _read(path: Path, with_tensors: bool) -> tuple[dict[str, Tensor], Progress]:
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(_HEADER)
            if header is None:
                raise InvalidInput(f"{path} is not a checkpoint of metrix: its header has no progress")
            names = file.keys() if with_tensors else ()
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, FileNotFoundError) as error:
        raise InvalidInput(f"{path} cannot be read as a checkpoint: {error}") from error
    return tensors, parse_stored(Progress, header, path)


def read_progress(path: Path) -> Progress:
    """The progress of a checkpoint, without its tensors."""
    return _read(path, with_tensors=False)[1]


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
