from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from metrix import Embedder
from metrix.data import Part
from metrix.errors import InvalidInput
from metrix.train import Config, checkpoint, train
from metrix.train.batches import open_data, select_training_part
from metrix.train.build import learning_rate_factor
from metrix.train.checkpoint import Progress
from metrix.train.run_folder import RunFolder
from metrix.train.watching import Watcher


class Recorder(Watcher):
    def __init__(self) -> None:
        self.losses: list[list[float]] = []
        self.validations: list[int] = []

    def step(self, progress: Progress, losses: list[float], images: int) -> None:
        self.losses.append(losses)

    def validated(self, progress: Progress, losses: list[float], found: dict[str, Any], better: bool) -> None:
        self.validations.append(progress.epoch)


def test_a_run_is_a_folder(small: Config, tmp_path: Path) -> None:
    recorder = Recorder()
    run = train(small, tmp_path / "run", watcher=recorder)
    assert run.asked_config == small
    assert run.config == small.with_values({"precision": "32-true"})  # what auto is on a CPU
    assert len(recorder.losses) == 12
    assert all(loss == pytest.approx(clean + 0.4 * mixed) for loss, clean, mixed in recorder.losses)
    assert run.results is not None
    assert run.results["test"]["images"] == 732
    embedder = Embedder.load(run.path)
    saved = load_file(run.model / "model.safetensors")
    assert all(torch.equal(tensor, saved[name]) for name, tensor in embedder.state_dict().items())
    assert [p.name for p in (run.path / "tensorboard").iterdir()]
    with pytest.raises(InvalidInput, match="already exists"):
        train(small, run.path)


def test_losses_fall(small: Config, tmp_path: Path) -> None:
    recorder = Recorder()
    config = small.with_values({"max_steps": 60, "epochs": 100, "holdout": 0.0, "lr": 3e-3})
    train(config, tmp_path / "run", watcher=recorder)
    clean = [values[1] for values in recorder.losses]
    assert sum(clean[-10:]) < 0.8 * sum(clean[:10])


def test_schedules() -> None:
    def factor(epoch: int, step: int, **values: Any) -> float:
        return learning_rate_factor(Config().with_values(values).train, epoch, step, total_steps=100)

    assert factor(50, 50, schedule="constant") == 1.0
    assert factor(9, 0, schedule="step", decay_every=10, decay_by=0.5) == 1.0
    assert factor(10, 0, schedule="step", decay_every=10, decay_by=0.5) == 0.5
    assert factor(25, 0, schedule="step", decay_every=10, decay_by=0.5) == 0.25
    assert factor(0, 0, schedule="cosine") == 1.0
    assert factor(0, 50, schedule="cosine") == pytest.approx(0.5)
    assert factor(0, 100, schedule="cosine") == pytest.approx(0.0, abs=1e-9)


