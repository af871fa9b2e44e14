"""Mixed examples of a trained model: the training images mixed as in training, but with the model fixed."""

from __future__ import annotations

from collections.abc import Iterator
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
from metrix.core.mixup import MIXUP_TYPES, MixtureOptions
from metrix.core.pairs import PAIR_KINDS
from metrix.core.split_model import SplitModel
from metrix.runs.evaluation import Examples
from metrix.runs.trained_model import TrainedModel
from metrix.train.batches import Report, ignore_report
from metrix.train.config import Config

BUDGET = 2**28  # bytes of activations of mixed examples at a time


def mix_examples(
    model: TrainedModel,
    train: Examples,
    mixup: str,
    epochs: int,
    generator: torch.Generator,
    report: Report = ignore_report,
) -> Iterator[NDArray[Any]]:
    """Embeddings of mixed examples of one mixup type over epochs of the training images: blocks (m, d).

    Args:
        model: the model of a run, which also has the settings of mixup
        train: the embeddings of its training images
        mixup: input, feature or embed
        epochs: in each of them, every example is the anchor once
        generator: draws batches, pairs and λ
        report: is called with the progress
    """
    if find("mixup", mixup, MIXUP_TYPES).mixes == "embeddings":
        return mix_embeddings(train, model.config, epochs, generator)
    return mix_with_network(model, mixup, epochs, generator, report)


def mix_embeddings(train: Examples, config: Config, epochs: int, generator: torch.Generator) -> Iterator[NDArray[Any]]:
    """Embedding mixup over epochs of training embeddings: blocks (m, d)."""
    mixing = config.mixing
    return evaluate.mixed_embeddings(
        train.vectors,
        train.labels,
        epochs,
        mixing.alpha,
        mixing.pairs,
        generator,
        rows_at_once=config.train.batch_size,
    )


def mix_with_network(
    model: TrainedModel, mixup: str, epochs: int, generator: torch.Generator, report: Report = ignore_report
) -> Iterator[NDArray[np.float32]]:
    """Input or feature mixup over epochs of the training images: embeddings in blocks (m, d).

    In each epoch every example is the anchor once. Its pair is drawn from its batch, of a kind drawn for the batch,
    with a λ of its own.
    """
    config = model.config
    dataset = model.open_data()
    part = model.select_part(dataset, "train")
    still = model.with_test_view(dataset, part)
    device = next(model.embedder.parameters()).device
    done, of = 0, epochs * len(part)
    for _ in range(epochs):
        batches: Any = draw_batches(part.labels, config.train.batch_size, config.train.per_class, generator)
        for images, labels in data.loader(still, batches, workers=config.data.workers):
            kind = config.mixing.pairs[choose(len(config.mixing.pairs), generator)]
            i, j = draw_pairs(labels, kind, generator)
            done += len(labels)
            report(f"{mixup} mixup", done, of)
            if len(i) == 0:
                continue
            lam = draw((len(i),), config.mixing.alpha, generator, device, torch.float32)
            yield embed_mixtures(model.embedder, mixup, images.to(device), i.to(device), j.to(device), lam)


def draw_batches(labels: Tensor, batch_size: int, per_class: int, generator: torch.Generator) -> list[list[int]]:
    """Every example once, in batches of about `batch_size`, made of groups of at least `per_class` of a class.

    Smaller classes are one group. A batch has at least two classes, so that every example has negatives.

    >>> [len(batch) for batch in draw_batches(torch.tensor([5, 5, 5, 6]), 3, 2, torch.Generator())]
    [4]
    """
    shuffled = torch.randperm(len(labels), generator=generator)
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    sizes = labels.bincount()
    groups: list[Tensor] = []
    for members in by_class.tensor_split(sizes[sizes > 0].cumsum(0)[:-1].tolist()):
        groups += members.tensor_split(max(1, len(members) // max(per_class, 2)))
    batches: list[list[int]] = [[]]
    classes: set[int] = set()
    for number in torch.randperm(len(groups), generator=generator).tolist():
        if len(batches[-1]) >= batch_size and len(classes) > 1:
            batches.append([])
            classes = set()
        batches[-1] += groups[number].tolist()
        classes.add(int(labels[batches[-1][-1]]))
    if len(batches) > 1 and len(classes) == 1:  # one class alone has no negatives
        batches[-2:] = [batches[-2] + batches[-1]]
    return batches


@torch.inference_mode()
def embed_mixtures(
    network: SplitModel, mixup: str, images: Tensor, i: Tensor, j: Tensor, lam: Tensor
) -> NDArray[np.float32]:
    """Unit embeddings (pairs, d) of pairs (i, j) of images, mixed as images, features or embeddings (eq. mix-embed)."""
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


def draw_pairs(labels: Tensor, kind: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One mixing pair (i, j) of a kind for each anchor of a batch that has one: i and j (anchors,).

    >>> draw_pairs(torch.tensor([0, 0, 1]), "pos-neg", torch.Generator())
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
        torch.multinomial(side[anchors].float(), 1, generator=generator)[:, 0]
        if bool(anchors.any())
        else torch.empty(0).long()
        for side in (left, right)
    )
    return i, j
