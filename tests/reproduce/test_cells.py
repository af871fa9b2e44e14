from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from metrix.errors import InvalidInput, check_share
from metrix.experiments.cells import hash_sources, make_cell, strip_prose, take_shard, train_cell
from metrix.reproduce.datasets import ReproductionData, build_config, choose_data
from metrix.runs.trained_model import open_run
from metrix.train.config import Config
from metrix.train.run_folder import RunFolder
from tests.reproduce.conftest import MINI, TINY, cells_of

VECTORS = {
    "loss": "contrastive",
    "mixup": [],
    "hidden": [8],
    "dim": 4,
    "batch_size": 16,
    "per_class": 2,
    "max_steps": 2,
}


def test_a_key_follows_what_is_trained() -> None:
    def key(recipe: dict[str, object], seed: int = 0, data: ReproductionData = MINI, **changes: object) -> str:
        return make_cell(build_config(data, recipe, seed, 512, {**TINY, **changes}), data).key

    first = key({"loss": "contrastive"})
    assert first == key({"loss": "contrastive"})
    assert first == key({"loss": "contrastive", "mixup": []})  # said otherwise, the same
    assert first == key({"loss": "contrastive"}, workers=2, checkpoint_steps=7)  # how, not what
    others = [
        key({"loss": "multi-similarity"}),
        key({"loss": "contrastive", "mixup": ["embed"]}),
        key({"loss": "contrastive"}, seed=1),
        key({"loss": "contrastive"}, max_steps=3),
        key({"loss": "contrastive"}, data=ReproductionData("glyphs", "glyphs")),
    ]
    assert len({first, *others}) == 6


def test_a_key_follows_the_code_and_not_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    import metrix.experiments.cells as module

    before = cells_of(1)[0].key
    monkeypatch.setattr(module, "code_version", lambda: "other")
    assert cells_of(1)[0].key != before


def test_words_of_the_source_do_not_count() -> None:
    source = '"""About."""\n\ndef f(x):  # doubles\n    """Twice\n    x."""\n    # why\n    return 2 * x  # "so"\n'
    assert strip_prose(source) == "def f(x):\n    return 2 * x"
    assert strip_prose(source.replace("2 *", "3 *")) != strip_prose(source)
    assert strip_prose('x = "# not a comment"') == 'x = "# not a comment"'


def test_the_place_of_the_source_does_not_count() -> None:
    f, g = "def f(x):\n    return 2 * x\n", "@cache\ndef g(x):\n    from metrix.core.a import f\n    return f(x) + 1\n"
    together = hash_sources([f + g])
    apart = hash_sources(["from metrix.core.c import f\n" + g.replace("core.a", "core.b"), '"""Moved."""\n' + f])
    assert together == apart
    assert together != hash_sources([f, g.replace("+ 1", "+ 2")])
    assert together != hash_sources([f, g.replace("@cache\n", "")])
    assert together != hash_sources([g])
    assert together != hash_sources(["import torch\n" + f + g])


def test_a_key_follows_the_images_and_not_their_place(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    from PIL import Image

    def photos(name: str, grey: int) -> ReproductionData:
        for label in ("a", "b", "c", "d"):
            (tmp_path / name / label).mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (16 + grey, 16), (grey, number, 0)).save(tmp_path / name / label / f"{number}.png")
        return choose_data([f"own={tmp_path / name}"])[0]

    here, moved, other = photos("here", 1), photos("moved", 1), photos("other", 90)
    keys = [make_cell(build_config(one, {"loss": "contrastive"}, 0, 512, {}), one).key for one in (here, moved, other)]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_shards_together_are_the_grid(of: int) -> None:
    cells = cells_of(5)
    shards = [take_shard(cells, (number, of)) for number in range(1, of + 1)]
    assert sorted(one.key for shard in shards for one in shard) == sorted(one.key for one in cells)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert take_shard(list(reversed(cells)), (1, of)) == list(reversed(shards[0]))  # by key, not by place


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "-1/2", "1/2/3", ""])
def test_a_shard_is_i_of_n(text: str) -> None:
    with pytest.raises(InvalidInput, match="I from 1 to N"):
        check_share("--shard", text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["cars"], "expected NAME=PATH"),
        (["=x"], "expected NAME=PATH"),
        (["cars=/no/such/folder"], "/no/such/folder does not exist"),
        (["a=glyphs", "a=glyphs-mini"], "given twice"),
    ],
)
def test_data_that_is_none(given: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        choose_data(given)


def test_settings_are_the_papers_on_its_datasets_and_smaller_on_glyphs() -> None:
    cub = build_config(
        ReproductionData("cub", "anywhere"), {"loss": "contrastive", "mixup": ["feature"]}, 3, 128, {"epochs": 7}
    )
    assert (cub.model.backbone, cub.model.dim, cub.train.epochs, cub.train.seed) == (
        "resnet50.tv_in1k",
        128,
        7,
        3,
    )
    assert (cub.loss.reduction, cub.train.decay_by, cub.data.layout) == ("mean_nonzero", 0.1, "cub")
    assert cub.mixing.lam_per == "batch"
    glyphs = build_config(
        ReproductionData("glyphs", "glyphs"), {"loss": "multi-similarity"}, 0, 128, {"batch_size": 50}
    )
    assert (glyphs.model.backbone, glyphs.model.dim, glyphs.mixing.mixup) == ("glyphs-cnn", 16, ())
    assert glyphs.loss.reduction is None  # the contrastive loss of the preset left nothing behind
    hard = {"loss": "contrastive", "mixup": ["input", "feature"], "hard_negatives": [3, 40]}
    scaled = build_config(ReproductionData("glyphs", "glyphs"), hard, 0, 512, {"batch_size": 50})
    assert scaled.mixing.hard_negatives == (3, 20)


def test_a_cell_that_is_read_again_keeps_what_the_data_have_changed(tmp_path: Path) -> None:
    """The place of the data is that of now; the network is the one that was trained."""
    rng, file = np.random.default_rng(0), tmp_path / "v.npz"
    np.savez(file, vectors=rng.normal(size=(64, 6)), label=np.repeat(np.arange(8), 8))
    config = Config().with_values({**VECTORS, "data": str(file)})
    train_cell(tmp_path / "cell", config)
    run = RunFolder(tmp_path / "cell" / "run")
    trained = run.config
    assert trained.model.backbone == "mlp"
    moved = file.rename(tmp_path / "moved.npz")
    train_cell(tmp_path / "cell", config.with_values({"data": str(moved)}))
    assert run.config == trained.with_values({"data": str(moved)})
    model = open_run(run.path)
    assert model.open_data().train.num_classes > 0
