"""What a study says, in sentences that claim no more than it shows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from metrix.evaluate.seeds import SeedDifferences
from metrix.experiments.tuning.finals import UNTRAINED, Contrast, FinalTable, Winner
from metrix.experiments.tuning.trials import FinishedTrial, find_errors
from metrix.messages import count
from metrix.train.fit import describe_outlook

HOUR = 3600.0


@dataclass(frozen=True)
class Conclusion:
    """The sentences of a study."""

    best: str
    search: str
    helped: str
    missing: str
    outlook: str
    another_hour: str

    @property
    def sentences(self) -> tuple[str, ...]:
        """All of them that have something to say, in the order in which they are shown."""
        said = (self.best, self.search, self.helped, self.missing, self.outlook, self.another_hour)
        return tuple(filter(None, said))

    @property
    def text(self) -> str:
        """All of them as one text."""
        return " ".join(self.sentences)


def conclude(winners: Sequence[Winner], trials: Sequence[FinishedTrial], table: FinalTable, metric: str) -> Conclusion:
    """The sentences of a finished study.

    Args:
        winners: of the methods
        trials: all of them
        table: what the test classes say
        metric: what was maximised
    """
    best = max(winners, key=lambda winner: winner.score)
    result = next(one for one in table.results if one.method == best.method.name)
    first = (
        f"Best on the folds: {best.method.name}, {metric} {best.score:.1f} % on training classes it had not seen; "
        f"Recall@1 {result.mean:.1f} % on {count(table.classes, 'test class')}, untrained "
        f"{table.untrained.mean:.1f} %."
    )
    return Conclusion(
        best=first,
        search=_say_search(best, trials),
        helped=_say_contrasts(table),
        missing=_say_missing(trials),
        outlook=_say_outlook(winners, table),
        another_hour=_say_hour(table, trials),
    )


def _say_missing(trials: Sequence[FinishedTrial]) -> str:
    """Methods of which nothing is known."""
    said = [f"{name} ({error})" for name, error in find_errors(trials).items()]
    return f"Not compared, because no trial could be finished: {'; '.join(said)}." if said else ""


def _say_search(best: Winner, trials: Sequence[FinishedTrial]) -> str:
    """What the search gained over the usual settings of the same method, on the folds."""
    usual = next((one for one in trials if one.usual and one.method == best.method.name), None)
    if best.usual:
        return "No trial beat the settings that the study began with, which are the best found."
    if usual is None or usual.score is None:
        return "The settings that the study began with could not be trained."
    gains = [after - before for before, after in zip(usual.scores, best.scores, strict=True)]
    gain, low, high = best.score - usual.score, min(gains), max(gains)
    optimism = "the best of many trials is partly luck, which the test classes do not share"
    return (
        f"The search gained {gain:+.1f} points over its first settings ({low:+.1f} to {high:+.1f} by fold); {optimism}."
    )


def _say_contrasts(table: FinalTable) -> str:
    groups: dict[str, list[str]] = {"helps": [], "harms": [], "open": []}
    for one in table.contrasts:
        groups[one.verdict].append(_describe(one))
    parts = []
    for verdict, words in (("helps", "Helped"), ("harms", "Did harm"), ("open", "Cannot be told")):
        if groups[verdict]:
            parts.append(f"{words}: {'; '.join(groups[verdict])}.")
    return " ".join(parts)


def _say_outlook(winners: Sequence[Winner], table: FinalTable) -> str:
    """What the fit of the clean winner lets expect of mixup, where both were compared."""
    mixed = next(
        (one.method for one in winners if one.method.mixing and table.find(one.method.name, one.method.clean.name)),
        None,
    )
    clean = next((one for one in table.results if mixed is not None and one.method == mixed.clean.name), None)
    return "" if clean is None else describe_outlook(clean.fit)


def _describe(one: Contrast) -> str:
    what = f"training with {one.name}" if one.against == UNTRAINED else f"{one.name} against {one.against}"
    said = f"{what} {one.difference:+.1f} points (over classes {one.low:+.1f} to {one.high:+.1f}"
    return said + (")" if one.seed_margin is None else f"; over seeds ± {one.seed_margin:.1f})")


def _say_hour(table: FinalTable, trials: Sequence[FinishedTrial]) -> str:
    """What another hour would buy: trials, or seeds, and how much narrower intervals they make."""
    took = [[one.seconds for one in trials if one.method == result.method and one.seconds] for result in table.results]
    rounds = int(HOUR / max(1e-9, sum(statistics.fmean(seconds) for seconds in took if seconds)))
    seeds = int(HOUR / max(1e-9, sum(one.seconds for one in table.results)))
    said = f"Another hour: about {count(rounds, 'more trial')} of each method, or {count(seeds, 'more seed')} of each"
    between = [one for one in table.contrasts if one.against != UNTRAINED and one.seed_margin]
    if not between or not seeds:
        return said + "."
    widest = max(between, key=lambda one: one.seed_margin or 0.0)
    now = len(widest.over_seeds)
    narrower = narrow(widest.over_seeds, now + seeds)
    classes = (widest.high - widest.low) / 2
    return (
        f"{said}, which would narrow {widest.name} against {widest.against} from ± {widest.seed_margin:.1f} to about "
        f"± {narrower:.1f} over seeds; over classes it stays ± {classes:.1f}, which only more test classes narrow."
    )


def narrow(differences: Sequence[float], seeds: int) -> float:
    """Half the 95 % interval over `seeds` seeds, if they spread as the differences so far."""
    from scipy.stats import t

    return float(t.ppf(0.975, seeds - 1)) * SeedDifferences(tuple(differences)).spread / math.sqrt(seeds)
