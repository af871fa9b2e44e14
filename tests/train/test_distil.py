"""Runs that imitate another: the teacher, images without labels, mistakes, and going on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from metrix import Embedder
from metrix.core.distillation import DISTILLATION
from metrix.errors import InvalidInput
from metrix.train import Config, Interrupted, train
from metrix.train.batches import open_data
from metrix.train.build import build_optimizer
from metrix.train.run_folder import RunFolder
from metrix.train.sections import Distillation
from metrix.train.state import build_parts
from metrix.train.teacher import describe_seen_by_teacher, fit_teacher
from metrix.train.unlabelled import open_unlabelled
from metrix.train.watching import Watcher
from tests.photos import draw_photo, write_photos


@pytest.fixture
def student(small: Config, run: Path) -> Config:
    """Settings of a student that takes milliseconds for a step."""
    return small.with_values({"teacher": str(run), "holdout": 0.0, "max_steps": 4, "dim": 64})


class Listener(Watcher):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def test_defaults_of_the_settings_are_those_of_the_table() -> None:
    usual = Distillation()
    assert {name: getattr(usual, f"{name}_weight") for name in DISTILLATION} == {
        name: part.weight for name, part in DISTILLATION.items()
    }


def test_a_student_is_a_run(student: Config, run: Path, tmp_path: Path) -> None:
    heard = Listener()
    found = train(student, tmp_path / "student", watcher=heard)
    assert found.results is not None
    assert found.results["test"]["images"] == 732
    assert found.config.distil.teacher_digest == fit_teacher(student).distil.teacher_digest
    assert found.asked_config == student
    assert student.mixing.mixup == ("input",)
    lines = [line for line in found.metrics() if "loss" in line]
    assert all(line["loss"] == pytest.approx(line["clean"] + line["mixed"], rel=1e-5) for line in lines)
    assert Embedder.load(found.path).config.dim == 64
    assert heard.warnings == []  # the teacher was trained on the same classes


def test_a_student_comes_closer_to_its_teacher(student: Config, run: Path, tmp_path: Path) -> None:
    images = torch.randn(20, 1, 28, 28)
    teacher = Embedder.load(run).eval()

    def closeness(config: Config) -> float:
        found = train(config, tmp_path / f"{config.train.max_steps}-{config.train.epochs}")
        with torch.no_grad():
            return float((Embedder.load(found.path).eval()(images) * teacher(images)).sum(1).mean())

    longer = student.with_values({"max_steps": 30, "lr": 3e-3})
    assert closeness(longer) > closeness(longer.with_values({"epochs": 0})) + 0.2


def test_interrupted_it_goes_on_to_the_same_weights(student: Config, tmp_path: Path) -> None:
    config = student.with_values({"dim": 8})  # with a linear map, whose weights and moments are saved, too

    class Stop(Watcher):
        def step(self, progress: Any, losses: list[float], images: int) -> None:
            if progress.step == 2:
                import os
                import signal

                os.kill(os.getpid(), signal.SIGTERM)

    whole = train(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "parts", watcher=Stop())
    parts = train(resume=tmp_path / "parts")
    one, other = (Embedder.load(found.path).state_dict() for found in (whole, parts))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_another_teacher_in_its_place_is_refused(student: Config, run: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(run, tmp_path / "teacher"))
    config = student.with_values({"teacher": str(moved)})
    train(config, tmp_path / "student")
    other = Embedder.load(moved)
    with torch.no_grad():
        next(other.parameters()).mul_(2)
    other.save(moved / "model")
    with pytest.raises(InvalidInput, match=r"teacher: expected the weights that the run began with .* got others"):
        train(resume=tmp_path / "student", max_steps=6)
    shutil.rmtree(moved)
    with pytest.raises(InvalidInput, match=r"teacher: expected a finished run: .* is no run"):
        train(resume=tmp_path / "student", max_steps=6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mixup": ["feature"]}, "mixup: expected input or none with a teacher, got feature"),
        ({"mixup": ["input"], "mixup_method": "imix"}, "mixup_method: expected none"),
        ({"memory": 64}, "memory: expected none with a teacher, got 64"),
        ({"compatible_with": "elsewhere"}, "compatible_with: expected none with a teacher"),
        ({"matryoshka": [8, 16]}, "matryoshka: expected none with a teacher, got 8,16"),
        ({"scheme": "divide-and-conquer"}, "scheme: expected none with a teacher"),
        ({"views": 2, "freeze_to": "all"}, "views: expected 0 with a teacher, got 2"),
        ({"distance_weight": 0, "angle_weight": 0, "cosine_weight": 0}, "expected one that is not 0, got none"),
        ({"compatible": True, "cosine_weight": 0}, "cosine_weight: expected a number > 0 with compatible=True"),
        ({"compatible": True, "dim": 8}, "dim: expected 64, that of the teacher, with compatible=True, got 8"),
        ({"unlabelled_batch": 3}, "unlabelled_batch: expected folders"),
        ({"teacher": "nowhere"}, "teacher: expected a finished run: .*nowhere is no run"),
        ({"teacher": None, "mixup": [], "label_weight": 2.0}, "label_weight: expected a teacher with it, got none"),
        ({"unlabelled": ["nowhere"]}, "unlabelled: expected a folder of images, got .*nowhere, nothing there"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    values: dict[str, Any], message: str, student: Config, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=message):
        train(student.with_values(values), tmp_path / "student")
    assert not (tmp_path / "student").exists()


def test_an_unfinished_teacher_is_refused(student: Config, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "teacher")
    shutil.rmtree(tmp_path / "teacher" / "model")
    with pytest.raises(InvalidInput, match="has no trained model yet; resume it"):
        train(student.with_values({"teacher": str(tmp_path / "teacher")}), tmp_path / "student")


def test_the_map_learns_like_the_head_and_labels_like_proxies(student: Config) -> None:
    config = student.with_values({"dim": 8, "label_weight": 1.0, "loss": "proxy-nca", "head_lr": 0.5, "proxy_lr": 0.7})
    embedder, objective = build_parts(config, 5, torch.Generator())
    groups = {group["name"]: group for group in build_optimizer(config, embedder, objective.loss).param_groups}
    assert any(p is objective.loss.map.weight for p in groups["head"]["params"])  # type: ignore[union-attr]
    assert [tuple(p.shape) for p in groups["proxies"]["params"]] == [(5, 8)]
    assert (groups["head"]["lr"], groups["proxies"]["lr"]) == (0.5, 0.7)


def test_labels_train_too_where_they_are_wanted(student: Config, tmp_path: Path) -> None:
    values = {"label_weight": 1.0, "loss": "proxy-nca", "max_steps": 2}
    found = train(student.with_values(values), tmp_path / "student")
    assert found.config.objective_name == "distillation + proxy-nca"


def test_figures_on_classes_of_the_teacher_are_called_so(student: Config, small: Config, tmp_path: Path) -> None:
    heard = Listener()
    found = train(student.with_values({"split_seed": 1, "max_steps": 1}), tmp_path / "student", watcher=heard)
    assert found.results is not None
    assert found.results["caution"] == heard.warnings[0]
    assert "the teacher was trained on" in heard.warnings[0]
    assert "are not of unseen classes" in heard.warnings[0]
    photos = write_photos(tmp_path / "photos")
    other = student.with_values({"data": str(photos)})
    assert "other data (glyphs-mini)" in describe_seen_by_teacher(other, open_data(other))


@pytest.fixture
def with_photos(small: Config, tmp_path: Path) -> Config:
    """A student on photos, with more of them that have no label."""
    photos, more = write_photos(tmp_path / "photos", 6, 8), tmp_path / "more"
    (more / "deep").mkdir(parents=True)
    for n in range(5):
        draw_photo(9, n).save(more / "deep" / f"{n}.png")
    labelled = small.with_values({"data": str(photos), "train_classes": None, "holdout": 0.0, "max_steps": 1})
    teacher = train(labelled, tmp_path / "teacher")
    return labelled.with_values({"teacher": str(teacher.path), "unlabelled": [str(more)], "max_steps": 3})


def joined(config: Config) -> tuple[list[str], str]:
    part, note = open_unlabelled(config, open_data(config), lambda *_: None)
    assert part is not None
    return [Path(path).name for path in part.paths], note


def test_images_without_label_join_the_batches(with_photos: Config, tmp_path: Path) -> None:
    sizes: list[int] = []
    batch: list[torch.Tensor] = []

    from metrix.core.distillation import Distil

    class Sizes(Distil):
        def step(self, model: Any, inputs: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            assert labels is not None
            sizes.append(len(inputs))
            batch.append(labels)
            return super().step(model, inputs, labels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("metrix.train.teacher.Distil", Sizes)
        train(with_photos, tmp_path / "student")
    assert sizes == [9 + 5] * 3  # three of each of three classes
    assert all(labels[9:].tolist() == [-1] * 5 and int(labels[:9].min()) >= 0 for labels in batch)


def test_images_that_are_measured_on_are_left_out(with_photos: Config, tmp_path: Path) -> None:
    dataset = open_data(with_photos)
    tested = dataset.test.paths[0]
    shutil.copy(Path(with_photos.data.data) / tested, tmp_path / "more" / "copy.jpg")
    names, note = joined(with_photos)
    assert names == [f"{n}.png" for n in range(5)]
    assert note == "5 images without label join the batches; 1 more are left out, because the run is measured on them"


def test_other_images_without_label_are_other_data(with_photos: Config, tmp_path: Path) -> None:
    train(with_photos, tmp_path / "student")
    Image.new("RGB", (40, 40), "red").save(tmp_path / "more" / "new.png")
    with pytest.raises(InvalidInput, match="was trained on other data"):
        train(resume=tmp_path / "student", max_steps=5)


def test_folders_without_images_are_refused(with_photos: Config, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder, message in (("empty", "expected images"), ("photos/kind 0/0.jpg", "a file")):
        with pytest.raises(InvalidInput, match=message):
            joined(with_photos.with_values({"unlabelled": [str(tmp_path / folder)]}))


def test_a_step_that_breaks_names_images_without_label(with_photos: Config, tmp_path: Path) -> None:
    from metrix.train.nonfinite import NonFiniteStep, read_step
    from metrix.train.replay import replay

    with pytest.raises(NonFiniteStep):
        train(with_photos.with_values({"lr": 1e30, "max_steps": 6}), tmp_path / "student")
    run = RunFolder(tmp_path / "student")
    step = int(next(run.nonfinite.glob("step-*.json")).stem.removeprefix("step-"))
    items = read_step(run, step).items
    assert len(items) == 9 + 5
    assert [item["class"] for item in items[9:]] == [""] * 5
    assert replay(run.path).saved.step == step
