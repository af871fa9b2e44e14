"""Why a run finds what it finds: positivity, utilization and geometry of its embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from metrix import data, evaluate
from metrix.core.choices import find
from metrix.core.closed_form import Interpolated
from metrix.core.factors import choose, draw
from metrix.core.loss import Loss
from metrix.core.mixup import MIXUP_TYPES, MixtureOptions
from metrix.core.pairs import PAIR_KINDS
from metrix.core.pml import generic_form
from metrix.core.split_model import SplitModel
from metrix.errors import InvalidInput, check_integer
from metrix.evaluate import Estimate, Positivity
from metrix.runs.embedding import TrainedModel
from metrix.runs.evaluation import Examples, examples_of_run
from metrix.train.batches import Report, ignore_report
from metrix.train.build import build_loss
from metrix.train.config import Config, LossChoice

LAMS = (0.0, 0.01, *(n / 20 for n in range(1, 20)), 0.99, 1.0)  # eq. prob is steep at the ends
PAIRS_EXACT = 500_000_000  # uniformity: 31,000 examples; past it a sample of pairs is drawn
PAIRS_DRAWN = 1_000_000
PRODUCTS_EXACT = 40_000_000_000  # utilization: 60,000 queries, 660,000 examples; past it queries are drawn
QUERIES_DRAWN = 10_000
BUDGET = 2**28  # bytes of activations of mixed examples at a time


@dataclass(frozen=True, eq=False)
class Utilization:
    """u(Q, X), and u(Q, X̂) by mixup type."""

    clean: Estimate
    mixed: dict[str, Estimate]
    counts: dict[str, int]  # queries, clean and mixed examples
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
    """A number with how sure it is."""
    return {"value": float(value), "standard_error": value.standard_error, "sampled": value.sampled}


def loss_of(config: Config, changes: dict[str, Any], classes: int) -> Loss:
    """The loss of a configuration, or another one named in `changes`, with its parameters."""
    given = {key: value for key, value in changes.items() if value is not None}
    if "loss" in given:  # the parameters of one loss are not those of another
        given = {**dict.fromkeys(LossChoice.model_fields), **given}
    return generic_form(build_loss(config.with_values(given).loss, classes, config.model.dim))


def positivity(examples: Examples, loss: Loss, config: Config, seed: int = 0) -> Positivity:
    """P(Pos(a,v)) against λ over all examples, in batches of the run's size (eq. prob)."""
    train = config.train
    return evaluate.positivity(
        examples.vectors,
        examples.labels,
        LAMS,
        loss,
        batch_size=max(train.batch_size, 3),
        per_class=min(max(train.per_class, 2), max(train.batch_size, 3) - 1),
        lam_per=config.mixing.lam_per,
        generator=torch.Generator().manual_seed(seed),
    )


def geometry(examples: Examples) -> dict[str, Any]:
    """Alignment and uniformity; exact unless there are very many pairs."""
    vectors, labels = examples.everything
    count = len(vectors)
    drawn = PAIRS_DRAWN if count * (count - 1) // 2 > PAIRS_EXACT else None
    return {
        "images": count,
        "alignment": evaluate.alignment(vectors, labels),
        "uniformity": evaluate.uniformity(vectors, max_pairs=drawn),
    }


def utilization_of_run(
    model: TrainedModel,
    mixup: tuple[str, ...] | None = None,
    epochs: int = 10,
    *,
    max_queries: int | None = None,
    seed: int = 0,
    report: Report = ignore_report,
) -> Utilization:
    """u(Q, X) and u(Q, X̂) of a run's test and training embeddings, the model fixed; X̂ is never held whole."""
    config = model.config
    chosen = _mixups(mixup or config.mixing.mixup or ("embed",), epochs)
    train, test = examples_of_run(model, part="train"), examples_of_run(model)
    streams = {}
    for name in chosen:
        draws = torch.Generator().manual_seed(seed)
        if MIXUP_TYPES[name].mixes == "embeddings":
            streams[name] = mixed_embeddings(train, config, epochs, draws)
        else:
            streams[name] = mixed_by_model(model, name, epochs, draws, report)
    return _utilization(test, train, streams, epochs, max_queries, seed)


def utilization_of_examples(
    test: Examples,
    train: Examples,
    epochs: int = 10,
    *,
    config: Config | None = None,
    max_queries: int | None = None,
    seed: int = 0,
) -> Utilization:
    """The same of embeddings from anywhere, with embedding mixup as the settings have it."""
    _mixups(("embed",), epochs)
    draws = torch.Generator().manual_seed(seed)
    streams = {"embed": mixed_embeddings(train, config or Config(), epochs, draws)}
    return _utilization(test, train, streams, epochs, max_queries, seed)


def _mixups(given: tuple[str, ...], epochs: int) -> tuple[str, ...]:
    for name in given:
        find("mixup", name, MIXUP_TYPES)
    check_integer("epochs", epochs, least=1)
    return tuple(dict.fromkeys(given))