def test_learning_rates_of_the_groups(small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[dict[str, float]] = []
    step = torch.optim.AdamW.step

    def recorded(self: torch.optim.AdamW, *args: Any, **kwargs: Any) -> Any:
        rates.append({group["name"]: group["lr"] for group in self.param_groups})
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", recorded)
    values = {"loss": "proxy-anchor", "head_lr": 0.01, "schedule": "step", "decay_every": 1, "decay_by": 0.5}
    run = train(small.with_values(values), tmp_path / "run")
    assert rates[0] == {"backbone": 0.001, "head": 0.01, "proxies": 1.0}
    assert rates[-1] == {"backbone": 0.0005, "head": 0.005, "proxies": 0.5}
    assert [line["lr"] for line in run.metrics() if "lr" in line] == [0.001, 0.0005]


def _weights(run: RunFolder, name: str = "last") -> dict[str, Tensor]:
    return checkpoint.select_prefix("model", load_file(run.path / "checkpoints" / f"{name}.safetensors"))


def test_frozen_scale_and_shift_of_batch_norm_stay(small: Config, tmp_path: Path) -> None:
    """Also after a warm-up, which lets the rest of the backbone train again."""
    config = small.with_values({"holdout": 0.0, "max_steps": None, "epochs": 2, "warmup_epochs": 1, "lr": 0.01})
    frozen, trained = (
        load_file(train(config.with_values({"frozen_affine": one}), tmp_path / str(one)).model / "model.safetensors")
        for one in (True, False)
    )
    norms = [name.removesuffix("running_mean") for name in frozen if name.endswith("running_mean")]
    assert norms
    for norm in norms:
        assert torch.equal(frozen[f"{norm}weight"], torch.ones_like(frozen[f"{norm}weight"]))
        assert torch.equal(frozen[f"{norm}bias"], torch.zeros_like(frozen[f"{norm}bias"]))
        assert not torch.equal(trained[f"{norm}weight"], frozen[f"{norm}weight"])


def test_warmup_trains_head_and_proxies_only(small: Config, tmp_path: Path) -> None:
    values = {"warmup_epochs": 2, "loss": "proxy-anchor", "weight_decay": 0.1}
    config = small.with_values(values)
    run = train(config, tmp_path / "run")
    torch.manual_seed(config.train.seed)
    start = Embedder("glyphs-cnn", config.model.dim).state_dict()
    trained = {name for name, p in Embedder("glyphs-cnn", 8).named_parameters()}
    moved = {name for name, tensor in _weights(run).items() if name in trained and not torch.equal(tensor, start[name])}
    assert moved == {name for name in trained if name.startswith("head.")}
    without = train(config.with_values({"warmup_epochs": 0}), tmp_path / "without")
    assert not torch.equal(_weights(without)["backbone.stage1.0.weight"], start["backbone.stage1.0.weight"])


def test_average_is_the_literal_one(small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Tensor]] = []
    from metrix.train.ema import WeightAverage

    update = WeightAverage.update

    def recorded(self: WeightAverage) -> None:
        seen.append({k: v.clone() for k, v in self.module.state_dict().items()})
        update(self)

    monkeypatch.setattr(WeightAverage, "update", recorded)
    config = small.with_values({"ema": 0.7, "holdout": 0.0})
    run = train(config, tmp_path / "run")
    torch.manual_seed(config.train.seed)
    expected = Embedder("glyphs-cnn", 8).state_dict()
    for weights in seen:
        for name in expected:
            running = "running" in name or "num_batches" in name
            expected[name] = weights[name] if running else 0.7 * expected[name] + 0.3 * weights[name]
    saved = load_file(run.model / "model.safetensors")
    assert len(seen) == 12
    for name, tensor in expected.items():
        torch.testing.assert_close(saved[name], tensor, rtol=1e-5, atol=1e-6)
    assert not torch.equal(saved["head.linear.weight"], seen[-1]["head.linear.weight"])


