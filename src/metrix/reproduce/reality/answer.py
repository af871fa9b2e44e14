"""What a reality check says, in sentences that claim no more than it shows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from metrix.evaluate.method_ranks import FEWEST_DATASETS
from metrix.experiments.tuning.finals import Contrast
from metrix.messages import count, first_few
from metrix.reproduce.reality.summary import CheckResult, OverDatasets

VERDICTS = {"helps": "helped", "harms": "did harm", "open": "cannot be told"}


@dataclass(frozen=True)
class CheckAnswer:
    """The sentences, in the order in which they are shown; `cautions` say what could mislead."""

    mixup: str
    losses: str
    tuning: str
    ranks: str
    best: str
    cautions: tuple[str, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences without the cautions; parts of which there is nothing to say are left out."""
        return tuple(one for one in (self.mixup, self.losses, self.tuning, self.ranks, self.best) if one)


def conclude_check(found: CheckResult) -> CheckAnswer:
    """The sentences of a finished reality check."""
    return CheckAnswer(
        mixup=_say_contrasts("Mixup, against the same loss without it", found.mixup, found),
        losses=_say_contrasts(f"Losses without mixup, against {found.methods[0].name}", found.losses, found),
        tuning=_say_tuning(found),
        ranks=_say_ranks(found),
        best=_say_best(found),
        cautions=tuple(_caution(found)),
    )


def _say_contrasts(what: str, groups: Sequence[OverDatasets], found: CheckResult) -> str:
    """What helped, what did harm, and what cannot be told."""
    known = [(one, data, contrast) for one in groups for data, contrast in one.contrasts.items()]
    if not known:
        return ""
    several = len(found.outcomes) > 1
    parts = []
    for verdict in ("helps", "harms"):
        said = [
            f"{one.name}{f' on {data}' if several else ''} ({_say_difference(contrast)})"
            for one, data, contrast in known
            if contrast.verdict == verdict
        ]
        of = f" of {count(len(known), 'comparison')}" if verdict == "helps" else ""
        parts.append(f"{VERDICTS[verdict]} in {len(said)}{of}" + (f": {', '.join(said)}" if said else ""))
    undecided = [one.name for one, _, contrast in known if contrast.verdict == "open"]
    if undecided:
        parts.append(f"{VERDICTS['open']} in {len(undecided)}: {first_few(dict.fromkeys(undecided), 8)}")
    return f"{what}: {'; '.join(parts)}."


def _say_difference(one: Contrast) -> str:
    return f"{one.difference:+.1f} points, {one.low:+.1f} to {one.high:+.1f}"


def _say_tuning(found: CheckResult) -> str:
    """What tuning gains on the folds beside what mixup changes on the test classes."""
    gains = found.tuning_gains
    if not gains:
        return ""
    said = (
        f"Tuning: the best of up to {count(found.trials, 'trial')} was {statistics.median(gains):+.1f} points above "
        f"the usual settings of its method on the folds (median; {min(gains):+.1f} to {max(gains):+.1f}), some of "
        "which is the luck of the best of many"
    )
    changes = [one.difference for group in found.mixup for one in group.contrasts.values()]
    if changes:
        said += (
            f"; mixup, both tuned, changed Recall@1 on the test classes by {statistics.median(changes):+.1f} (median; "
            f"{min(changes):+.1f} to {max(changes):+.1f})"
        )
    return said + "."


def _say_ranks(found: CheckResult) -> str:
    ranks, number = found.ranks, len(found.outcomes)
    if ranks is None:
        return ""
    if not found.generalises:
        have = count(number, "dataset")
        if found.different_data < number:
            have += f", {found.different_data} of them different images"
        return (
            f"Ranks over datasets tell nothing here: there are {have}, and at least {FEWEST_DATASETS} are needed. What "
            "can be told is about each dataset alone, over its classes and seeds."
        )
    datasets = count(found.different_data, "dataset")
    (best, rank), *_, (worst, last) = ranks.means.items()
    p = ranks.friedman.p_value
    if p >= 0.05:
        return (
            f"Over {datasets}, the methods cannot be told apart: mean ranks from {rank:.1f} ({best}) "
            f"to {last:.1f} ({worst}) could be chance (Friedman, p = {p:.2g})."
        )
    with_best = [name for name, mean in ranks.means.items() if mean - rank < ranks.critical_difference and name != best]
    said = (
        f"Over {datasets}, ranks differ by more than chance (Friedman, p = {p:.2g}); {best} has the "
        f"best mean rank, {rank:.1f} of {len(ranks.methods)}"
    )
    critical = f"critical difference {ranks.critical_difference:.1f}"
    if with_best:
        return f"{said}, and cannot be told from {first_few(with_best, 6)} ({critical})."
    return f"{said}, and is told from all others ({critical})."


def _say_best(found: CheckResult) -> str:
    """The best on the folds of each dataset, with what it reaches on the test classes."""
    parts = []
    for outcome in found.outcomes:
        if not outcome.methods:
            continue
        best = max(outcome.methods, key=lambda one: statistics.fmean(one.folds))
        parts.append(
            f"on {outcome.name} {best.method}, Recall@1 {best.recall:.1f} % on {count(outcome.classes, 'test class')} "
            f"(untrained {outcome.untrained:.1f} %)"
        )
    return f"Best on the folds: {'; '.join(parts)}." if parts else ""


def _caution(found: CheckResult) -> list[str]:
    """What a reader has to know so as not to be misled."""
    said = []
    by_data: dict[str, list[str]] = {}
    for outcome in found.outcomes:
        by_data.setdefault(outcome.fingerprint, []).append(outcome.name)
    for names in by_data.values():
        if len(names) > 1:
            said.append(f"{', '.join(names)} are the same images with other settings; they count as one dataset.")
    fewer = {
        outcome.name: min(one.trials for one in outcome.methods)
        for outcome in found.outcomes
        if outcome.methods and min(one.trials for one in outcome.methods) < found.trials
    }
    for name, trials in fewer.items():
        said.append(
            f"{name}: its share of the budget ended after {count(trials, 'trial')} of each method, {found.trials} were "
            "planned."
        )
    for outcome in found.outcomes:
        for method, error in outcome.failed.items():
            said.append(f"{method} has no result on {outcome.name} and is not ranked: {error}")
        if outcome.looks > 1:
            said.append(f"The test classes of {outcome.name} were measured {outcome.looks} times; intervals are wider.")
    if len({outcome.code for outcome in found.outcomes}) > 1:
        said.append("Datasets were trained by different versions of metrix.")
    return said
