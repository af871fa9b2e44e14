"""The cost of each mixing method per step, compared with the clean loss and with the other methods.

The paper reports 483 ms per batch for proxy anchor, 965 ms with Metrix and 1,563 ms with Proxy Synthesis (100 images,
ResNet-50, one GPU): 2.0 and 3.2 times the clean loss. Here, processor time of all threads is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import nn

from benchmarks.core import batch, forward_backward
from benchmarks.measuring import at_most, together
from metrix import Clean, Embedder, IMix, Metrix, MoCHi, Objective, ProxySynthesis, losses

CLASSES, DIM = 100, 512
OTHERS = ("MoCHi neg-neg+anc-neg", "i-Mix embed", "Proxy Synthesis")


def objectives(dim: int, embed_only: bool) -> dict[str, dict[str, Objective]]:
    """The mixing methods and the clean objective, for each loss."""

    def pairs() -> nn.Module:
        return losses.Contrastive(reduction="mean_nonzero")

    def proxies() -> nn.Module:
        return losses.ProxyAnchor.original(CLASSES, dim)

    found: dict[str, dict[str, Objective]] = {
        "contrastive": {
            "clean": Clean(pairs()),
            "Metrix embed, pos-neg": Metrix(pairs(), mixup="embed", pairs="pos-neg"),
            "Metrix embed, anc-neg": Metrix(pairs(), mixup="embed", pairs="anc-neg"),
            "MoCHi neg-neg+anc-neg": MoCHi(pairs()),
            "MoCHi neg-neg": MoCHi(pairs(), "neg-neg"),
            "MoCHi anc-neg": MoCHi(pairs(), "anc-neg"),
            "i-Mix embed": IMix(pairs(), mixup="embed"),
        },
        "proxy anchor": {
            "clean": Clean(proxies()),
            "Metrix embed, pos-neg": Metrix(proxies(), mixup="embed", pairs="pos-neg"),
            "Metrix embed, anc-neg": Metrix(proxies(), mixup="embed", pairs="anc-neg"),
            "Proxy Synthesis": ProxySynthesis(proxies()),
        },
    }
    if not embed_only:
        found["contrastive"] |= {
            "Metrix feature, pos-neg": Metrix(pairs(), mixup="feature", pairs="pos-neg"),
            "Metrix input, anc-neg": Metrix(pairs(), mixup="input", pairs="anc-neg"),
            "i-Mix input": IMix(pairs()),
        }
    return found


def loss_alone() -> list[dict[str, Any]]:
    """Time forward and backward of the loss of given embeddings."""
    x, labels = batch(20, 5, DIM)
    runs = {
        loss: {name: partial(forward_backward, objective, x, labels) for name, objective in methods.items()}
        for loss, methods in objectives(DIM, embed_only=True).items()
    }
    times = {loss: _timed(methods) for loss, methods in runs.items()}
    return [*_rows("loss alone", times), *_cheapest(times)]


def whole_step() -> list[dict[str, Any]]:
    """Time forward and backward of glyphs-cnn on 100 images."""
    torch.manual_seed(0)
    model, (_, labels) = Embedder("glyphs-cnn", dim=DIM), batch(20, 5)
    config = model.data_config
    images = torch.randn(len(labels), config.channels, config.size, config.size)

    def step(objective: Objective) -> None:
        objective.step(model, images, labels).loss.backward()
        model.zero_grad()

    runs = {
        loss: {name: partial(step, objective) for name, objective in methods.items()}
        for loss, methods in objectives(DIM, embed_only=False).items()
    }
    times = {loss: _timed(methods) for loss, methods in runs.items()}
    found = times["proxy anchor"]
    ratio = max(found[f"Metrix embed, {kind}"] for kind in ("pos-neg", "anc-neg")) / found["clean"]
    paper = at_most("whole step, proxy anchor: Metrix embed against clean", ratio, 2.0, note="the paper's 2.0")
    return [*_rows("whole step", times), paper]


def _timed(runs: dict[str, Callable[[], None]], seconds: float = 8.0) -> dict[str, float]:
    return together(runs, seconds=seconds, clock=time.process_time)


def _rows(what: str, times: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    rows = []
    for loss, found in times.items():
        for name, seconds in found.items():
            note = f"{1000 * seconds:.2f} ms, clean {1000 * found['clean']:.2f} ms"
            if name != "clean":
                rows.append(figure(f"{what}, {loss} + {name}: against clean", seconds / found["clean"], note))
    return rows


def _cheapest(times: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """Compare Metrix, averaged over its two kinds of pairs, with the other methods with their defaults."""
    rows = []
    for loss, found in times.items():
        ours = fmean(found[f"Metrix embed, {kind}"] for kind in ("pos-neg", "anc-neg"))
        others = {name: found[name] for name in OTHERS if name in found}
        name = min(others, key=lambda name: others[name])
        rows.append(
            at_most(f"loss alone, {loss}: Metrix embed against the cheapest other", ours / others[name], 1, note=name)
        )
    found = times["contrastive"]
    ratio = found["Metrix embed, anc-neg"] / found["MoCHi anc-neg"]
    return [*rows, at_most("loss alone, contrastive, anc-neg: Metrix embed against MoCHi", ratio, 1)]


def figure(name: str, value: float, note: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": "×", "target": "", "reached": None, "note": note}


PARTS = (loss_alone, whole_step)
