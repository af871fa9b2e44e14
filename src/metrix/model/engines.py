"""Engines that run an embedder: torch, torch in bfloat16, and onnxruntime; and which is the fastest here.

    torch    the network as it was trained and is measured; convolutional networks run in channels-last format
    bf16     the same with products in bfloat16, which some processors compute several times faster
    onnx     the network exported to ONNX, with batch norm and activations merged into convolutions

`torch` is exact: it gives the embeddings that all measures are computed on. The others are compared with it on images
at hand, and what they differ by is part of the result.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metrix.errors import ModelError, unknown_choice
from metrix.machine.bfloat16 import runs_bfloat16
from metrix.model.embedder import Embedder
from metrix.model.export import OnnxSession, build_onnx, require_onnx

AUTO, TORCH, BF16, ONNX = "auto", "torch", "bf16", "onnx"
ENGINES = (AUTO, TORCH, BF16, ONNX)
LEAST_COSINE = 0.999  # between the embeddings of an engine and the exact ones, for `auto` to consider it
LEAST_GAIN = 1.15  # how much faster a less exact engine must be
WORTH_IT = 20.0  # seconds that embedding takes with torch, from which on `auto` tries other engines
_ROUNDS = 3


@dataclass(frozen=True, eq=False)
class Engine:
    """A way to run an embedder: images (n, channels, height, width) to unit vectors (n, dim) on the CPU.

    name       `torch`, `bf16`, `onnx`, or that of a file
    run        embeds a batch
    at_once    images in a batch at which it is fast; None for as many as the caller has, as `torch` needs: its
               results depend on the size of the batch in the last bits
    """

    name: str
    run: Callable[[Tensor], Tensor]
    at_once: int | None


@dataclass(frozen=True)
class EngineMeasure:
    """The speed of an engine, and how far it is from the exact one, on a few images."""

    engine: str
    images_per_second: float
    largest_difference: float  # of any entry
    smallest_cosine: float  # of any image
    images: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def build_engine(name: str, embedder: Embedder, size: int | None = None) -> Engine:
    """An engine by name.

    Args:
        name: one of `ENGINES` except `auto`.
        embedder: in evaluation mode.
        size: of the images in pixels, if not that of `embedder.data_config`.

    Raises:
        ModelError: the engine does not run here, or cannot run this model.
    """
    device = next(embedder.parameters()).device
    side = size or embedder.data_config.size
    at_once = max(8, min(256, round(8 * (224 / side) ** 2)))  # what stays in the cache of the processor
    if name == TORCH:
        return Engine(TORCH, lambda images: embedder(images.to(device)).float().cpu(), None)
    if name == BF16:
        if device.type == "cpu" and not cpu_has_bfloat16():
            raise ModelError("engine bf16: expected a processor that computes in bfloat16; choose torch or onnx")

        def run(images: Tensor) -> Tensor:
            with torch.autocast(device.type, torch.bfloat16):
                found: Tensor = embedder(images.to(device))
            return found.float().cpu()

        return Engine(BF16, run, at_once)
    if name == ONNX:
        return Engine(ONNX, OnnxSession(build_onnx(embedder, size)), at_once)
    raise unknown_choice("engine", name, ENGINES)


@functools.cache
def cpu_has_bfloat16() -> bool:
    """Whether products in bfloat16 run on this processor, tried in a child process with the present environment.

    `prepare_bfloat16` also tries without AMX, which only helps before the first product of this process.
    """
    return runs_bfloat16({})


def open_engine_file(path: Path, digest: str, side: int, dim: int | None = None) -> Engine:
    """The engine of a file that `metrix export --onnx` wrote, perhaps in int8.

    Args:
        path: the file
        digest: SHA-256 of the weights that it must have been exported from
        side: of the images in pixels
        dim: of the embeddings; None: any
    """
    import hashlib

    from metrix.model.export import read_onnx_about

    about = read_onnx_about(path)
    made_from, found = about.get("model"), about.get("embedding", {}).get("dim")
    if made_from != digest:
        raise ModelError(
            f"{path} was exported from another model: expected weights {digest[:12]}, got {str(made_from)[:12]}; "
            "export this run with metrix export RUN --onnx FILE"
        )
    if dim is not None and found != dim:
        raise ModelError(
            f"{path}: expected embeddings of dimension {dim}, got {found}; give --dim {found}, or export with "
            f"--dim {dim}"
        )
    content = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return Engine(f"{ONNX}:{content}", OnnxSession(path), max(8, min(256, round(8 * (224 / side) ** 2))))


def measure_engines(
    engines: Sequence[Engine], images: Tensor, clock: Callable[[], float], rounds: int = _ROUNDS
) -> list[EngineMeasure]:
    """Speed of engines and their difference to the first, which is the exact one; they take turns."""
    seconds: list[list[float]] = [[] for _ in engines]
    vectors: list[Tensor] = []
    with torch.inference_mode():
        for turn in range(rounds):
            for number, engine in enumerate(engines):
                begin = clock()
                pieces = torch.split(images, engine.at_once or len(images))
                found = torch.cat([engine.run(piece) for piece in pieces])
                seconds[number].append(clock() - begin)
                if turn == 0:
                    vectors.append(found)
    exact = vectors[0]
    return [
        EngineMeasure(
            engine=engine.name,
            images_per_second=len(images) / max(min(times), 1e-9),
            largest_difference=float((found - exact).abs().max()),
            smallest_cosine=float(torch.cosine_similarity(found.double(), exact.double()).min()),
            images=len(images),
        )
        for engine, times, found in zip(engines, seconds, vectors, strict=True)
    ]


def choose_engine(
    embedder: Embedder,
    images: Tensor,
    total: int,
    size: int | None = None,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Engine, list[EngineMeasure]]:
    """The fastest engine for `total` images on this machine, by a short measurement on some of them.

    It is `torch` on a GPU and where embedding takes seconds anyway. An engine is left out if it does not run here or
    its embeddings have a cosine to the exact ones below 0.999; one that is less exact must be 1.15 × as fast.

    Returns:
        The engine, and what was measured, the exact engine first; empty if nothing was.
    """
    exact = build_engine(TORCH, embedder, size)
    if next(embedder.parameters()).device.type != "cpu":
        return exact, []
    alone = measure_engines([exact], images, clock, rounds=1)[0]
    if total / alone.images_per_second < WORTH_IT:
        return exact, []
    engines = [exact]
    for name in (ONNX, BF16):  # from more exact to less
        try:
            if name == ONNX:
                require_onnx()
            engines.append(build_engine(name, embedder, size))
        except ModelError:
            continue
    measured = measure_engines(engines, images, clock)
    return engines[pick_fastest(measured)], measured


def pick_fastest(measured: Sequence[EngineMeasure]) -> int:
    """The position of the engine to use, of measures that are ordered from the most exact to the least.

    >>> def measure(name, speed, cosine=1.0):
    ...     return EngineMeasure(name, speed, 0.0, cosine, 16)
    >>> pick_fastest([measure("torch", 10), measure("onnx", 30), measure("bf16", 32)])
    1
    >>> pick_fastest([measure("torch", 10), measure("onnx", 30), measure("bf16", 90, cosine=0.99)])
    1
    """
    best = 0
    for number, one in enumerate(measured):
        fast = one.images_per_second >= LEAST_GAIN * measured[best].images_per_second
        if fast and one.smallest_cosine >= LEAST_COSINE:
            best = number
    return best
