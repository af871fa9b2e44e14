"""What a GPU would do, counted on a device that only pretends to be one: kernels, and how often the host waits."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.measuring import at_most
from metrix import Clean, Metrix, evaluate, losses
from metrix.core.compute.max_plus import max_plus_linear
from tests.devices.pretended_cuda import PretendedCuda


def steps() -> list[dict[str, Any]]:
    """Count what a step of multi-similarity asks of a GPU, forward and backward, with labels on the host."""
    found = []
    for n, mixup, launches in ((100, False, 70), (100, True, 160), (4096, True, 400)):
        loss = losses.MultiSimilarity()
        objective = Metrix(loss, "embed", "pos-neg") if mixup else Clean(loss)
        with PretendedCuda() as device:
            x = device.put(torch.randn(n, 64), requires_grad=True)
            device.reset()
            objective(x, torch.arange(n) // 5).backward()
            counted = device.launches.total(), device.synchronisations.total(), device.copies.total()
        name = f"multi-similarity{' with embed pos-neg' if mixup else ''}, n={n:,}"
        for what, count, most in zip(
            ("launches", "synchronisations", "copies to the device"), counted, (launches, 1, 2), strict=True
        ):
            found.append(at_most(f"{name}: {what}", count, most, ""))
    return found


def max_plus() -> list[dict[str, Any]]:
    """Count the kernels of feature mixup under max pooling at the shapes of ResNet-50, without Triton."""
    pairs, name, note = 100 * 95, "max-plus, batch 20×5 of 2048×7×7, pos-neg", "without Triton, with 8 GB free"
    with PretendedCuda(shapes_only=True) as device:
        x = torch.empty(100, 49, 2048, device="cuda", requires_grad=True)
        weight = torch.empty(512, 2048, device="cuda", requires_grad=True)
        i, j = (torch.empty(pairs, dtype=torch.int64, device="cuda") for _ in range(2))
        lam = torch.empty(pairs, device="cuda")
        device.reset()
        out = max_plus_linear(x, weight, i, j, lam)
        forward = device.launches.total()
        out.backward(out.detach())
        both, waits = device.launches.total(), device.synchronisations.total()
    return [
        at_most(f"{name}: launches forward", forward, 30, "", note),
        at_most(f"{name}: launches backward", both - forward, 30, "", note),
        at_most(f"{name}: synchronisations", waits, 0, "", note),
    ]


def retrieval() -> list[dict[str, Any]]:
    """Count how often the host waits while the metrics of retrieval are measured on the device."""
    generator = torch.Generator().manual_seed(0)
    with PretendedCuda() as device:
        x = device.put(torch.randn(5924, 128, generator=generator))
        device.reset()
        evaluate.retrieval(x, torch.arange(5924) % 100, resamples=0)
        waits = device.synchronisations.total()
    name = "all metrics of retrieval of 5,924 embeddings: synchronisations"
    return [at_most(name, waits, 4, "", "one to check them, and one per block with 8 GB free")]


PARTS = (steps, max_plus, retrieval)
