"""When mixup begins in a run, and how the weight w of the mixed loss grows."""

from __future__ import annotations

from metrix.core.objective import Objective
from metrix.errors import InvalidInput
from metrix.train.checkpoint import Progress
from metrix.train.config import Config
from metrix.train.names import METHODS
from metrix.train.sections import Mixing

WINDOW, FITTED = 10, 0.95  # measurements, and the mean share of hits from which a batch counts as fitted


def is_scheduled(mixing: Mixing) -> bool:
    """Whether w changes in a run."""
    return bool(mixing.mixup) and bool(mixing.mixup_after or mixing.mixup_ramp)


def check_schedule(config: Config) -> None:
    """Raise `InvalidInput` if w cannot change in a run of these settings."""
    mixing = config.mixing
    changed = {"mixup_after": mixing.mixup_after, "mixup_ramp": mixing.mixup_ramp}
    for key, value in changed.items():
        if value and "strength" not in METHODS[mixing.mixup_method].settings:
            raise InvalidInput(
                f"{key}: expected 0 with mixup_method {mixing.mixup_method!r}, whose mixed loss has no weight, "
                f"got {value}"
            )
    if mixing.mixup_ramp and config.train.compile:
        raise InvalidInput(
            f"mixup_ramp: expected 0 with compile, got {mixing.mixup_ramp}; every other weight would be compiled anew"
        )
    if isinstance(mixing.mixup_after, float) and mixing.mixup_after + mixing.mixup_ramp > 1:
        raise InvalidInput(
            f"mixup_ramp: expected at most {1 - mixing.mixup_after:g} with mixup_after={mixing.mixup_after:g}, so that "
            f"w reaches its value within the run, got {mixing.mixup_ramp:g}"
        )


def begin_step(objective: Objective, mixing: Mixing, progress: Progress, total_steps: int) -> None:
    """Give the objective the weight w of the next step; it stays as it is where w does not change."""
    if not is_scheduled(mixing):
        return
    if progress.mixing_from is None and isinstance(mixing.mixup_after, float):
        first = round(mixing.mixup_after * total_steps)
        progress.mixing_from = first if progress.step >= first else None
    set_strength(objective, weight_of_step(mixing, progress.step, progress.mixing_from, total_steps))


def weight_of_step(mixing: Mixing, step: int, mixing_from: int | None, total_steps: int) -> float:
    """w in a step: 0 before mixing begins, then growing along a line to the weight of the settings.

    >>> growing = Mixing(strength=0.8, mixup_ramp=0.5)
    >>> [weight_of_step(growing, step, 2, 8) for step in (1, 2, 3, 5, 7)]
    [0.0, 0.2, 0.4, 0.8, 0.8]
    """
    if mixing_from is None or step < mixing_from:
        return 0.0
    growth = round(mixing.mixup_ramp * total_steps)
    return mixing.strength * min(1.0, (step - mixing_from + 1) / growth) if growth else mixing.strength


def waits_for_fit(mixing: Mixing, progress: Progress) -> bool:
    """Whether mixing is to begin once the training classes are fitted, which they were not yet."""
    return bool(mixing.mixup) and mixing.mixup_after == "fit" and progress.mixing_from is None


def add_hits(progress: Progress, share: float) -> None:
    """Take a measurement of the share of a batch's images that are nearest to one of their class."""
    progress.hits = [*progress.hits, share][-WINDOW:]


def is_fitted(progress: Progress) -> bool:
    """Whether the last measurements are those of fitted batches."""
    return len(progress.hits) == WINDOW and sum(progress.hits) / WINDOW >= FITTED


def describe_missing_start(mixing: Mixing, progress: Progress) -> str:
    """What a finished run says if its mixup never began; else empty."""
    if not is_scheduled(mixing) or progress.mixing_from is not None:
        return ""
    share = f"{100 * sum(progress.hits) / len(progress.hits):.0f} %" if progress.hits else "not measured"
    return (
        f"mixup never began, so that this run is a clean one: --mixup-after {mixing.mixup_after} waits until "
        f"{100 * FITTED:.0f} % of a batch's images are nearest to one of their class ({share} in the end); train for "
        "longer, or begin after a share of the steps (--mixup-after 0.5)"
    )


def set_strength(objective: Objective, strength: float) -> None:
    """Set w of an objective whose mixed loss has a weight."""
    objective.strength = strength
