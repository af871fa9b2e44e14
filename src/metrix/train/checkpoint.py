"""The whole state of a run in one safetensors file, replaced in one step.

Tensors are named after what they belong to (`model/…`, `loss/…`, `ema/…`, `optimizer/…`, `scheme/…`, `random/…`),
numbers are JSON in the file's header. Nothing is pickled.
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
from metrix.train.distributed import in_shares

_HEADER = "metrix_progress"


@dataclass
class Progress:
    """Where a run stands: `batch` batches of `epoch` are trained on, `step` in all.

    `sums` are of loss, clean and mixed loss over those batches; `done` when there is nothing left to train.
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
    scaler: dict[str, Any] | None = None


def write(path: Path, tensors: dict[str, Tensor], progress: Progress) -> None:
    """Write a checkpoint; an interruption leaves the one before it."""
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
                raise InvalidInput(f"{path} is no checkpoint of metrix: it has no progress in its header")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, FileNotFoundError) as error:
        raise InvalidInput(f"{path} cannot be read as a checkpoint: {error}") from error
    return tensors, Progress(**json.loads(header))


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one owner, without its name.

    >>> under("loss", {"loss/proxies": torch.zeros(2), "model/w": torch.ones(1)})
    {'proxies': tensor([0., 0.])}
    """
    return {k.removeprefix(f"{prefix}/"): v for k, v in tensors.items() if k.startswith(f"{prefix}/")}


def owned(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The reverse of `under`."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The moments of each parameter, by its number."""
    state = optimizer.state_dict()["state"]
    return {f"{i}/{name}": torch.as_tensor(value) for i, s in state.items() for name, value in s.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Give the moments back; parameters that had none yet stay without."""
    state: dict[int, dict[str, Tensor]] = {}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for key, value in tensors.items():
        number, name = key.split("/")
        state.setdefault(int(number), {})[name] = in_shares(value, parameters[int(number)])
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
