"""Time and memory of the loss of very large batches, from 1k to 64k examples, forward and backward.

A matrix of all pairs of 64k examples would take 17 GB in float32.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import torch

from benchmarks.measuring import at_most, measured_alone
from metrix import Metrix, MicroBatched, losses, split

MB = 2**20
SIZES = {"1k": 1024, "4k": 4096, "16k": 16384, "64k": 65536}
DIM, PER_CLASS = 128, 4
CASES = ("clean", "anc-neg", "pos-neg", "micro-batches")
PEER = "PML's clean loss"


def step(case: str, n: int) -> Any:
    """Prepare forward and backward of a loss on n embeddings, warmed up on a few."""
    torch.set_num_threads(1)
    if case == PEER:
        from pytorch_metric_learning.losses import MultiSimilarityLoss

        loss: Any = MultiSimilarityLoss(18, 75, 0.77)
    elif case == "clean":
        loss = losses.MultiSimilarity()
    else:
        loss = partial(Metrix(losses.MultiSimilarity(), mixup="embed").mixed, pairs=case)

    def run(n: int) -> None:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(n, DIM, generator=generator).requires_grad_()
        loss(x, torch.arange(n // PER_CLASS).repeat_interleave(PER_CLASS)).backward()

    run(64)
    return partial(run, n)


def network_step(micro_batch: int) -> Any:
    """Prepare a step of ResNet-18 on 256 images of 64×64 pixels, in micro-batches."""
    from torchvision.models import resnet18

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = MicroBatched(split(resnet18(num_classes=DIM).eval(), at="layer4"), micro_batch)
    objective = Metrix(losses.MultiSimilarity(), mixup="embed", pairs="pos-neg")
    images, labels = torch.randn(256, 3, 64, 64), torch.arange(256 // PER_CLASS).repeat_interleave(PER_CLASS)
    objective.step(model, images[:8], labels[:8]).loss.backward()  # warm-up: allocates gradients and loads kernels
    return lambda: objective.step(model, images, labels).loss.backward()


def micro_batches() -> list[dict[str, Any]]:
    whole, pieces = (measured_alone(partial(network_step, size)) for size in (256, 32))
    what, note = "micro-batches of 32 of 256, ResNet-18, against the whole batch", "one more forward pass"
    memory = f"{pieces[1] / MB:.0f} MB instead of {whole[1] / MB:.0f} MB"
    return [
        at_most(f"{what}: extra peak memory", pieces[1] / whole[1], 0.3, note=memory),
        at_most(f"{what}: time", pieces[0] / whole[0], 1.6, note=note),
    ]


def run(case: str, skip_slow: bool) -> list[dict[str, Any]]:
    if case == "micro-batches":
        return micro_batches()
    sizes = [name for name in SIZES if not (skip_slow and name == "64k")]  # minutes
    found = {name: measured_alone(partial(step, case, SIZES[name])) for name in sizes}
    return _rows_of_case(case, found) + (_compare_with_peer(found) if case == "clean" else [])


def _rows_of_case(case: str, found: dict[str, tuple[float, int]]) -> list[dict[str, Any]]:
    what, rows, names = f"multi-similarity, {case}", [], list(found)
    for name, (seconds, memory) in found.items():
        note = f"{seconds:.3g} s of processor time"
        rows.append(at_most(f"{what}, batch {name}: extra peak memory", memory / MB, 700, "MB", note))
    for small, large in pairwise(names):
        ratio = found[large][0] / found[small][0]
        note = "4 times the examples, 16 times the pairs"
        rows.append(at_most(f"{what}: time from {small} to {large}", ratio, 20, note=note))
    return rows


def _compare_with_peer(ours: dict[str, tuple[float, int]]) -> list[dict[str, Any]]:
    """Compare with pytorch-metric-learning up to 4k examples: it holds matrices of all pairs."""
    rows = []
    for name in ("1k", "4k"):
        seconds, memory = measured_alone(partial(step, PEER, SIZES[name]))
        note = f"PML {seconds:.3g} s and {memory / MB:.0f} MB"
        rows.append(at_most(f"clean, batch {name}, against PML: time", ours[name][0] / seconds, 1.0, note=note))
        rows.append(at_most(f"clean, batch {name}, against PML: memory", ours[name][1] / memory, 1.0, note=note))
    return rows
