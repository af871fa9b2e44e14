"""`metrix distil`, as typed, and what a student is good for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrix.runs.trained_model import open_run
from tests.command_line import Metrix

QUICK = ("--backbone", "glyphs-cnn", "--batch-size", "12", "--per-class", "3", "--holdout", "0")


@pytest.fixture(scope="module")
def student(metrix: Metrix, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compatible student of `run`."""
    folder = tmp_path_factory.mktemp("distil") / "student"
    outcome = metrix("distil", run, *QUICK, "--max-steps", "3", "--compatible", "-o", folder)
    assert outcome.code == 0, outcome.err
    assert "distillation, mixup input" in outcome.err
    assert f"metrix compare {run} {folder}" in outcome.err
    assert f"metrix evaluate {folder} --against {run}" in outcome.err
    return folder


def test_the_settings_are_the_teachers_where_they_must_be(metrix: Metrix, run: Path, tmp_path: Path) -> None:
    printed = metrix("distil", run, *QUICK, "--mixup", "none", "--print-config")
    assert printed.code == 0, printed.err
    from metrix.train.config import read_config

    (tmp_path / "c.yaml").write_text(printed.out, "utf-8")
    found, of_teacher = read_config(tmp_path / "c.yaml"), open_run(run).config
    assert found.distil.teacher == str(run)
    assert found.mixing.mixup == ()
    assert found.model.dim == of_teacher.model.dim
    assert (found.data.data, found.data.unseen) == (of_teacher.data.data, of_teacher.data.unseen)
    assert found.data.train_classes == of_teacher.data.train_classes
    again = metrix("distil", run, "--config", tmp_path / "c.yaml", "--print-config")
    assert again.out == printed.out


def test_a_student_is_resumed_by_either_verb(metrix: Metrix, run: Path, tmp_path: Path) -> None:
    assert metrix("distil", run, *QUICK, "--max-steps", "1", "-o", tmp_path / "s", "-q").code == 0
    for verb in ("distil", "train"):
        outcome = metrix(verb, "--resume", tmp_path / "s", "--json")
        assert outcome.code == 0, outcome.err
        assert outcome.json["steps"] == 1


def test_mistakes(refused: Any, run: Path, student: Path, tmp_path: Path) -> None:
    refused("distil", words="no teacher was given")
    refused("distil", tmp_path, words="teacher: expected a finished run")
    refused("distil", run, "-o", run, words="--output: expected another folder than the teacher's")
    refused("distil", run, "--resume", student, words="--resume with TEACHER: a run resumes with the settings")
    refused("distil", "--resume", student, "--lr", "1", words="--resume with --lr")
    refused("distil", run, "--mixup", "feature", "-o", tmp_path / "s", words="mixup: expected input or none")
    refused("distil", run, "--preset", "glyphs", "--config", "c.yaml", words="were both given")
    refused("distil", run, *QUICK, "--dim", "3", "--compatible", "-o", tmp_path / "s", words="dim: expected")
    assert not (tmp_path / "s").exists()


@pytest.mark.filterwarnings("always::metrix.MetrixWarning")
def test_a_compatible_student_queries_the_index_of_its_teacher(
    metrix: Metrix, refused: Any, indexed: Path, student: Path, run: Path, other_run: Path
) -> None:
    index, photo = indexed / "photos.index", indexed / "photos" / "kind 0" / "0.jpg"
    outcome = metrix("search", index, photo, "--run", student, "-k", "17", "--json")
    assert outcome.code == 0, outcome.err
    assert "is compatible with the model of this index, but not the same" in outcome.err
    assert f"--against {run.resolve()}" in " ".join(outcome.err.split())
    assert len(outcome.json["queries"][0]["neighbours"]) == 17
    classified = metrix("classify", index, photo, "--run", student, "--json")
    assert classified.code == 0, classified.err
    assert "thresholds and probabilities of the index are those of its own model" in " ".join(classified.err.split())
    refused("search", index, photo, "--run", other_run, words="model: expected")
    refused("index", student, indexed / "photos", "-o", index, "--update", words="expected")
    refused("search", index, "--duplicates", "--flips", "--run", student, words="model: expected")


def test_queries_among_the_teachers_images_are_measured(metrix: Metrix, student: Path, run: Path) -> None:
    outcome = metrix("evaluate", student, "--against", run, "--bootstrap", "20", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["images"] == 732
    assert outcome.json["against"] == str(run)
    one, other = (open_run(path).embed("test") for path in (student, run))
    assert one.labels.tolist() == other.labels.tolist()
    S = one.vectors.astype(np.float64) @ other.vectors.astype(np.float64).T
    np.fill_diagonal(S, -2)
    expected = (one.labels[S.argmax(1)] == one.labels).mean()
    assert outcome.json["searches"]["new → old"]["recall"] == pytest.approx(expected, abs=1e-12)


def test_a_student_of_photos_without_labels(metrix: Metrix, indexed: Path, run: Path, tmp_path: Path) -> None:
    """The teacher's glyphs, and photos that nobody has labelled."""
    outcome = metrix(
        "distil", run, *QUICK, "--max-steps", "2", "--unlabelled", indexed / "photos", "-o", tmp_path / "s"
    )
    assert outcome.code == 0, outcome.err
    assert "18 images without label join the batches" in outcome.err
    assert len(open_run(tmp_path / "s").embed("test")) == 732
