"""`suggest_images`: which images of a folder, or items without a label, to label next."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrix.errors import DataError, InvalidInput, LabelError
from metrix.retrieve import suggest as module
from metrix.retrieve.suggest import suggest_images
from metrix.search import Index
from metrix.search.choosing import STRATEGIES
from tests.photos import draw_photo


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of known and of new classes, one that the index has, and one that is broken."""
    folder = tmp_path_factory.mktemp("unlabelled")
    for c in range(5):
        for n in range(20, 24):
            draw_photo(c, n).save(folder / f"{c}-{n}.png")
    draw_photo(0, 1).save(folder / "copy.jpg", quality=95)
    (folder / "broken.jpg").write_bytes(b"no image")
    return folder


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_images_of_a_folder(strategy: str, indexed: Path, unlabelled: Path) -> None:
    found = suggest_images(indexed / "photos.index", [unlabelled], 6, strategy=strategy, threshold=0.999)
    assert len({one.id for one in found.suggestions}) == 6
    assert [one.rank for one in found.suggestions] == [1, 2, 3, 4, 5, 6]
    assert found.candidates == 21
    assert found.skipped == 1
    assert found.copies >= 1
    assert "copy.jpg" not in {one.id for one in found.suggestions}
    for one in found.suggestions:
        assert Path(str(one.file)).is_file()
        assert one.similarity == one.neighbours[0]["similarity"] < 0.999
        assert one.best in ("kind 0", "kind 1", "kind 2")
        assert one.reason


def test_vectors_are_embedded_once_and_again_if_they_are_damaged(
    indexed: Path, unlabelled: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache_folder: Path
) -> None:
    monkeypatch.setenv("METRIX_CACHE", str(tmp_path / "cache"))
    shutil.copytree(cache_folder / "glyphs", tmp_path / "cache" / "glyphs", dirs_exist_ok=True)
    embedded: list[int] = []
    before = module.index_images

    def counting(*arguments: Any, **options: Any) -> Any:
        done = before(*arguments, **options)
        embedded.append(done.images)
        return done

    monkeypatch.setattr(module, "index_images", counting)
    first = suggest_images(indexed / "photos.index", [unlabelled], 4)
    assert [one.path for one in first.broken] == ["broken.jpg"]
    again = suggest_images(indexed / "photos.index", [unlabelled], 4)
    assert embedded == [21]
    assert again.suggestions == first.suggestions
    assert (again.skipped, again.broken) == (1, ())
    (pool,) = (one for one in (tmp_path / "cache" / "pools").iterdir() if one.is_dir())
    next(pool.glob("vectors*.npy")).unlink()  # damaged
    assert suggest_images(indexed / "photos.index", [unlabelled], 4).suggestions == first.suggestions
    draw_photo(4, 99).save(tmp_path / "one.png")
    assert suggest_images(indexed / "photos.index", [unlabelled, tmp_path / "one.png"], 4).candidates == 22
    assert embedded == [21, 21, 22]


def test_items_of_the_index_without_a_label(own_index: Path) -> None:
    with pytest.raises(InvalidInput, match="got neither"):
        suggest_images(own_index)
    index = Index.open(own_index)
    unknown = [f"kind {c}/{n}.jpg" for c in range(3) for n in (0, 3, 5)]
    index.set_columns(unknown, {"label": [None] * 9})
    found = suggest_images(index, n=20, threshold=1.0)
    assert {one.id for one in found.suggestions} == set(unknown)
    assert found.labelled == 9
    assert all(near["label"] is not None for one in found.suggestions for near in one.neighbours)
    everything = [f"kind {c}/{n}.jpg" for c in range(3) for n in range(6)]
    index.set_columns(everything, {"label": [None] * 18})
    found = suggest_images(index, n=3, strategy="coverage", threshold=1.0)
    assert [one.similarity for one in found.suggestions] == [None] * 3
    assert found.labelled == 0
    with pytest.raises(LabelError, match="two classes or more for 'margin', got 0"):
        suggest_images(index, strategy="margin")


def test_another_index_is_a_pool_and_an_index_of_vectors_has_one(own_index: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    index = Index.build(rng.normal(size=(10, 4)), columns={"label": ["a", "b"] * 5})
    Index.build(rng.normal(size=(30, 4)), ids=range(100, 130)).save(tmp_path / "pool.index")
    found = suggest_images(index, [tmp_path / "pool.index"], 5, strategy="unsure", threshold=1.0)
    assert len(found.suggestions) == 5
    assert {one.file for one in found.suggestions} == {None}
    assert all(100 <= int(one.id) < 130 for one in found.suggestions)
    plain = Index.build(rng.normal(size=(10, 4)))  # no labels at all: everything counts as labelled
    assert suggest_images(plain, [tmp_path / "pool.index"], 5, threshold=1.0).labelled == 10
    with pytest.raises(InvalidInput, match="dimension"):
        suggest_images(own_index, [tmp_path / "pool.index"], 5)


def test_mistakes(indexed: Path, unlabelled: Path, tmp_path: Path) -> None:
    index = indexed / "photos.index"
    for wrong, said in (
        ({"n": 0}, "n: expected"),
        ({"strategy": "cover"}, "unknown strategy"),
        ({"threshold": 2.0}, "cosine from -1 to 1"),
        ({"max_bad": 0}, "broken.jpg"),
    ):
        with pytest.raises(InvalidInput, match=said):
            suggest_images(index, [unlabelled], **wrong)  # type: ignore[arg-type]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="expected images"):
        suggest_images(index, [tmp_path / "empty"])
