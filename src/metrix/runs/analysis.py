"""Analysis of embeddings, as in the paper: positivity, utilization, alignment and uniformity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from metrix import evaluate
from metrix.core.choices import find
from metrix.core.loss import Loss
from metrix.core.mixup import MIXUP_TYPES
from metrix.core.pml import generic_form
from metrix.errors import check_integer
from metrix.evaluate import Estimate, Positivity
from metrix.runs.evaluation import Examples, embed_examples
from metrix.runs.mixed_examples import mix_embeddings, mix_examples
from metrix.runs.trained_model import TrainedModel
from metrix.train.batches import Report, ignore_report
from metrix.train.build import build_loss
from metrix.train.config import Config
from metrix.train.sections import LossChoice

LAMS = (0.0, 0.01, *(n / 20 for n in range(1, 20)), 0.99, 1.0)  # eq. prob is steep at the ends
PAIRS_EXACT = 500_000_000  # uniformity: pairs of 31,000 examples; with more, a sample of pairs is drawn
PAIRS_DRAWN = 1_000_000
PRODUCTS_EXACT = 40_000_000_000  # utilization: 60,000 queries × 660,000 examples; above it, queries are drawn
QUERIES_DRAWN = 10_000


@dataclass(frozen=True, eq=False)
class Utilization:
    """u(Q, X) without mixed examples, and u(Q, X̂) with those of each mixup type."""

    clean: Estimate
    mixed: dict[str, Estimate]
    counts: dict[str, int]  # of queries, clean examples, and mixed examples by type
    epochs: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "clean": estimate_to_dict(self.clean),
            "mixed": {name: estimate_to_dict(value) for name, value in self.mixed.items()},
            "epochs": self.epochs,
            "counts": self.counts,
        }


def estimate_to_dict(value: Estimate) -> dict[str, Any]:
    """An estimate with its standard error, ready for JSON."""
    return {"value": float(value), "standard_error": value.standard_error, "sampled": value.sampled}


def build_analysed_loss(config: Config, changes: dict[str, Any], classes: int) -> Loss:
    """The loss of a configuration in the generic form, with changed parameters, or another loss.

    Args:
        config: the settings of a run
        changes: keys of the section `loss` with other values; None leaves a key unchanged
        classes: how many there are, for losses with proxies
    """
    given = {key: value for key, value in changes.items() if value is not None}
    if "loss" in given:  # the parameters of one loss do not carry over to another
        given = {**dict.fromkeys(LossChoice.model_fields), **given}
    return generic_form(build_loss(config.with_values(given).loss, classes, config.model.dim))


def measure_positivity(examples: Examples, loss: Loss, config: Config, seed: int = 0) -> Positivity:
    """P(Pos(a, v)) against λ (eq. prob), over all examples, in batches of the run's size."""
    train = config.train
    return evaluate.positivity(
        examples.vectors,
        examples.labels,
        LAMS,
        loss,
        batch_size=max(train.batch_size, 3),
        per_class=min(max(train.per_class, 2), max(train.batch_size, 3) - 1),
        lam_per="pair" if config.mixing.lam_per == "pair" else "batch",  # an expectation is over one λ of all pairs
        generator=torch.Generator().manual_seed(seed),
    )


def measure_geometry(examples: Examples) -> dict[str, Any]:
    """Alignment and uniformity; uniformity is estimated from a sample of pairs if there are very many."""
    vectors, labels = examples.everything
    count = len(vectors)
    drawn = PAIRS_DRAWN if count * (count - 1) // 2 > PAIRS_EXACT else None
    return {
        "images": count,
        "alignment": evaluate.alignment(vectors, labels),
        "uniformity": evaluate.uniformity(vectors, max_pairs=drawn),
    }


def measure_utilization_of_run(
    model: TrainedModel,
    mixup: tuple[str, ...] | None = None,
    epochs: int = 10,
    *,
    max_queries: int | None = None,
    seed: int = 0,
    report: Report = ignore_report,
) -> Utilization:
    """u(Q, X) and u(Q, X̂) of a run, where Q are its test and X its training embeddings, and X̂ has mixed ones too.

    Mixed examples are generated in blocks, with the model fixed, and never held all at once.

    Args:
        model: the model of a run
        mixup: the mixup types to measure; those of the run by default
        epochs: passes over the training images in which mixed examples are drawn
        max_queries: how many test embeddings to draw; by default all, unless there are very many
        seed: of all draws
        report: is called with the progress
    """
    config = model.config
    chosen = _check_mixups(mixup or config.mixing.mixup or ("embed",), epochs)
    train, test = embed_examples(model, part="train"), embed_examples(model)
    streams = {
        name: mix_examples(model, train, name, epochs, torch.Generator().manual_seed(seed), report) for name in chosen
    }
    return _measure_utilization(test, train, streams, epochs, max_queries, seed)


def measure_utilization(
    test: Examples,
    train: Examples,
    epochs: int = 10,
    *,
    config: Config | None = None,
    max_queries: int | None = None,
    seed: int = 0,
) -> Utilization:
    """u(Q, X) and u(Q, X̂) of embeddings of any origin, with embedding mixup as in `config`."""
    _check_mixups(("embed",), epochs)
    draws = torch.Generator().manual_seed(seed)
    streams = {"embed": mix_embeddings(train, config or Config(), epochs, draws)}
    return _measure_utilization(test, train, streams, epochs, max_queries, seed)


def _check_mixups(given: tuple[str, ...], epochs: int) -> tuple[str, ...]:
    for name in given:
        find("mixup", name, MIXUP_TYPES)
    check_integer("epochs", epochs, least=1)
    return tuple(dict.fromkeys(given))


def _measure_utilization(
    test: Examples,
    train: Examples,
    streams: dict[str, Iterator[NDArray[Any]]],
    epochs: int,
    max_queries: int | None,
    seed: int,
) -> Utilization:
    queries = test.vectors
    work = len(queries) * len(train.vectors) * (1 + epochs)
    if max_queries is None and work > PRODUCTS_EXACT:
        max_queries = QUERIES_DRAWN

    def measure(mixed: Any) -> Estimate:
        draws = torch.Generator().manual_seed(seed)  # draws the same queries each time
        return evaluate.utilization(queries, train.vectors, mixed, max_queries=max_queries, generator=draws)

    counts = {"queries": len(queries), "clean": len(train.vectors)}

    def count(name: str, blocks: Iterator[NDArray[Any]]) -> Iterator[NDArray[Any]]:
        counts[name] = 0
        for block in blocks:
            counts[name] += len(block)
            yield block

    clean = measure(None)
    return Utilization(clean, {name: measure(count(name, s)) for name, s in streams.items()}, counts, epochs)
