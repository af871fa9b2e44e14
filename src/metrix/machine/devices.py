"""The devices of this machine: which there are, the one that computes, how exactly, and its random numbers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from metrix.errors import InvalidInput

if TYPE_CHECKING:
    import torch

AUTO = "auto"
EXPECTED = "auto, cpu, cuda, mps, or one of several GPUs such as cuda:1"
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"  # without it, cuBLAS refuses to be deterministic
VARIABLE = "METRIX_DEVICE"  # what `auto` stands for, here and in processes that this one starts


def check_device_name(name: str) -> str:
    """The name of a device, whether this machine has it or not; `InvalidInput` for anything else.

    >>> check_device_name("cuda:1")
    'cuda:1'
    """
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise InvalidInput(f"device: expected {EXPECTED}, got {name!r}")
    return name


def use_device(name: str) -> None:
    """Let `auto` stand for a device in this process and those that it starts, as the flag --device does.

    Raises:
        InvalidInput: there is no such name, or this machine has no such device
    """
    os.environ[VARIABLE] = str(choose_device(name))


def choose_device(name: str = AUTO) -> torch.device:
    """The device with this name; `auto` is a GPU if there is one: CUDA, else Apple's (MPS), else the CPU.

    The variable `METRIX_DEVICE` lets `auto` stand for another one.

    Raises:
        InvalidInput: this machine has no such device

    >>> choose_device("cpu")
    device(type='cpu')
    """
    import torch

    name = check_device_name(os.environ.get(VARIABLE) or AUTO if name == AUTO else name)
    kind, _, number = name.partition(":")
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


def has_bfloat16(device: torch.device) -> bool:
    """Whether a GPU computes in bfloat16 itself, and does not imitate it."""
    import torch

    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


@contextmanager
def set_arithmetic(device: torch.device, deterministic: bool) -> Iterator[str]:
    """Set how a GPU computes within a block, and give a sentence on it; a CPU always computes the same.

    By default cuDNN measures which algorithm of a convolution is the fastest, and may compute it in TF32, whose
    significand has 10 bits. Products of matrices stay in float32: a loss multiplies similarities by up to 75 before it
    takes their exponential. With `deterministic` there is neither, and operations without a fixed order of sums are
    replaced, or refused by torch.
    """
    import torch

    if device.type != "cuda":
        yield ""
        return
    cudnn: Any = torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled(), cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32
    if deterministic:
        os.environ.setdefault(_CUBLAS, ":4096:8")
    try:
        torch.use_deterministic_algorithms(deterministic or before[0])
        cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = not deterministic, deterministic, not deterministic
        yield (
            "deterministic: the same run on this GPU gives the same weights; no TF32, no measured convolutions"
            if deterministic
            else "convolutions in TF32 where the GPU has it, by the fastest algorithm; --deterministic turns both off"
        )
    finally:
        torch.use_deterministic_algorithms(before[0])
        cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = before[1:]


@contextmanager
def report_refused_operations() -> Iterator[None]:
    """Raise `InvalidInput` where torch refuses an operation that has no deterministic version."""
    try:
        yield
    except RuntimeError as error:
        name, found, _ = str(error).partition(" does not have a deterministic implementation")
        if not found:
            raise
        raise InvalidInput(
            f"deterministic: expected operations that a GPU computes in a fixed order, got {name}, which has none; "
            "leave out --deterministic, or train on the CPU (--device cpu)"
        ) from error


@contextmanager
def seed_cpu(seed: int) -> Iterator[None]:
    """Draw from a seed on the CPU within a block; the random numbers of the caller go on as if nothing had happened.

    `torch.manual_seed` would also seed every GPU, whose states `fork_rng(devices=[])` does not bring back.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def get_random_state(device: torch.device) -> torch.Tensor | None:
    """The random state of a GPU; None for a CPU, whose state is torch's own (`torch.get_rng_state`)."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.mps.get_rng_state() if device.type == "mps" else None


def set_random_state(device: torch.device, state: torch.Tensor | None) -> None:
    """Restore what `get_random_state` gave; a state of another kind of device is left out."""
    import torch

    if state is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    elif state is not None and device.type == "mps":
        torch.mps.set_rng_state(state)


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
