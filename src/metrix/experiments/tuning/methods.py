"""The methods that a study compares: a loss alone, or with a mixup type or a mixing method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from metrix.errors import InvalidInput, unknown_choice
from metrix.experiments.methods import find_methods_for
from metrix.train.config import Config
from metrix.train.names import LOSSES, METHODS, MIXUP_TYPES

# What a study without --method compares, after the loss of its base settings: as many as fit into its budget.
USUAL_LOSSES = ("multi-similarity", "contrastive", "proxy-anchor", "supcon", "proxy-nca++", "arcface")
USUAL_MIXUP = "feature"


@dataclass(frozen=True)
class TunedMethod:
    """A loss and what is mixed, such as `contrastive+feature`."""

    loss: str
    mixing: str = ""  # a mixup type of Metrix, or a mixing method; empty: clean

    @property
    def name(self) -> str:
        """How it is called on the command line and in tables."""
        return f"{self.loss}+{self.mixing}" if self.mixing else self.loss

    @property
    def clean(self) -> TunedMethod:
        """The same loss without mixup."""
        return TunedMethod(self.loss)

    @property
    def mixup_method(self) -> str:
        """The mixing method of the configuration."""
        return "metrix" if self.mixing in MIXUP_TYPES else self.mixing

    def configure(self, base: Config) -> Config:
        """The base settings with this loss and mixup; parameters of another loss or mixing method are left out."""
        if not self.mixing:
            return base.with_values({"loss": self.loss, "mixup": ()})
        values: dict[str, Any] = {"loss": self.loss, "mixup_method": self.mixup_method}
        mixup = (self.mixing,) if self.mixing in MIXUP_TYPES else METHODS[self.mixing].defaults["mixup"]
        return base.with_values({**values, "mixup": mixup})


def parse_method(text: str) -> TunedMethod:
    """The method `LOSS`, `LOSS+MIXUP TYPE` or `LOSS+MIXING METHOD`.

    >>> parse_method("proxy-nca+++feature")
    TunedMethod(loss='proxy-nca++', mixing='feature')
    """
    known = [loss for loss in LOSSES if text == loss or text.startswith(f"{loss}+")]
    if not known:
        raise unknown_choice("--method: loss", text.partition("+")[0], LOSSES)
    loss = max(known, key=len)
    mixing = text[len(loss) + 1 :]
    if text == loss:
        return TunedMethod(loss)
    others = [name for name in METHODS if name != "metrix"]
    if mixing not in (*MIXUP_TYPES, *others):
        raise unknown_choice(f"--method: mixup after {loss}+", mixing, (*MIXUP_TYPES, *others))
    method = TunedMethod(loss, mixing)
    accepted = find_methods_for(LOSSES[loss])
    if method.mixup_method not in accepted:
        raise InvalidInput(
            f"--method {text}: expected a mixing method that goes with {loss} ({', '.join(accepted) or 'none does'}), "
            f"got {method.mixup_method}; metrix methods lists what goes with what"
        )
    return method


def parse_methods(given: Sequence[str]) -> list[TunedMethod]:
    """The methods of `--method`, each once.

    Raises:
        InvalidInput: a method is unknown, or was given twice
    """
    methods = [parse_method(text) for text in given]
    for n, method in enumerate(methods):
        if method in methods[:n]:
            raise InvalidInput(f"--method: {method.name} was given twice; give it once")
    return methods


def list_usual_methods(base: Config) -> list[TunedMethod]:
    """What to compare where the user has not said: the loss of the base settings first, each loss clean and mixed."""
    return pair_with_mixup(dict.fromkeys((base.loss.loss, *USUAL_LOSSES)))


def pair_with_mixup(losses: Iterable[str]) -> list[TunedMethod]:
    """Each loss clean and, where it takes it, with feature mixup.

    >>> [method.name for method in pair_with_mixup(["contrastive", "triplet"])]
    ['contrastive', 'contrastive+feature', 'triplet']
    """
    return [
        method
        for loss in losses
        for method in (TunedMethod(loss), TunedMethod(loss, USUAL_MIXUP))
        if not method.mixing or LOSSES[loss].takes_mixup
    ]
