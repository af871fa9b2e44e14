"""The devices of this machine: which there are, and the one that computes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from metrix.errors import InvalidInput

if TYPE_CHECKING:
    import torch

AUTO = "auto"
EXPECTED = "auto, cpu, cuda, mps, or one of several GPUs such as cuda:1"


def check_device_name(name: str) -> str:
    """The name of a device, whether this machine has it or not; `InvalidInput` for anything else.

    >>> check_device_name("cuda:1")
    'cuda:1'
    """
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise InvalidInput(f"device: expected {EXPECTED}, got {name!r}")
    return name


def choose_device(name: str = AUTO) -> torch.device:
    """The device with this name; `auto` is a GPU if there is one: CUDA, else Apple's (MPS), else the CPU.

    Raises:
        InvalidInput: this machine has no such device

    >>> choose_device("cpu")
    device(type='cpu')
    """
    import torch

    kind, _, number = check_device_name(name).partition(":")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    has_mps = torch.backends.mps.is_available()
    if kind == AUTO:
        return torch.device("cuda" if gpus else "mps" if has_mps else "cpu")
    if kind == "cuda" and int(number or 0) >= gpus:
        here = "none" if gpus == 0 else "cuda:0" if gpus == 1 else f"cuda:0 to cuda:{gpus - 1}"
        raise InvalidInput(f"device: expected one that is available here (CUDA: {here}), got {name!r}; try auto or cpu")
    if kind == "mps" and not has_mps:
        raise InvalidInput("device: expected one that is available here (no MPS), got 'mps'; try auto or cpu")
    return torch.device(name)


def wait_for(device: torch.device) -> None:
    """Return once the device has done what it was given, so that a clock can be read."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def describe_devices() -> list[dict[str, Any]]:
    """The devices that can train, the fastest kind first; the CPU is always there."""
    import torch

    found: list[dict[str, Any]] = []
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about = torch.cuda.get_device_properties(number)
        found.append({"kind": "cuda", "name": about.name, "memory": about.total_memory})
    if torch.backends.mps.is_available():
        found.append({"kind": "mps", "name": "Apple GPU", "memory": None})
    return [*found, {"kind": "cpu", "name": None, "memory": None}]
