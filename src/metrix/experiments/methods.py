"""Everything that can be trained, from the tables that the command line and the configuration read.

`list_methods` gives a line for each name, `list_runs` a small run for each: every loss without mixup and, where it
takes it, with Metrix (embedding mixup), every mixing method with its usual loss, and every mixup type, kind of mixing
pairs, pooling head and scheme in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

from metrix.core.distillation import DISTILLATION
from metrix.core.loss import Loss, ProxyCandidateLoss
from metrix.core.mixed import PAIRS_OF_MIXED_ANCHORS
from metrix.core.mixup import route_for
from metrix.model.pooling import build_head
from metrix.train.names import (
    ACCEPTED_LOSSES,
    LOSSES,
    METHODS,
    MIXUP_TYPES,
    PAIR_KINDS,
    POOLS,
    SCHEMES,
    Choice,
    LossEntry,
)

WITH_METRIX = "loss with Metrix"
GROUPS = ("loss", "mixing method", "mixup type", "mixing pairs", "pooling head", "scheme", "distillation loss")


@dataclass(frozen=True)
class ListedMethod:
    """One name: what it is, where it was published, and what it goes with."""

    group: str
    name: str
    line: str
    reference: str
    goes_with: str

    def to_dict(self) -> dict[str, str]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class MethodRun:
    """A run of one name, as changes to a common configuration; `left_out` says why it cannot be trained there."""

    group: str
    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    left_out: str | None = None


def find_methods_for(loss: LossEntry) -> list[str]:
    """The mixing methods that a loss goes with."""
    sort = getattr(loss.make, "sort", "none")
    accepted = {sort, "similarities"} if sort == "pairs" else {sort}
    if issubclass(loss.make, Loss):
        accepted.add("generic")
    return [name for name, method in METHODS.items() if method.losses in accepted]


def list_methods() -> list[ListedMethod]:
    """Every name that can be trained, in the order of `GROUPS`.

    >>> list_methods()[0].name
    'contrastive'
    """
    return [
        *_list_losses(),
        *_list_mixing_methods(),
        *_list_choices("mixup type", MIXUP_TYPES),
        *_list_choices("mixing pairs", PAIR_KINDS),
        *_list_pools(),
        *_list_schemes(),
        *_list_distillation(),
    ]


def _list_losses() -> Iterator[ListedMethod]:
    for name, loss in LOSSES.items():
        methods = find_methods_for(loss)
        goes_with = ", ".join(methods) if methods else "no mixup: it is outside the generic form"
        if issubclass(loss.make, ProxyCandidateLoss):
            goes_with += f"; pairs {', '.join(PAIRS_OF_MIXED_ANCHORS)} only"
        yield ListedMethod("loss", name, loss.line, loss.reference, goes_with)


def _list_mixing_methods() -> Iterator[ListedMethod]:
    for name, method in METHODS.items():
        goes_with = (
            f"{ACCEPTED_LOSSES[method.losses]}; mixup {', '.join(method.mixup)}; pairs {', '.join(method.pairs)}"
        )
        yield ListedMethod("mixing method", name, method.line, method.reference, goes_with)


def _list_choices(group: str, choices: Mapping[str, Choice]) -> Iterator[ListedMethod]:
    for name, choice in choices.items():
        accepting = [m for m, method in METHODS.items() if name in (*method.mixup, *method.pairs)]
        yield ListedMethod(group, name, choice.line, choice.reference, ", ".join(accepting))


def _list_pools() -> Iterator[ListedMethod]:
    for name, choice in POOLS.items():
        model = SimpleNamespace(features=lambda x: x, head=build_head(name, 2, 2))
        goes_with = f"everything; feature mixup by {route_for('feature', model).name}"
        yield ListedMethod("pooling head", name, choice.line, choice.reference, goes_with)


def _list_schemes() -> Iterator[ListedMethod]:
    for name, choice in SCHEMES.items():
        if name != "none":
            goes_with = "losses without proxies of the whole embedding's length"
            yield ListedMethod("scheme", name, choice.line, choice.reference, goes_with)


def _list_distillation() -> Iterator[ListedMethod]:
    for name, part in DISTILLATION.items():
        goes_with = f"metrix distil --{name}-weight, {part.weight:g} by default"
        yield ListedMethod("distillation loss", name, part.line, part.reference, goes_with)


def list_runs() -> list[MethodRun]:
    """A run for each name; several names may have the same changes, and thus share a run."""
    clean: dict[str, Any] = {"loss": "contrastive", "mixup": ()}
    mixed = {"loss": "contrastive", "mixup": ("embed",)}
    found = [MethodRun("loss", name, {"loss": name, "mixup": ()}) for name in LOSSES]
    found += [
        MethodRun(WITH_METRIX, name, {"loss": name, "mixup": ("embed",)})
        for name, loss in LOSSES.items()
        if loss.takes_mixup
    ]
    found += [
        MethodRun("mixing method", name, {"mixup_method": name, "loss": method.usual_loss})
        for name, method in METHODS.items()
    ]
    found += [MethodRun("mixup type", name, {**mixed, "mixup": (name,)}) for name in MIXUP_TYPES]
    found += [MethodRun("mixing pairs", name, {**mixed, "pairs": (name,)}) for name in PAIR_KINDS]
    for name, pooling in POOLS.items():
        why = "it needs a transformer" if pooling.class_token else None
        found.append(MethodRun("pooling head", name, {**clean, "pool": name}, why))
    divided = {"loss": "margin", "mixup": (), "clusters": 2, "recluster_every": 5}
    found += [MethodRun("scheme", name, {**divided, "scheme": name}) for name in SCHEMES if name != "none"]
    return found
