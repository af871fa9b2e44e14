"""Training that stays compatible with an old run: it works, resumes to the same weights, and says what is wrong."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metrix.core.influence import class_centres
from metrix.errors import InvalidInput
from metrix.runs.trained_model import open_run
from metrix.train import Config, checkpoint, train
from metrix.train.config import read_config
from metrix.train.data_place import with_absolute_paths
from metrix.train.presets import preset
from metrix.train.watching import Watcher
from tests.trained_runs import train_tiny

COMPATIBLE: dict[str, Any] = {"seed": 3, "max_steps": 20}


@pytest.fixture
def settings(small: Config) -> Config:
    """Settings with the dimension of the old run."""
    return small.with_values({"dim": 64})


@pytest.fixture(scope="module")
def pair(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The old run, a run compatible with it, and the same without that."""
    folder = tmp_path_factory.mktemp("compatible")
    new = train_tiny(folder / "new", compatible_with=str(run), **COMPATIBLE)
    alone = train_tiny(folder / "alone", **COMPATIBLE)
    return run, new, alone


def test_new_queries_find_old_items(pair: tuple[Path, Path, Path]) -> None:
    old, new, alone = (open_run(one).embed("test") for one in pair)

    def recall(queries: Any) -> float:
        similar = queries.vectors @ old.vectors.T
        np.fill_diagonal(similar, -2)
        return float((old.labels[similar.argmax(1)] == old.labels).mean())

    assert recall(alone) < 0.1  # of 60 classes, by chance
    assert recall(new) > 0.25  # after 20 steps; the old model itself is at 0.7
    assert read_config(pair[1] / "config.yaml").train.compatible_with == str(pair[0])


@pytest.mark.parametrize("strength", [0.0, 0.4])
def test_an_interrupted_run_ends_with_the_same_weights(
    run: Path, tmp_path: Path, settings: Config, strength: float
) -> None:
    config = settings.with_values({"compatible_with": str(run), "compatible_strength": strength, "checkpoint_steps": 4})

    class KilledError(Exception):
        pass

    class KillAt(Watcher):
        def step(self, progress: Any, *others: Any) -> None:
            if progress.step == 6:
                raise KilledError

    whole = train(config, tmp_path / "whole").path
    with pytest.raises(KilledError):
        train(config, tmp_path / "cut", watcher=KillAt())
    assert (tmp_path / "cut" / "checkpoints" / "last.safetensors").exists()
    resumed = train(resume=tmp_path / "cut").path
    one, other = (open_run(path) for path in (whole, resumed))
    assert one.digest == other.digest


def test_the_centres_are_those_of_the_old_model(run: Path, settings: Config, tmp_path: Path) -> None:
    trained = train(settings.with_values({"compatible_with": str(run), "max_steps": 1}), tmp_path / "new").path
    tensors, _ = checkpoint.read(trained / "checkpoints" / "last.safetensors")
    old, new = open_run(run), open_run(trained)
    part = new.select_part(new.open_data(), "train")
    vectors = torch.from_numpy(old.embed("all").vectors)[part.indices]
    np.testing.assert_allclose(
        tensors["influence/centres"], class_centres(vectors, part.labels, part.num_classes), atol=1e-5
    )


def test_another_model_in_the_old_place_is_refused(
    run: Path, other_run: Path, settings: Config, tmp_path: Path
) -> None:
    old = Path(shutil.copytree(run, tmp_path / "old"))
    config = settings.with_values({"compatible_with": str(old), "checkpoint_steps": 4})

    class KillAt(Watcher):
        def step(self, progress: Any, *others: Any) -> None:
            if progress.step == 6:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "new", watcher=KillAt())
    for file in (other_run / "model").iterdir():
        shutil.copy(file, old / "model")
    with pytest.raises(InvalidInput, match="expected the model that training began with"):
        train(resume=tmp_path / "new")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"dim": 16}, "dim: expected 64, as .*run has, got 16.*--dim 64"),
        ({"views": 1, "freeze_to": "all"}, "expected views=0"),
        ({"scheme": "divide-and-conquer", "mixup": ()}, "expected scheme none"),
        ({"compatible_with": "/nothing"}, "compatible_with: expected a finished run"),
        (
            {"compatible_with": None, "compatible_weight": 2.0},
            "compatible_weight: expected 1.0 without compatible_with",
        ),
        ({"compatible_with": None, "compatible_strength": 0.0}, "compatible_strength: expected 0.4 without"),
    ],
)
def test_bad_settings(values: dict[str, Any], said: str, run: Path, settings: Config, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=said):
        train(settings.with_values({"compatible_with": str(run), **values}), tmp_path / "new")


def test_settings_are_flags_with_absolute_paths(metrix: Any, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)
    shown = metrix("train", "--preset", "glyphs", "--compatible-with", run.name, "--print-config")
    assert shown.code == 0, shown.err
    assert f"compatible_with: {run.name}" in shown.out
    config = preset("glyphs").with_values({"compatible_with": run.name})
    assert with_absolute_paths(config).train.compatible_with == str(run)
