"""Batches, networks and objectives whose loss and gradients must be the same in one process and in several."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from metrix import Distil, IMix, Metrix, MoCHi, PoolLinear, ProxySynthesis, SiMix, losses
from metrix.core.objective import Clean, Objective
from metrix.labels import ClassMatrix, Hierarchy, LabelSets
from tests.losses_table import BASELINES, TABLE

LABELS = {
    "unbalanced": [0, 0, 0, 1, 1, 2, 0, 1, 3],
    "singletons": [0, 1, 2, 2, 3, 4, 1, 5],
    "one_class": [1, 1, 1, 1],
}
# How many examples each process has: unequal parts, an empty one, classes split over processes.
PARTS = {
    "unbalanced": [(5, 4), (9, 0), (3, 1, 0, 5)],
    "singletons": [(2, 6), (2, 2, 2, 2)],
    "one_class": [(1, 3), (0, 2, 1, 1)],
}
CLASSES, DIM = 6, 5
# what is mixed, with whom, under which pooling, from which processes
MIXING: dict[str, dict[str, Any] | None] = {
    "clean": None,
    "embed pos-neg": {"mixup": "embed", "pairs": "pos-neg"},
    "embed anc-neg": {"mixup": "embed", "pairs": "anc-neg"},
    "embed hardest": {"mixup": "embed", "pairs": ("pos-neg", "anc-neg"), "hard_negatives": 2},
    "avg feature pos-neg": {"mixup": "feature", "pairs": "pos-neg"},
    "avg feature anc-neg": {"mixup": "feature", "pairs": "anc-neg"},
    "avg+max feature anc-neg": {"mixup": "feature", "pairs": "anc-neg"},
    "avg+max feature pos-neg": {"mixup": "feature", "pairs": "pos-neg", "hard_negatives": 2},
    "gelu input anc-neg": {"mixup": "input", "pairs": "anc-neg"},
    "gelu feature pos-neg": {"mixup": "feature", "pairs": "pos-neg"},
    "batch norm embed pos-neg": {"mixup": "embed", "pairs": "pos-neg"},
}


def remembering(objective: Objective) -> Objective:
    """An objective with a memory that is filled in part."""
    past = torch.randn(7, DIM, generator=torch.Generator().manual_seed(5))
    assert objective.with_memory(12, DIM).memory is not None
    objective.memory.add(nn.functional.normalize(past, dim=1), torch.tensor([0, 1, 1, 2, 4, 3, 0]))
    return objective


def baseline(name: str, generator: torch.Generator) -> Objective:
    """A loss that is not of the generic form; one that draws has the generator that all processes share."""
    loss = BASELINES[name](CLASSES, DIM)
    if hasattr(loss, "generator"):
        loss.generator = generator
    return Clean(loss)


# labels that are positive to each other in degrees
HIERARCHY = partial(Hierarchy, [0, 0, 1, 1, 2, 2], weight=0.4)
LABEL_SETS = partial(LabelSets, [[1, 1, 0], [1, 0, 0], [0, 1, 1], [0, 0, 1], [1, 1, 1], [0, 1, 0]])
ALIKE = partial(ClassMatrix, [[1.0 - abs(a - b) / CLASSES for b in range(CLASSES)] for a in range(CLASSES)])
# other objectives, and losses that are not of the generic form
OTHERS: dict[str, Callable[[torch.Generator], Objective]] = {
    "i-mix input": lambda g: IMix(losses.Contrastive(), generator=g),
    "i-mix feature": lambda g: IMix(losses.MultiSimilarity(), "feature", generator=g),
    "mochi": lambda g: MoCHi(losses.Contrastive(), hard_negatives=2, generator=g),
    "proxy synthesis": lambda g: ProxySynthesis(losses.ProxyAnchor(CLASSES, DIM), generator=g),
    "simix": lambda g: SiMix(losses.RecallAtK(temperature=0.1), generator=g),
    "prefixes, clean": lambda g: Clean(losses.ProxyAnchor(CLASSES, DIM)).with_matryoshka((2, 4), 0.5),
    "prefixes, embed": lambda g: Metrix(
        losses.MultiSimilarity(), "embed", hard_negatives=2, generator=g, matryoshka=(2, 4)
    ),
    "prefixes, feature": lambda g: Metrix(losses.Contrastive(reduction="mean_nonzero"), generator=g, matryoshka=3),
    "embed, λ per batch": lambda g: Metrix(losses.SupCon(), "embed", lam_per="batch", generator=g),
    "hierarchy, clean": lambda g: Clean(losses.MultiSimilarity()).with_relation(HIERARCHY()),
    "hierarchy, embed": lambda g: Metrix(losses.MultiSimilarity(), "embed", generator=g).with_relation(HIERARCHY()),
    "label sets, embed": lambda g: Metrix(losses.Contrastive(), "embed", generator=g).with_relation(LABEL_SETS()),
    "class matrix, proxies": lambda g: Metrix(
        losses.ProxyAnchor(CLASSES, DIM), "embed", "pos-neg", generator=g
    ).with_relation(ALIKE()),
    "distillation": lambda g: Distil(
        lambda x: x[:, :7],
        dims=(DIM, 7),
        mixup="none",
        labelled=losses.ProxyAnchor(CLASSES, DIM),
        label_weight=0.5,
        generator=g,
    ),
    "memory": lambda g: remembering(Clean(losses.MultiSimilarity())),
    "memory, embed": lambda g: remembering(Metrix(losses.NCA(), "embed", "pos-neg", generator=g)),
    **{name: partial(baseline, name) for name in BASELINES},
}


@dataclass(frozen=True)
class Case:
    """A loss with a mixing on a batch."""

    loss: str
    mixing: str
    labels: str
    mix: str = "global"

    def __str__(self) -> str:
        return f"{self.loss}, {self.mixing}, {self.labels}, {self.mix}"


def cases() -> list[Case]:
    """Every loss with every mixing on one batch, and with some on the others."""
    local = [name for name in MIXING if "feature" in name or "input" in name]
    return [
        *(Case(*names, "unbalanced") for names in itertools.product(TABLE, MIXING)),
        *(Case(*names, "unbalanced", mix="local") for names in itertools.product(TABLE, local[1::2])),
        *(Case(*names) for names in itertools.product(TABLE, ["clean", "avg+max feature pos-neg"], ["singletons"])),
        *(Case(loss, "embed anc-neg", "one_class") for loss in TABLE),
        *(Case(name, "other", "unbalanced") for name in OTHERS),
    ]


class Network(nn.Module):
    """Features (n, 4, 3) of inputs (n, 12), and a head."""

    def __init__(self, head: str) -> None:
        super().__init__()
        self.trunk = nn.Linear(12, 12)
        self.norm: nn.Module = nn.BatchNorm1d(12) if head == "batch" else nn.Identity()
        head = "avg" if head == "batch" else head
        if head == "gelu":
            self.head: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.GELU(), nn.Linear(8, DIM))
        else:
            self.head = PoolLinear(3, DIM, head)

    def features(self, x: Tensor) -> Tensor:
        return self.norm(self.trunk(x)).tanh().view(-1, 4, 3)


def made(case: Case) -> tuple[Network, Objective]:
    """Network and objective, the same each time."""
    torch.manual_seed(7)
    head = case.mixing.split()[0]
    network = Network("avg" if head in ("clean", "embed", "other") else head).double()
    if case.loss in OTHERS:
        return network, OTHERS[case.loss](torch.Generator().manual_seed(3)).double()
    loss = TABLE[case.loss].build(CLASSES, DIM, seed=7)
    mixing = MIXING[case.mixing]
    if mixing is None:
        return network, Clean(loss)
    # λ of local mixtures is drawn by each process for itself: one for the batch makes them comparable
    return network, Metrix(
        loss,
        **mixing,
        strength=0.7,
        lam_per="batch" if case.mix == "local" else "pair",
        generator=torch.Generator().manual_seed(3),
    )


def batch(case: Case) -> tuple[Tensor, Tensor]:
    """Inputs and labels of the whole batch."""
    labels = torch.tensor(LABELS[case.labels])
    inputs = torch.randn(len(labels), 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return inputs, labels


def parts_for(world: int) -> list[tuple[str, tuple[int, ...]]]:
    """The divisions of batches among so many processes."""
    return [(name, sizes) for name, divisions in PARTS.items() for sizes in divisions if len(sizes) == world]


def gradients(network: nn.Module, objective: nn.Module, losses: Sequence[Tensor]) -> dict[str, Tensor]:
    """Values, and the gradient of the first with respect to every parameter."""
    losses[0].backward()
    found = {f"value {i}": loss.detach() for i, loss in enumerate(losses)}
    for prefix, module in (("network", network), ("objective", objective)):
        for name, p in module.named_parameters():
            found[f"{prefix}.{name}"] = p.grad if p.grad is not None else torch.zeros_like(p)
    return found
