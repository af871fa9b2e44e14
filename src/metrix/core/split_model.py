"""What mixup needs of a model: the two parts f = f_m ∘ g_m."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from torch import Tensor, nn

from metrix.errors import ModelError


class SplitModel(Protocol):
    """A model in two parts: `head(features(x))` are the unit embeddings (n, d) of inputs x.

    `metrix.Embedder` is one; `metrix.split(module, at="layer4")` makes one of any network.
    """

    @property
    def features(self) -> Callable[[Tensor], Tensor]:
        """g_m: inputs to features, such as maps (n, c, h, w)."""

    @property
    def head(self) -> Callable[[Tensor], Tensor]:
        """f_m: features to unit embeddings (n, d)."""


# What callers may pass: the type of a module does not say that it has `features` and `head`, so `check_model` looks.
AnyModel = SplitModel | nn.Module


def is_split(model: object) -> bool:
    """Whether a model has both `features(x)` and `head(z)`."""
    return not _missing(model)


def check_model(model: object) -> SplitModel:
    """The model itself, known to have both parts.

    Raises:
        ModelError: it lacks `features(x)` or `head(z)`.
    """
    missing = _missing(model)
    if missing:
        raise ModelError(
            f"{type(model).__name__} has no {' and no '.join(missing)}: expected a module with features(x) and "
            "head(z), such as metrix.Embedder, or metrix.split(module, at=LAYER)"
        )
    return cast(SplitModel, model)


def _missing(model: object) -> list[str]:
    return [name for name in ("features", "head") if not callable(getattr(model, name, None))]
