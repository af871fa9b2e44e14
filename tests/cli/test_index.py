"""`metrix index`: what it says, refuses to replace, and changes without embedding again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrix.errors import DataError
from metrix.runs.trained_model import open_run
from metrix.search import Description, Index, Items
from tests.command_line import Metrix


@pytest.fixture
def own(indexed: Path, tmp_path: Path) -> Path:
    """A copy of an index."""
    return Path(shutil.copytree(indexed / "photos.index", tmp_path / "photos.index"))


def test_info_says_what_an_index_holds(metrix: Any, own: Path) -> None:
    found = metrix("index", "-o", own, "--info", "--json").json
    assert (found["count"], found["kind"], found["store"], found["generation"]) == (18, "exact", "faiss", 1)
    assert found["bytes"] == sum(path.stat().st_size for path in own.iterdir() if path.suffix in (".npy", ".arrow"))
    assert found["age_seconds"] >= 0
    said = metrix("index", own, "--info").out
    for word in ("items", "18", "model", "view", "generation", "changed", "label (text)"):
        assert word in said


def test_columns_are_set_without_embedding(metrix: Any, own: Path, tmp_path: Path, refused: Any) -> None:
    before = Index.open(own)
    ids = [one for _, items in before.store.scan() for one in items.ids.to_pylist()]
    (tmp_path / "fix.csv").write_text(f"id,label,price\n{ids[3]},other,1.5\n{ids[0]},,2\n")
    vectors = Description.read(own).place["vectors"]
    metrix("index", "-o", own, "--set", tmp_path / "fix.csv")
    after = Index.open(own)
    assert after.description.place["vectors"] == vectors
    assert after.get([ids[3]]).records() == [{"id": ids[3], "label": "other", "price": 1.5}]
    assert after.get([ids[0]]).records() == [{"id": ids[0], "label": None, "price": 2.0}]
    assert after.get([ids[5]]).records()[0] == {**before.get([ids[5]]).records()[0], "price": None}
    assert after.search(before.store.read_vectors(np.array([3])), 1, where=["price=1.5"]).ids.tolist() == [[ids[3]]]
    (tmp_path / "wrong.csv").write_text("id,price\nnobody,2\n")
    refused("index", "-o", own, "--set", tmp_path / "wrong.csv", words=("nobody",))
    (tmp_path / "wrong.csv").write_text("name,price\nnobody,2\n")
    refused("index", "-o", own, "--set", tmp_path / "wrong.csv", words=("expected a column 'id'",))
    (tmp_path / "wrong.csv").write_text(f"id,price\n{ids[0]},much\n")
    refused("index", "-o", own, "--set", tmp_path / "wrong.csv", words=("column 'price'",))


def test_columns_of_milvus_are_set_and_seen_after_it(tmp_path: Path) -> None:
    pytest.importorskip("milvus_lite", reason="Milvus is NOT TESTED: pip install 'metrix[milvus]'")
    vectors = np.random.default_rng(0).standard_normal((9, 4))
    items = Items.read(vectors, [f"p{n}" for n in range(9)], {"label": ["a"] * 9})
    index = Index.create(tmp_path / "i", [items], store=f"milvus:{tmp_path / 'p.db'}")
    index.set_columns(["p3", "p5"], {"label": ["b", None]})
    assert len(index) == 9
    assert index.get(["p3", "p5", "p0"]).columns["label"].to_pylist() == ["b", None, "a"]
    np.testing.assert_allclose(index.get(["p3"]).vectors, items.vectors[3:4])
    with pytest.raises(DataError, match="as the collection has, got price"):
        index.set_columns(["p3"], {"price": [1]})
    index.close()


def test_an_index_of_another_model_or_of_other_images_is_not_replaced_by_accident(
    metrix: Any, refused: Any, indexed: Path, own: Path, tmp_path: Path
) -> None:
    path = own / "description.json"
    made = Description.read(own)
    assert made.model is not None
    run, photos = Path(str(made.model.run)), Path(str(made.root))
    other = made.model.model_copy(update={"digest": "0" * 64, "run": "runs/other"})
    made.model_copy(update={"model": other}).write(own)
    before = path.read_bytes()
    refused("index", run, photos, "-o", own, words=("of another model (runs/other)", "--overwrite"))
    assert path.read_bytes() == before
    metrix("index", run, photos, "-o", own, "--overwrite")
    assert Index.open(own).description.model == made.model
    metrix("index", run, photos, "-o", own)  # the same again
    refused("index", run, photos / "kind 1", "-o", own, words=("is an index of", "--overwrite"))


def test_an_index_moves_with_its_run(indexed: Path, run: Path, tmp_path: Path, metrix: Metrix) -> None:
    from metrix.retrieve.indexing import index_images

    made = tmp_path / "a"
    shutil.copytree(Path(str(Description.read(indexed / "photos.index").root)), made / "photos")
    shutil.copytree(run, made / "runs" / "a")
    index_images(open_run(made / "runs" / "a"), [made / "photos"], made / "photos.index")
    made.rename(tmp_path / "b")
    query = next((tmp_path / "b" / "photos").rglob("*.*g"))
    assert metrix("search", str(tmp_path / "b" / "photos.index"), str(query)).code == 0
    (tmp_path / "b" / "runs").rename(tmp_path / "b" / "other")
    assert "give --run RUN" in metrix("search", str(tmp_path / "b" / "photos.index"), str(query)).err


def test_an_index_moves_with_its_images(indexed: Path, run: Path, tmp_path: Path) -> None:
    from metrix.retrieve.indexing import index_images
    from metrix.retrieve.item_images import image_file

    made = tmp_path / "a"
    shutil.copytree(Path(str(Description.read(indexed / "photos.index").root)), made / "photos")
    index_images(open_run(run), [made / "photos"], made / "photos.index")
    made.rename(tmp_path / "b")
    moved = Index.open(tmp_path / "b" / "photos.index")
    one = next(iter(moved.store.scan(1)))[1].ids[0].as_py()
    assert image_file(moved, one).is_file()
    (tmp_path / "b" / "photos").rename(tmp_path / "elsewhere")
    assert not image_file(Index.open(tmp_path / "b" / "photos.index"), one).is_file()
    told = Index.open(tmp_path / "b" / "photos.index", root=tmp_path / "elsewhere")
    assert image_file(told, one).is_file()
    assert told.reopen() is told
