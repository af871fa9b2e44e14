"""Milvus (embedded) gives what faiss gives: ids, scores, filters, changes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrix.errors import DataError, InvalidInput
from metrix.search import Fingerprint, Index, Items, Settings, find_duplicates, find_suspects

pytest.importorskip("pymilvus", reason="Milvus is NOT TESTED: pip install 'metrix[milvus]'")
pytest.importorskip("milvus_lite", reason="Milvus is NOT TESTED: pip install 'metrix[milvus]'")


def photos(n: int, seed: int = 0, start: int = 0) -> Items:
    numbers = range(start, start + n)
    columns = {
        "label": [None if i % 7 == 0 else f'it\'s "{i % 3}" \\ ü' for i in numbers],
        "unit price": [None if i % 5 == 0 else float("nan") if i % 11 == 0 else i / 2 for i in numbers],
        "stock": list(numbers),
        "sold": [i % 2 == 0 for i in numbers],
    }
    vectors = np.random.default_rng(seed).standard_normal((n, 12))
    return Items.read(vectors, [f"a/{i}.jpg" for i in numbers], columns)


def both(tmp_path: Path, lots: list[Items], **options: Any) -> tuple[Index, Index]:
    faiss = Index.create(tmp_path / "faiss.index", lots, **options)
    milvus = Index.create(tmp_path / "milvus.index", lots, store=f"milvus:{tmp_path / 'photos.db'}", **options)
    return faiss, milvus


def same(a: Index, b: Index, queries: np.ndarray, k: int, **options: Any) -> None:
    one, other = a.search(queries, k, **options), b.search(queries, k, **options)
    assert one.ids.tolist() == other.ids.tolist()
    np.testing.assert_allclose(one.similarities, other.similarities, atol=2e-6)


Q = np.random.default_rng(9).standard_normal((6, 12))
FILTERS = [
    ['label=it\'s "1" \\ ü'],
    ['label!=it\'s "1" \\ ü'],
    ["unit price<20"],
    ["unit price>=20", "stock<=70"],
    ["sold=true", "stock!=4"],
    ["stock<10.5"],
    ["label=nothing"],
    ['label>it\'s "0" \\ ü'],
    ['label<=it\'s "1" \\ ü', "unit price!=3"],
]


def test_the_same_ids_scores_and_filters(tmp_path: Path) -> None:
    faiss, milvus = both(tmp_path, [photos(80), photos(40, seed=1, start=80)])
    assert len(faiss) == len(milvus) == 120
    assert dict(faiss.columns) == dict(milvus.columns)
    same(faiss, milvus, Q, 10)
    same(faiss, milvus, Q, 500)
    for where in FILTERS:
        same(faiss, milvus, Q, 10, where=where)
    own = [f"a/{i}.jpg" for i in range(6)]
    same(faiss, milvus, Q, 10, expand=4, rerank=30, exclude=own)
    ids = ["a/100.jpg", "a/3.jpg", "a/100.jpg"]
    assert faiss.get(ids).records() == milvus.get(ids).records()
    np.testing.assert_allclose(faiss.get(ids).vectors, milvus.get(ids).vectors)
    assert find_duplicates(faiss, 0.8) == find_duplicates(milvus, 0.8)
    for a, b in zip(find_suspects(faiss), find_suspects(milvus), strict=True):
        assert (a.id, a.suggested) == (b.id, b.suggested)
    milvus.close()
    again = Index.open(tmp_path / "milvus.index")
    same(faiss, again, Q, 3)
    again.close()


def test_the_same_changes(tmp_path: Path) -> None:
    model = Fingerprint(digest="0" * 64, view="v", dim=12)
    faiss, milvus = both(tmp_path, [photos(50)], model=model, root="/photos")
    other = Index.create(tmp_path / "other.index", [photos(9, seed=4)], model=model, root="/photos/more")
    for index in (faiss, milvus):
        index.add(photos(20, seed=2, start=50))
        index.delete(["a/3.jpg", "a/60.jpg"])
        index.update(Items.read(photos(2, seed=5).vectors, ["a/5.jpg", "new.jpg"], {"stock": [7, 8]}))
        index.merge(other)
        assert len(index) == 50 + 20 - 2 + 1 + 9
        assert index.description.count == len(index)
        with pytest.raises(InvalidInput, match=r"got a/1\.jpg"):
            index.add(photos(1, start=1))
        with pytest.raises(InvalidInput, match="got nobody"):
            index.delete(["nobody"])
        with pytest.raises(InvalidInput, match="model: expected"):
            index.search(Q, 1, model=model.model_copy(update={"digest": "1" * 64}))
    same(faiss, milvus, Q, 80)
    same(faiss, milvus, Q, 80, where=["stock<9"])
    milvus.close()


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_approximate_kinds_state_their_recall(tmp_path: Path, kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        index = Index.create(
            tmp_path / "i",
            [photos(400)],
            kind,
            store=f"milvus:{tmp_path / 'p.db'}",
            settings=Settings(cells=8, probes=8),
        )
    assert index.kind == kind
    assert index.description.recall is not None
    assert index.description.recall > 0.9
    index.close()


def test_a_rebuilt_index_replaces_its_collection(tmp_path: Path) -> None:
    from pymilvus import MilvusClient

    store = f"milvus:{tmp_path / 'p.db'}"
    Index.create(tmp_path / "i", [photos(20)], store=store).close()

    def lots() -> Any:
        yield photos(10)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Index.create(tmp_path / "i", lots(), store=store)
    index = Index.open(tmp_path / "i")
    assert len(index) == 20
    index.close()
    index = Index.create(tmp_path / "i", [photos(30)], store=store)
    assert len(index) == 30
    index.close()
    client = MilvusClient(str(tmp_path / "p.db"))
    assert len(client.list_collections()) == 1
    client.close()
    (tmp_path / "i").rename(tmp_path / "j")  # the store is found relative to the index
    moved = Index.open(tmp_path / "j")
    assert len(moved) == 30
    moved.close()


def test_what_a_killed_build_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pymilvus import MilvusClient

    from metrix.search import index as indexes

    store = f"milvus:{tmp_path / 'p.db'}"

    def killed(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(indexes, "switch_generation", killed)
        with pytest.raises(SystemExit):
            Index.create(tmp_path / "i", [photos(20)], store=store)
    Index.create(tmp_path / "i", [photos(30)], store=store).close()
    client = MilvusClient(str(tmp_path / "p.db"))
    assert len(client.list_collections()) == 1
    client.close()
    index = Index.open(tmp_path / "i")
    assert len(index) == 30
    assert not (tmp_path / "i" / ".pending.json").exists()
    index.close()


def test_numbers_as_ids(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((30, 12))
    faiss, milvus = both(tmp_path, [Items.read(vectors)])
    same(faiss, milvus, Q, 5)
    assert milvus.get([3, 1]).records() == [{"id": 3}, {"id": 1}]
    milvus.close()


def test_a_store_that_is_not_there_is_a_clear_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match=r"Milvus .*127\.0\.0\.1:1"):
        Index.create(tmp_path / "i", [photos(5)], store="milvus:http://127.0.0.1:1")
    with pytest.raises(InvalidInput, match="milvus:PATH"):
        Index.create(tmp_path / "i", [photos(5)], store="milvus:")
    index = Index.create(tmp_path / "i", [photos(5)], store=f"milvus:{tmp_path / 'p.db'}")
    index.close()
    (tmp_path / "i" / "description.json").write_text(
        (tmp_path / "i" / "description.json").read_text().replace("metrix_", "metrix_other_")
    )
    with pytest.raises(DataError, match="expected the collection"):
        Index.open(tmp_path / "i")
    assert "Traceback" not in capfd.readouterr().err
