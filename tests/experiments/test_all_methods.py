"""The list of everything that can be trained, and the series that trains it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from metrix import Embedder, evaluate
from metrix.core.distillation import DISTILLATION
from metrix.errors import InvalidInput
from metrix.experiments import all_methods as field
from metrix.experiments import methods
from metrix.experiments.all_methods import (
    build_base_config,
    build_run_config,
    count_runs,
    describe_settings,
    measure_pixels,
    train_all_methods,
)
from metrix.experiments.methods import WITH_METRIX, MethodRun, find_methods_for, list_methods, list_runs
from metrix.train import Config
from metrix.train.batches import open_data
from metrix.train.build import build_loss, build_objective
from metrix.train.checkpoint import Progress
from metrix.train.names import LOSSES, METHODS, MIXUP_TYPES, PAIR_KINDS, POOLS, SCHEMES
from metrix.train.watching import Watcher

NAMES = [*LOSSES, *METHODS, *MIXUP_TYPES, *PAIR_KINDS, *POOLS, *(name for name in SCHEMES if name != "none")]


def test_the_list_has_every_name_once() -> None:
    rows = list_methods()
    assert [row.name for row in rows] == [*NAMES, *DISTILLATION]
    assert tuple(dict.fromkeys(row.group for row in rows)) == methods.GROUPS
    assert all(re.search(r", (19|20)\d\d|[A-Z]+ (19|20)\d\d$", row.reference) for row in rows)
    assert all(row.line and row.goes_with for row in rows)


@pytest.mark.parametrize("name", LOSSES)
def test_what_goes_with_a_loss_can_be_built_and_nothing_else(name: str) -> None:
    accepted = find_methods_for(LOSSES[name])
    for method in METHODS:
        config = Config().with_values(
            {"mixup_method": method, "mixup": METHODS[method].defaults["mixup"], "loss": name}
        )
        loss = build_loss(config.loss, 3, 4)
        if method in accepted:
            build_objective(config, loss, torch.Generator())
        else:
            with pytest.raises(InvalidInput, match=r"[Ee]xpected "):
                build_objective(config, loss, torch.Generator())


@pytest.mark.parametrize("entry", [e for e in list_runs() if e.left_out is None], ids=lambda e: f"{e.group} {e.name}")
def test_every_entry_takes_a_step(entry: MethodRun) -> None:
    torch.manual_seed(0)
    config = build_run_config(entry, build_base_config("glyphs-mini", 5))
    model = Embedder(config.model.backbone, 8, config.model.pool)
    draws = torch.Generator().manual_seed(0)
    objective = build_objective(config, build_loss(config.loss, 4, 8, draws), draws)
    objective.explain(model)
    images = torch.randn(12, model.data_config.channels, 32, 32)
    out = objective.step(model, images, torch.arange(4).repeat(3))
    out.loss.backward()
    assert out.loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.head.parameters())


def test_every_name_is_trained_or_left_out_with_a_reason() -> None:
    assert {entry.name for entry in list_runs()} == set(NAMES)
    assert {entry.name for entry in list_runs() if entry.left_out} == {"cls"}


def test_every_loss_is_trained_clean_and_where_it_takes_mixup_with_metrix() -> None:
    runs = {
        (e.group, e.name): build_run_config(e, build_base_config("glyphs", 5)) for e in list_runs() if not e.left_out
    }
    for name, loss in LOSSES.items():
        assert runs["loss", name].mixing.mixup == ()
        assert ((WITH_METRIX, name) in runs) == loss.takes_mixup
        if loss.takes_mixup:
            mixed = runs[WITH_METRIX, name]
            assert (mixed.loss, mixed.mixing.mixup_method) == (runs["loss", name].loss, "metrix")
            assert mixed.mixing.mixup == ("embed",)


class Counting(Watcher):
    steps = 0

    def step(self, progress: Progress, losses: list[float], images: int) -> None:
        Counting.steps += 1


def test_a_series_is_trained_once(small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("contrastive", "avg+max", "mochi", "cls")
    chosen = [e for e in list_runs() if e.name in names and e.group != WITH_METRIX]
    monkeypatch.setattr(field, "list_runs", lambda: chosen)
    values = {"epochs": 1, "max_steps": 3, "loss": "contrastive"}
    monkeypatch.setattr(field, "build_base_config", lambda data, steps: small.with_values(values))
    assert count_runs("glyphs-mini", 3, 2) == 4
    watched: list[tuple[str, int]] = []

    def watcher_of(name: str, seed: int) -> Watcher:
        watched.append((name, seed))
        return Counting()

    given: dict[str, Any] = {"folder": tmp_path, "data": "glyphs-mini", "steps": 3, "seeds": 2}
    found = train_all_methods(**given, watcher_of=watcher_of)
    assert Counting.steps == 4 * 3
    assert watched == [(name, seed) for name in dict.fromkeys(row.settings for row in found.rows) for seed in (0, 1)]
    assert [row.entry.name for row in found.rows] == ["contrastive", "mochi", "avg+max"]
    assert found.rows[0].recalls == found.rows[2].recalls  # one run for the two names
    assert [entry.name for entry in found.left_out] == ["cls"]
    again = train_all_methods(**given, watcher_of=watcher_of)
    assert Counting.steps == 4 * 3
    assert again == found
    plain = found.to_dict()
    assert plain["rows"][0]["above_pixels"] == (found.rows[0].mean > found.pixels)
    with pytest.raises(InvalidInput, match="seeds: expected an integer ≥ 1, got 0"):
        train_all_methods(tmp_path, seeds=0)


def test_settings_that_differ_have_folders_of_their_own() -> None:
    base = build_base_config("glyphs", 5)
    configs = [build_run_config(entry, base) for entry in list_runs() if entry.left_out is None]
    distinct = {config.to_yaml() for config in configs}
    assert len({describe_settings(config) for config in configs}) == len(distinct)


def test_pixels_are_compared_as_they_are(small: Config) -> None:
    test = open_data(small, lambda *_: None).test
    images = torch.stack([torch.as_tensor(test[i][0]).float().flatten() for i in range(len(test))])
    expected = 100 * float(evaluate.recall_at_k(images, test.labels, ks=(1,))[1])
    assert measure_pixels(small)[1] == pytest.approx(expected, abs=0.3)