def test_gradients_are_clipped(small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[float] = []
    step = torch.optim.AdamW.step

    def recorded(self: torch.optim.AdamW, *args: Any, **kwargs: Any) -> Any:
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norms.append(float(torch.stack([g.norm() for g in gradients]).norm()))
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", recorded)
    train(small.with_values({"clip": 0.001}), tmp_path / "clipped")
    assert max(norms) == pytest.approx(0.001, rel=1e-3)
    norms.clear()
    train(small, tmp_path / "free")
    assert max(norms) > 0.01


def test_the_unseen_classes_are_looked_at_once(small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Model selection is on classes held out from training; test images are embedded only when all is done."""
    from metrix.train.batches import ImageBatches

    embedded: list[set[str]] = []
    embed = ImageBatches.embed

    def recorded(self: ImageBatches, part: Part, device: torch.device) -> Tensor:
        embedded.append(set(part.class_names))
        return embed(self, part, device)

    monkeypatch.setattr(ImageBatches, "embed", recorded)
    train(small, tmp_path / "run")
    dataset = open_data(small, lambda *_: None)
    test, seen = set(dataset.test.class_names), set(select_training_part(small, dataset).class_names)
    *validations, final, fitted = embedded
    assert len(validations) == 3  # before the first epoch, and after each
    for classes in validations:
        assert classes
        assert not classes & test
        assert not classes & seen
    assert final == test
    assert fitted == seen  # how well they are fitted


def test_early_stopping(small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrix.train.epochs.score", lambda found: 0.5)  # never better than the first
    recorder = Recorder()
    config = small.with_values({"patience": 2, "epochs": 50, "max_steps": None})
    run = train(config, tmp_path / "run", watcher=recorder)
    assert recorder.validations == [1, 2]
    assert run.results is not None
    assert run.results["best_epoch"] == 0  # the untrained network is kept unless an epoch beats it
    run = train(config.with_values({"select_from": 1}), tmp_path / "trained", watcher=Recorder())
    assert run.results is not None
    assert run.results["best_epoch"] == 3  # of trained epochs, a tie goes to the later one
    assert all(torch.equal(t, _weights(run, "best")[n]) for n, t in load_file(run.model / "model.safetensors").items())


@pytest.mark.parametrize("mixup", ["feature", "embed"])
def test_cached_views_of_a_frozen_trunk(mixup: str, small: Config, tmp_path: Path) -> None:
    values = {"freeze_to": "stage2", "views": 2, "mixup": [mixup], "pool": "avg"}
    run = train(small.with_values(values), tmp_path / "run")
    torch.manual_seed(0)
    start, end = Embedder("glyphs-cnn", 8, "avg", freeze_to="stage2").state_dict(), _weights(run)
    assert torch.equal(start["backbone.stage2.0.weight"], end["backbone.stage2.0.weight"])
    assert not torch.equal(start["backbone.stage3.0.weight"], end["backbone.stage3.0.weight"])
    assert run.results is not None
    assert 0.0 < run.results["test"]["recall"]["1"] <= 1.0


def test_the_seconds_of_a_run_count_the_activations_of_its_frozen_trunk(
    small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trunk = Embedder.trunk

    def slow(self: Embedder, images: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return trunk(self, images)

    monkeypatch.setattr("metrix.train.batches.data.cache_folder", lambda: tmp_path)  # without activations
    monkeypatch.setattr(Embedder, "trunk", slow)
    config = small.with_values({"freeze_to": "stage2", "views": 3, "mixup": ["embed"], "max_steps": 1, "epochs": 1})
    first = train(config, tmp_path / "first").results
    assert first is not None
    assert first["activation_seconds"] >= 0.2  # several blocks of images in three views, and the test images
    assert first["seconds"] >= first["activation_seconds"]
    again = train(config, tmp_path / "again").results
    assert again is not None
    assert again["activation_seconds"] < 0.2  # they are computed already
    whole = train(small.with_values({"max_steps": 1}), tmp_path / "whole").results
    assert whole is not None
    assert "activation_seconds" not in whole


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": 4, "per_class": 3}, "batch_size: expected at least 6 with per_class=3.*got 4"),
        ({"per_class": 1}, "per_class: expected at least 2 with loss 'multi-similarity'.*got 1"),
        ({"train_classes": 1000}, "train_classes: expected at most 54.*got 1000"),
        ({"views": 2}, "freeze_to: expected one of .*stage1.* with views=2"),
        (
            {"views": 2, "freeze_to": "stage2", "mixup": ["input"]},
            "mixup: expected feature or embed with views=2.*no images to mix",
        ),
        ({"freeze_to": "stage9"}, "did you mean"),
        ({"hard_negatives": [3, 3]}, "one for each mixup type"),
        ({"loss": "contrastiv"}, "did you mean 'contrastive'"),
        ({"device": "cuda"}, "device: expected one that is available here .*got 'cuda'"),
        ({"precision": "16-mixed", "device": "cpu"}, "needs a GPU"),
        ({"backbone": "resnet5"}, "resnet5"),
        ({"pool": "cls"}, "has no class token"),
        ({"data": "nowhere"}, "nowhere"),
    ],
)
def test_settings_that_cannot_train_begin_no_run(
    values: dict[str, Any], message: str, small: Config, tmp_path: Path
) -> None:
    if values.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(InvalidInput, match=message):
        train(small.with_values(values), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_grey_images_train_a_backbone_of_colours(tmp_path):
    settings = {
        **{"data": "glyphs-mini", "backbone": "resnet18", "dim": 16, "image_size": 32, "pool": "avg"},
        **{"batch_size": 8, "per_class": 4, "max_steps": 1, "holdout": 0.0, "mixup": ("embed",)},
    }
    run = train(Config().with_values(settings), tmp_path / "run")
    assert 0 < run.results["test"]["recall"]["1"] < 1


def test_epoch_0_measures_the_weights_that_training_begins_with(small: Config, tmp_path: Path) -> None:
    run = train(small.with_values({"lr": 1e-12, "frozen_bn": True}), tmp_path / "run")
    validations = [line for line in run.metrics() if "val" in line]
    assert [(line["epoch"], line["step"]) for line in validations] == [(0, 0), (1, 8), (2, 12)]
    assert validations[0]["val"] == validations[1]["val"]  # at this rate nothing was learned
    assert run.results is not None
    assert run.results["best_epoch"] == 0  # it was not beaten
    assert run.results["untrained"]["beaten"] is False


@pytest.mark.parametrize("workers", [0, 1])
def test_epoch_0_changes_nothing_of_the_training(
    workers: int, small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small.with_values({"workers": workers})
    with_it = train(config, tmp_path / "with")
    monkeypatch.setattr("metrix.train.epochs.Epochs.measure_untrained", lambda self, part: None)
    without = train(config, tmp_path / "without")
    states = [load_file(run.last) for run in (with_it, without)]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_a_whitened_head(small: Config, tmp_path: Path) -> None:
    found: list[float] = []

    class Listener(Watcher):
        def untrained(self, measures: dict[str, Any], part: str) -> None:
            found.append(measures["recall"]["1"])

    for start in ("random", "whiten"):
        train(small.with_values({"head_init": start, "ema": 0.9}), tmp_path / start, watcher=Listener())
    assert found[1] > found[0]  # the average of weights starts from the whitened head, too
    resumed = train(resume=tmp_path / "whiten")
    assert resumed.results is not None
    with pytest.raises(InvalidInput, match=r"dim: expected at most 95 with head_init='whiten'.*got 200"):
        train(small.with_values({"head_init": "whiten", "dim": 200}), tmp_path / "wide")
    assert not (tmp_path / "wide").exists()


def test_training_that_does_harm_keeps_the_untrained_network_and_says_so(
    small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from metrix.train import state
    from metrix.train.untrained import describe_harm

    literally = state.measure

    def worse_with_steps(batches: Any, name: str, team: Any, fit: bool = False) -> dict[str, Any]:
        found = literally(batches, name, team)
        if name == "val":
            found["recall"]["1"] = {0: 0.947, 8: 0.93, 12: 0.94}[steps.pop(0)]
        return found

    monkeypatch.setattr(state, "measure", worse_with_steps)
    config = small
    steps = [0, 8, 12]
    run = train(config, tmp_path / "run")
    assert run.results is not None
    found = run.results["untrained"]
    assert found == {"on": "val", "before": 0.947, "after": 0.94, "beaten": False}
    assert run.results["best_epoch"] == 0
    assert run.results["validation_recall@1"] == found["before"]
    steps[:] = [0]
    untrained = train(config.with_values({"epochs": 0}), tmp_path / "untrained")
    kept, fresh = (load_file(one.model / "model.safetensors") for one in (run, untrained))
    assert all(torch.equal(kept[name], fresh[name]) for name in fresh)
    assert "no epoch beat the untrained network" in describe_harm(run.results)
    assert "--freeze-to" in describe_harm(run.results)
    steps[:] = [0, 8, 12]
    trained = train(config.with_values({"select_from": 1}), tmp_path / "trained")
    assert trained.results is not None
    assert trained.results["best_epoch"] > 0
    assert "the model is a trained one" in describe_harm(trained.results)


def test_no_epochs_save_and_measure_the_untrained_network(small: Config, tmp_path: Path) -> None:
    run = train(small.with_values({"epochs": 0, "max_steps": None}), tmp_path / "run")
    assert run.results is not None
    assert (run.results["epochs"], run.results["steps"], run.results["best_epoch"]) == (0, 0, 0)
    assert 0 < run.results["test"]["recall"]["1"] < 1
    longer = train(resume=run.path, epochs=1)
    assert longer.results is not None
    assert longer.results["steps"] > 0


def test_gradients_are_clipped_by_norm_or_by_value(
    small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lightning_fabric

    found: list[dict[str, Any]] = []
    clip = lightning_fabric.Fabric.clip_gradients

    def record(self: Any, *args: Any, **limits: Any) -> Any:
        found.append(limits)
        return clip(self, *args, **limits)

    monkeypatch.setattr(lightning_fabric.Fabric, "clip_gradients", record)
    for how in ("norm", "value"):
        train(small.with_values({"clip": 0.1, "clip_by": how, "max_steps": 1, "holdout": 0.0}), tmp_path / how)
    assert [("max_norm" in one, "clip_val" in one) for one in found] == [(True, False), (False, True)]