def _utilization(
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

    def measured(mixed: Any) -> Estimate:
        draws = torch.Generator().manual_seed(seed)  # the same queries each time
        return evaluate.utilization(queries, train.vectors, mixed, max_queries=max_queries, generator=draws)

    counts = {"queries": len(queries), "clean": len(train.vectors)}

    def counted(name: str, blocks: Iterator[NDArray[Any]]) -> Iterator[NDArray[Any]]:
        counts[name] = 0
        for block in blocks:
            counts[name] += len(block)
            yield block

    clean = measured(None)
    return Utilization(clean, {name: measured(counted(name, s)) for name, s in streams.items()}, counts, epochs)


def mixed_embeddings(train: Examples, config: Config, epochs: int, draws: torch.Generator) -> Iterator[NDArray[Any]]:
    """Embedding mixup over epochs of training embeddings: blocks (m, d)."""
    mixing = config.mixing
    return evaluate.mixed_embeddings(
        train.vectors, train.labels, epochs, mixing.alpha, mixing.pairs, draws, rows_at_once=config.train.batch_size
    )


def mixed_by_model(
    model: TrainedModel, mixup: str, epochs: int, draws: torch.Generator, report: Report = ignore_report
) -> Iterator[NDArray[np.float32]]:
    """Input or feature mixup over epochs of the training images, the model fixed: blocks (m, d).

    In each epoch every example is the anchor once. Its pair comes from its batch, of a kind chosen for the
    batch, with a λ of its own.
    """
    config = model.config
    dataset = model.dataset()
    part = model.part(dataset, "train")
    still = model.still(dataset, part)
    device = next(model.embedder.parameters()).device
    done, of = 0, epochs * len(part)
    for _ in range(epochs):
        batches: Any = batches_by_class(part.labels, config.train.batch_size, config.train.per_class, draws)
        for images, labels in data.loader(still, batches, workers=config.data.workers):
            kind = config.mixing.pairs[choose(len(config.mixing.pairs), draws)]
            i, j = pairs_of_batch(labels, kind, draws)
            done += len(labels)
            report(f"{mixup} mixup", done, of)
            if len(i) == 0:
                continue
            lam = draw((len(i),), config.mixing.alpha, draws, device, torch.float32)
            yield mixed_by_network(model.embedder, mixup, images.to(device), i.to(device), j.to(device), lam)


def batches_by_class(labels: Tensor, batch_size: int, per_class: int, draws: torch.Generator) -> list[list[int]]:
    """Every example once, in batches of about `batch_size`: groups of a class, of at least `per_class` if it has them.

    >>> [len(batch) for batch in batches_by_class(torch.tensor([5, 5, 5, 6]), 3, 2, torch.Generator())]
    [4]
    """
    shuffled = torch.randperm(len(labels), generator=draws)
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    sizes = labels.bincount()
    groups: list[Tensor] = []
    for members in by_class.tensor_split(sizes[sizes > 0].cumsum(0)[:-1].tolist()):
        groups += members.tensor_split(max(1, len(members) // max(per_class, 2)))
    batches: list[list[int]] = [[]]
    classes: set[int] = set()
    for number in torch.randperm(len(groups), generator=draws).tolist():
        if len(batches[-1]) >= batch_size and len(classes) > 1:
            batches.append([])
            classes = set()
        batches[-1] += groups[number].tolist()
        classes.add(int(labels[batches[-1][-1]]))
    if len(batches) > 1 and len(classes) == 1:  # a class alone has no negatives
        batches[-2:] = [batches[-2] + batches[-1]]
    return batches


@torch.inference_mode()
def mixed_by_network(
    network: SplitModel, mixup: str, images: Tensor, i: Tensor, j: Tensor, lam: Tensor
) -> NDArray[np.float32]:
    """Unit embeddings (pairs, d) of mixed images, or of images with mixed features or embeddings (eq. mix-embed)."""
    mixup_type = find("mixup", mixup, MIXUP_TYPES)
    source = images
    if mixup_type.mixes != "inputs":
        features = network.features(images)
        source = features if mixup_type.mixes == "features" else network.head(features)
    mixture = mixup_type.mixture(network, source, MixtureOptions(budget=BUDGET))
    if isinstance(mixture, Interpolated):
        v = F.normalize(torch.lerp(mixture.vectors[j], mixture.vectors[i], lam[:, None]), dim=1)
    else:
        v = mixture.embed(i, j, lam)
    mixed: NDArray[np.float32] = v.float().cpu().numpy()
    return mixed


def pairs_of_batch(labels: Tensor, kind: str, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """One pair (i, j) of a kind for each anchor of a batch that has one.

    >>> pairs_of_batch(torch.tensor([0, 0, 1]), "pos-neg", torch.Generator())
    (tensor([1, 0]), tensor([2, 2]))
    """
    same = labels[:, None] == labels
    sets = {
        "anc": torch.eye(len(labels), dtype=torch.bool),
        "pos": same & ~torch.eye(len(labels), dtype=torch.bool),
        "neg": ~same,
    }
    pair_kind = find("pairs", kind, PAIR_KINDS)
    left, right = sets[pair_kind.left], sets[pair_kind.right]
    anchors = pair_kind.is_possible(sets["pos"].sum(1), sets["neg"].sum(1))
    i, j = (
        torch.multinomial(side[anchors].float(), 1, generator=draws)[:, 0]
        if bool(anchors.any())
        else torch.empty(0).long()
        for side in (left, right)
    )
    return i, j


def default_folder(model: TrainedModel | None, given: Path | None) -> Path:
    """Where files of an analysis go: into the run, or here."""
    folder = given or (model.run.path / "analysis" if model is not None else Path("analysis"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"the folder {folder} cannot be made: {error.strerror}; choose another with -o") from error
    return folder
