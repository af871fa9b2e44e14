"""Every parameter of every loss and mixing method, with values that nobody should give.

Each is either taken, and then gives a finite loss and gradient, or refused with an error of ours that names the
parameter, what was expected and what was given. The parameters are read from the constructors, so a new loss or mixing
method is swept as soon as it is in its table.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from metrix import Clean, MetrixError, losses
from metrix.errors import ShapeError, describe_value
from metrix.train.names import LOSSES, METHODS

X = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
HOSTILE: tuple[Any, ...] = (
    *(math.nan, math.inf, -math.inf, -1, -0.5, 0, 0.5, 1e-300, 1e-9, 1e9, 1e300, 10**9, 10**18, 10**400, 10**5000, 1j),
    *("0.5", "no", "", b"1", True, None, [], [None], {}, object(), losses.NCA),
    *(np.float32("nan"), np.float64(0.5), np.int64(3), np.True_, np.array([0.5, 0.6])),
    *(torch.tensor(0.5), torch.tensor(math.nan), torch.tensor([0.5, 0.6]), torch.tensor(1.0, device="meta")),
    *(torch.tensor(0.5, requires_grad=True), torch.tensor(2), torch.tensor(True)),
)
# sizes that are accepted and take long, or more memory than a test should
TOO_COSTLY = {("num_classes", 10**9), ("dim", 10**9), ("centers", 10**9)}


def arguments_of(make: Callable[..., Any]) -> dict[str, Any]:
    needed = {"num_classes": 3, "dim": 4, "rho_pos": torch.neg, "rho_neg": torch.relu}
    return {name: needed[name] for name in inspect.signature(make).parameters if name in needed}


def mixing_class(name: str) -> type[nn.Module]:
    return METHODS[name].make  # type: ignore[return-value]


def usual_loss(name: str) -> nn.Module:
    make = LOSSES[METHODS[name].usual_loss].make
    return make(**arguments_of(make))


def constructors() -> Iterator[tuple[str, Callable[..., nn.Module], Callable[[], dict[str, Any]]]]:
    for name, entry in LOSSES.items():
        yield name, entry.make, lambda make=entry.make: {} if make is losses.Margin else arguments_of(make)
    yield "GenericLoss", losses.GenericLoss, lambda: arguments_of(losses.GenericLoss)
    yield "Clean", Clean, lambda: {"loss": losses.NCA()}
    for name in METHODS:
        make = mixing_class(name)
        takes_mixup = "mixup" in inspect.signature(make).parameters
        yield (
            name,
            make,
            lambda name=name, takes=takes_mixup: {
                "loss": usual_loss(name),
                **({"mixup": "embed"} if takes else {}),
            },
        )


CASES = {
    f"{name}: {parameter}": (make, parameter, arguments)
    for name, make, arguments in constructors()
    for parameter in inspect.signature(make).parameters
}


def loss_and_gradients(objective: nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x = X.clone().requires_grad_()
    value = objective(x, Y)
    value.backward()
    gradients = [p.grad for p in objective.parameters() if p.grad is not None]
    assert x.grad is not None
    return [value.detach(), x.grad, *gradients]


def says_what_is_wrong(error: MetrixError, parameter: str, value: Any) -> bool:
    given = [describe_value(x) for x in [value, *(value if isinstance(value, list) else [])]]
    return parameter in str(error) and "expected" in str(error) and any(text in str(error) for text in given)


def build_or_refuse(build: Callable[[], nn.Module]) -> nn.Module | MetrixError:
    try:
        return build()
    except MetrixError as error:
        return error


@pytest.mark.filterwarnings("ignore::metrix.MetrixWarning")
@pytest.mark.parametrize("case", CASES)
def test_a_setting_is_refused_in_words_or_gives_a_finite_loss(case: str) -> None:
    make, parameter, arguments = CASES[case]
    for value in HOSTILE:
        if isinstance(value, int) and (parameter, value) in TOO_COSTLY:
            continue
        settings = {**arguments(), parameter: value}
        made = build_or_refuse(lambda settings=settings: make(**settings))
        if isinstance(made, MetrixError):
            assert says_what_is_wrong(made, parameter, value), f"{describe_value(value)}: {made}"
        elif parameter == "matryoshka" and isinstance(value, int) and value > X.shape[1]:
            with pytest.raises(ShapeError, match="matryoshka: expected prefixes of an embedding of dimension 4"):
                loss_and_gradients(made)
        elif parameter != "dim":  # the batch has four dimensions
            finite = [bool(found.isfinite().all()) for found in loss_and_gradients(made)]
            assert all(finite), f"{parameter}={describe_value(value)}"
