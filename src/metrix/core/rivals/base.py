"""What the rival methods share: checks of the loss, draws of λ and of partners."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from metrix.core.factors import Factors, check_drawing
from metrix.core.loss import Loss, ProxyLoss
from metrix.core.pml import generic_form
from metrix.core.table1 import TABLE1
from metrix.errors import InvalidInput


def as_pair_loss(loss: nn.Module, method: str) -> Loss:
    """A loss of the generic form whose anchors, positives and negatives are all examples."""
    found = generic_form(loss)
    if found.sort != "pairs":
        raise InvalidInput(
            f"{method} with {type(loss).__name__}: it mixes examples for other examples, and this loss compares "
            f"them with proxies; expected {_classes(with_proxies=False)} or GenericLoss. For proxies there are "
            "ProxySynthesis and Metrix"
        )
    return found


def as_proxy_loss(loss: nn.Module, method: str) -> ProxyLoss:
    """A loss of the generic form with a proxy for each class."""
    found = generic_form(loss)
    if not isinstance(found, ProxyLoss) or found.sort != "proxies":
        has = "none" if found.sort == "pairs" else "several for each class"
        raise InvalidInput(
            f"{method} with {type(loss).__name__}: it mixes the proxies of two classes, and this loss has {has}; "
            f"expected {_classes(with_proxies=True)}. For pairs of examples there are MoCHi, IMix and Metrix"
        )
    return found


def _classes(with_proxies: bool) -> str:
    """The classes of Table 1 with, or without, proxies."""
    return ", ".join(loss.make.__name__ for loss in TABLE1.values() if issubclass(loss.make, ProxyLoss) == with_proxies)


@dataclass(frozen=True)
class Drawing:
    """How a method draws λ: from Beta(alpha, alpha), one for each pair or one for each batch."""

    alpha: float
    lam_per: str

    def __post_init__(self) -> None:
        check_drawing(self.alpha, self.lam_per)

    def __call__(
        self, shape: tuple[int, ...], like: Tensor, given: float | Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        """λ of a shape, unless it is given as a number or a tensor of that shape."""
        return Factors(given, float(self.alpha), self.lam_per == "pair", generator, like).of(*shape).rows()


def draw_partners(labels: Tensor, generator: torch.Generator | None) -> Tensor | None:
    """For each example another one of a different class, drawn uniformly: (n,); None if there is one class only.

    In the order of classes, the examples of other classes are all but one stretch. Labels and partners are on the host.
    """
    n = len(labels)
    _, number, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    own, start = counts[number], (counts.cumsum(0) - counts)[number]
    others = n - own
    if int(others[0]) == 0:
        return None
    at = torch.device("cpu") if generator is None else generator.device
    uniform = torch.rand(n, generator=generator, device=at).to("cpu", torch.float64)
    place = (uniform * others).long().clamp_max_(others - 1)
    place += torch.where(place >= start, own, 0)
    found: Tensor = number.argsort(stable=True)[place]
    return found
