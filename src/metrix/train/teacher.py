"""The teacher of a run that is distilled: the run that it is, its weights by their digest, and the objective."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from metrix.core.distillation import Distil
from metrix.data import Dataset
from metrix.data.opening import read_catalogue
from metrix.data.training_parts import has_test_part
from metrix.errors import InvalidInput
from metrix.messages import count, first_few
from metrix.model import Embedder
from metrix.model.saving import RUN_MODEL, WEIGHTS_FILE, digest_weights
from metrix.train.config import Config
from metrix.train.frozen_network import open_frozen_network
from metrix.train.run_folder import RunFolder, open_run_folder
from metrix.train.sections import Distillation


def fit_teacher(config: Config) -> Config:
    """The configuration with the digest of its teacher, unless it has one; without a teacher, the same.

    Raises:
        InvalidInput: settings that do not go with a teacher, or settings of distillation without one
    """
    distil = config.distil
    if distil.teacher is None:
        usual = Distillation()
        changed = [key for key in Distillation.model_fields if getattr(distil, key) != getattr(usual, key)]
        if changed:
            raise InvalidInput(
                f"{changed[0]}: expected a teacher with it, got none; give the run to imitate: metrix distil RUN"
            )
        return config
    _check_settings(config)
    return config if distil.teacher_digest else config.with_values({"teacher_digest": _digest(distil.teacher)})


def _check_settings(config: Config) -> None:
    mixing, train, weights = config.mixing, config.train, config.distil
    prefixes, old = ",".join(map(str, config.model.matryoshka)), train.compatible_with
    refused = (
        ("mixup", mixing.mixup not in ((), ("input",)), "input or none", ",".join(mixing.mixup), "both see mixtures"),
        ("mixup_method", mixing.mixup_method != "metrix", "none", mixing.mixup_method, "mixtures have no labels here"),
        ("matryoshka", bool(prefixes), "none", prefixes, "prefixes of an embedding have no teacher"),
        (
            "compatible_with",
            old is not None,
            "none",
            old,
            "compatible=True makes a student compatible with its teacher",
        ),
        ("memory", train.memory is not None, "none", train.memory, "the teacher has not embedded past batches"),
        ("scheme", train.scheme != "none", "none", train.scheme, "the whole embedding imitates the teacher"),
        ("views", config.model.views > 0, "0", config.model.views, "the teacher needs images, not cached activations"),
    )
    for key, wrong, expected, given, why in refused:
        if wrong:
            raise InvalidInput(f"{key}: expected {expected} with a teacher, got {given}; {why}")
    if not any((weights.distance_weight, weights.angle_weight, weights.cosine_weight)):
        raise InvalidInput(
            "distance_weight, angle_weight, cosine_weight: expected one that is not 0, got none; without a teacher's "
            "part, train with metrix train"
        )
    if weights.compatible and weights.cosine_weight == 0:
        raise InvalidInput(
            "cosine_weight: expected a number > 0 with compatible=True, got 0; distances and angles alone do not say "
            "where in the teacher's space an embedding is"
        )
    if weights.unlabelled_batch is not None and not weights.unlabelled:
        raise InvalidInput("unlabelled_batch: expected folders of images without labels with it (unlabelled), got none")


def build_distillation(
    config: Config, embedder: Embedder, loss: nn.Module | None, generator: torch.Generator
) -> Distil:
    """The objective of a student, with its teacher.

    Args:
        config: the settings of the run
        embedder: the student
        loss: of labelled examples, if they are used
        generator: draws λ and who is mixed with whom

    Raises:
        InvalidInput: the teacher is no finished run, takes other data, has changed, or has another length where the
            student's embeddings must be in its space
    """
    distil, mixing = config.distil, config.mixing
    assert distil.teacher is not None
    teacher = open_frozen_network(Path(distil.teacher), "teacher", embedder, config.train.micro_batch)
    if distil.teacher_digest not in (None, found := _digest(distil.teacher)):
        raise InvalidInput(
            f"teacher: expected the weights that the run began with ({distil.teacher_digest[:12]}), got others "
            f"({found[:12]}) in {distil.teacher}; restore them, or start a new run"
        )
    if distil.compatible and teacher.dim != config.model.dim:
        raise InvalidInput(
            f"dim: expected {teacher.dim}, that of the teacher, with compatible=True, got {config.model.dim}; leave it "
            "out"
        )
    return Distil(
        teacher,
        {"distance": distil.distance_weight, "angle": distil.angle_weight, "cosine": distil.cosine_weight},
        (config.model.dim, teacher.dim),
        "input" if mixing.mixup else "none",
        mixing.strength,
        mixing.alpha,
        mixing.lam_per,
        loss,
        distil.label_weight,
        generator,
    )


def describe_teacher(config: Config, objective: nn.Module) -> list[str]:
    """Notes on the teacher of a run: what it sees, and what its space means for the student; none without one."""
    if not isinstance(objective, Distil):
        return []
    teacher, notes = objective.teacher, []
    converted = teacher.describe_conversion()  # type: ignore[attr-defined]
    if converted:
        notes.append(f"the teacher sees what the student sees, converted: {converted}")
    if objective.loss.map is not None:
        notes.append(
            f"cosines are compared through a linear map from {config.model.dim} to {teacher.dim} numbers, "  # type: ignore[attr-defined]
            "which is learnt for it and not kept: the student's embeddings are in a space of their own"
        )
    return notes


def describe_seen_by_teacher(config: Config, dataset: Dataset) -> str:
    """A caution if the teacher may know classes that the student is measured on; empty if it does not.

    What the teacher has learnt of a class reaches the student, so that its figures on such classes are no figures on
    unseen classes.
    """
    distil = config.distil
    if distil.teacher is None or not has_test_part(dataset.catalogue):
        return ""
    before = open_teacher_folder(distil.teacher).config.data
    same = ("unseen", "split_seed", "layout", "root", "follow_links", "fold")
    if before.data == config.data.data and all(getattr(before, key) == getattr(config.data, key) for key in same):
        return ""
    if before.data != config.data.data:
        return (
            f"the teacher was trained on other data ({before.data}): if it has classes that this run is measured on, "
            "the figures are not of unseen classes"
        )
    catalogue = read_catalogue(
        before.data, unseen=before.unseen, seed=before.split_seed, layout=before.layout, root=before.root
    )
    own = dataset.catalogue
    taught, tested = (
        {one.class_names[k] for k in np.unique(one.labels[one.where(part)]).tolist()}
        for one, part in ((catalogue, "train"), (own, "test"))
    )
    seen = sorted(taught & tested)
    if not seen:
        return ""
    return (
        f"the teacher was trained on {len(seen):,} of the {count(len(tested), 'class')} that this run is measured on "
        f"({first_few(seen, 3)}): the figures are not of unseen classes; split as the teacher did "
        f"(unseen={before.unseen:g}, split_seed={before.split_seed})"
    )


def _digest(teacher: str) -> str:
    file = open_teacher_folder(teacher).path / RUN_MODEL / WEIGHTS_FILE
    if not file.is_file():
        raise InvalidInput(
            f"teacher: expected a finished run, got {teacher}, which has no trained model yet; resume it with metrix "
            f"train --resume {teacher}"
        )
    return digest_weights(file)


def open_teacher_folder(teacher: str) -> RunFolder:
    """The run of a teacher; `InvalidInput` if there is none."""
    try:
        return open_run_folder(Path(teacher))
    except InvalidInput as error:
        raise InvalidInput(f"teacher: expected a finished run: {error}") from error
