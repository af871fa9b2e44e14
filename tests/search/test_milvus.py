"""Milvus, embedded and on a server, gives what faiss gives: ids, scores, filters, changes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrix.errors import DataError, InvalidInput, MetrixWarning
from metrix.search import Fingerprint, Index, Items, Settings, find_duplicates, find_suspects, milvus_store
from tests.search.milvus_steps import Q, all_ids, apply_change, photos, take_step
from tests.serve.test_milvus_served import serve_and_change

pytest.importorskip("pymilvus", reason="Milvus is NOT TESTED: pip install 'metrix[milvus]'")
pytest.importorskip("milvus_lite", reason="Milvus is NOT TESTED: pip install 'metrix[milvus]'")


def both(tmp_path: Path, batches: list[Items], store: str, **options: Any) -> tuple[Index, Index]:
    faiss = Index.create(tmp_path / "faiss.index", batches, **options)
    return faiss, Index.create(tmp_path / "milvus.index", batches, store=store, **options)


def same(a: Index, b: Index, queries: np.ndarray, k: int, **options: Any) -> None:
    one, other = a.search(queries, k, **options), b.search(queries, k, **options)
    assert one.ids.tolist() == other.ids.tolist()
    np.testing.assert_allclose(one.similarities, other.similarities, atol=2e-6)


FILTERS = [
    ['label=it\'s "1" \\ ü'],
    ['label!=it\'s "1" \\ ü'],
    ["unit price<20"],
    ["unit price>=20", "stock<=70"],
    ["sold=true", "stock!=4"],
    ["stock<10.5"],
    ["stock in (3, 50, 70) or (unit price<9 and sold=true)"],
    ['label in ("it\'s \\"1\\" \\\\ ü", nothing)'],
    ["label=nothing"],
    ['not label=it\'s "1" \\ ü', "not (stock<10.5 or sold=true)"],
    ['label>it\'s "0" \\ ü'],
    ['label<=it\'s "1" \\ ü', "unit price!=3"],
]


def test_the_same_ids_scores_and_filters(tmp_path: Path, milvus: str) -> None:
    faiss, remote = both(tmp_path, [photos(80), photos(40, seed=1, start=80)], milvus)
    assert len(faiss) == len(remote) == 120
    assert dict(faiss.columns) == dict(remote.columns)
    same(faiss, remote, Q, 10)
    same(faiss, remote, Q, 500)
    for where in FILTERS:
        same(faiss, remote, Q, 10, where=where)
    own = [f"a/{i}.jpg" for i in range(6)]
    same(faiss, remote, Q, 10, expand=4, rerank=30, exclude=own)
    ids = ["a/100.jpg", "a/3.jpg", "a/100.jpg"]
    assert faiss.get(ids).records() == remote.get(ids).records()
    np.testing.assert_allclose(faiss.get(ids).vectors, remote.get(ids).vectors)
    groups = [find_duplicates(index, 0.8) for index in (faiss, remote)]
    assert [group.ids for group in groups[0]] == [group.ids for group in groups[1]]
    for a, b in zip(*groups, strict=True):
        assert a.similarity == pytest.approx(b.similarity, abs=1e-5)
    for a, b in zip(find_suspects(faiss), find_suspects(remote), strict=True):
        assert (a.id, a.suggested) == (b.id, b.suggested)
    remote.close()
    again = Index.open(tmp_path / "milvus.index", milvus)
    same(faiss, again, Q, 3)
    again.close()


def test_the_same_changes(tmp_path: Path, milvus: str) -> None:
    model = Fingerprint(digest="0" * 64, view="v", dim=12)
    faiss, remote = both(tmp_path, [photos(50)], milvus, model=model, root="/photos")
    other = Index.create(tmp_path / "other.index", [photos(9, seed=4)], model=model, root="/photos/more")
    for index in (faiss, remote):
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
    same(faiss, remote, Q, 80)
    same(faiss, remote, Q, 80, where=["stock<9"])
    remote.close()


@pytest.mark.parametrize("kind", ["hnsw", "ivf", "ivf-pq"])
def test_approximate_kinds_state_their_recall(tmp_path: Path, kind: str, milvus: str) -> None:
    if kind == "ivf-pq" and "://" not in milvus:
        with pytest.raises(InvalidInput, match="expected exact, hnsw, ivf with milvus-lite, got ivf-pq"):
            Index.create(tmp_path / "i", [photos(400)], kind, store=milvus)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        index = Index.create(
            tmp_path / "i",
            [photos(400)],
            kind,
            store=milvus,
            settings=Settings(cells=8, probes=8, code_bytes=6),
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

    from metrix.search import generations

    store = f"milvus:{tmp_path / 'p.db'}"

    def killed(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(generations, "switch_generation", killed)
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
    faiss, remote = both(tmp_path, [Items.read(vectors)], f"milvus:{tmp_path / 'p.db'}")
    same(faiss, remote, Q, 5)
    assert remote.get([3, 1]).records() == [{"id": 3}, {"id": 1}]
    remote.close()


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


@pytest.mark.parametrize(
    ("milvus", "change"),
    [("lite", "update"), ("lite", "delete"), ("lite", "merge"), ("server", "update")],  # make chaos tries them all
    indirect=["milvus"],
)
def test_a_change_that_is_killed_is_unseen_and_can_be_repeated(tmp_path: Path, milvus: str, change: str) -> None:
    faiss = Index.create(tmp_path / "faiss.index", [photos(50)])
    take_step(tmp_path / "milvus.index", milvus, "build")  # milvus-lite lets one process at a time open a store
    take_step(tmp_path / "milvus.index", milvus, change, messages=1)
    remote = Index.open(tmp_path / "milvus.index", milvus)
    assert all_ids(remote) == all_ids(faiss)
    same(faiss, remote, Q, 70)
    for index in (faiss, remote):
        apply_change(index, change)
    faiss, remote = Index.open(tmp_path / "faiss.index"), Index.open(tmp_path / "milvus.index", milvus)
    assert len(remote) == len(faiss)
    assert all_ids(remote) == all_ids(faiss)
    same(faiss, remote, Q, 70)
    remote.close()


def test_a_reader_keeps_its_generation_through_a_change(tmp_path: Path, milvus_server: str) -> None:
    store = f"milvus:{milvus_server}"
    reader = Index.create(tmp_path / "i", [photos(50)], store=store)
    before = reader.search(Q, 50).ids.tolist()
    writer = Index.open(tmp_path / "i", store)
    writer.delete([f"a/{n}.jpg" for n in range(5, 25)])
    assert reader.search(Q, 50).ids.tolist() == before
    assert len(reader) == 50
    now = reader.reopen()
    assert len(now) == 30
    for index in (reader, writer, now):
        index.close()


def test_a_scan_sees_what_was_written_just_before(tmp_path: Path, milvus: str) -> None:
    index = Index.create(tmp_path / "i", [photos(5)], store=milvus)
    for n in range(5, 25, 5):
        index.add(photos(5, start=n))
        assert all_ids(index) == sorted(f"a/{i}.jpg" for i in range(n + 5))
    index.delete([f"a/{n}.jpg" for n in range(20)])
    assert all_ids(index) == [f"a/{n}.jpg" for n in range(20, 25)]
    index.close()


def test_a_page_of_items_reads_no_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index.create(tmp_path / "i", [photos(20)], store=f"milvus:{tmp_path / 'photos.db'}")
    index.update(photos(3))  # the first three have other rows, and are the last now
    index.delete(["a/5.jpg"])
    order = [one for _, items in index.store.scan() for one in items.ids.to_pylist()]
    asked: list[str] = []
    query = index.store._query  # type: ignore[attr-defined]
    monkeypatch.setattr(
        index.store, "_query", lambda where, fields, *rest: asked.extend(fields) or query(where, fields, *rest)
    )
    monkeypatch.setattr(milvus_store, "MOST", 7)
    for start, count in ((0, 4), (3, 9), (15, 100), (19, 1), (500, 3)):
        page = index.store.read_table(index.store.rows_from(start, count))["id"].to_pylist()
        assert page == order[start : start + count]
    assert not {"*", "vector"} & set(asked)
    assert index.find(["a/7.jpg", 7, None, "\ud800", "a/7.jpg"]).tolist() == [7, -1, -1, -1, 7]
    index.close()


def test_a_server_is_served(tmp_path: Path, milvus_server: str) -> None:
    serve_and_change(tmp_path / "i", f"milvus:{milvus_server}")


def test_a_change_waits_for_no_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index.create(tmp_path / "i", [photos(9)], store=f"milvus:{tmp_path / 'p.db'}")
    monkeypatch.setattr("pymilvus.MilvusClient.flush", lambda *_, **__: pytest.fail("it flushed"))
    index.add(photos(3, start=9))
    index.delete(["a/1.jpg"])
    assert len(index) == 11
    index.close()


def test_a_copy_neither_changes_nor_drops_the_original(tmp_path: Path) -> None:
    store = f"milvus:{tmp_path / 'p.db'}"
    Index.create(tmp_path / "original", [photos(30)], store=store).close()
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    copy = Index.open(tmp_path / "copy")
    assert len(copy) == 30
    for change in ("add", "delete"):
        with pytest.raises(InvalidInput, match="got a copy of it"):
            apply_change(copy, change)
        copy = Index.open(tmp_path / "copy")
    copy.close()
    with pytest.warns(MetrixWarning, match="is a copy of the index that made it"):
        Index.create(tmp_path / "copy", [photos(7)], store=store).close()
    (tmp_path / "original").rename(tmp_path / "moved")  # still the owner
    moved = Index.open(tmp_path / "moved")
    moved.delete(["a/0.jpg"])
    assert len(moved) == 29
    moved.close()


def test_an_address_in_a_description_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Index.create(tmp_path / "i", [photos(5)], store=f"milvus:{tmp_path / 'p.db'}").close()
    path = tmp_path / "i" / "description.json"
    content = json.loads(path.read_text())
    monkeypatch.setattr(milvus_store, "connect", lambda *_: pytest.fail("it connected"))
    for uri in ("http://10.0.0.1:19530", "tcp://elsewhere:1", "../../elsewhere.db", "/etc/elsewhere.db"):
        content["place"]["uri"] = uri
        path.write_text(json.dumps(content))
        with pytest.raises(InvalidInput, match="if you trust it, give --store milvus:"):
            Index.open(tmp_path / "i")
        with pytest.raises(InvalidInput, match="--store: expected milvus:"):
            Index.open(tmp_path / "i", "milvus:http://mine:19530")


def test_a_local_store_that_another_process_has_open_says_so(tmp_path: Path) -> None:
    store = f"milvus:{tmp_path / 'p.db'}"
    index = Index.create(tmp_path / "i", [photos(5)], store=store)
    script = "import sys; from metrix.search import Index; Index.open(sys.argv[1])"
    found = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "i")], capture_output=True, text=True, check=False
    )
    index.close()
    assert "one process at a time" in found.stderr


def test_a_search_does_not_count_the_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index.create(tmp_path / "i", [photos(9)], store=f"milvus:{tmp_path / 'p.db'}")
    asked: list[Any] = []
    real = index.store._client.query  # type: ignore[attr-defined]
    monkeypatch.setattr(index.store._client, "query", lambda *a, **k: (asked.append(k), real(*a, **k))[1])  # type: ignore[attr-defined]
    index.search(Q, 3)
    assert len(index) == 9
    assert len(asked) == 1  # the ids and columns of what was found
    assert "count" not in str(asked)
    index.close()
