"""The index in memory and in a folder, against brute force in NumPy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrix.errors import ChoiceError, DataError, EmbeddingError, InvalidInput, LabelError, ShapeError
from metrix.evaluate import retrieval
from metrix.search import Description, Fingerprint, Index, Items, Settings, faiss_store

PROBE_ALL = Settings(cells=10, probes=10)


def points(seed: int, n: int, d: int = 8) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) * rng.uniform(0.1, 10, (n, 1))


def literal_nearest(queries: np.ndarray, x: np.ndarray, k: int) -> list[list[int]]:
    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b) / float(np.linalg.norm(a) * np.linalg.norm(b))

    return [sorted(range(len(x)), key=lambda i: -cosine(q, x[i]))[:k] for q in queries]


def photos(n: int, seed: int = 0, start: int = 0) -> Items:
    numbers = range(start, start + n)
    columns = {
        "label": [None if i % 7 == 0 else f"class {i % 3}" for i in numbers],
        "price": [i / 2 for i in numbers],
        "sold": [i % 2 == 0 for i in numbers],
    }
    return Items.read(points(seed, n), [f"a/{i}.jpg" for i in numbers], columns)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 50))
def test_the_exact_index_finds_the_nearest(seed: int, n: int, k: int) -> None:
    x, q = points(seed, n), points(seed + 1, 5)
    ids, similarities = Index.build(x).search(q, k)
    assert ids.tolist() == literal_nearest(q, x, k)
    assert ids.shape == similarities.shape == (5, min(k, n))
    assert (np.diff(similarities, axis=1) <= 0).all()


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_an_approximate_index_that_looks_everywhere_is_exact(kind: str) -> None:
    x, q = points(0, 300), points(1, 20)
    index = Index.build(x, kind=kind, settings=Settings(cells=10, probes=10, breadth=300))
    assert index.search(q, 7).ids.tolist() == literal_nearest(q, x, 7)
    assert index.measure_recall(k=7) == 1.0


def test_the_stated_recall_is_the_measured_one(capfd: pytest.CaptureFixture[str]) -> None:
    x = points(0, 600)
    index = Index.build(x, kind="ivf", settings=Settings(cells=40, probes=2))
    nearest = [[i for i in row if i != q][:5] for q, row in enumerate(literal_nearest(x, x, 6))]
    found = [[i for i in row if i != q][:5] for q, row in enumerate(index.search(x, 6).ids.tolist())]
    recall = np.mean([len(set(a) & set(b)) / 5 for a, b in zip(nearest, found, strict=True)])
    assert recall < 0.95
    assert index.measure_recall(k=5, sample=600) == pytest.approx(recall, abs=2e-3)
    assert index.measure_recall(k=5, sample=200) == pytest.approx(recall, abs=0.1)
    more = Index.build(x, kind="ivf", settings=Settings(cells=40, probes=20))
    assert more.measure_recall(k=5) > recall
    assert Index.build(x).measure_recall() == 1.0
    assert capfd.readouterr() == ("", "")  # faiss does not print


def test_faiss_as_pytorch_metric_learning_leaves_it() -> None:
    import faiss.contrib.torch_utils  # noqa: F401 - replaces methods of faiss when it is imported

    test_an_approximate_index_that_looks_everywhere_is_exact("ivf")
    test_the_exact_index_finds_the_nearest()


def test_too_few_in_the_cells_is_said() -> None:
    few = Settings(cells=25, probes=1)
    index = Index.build(points(0, 50), [f"p{i}" for i in range(50)], "ivf", settings=few)
    found = index.search(points(1, 3), 50)
    assert (found.ids == "").any()
    assert (np.isnan(found.similarities) == (found.ids == "")).all()
    numbers = Index.build(points(0, 50), kind="ivf", settings=few).search(points(1, 3), 50)
    assert ((numbers.ids == -1) == np.isnan(numbers.similarities)).all()


@pytest.mark.parametrize("kind", ["exact", "hnsw", "ivf"])
@pytest.mark.parametrize("ids", [None, list(range(100, 180)), [f"photo {i}.jpg" for i in range(80)]])
def test_save_and_open(tmp_path: Path, kind: str, ids: Any) -> None:
    index = Index.build(points(0, 80), ids, kind)
    again = index.save(tmp_path / "some.index")
    q = points(1, 6)
    assert again.search(q, 4).ids.tolist() == index.search(q, 4).ids.tolist()
    assert np.array_equal(again.search(q, 4).similarities, index.search(q, 4).similarities)
    assert repr(again) == f"Index(80 x 8, {kind})"
    assert (again.description.recall is None) == (kind == "exact")


def test_vectors_stay_in_the_file(tmp_path: Path) -> None:
    index = Index.build(points(0, 80)).save(tmp_path / "some.index")
    (vectors,) = index.store.vectors.parts  # type: ignore[attr-defined]
    assert isinstance(vectors, np.memmap)
    assert not vectors.flags.writeable


@pytest.mark.parametrize("kind", ["exact", "hnsw", "ivf"])
def test_filters_keep_what_brute_force_keeps(tmp_path: Path, kind: str, monkeypatch: Any) -> None:
    items = photos(400)
    index = Index.create(tmp_path / "i", [items.part(slice(0, 150)), items.part(slice(150, 400))], kind)
    label, price = items.columns["label"].to_pylist(), items.columns["price"].to_pylist()
    q = points(1, 9)
    cases: list[tuple[list[str], list[int]]] = [
        (["label=class 1"], [i for i in range(400) if label[i] == "class 1"]),
        (["label!=class 1"], [i for i in range(400) if label[i] not in ("class 1", None)]),
        (["price < 10", "label=class 2"], [i for i in range(400) if price[i] < 10 and label[i] == "class 2"]),
        (["price>=199.5"], [399]),
        (["sold=true", "price<=3"], [0, 2, 4, 6]),
        (["label=nothing"], []),
    ]
    for where, kept in cases:
        found = index.search(q, 12, where=where)
        wanted = [[f"a/{kept[i]}.jpg" for i in row] for row in literal_nearest(q, items.vectors[kept], 12)]
        assert found.ids.tolist() == wanted, where
    monkeypatch.setattr(faiss_store, "FEW", 0)  # through the graph
    monkeypatch.setattr(faiss_store, "GATHER_ROWS", 37)
    for where, kept in cases:
        names = {f"a/{i}.jpg" for i in kept} | {""}
        assert set(index.search(q, 12, where=where).ids.reshape(-1).tolist()) <= names


def test_conditions_that_cannot_be_met_are_refused() -> None:
    index = Index.build(photos(10).vectors, columns={"label": ["a"] * 10, "n": list(range(10)), "sold": [True] * 10})
    for where, words in (
        ("lable=a", "did you mean 'label'"),
        ("label", "expected COLUMN=VALUE"),
        ("n<a", "expected a number, got 'a'"),
        ("n=nan", "expected a number"),
        ("sold<1", "=true"),
    ):
        with pytest.raises(InvalidInput, match=words):
            index.search(points(0, 1), 1, where=[where])
    with pytest.raises(InvalidInput, match="no columns"):
        Index.build(points(0, 3)).search(points(0, 1), 1, where=["a=1"])
    assert index.search(points(0, 1), 9, where=["n<2.5"]).ids.shape == (1, 3)


@pytest.mark.parametrize("kind", ["exact", "hnsw", "ivf"])
def test_add_update_delete(tmp_path: Path, kind: str) -> None:
    whole = photos(60)
    index = Index.create(tmp_path / "i", [whole.part(slice(0, 40))], kind, settings=Settings(breadth=100))
    index.add(whole.part(slice(40, 60)))
    assert len(index) == len(Index.open(tmp_path / "i")) == 60
    wanted = Index.build(whole.vectors, whole.ids.to_pylist())
    q = points(5, 7)

    def check() -> None:
        found, right = index.search(q, 5), wanted.search(q, 5)
        if kind == "ivf":  # looks into some cells only, and finds what is there
            known = {*wanted.search(q, len(wanted)).ids.flatten().tolist(), ""}
            assert set(found.ids.flatten().tolist()) <= known
            assert (np.nan_to_num(found.similarities, nan=-2.0) <= right.similarities + 1e-6).all()
        else:
            assert found.ids.tolist() == right.ids.tolist()

    check()
    with pytest.raises(InvalidInput, match=r"expected new ids, got a/3\.jpg"):
        index.add(whole.part(slice(3, 4)))
    index.delete([f"a/{i}.jpg" for i in range(0, 60, 2)])
    wanted = Index.build(whole.vectors[1::2], whole.ids.to_pylist()[1::2])
    check()
    with pytest.raises(InvalidInput, match=r"got a/2\.jpg"):
        index.delete(["a/2.jpg"])
    replaced = Items.read(points(9, 2), ["a/1.jpg", "new.jpg"], {"price": [7.0, None]})
    index.update(replaced)
    assert index.get(["new.jpg", "a/1.jpg"]).records() == [
        {"id": "new.jpg", "label": None, "price": None, "sold": None},
        {"id": "a/1.jpg", "label": None, "price": 7.0, "sold": None},
    ]
    assert len(index) == 31
    np.testing.assert_allclose(index.get(["a/1.jpg"]).vectors, replaced.vectors[:1])
    kept = sorted(path.name for path in (tmp_path / "i").iterdir() if not path.name.startswith("."))
    assert len(kept) == (3 if kind == "exact" else 4)  # nothing of older generations
    with pytest.raises(InvalidInput, match="expected at least one item to stay"):
        index.delete([one for lot in index.store.scan() for one in lot[1].ids.to_pylist()])


def test_merge(tmp_path: Path) -> None:
    model = Fingerprint(digest="0" * 64, view="v", dim=8)
    index = Index.create(tmp_path / "a", [photos(20)], model=model, root="/photos")
    other = Index.create(tmp_path / "b", [photos(10, seed=1)], model=model, root="/photos/more")
    index.merge(other)
    assert len(index) == 30
    assert index.get(["more/a/3.jpg"]).records()[0]["price"] == 1.5
    with pytest.raises(InvalidInput, match="in the index already"):
        index.merge(other)
    elsewhere = Index.create(tmp_path / "c", [photos(10, seed=1)], model=model, root="/elsewhere")
    with pytest.raises(InvalidInput, match="/elsewhere"):
        index.merge(elsewhere)
    foreign = Index.create(tmp_path / "d", [photos(10)], model=Fingerprint(digest="1" * 64, view="v", dim=8))
    with pytest.raises(InvalidInput, match="model: expected 000000000000"):
        index.merge(foreign)
    assert len(Index.open(tmp_path / "a")) == 30


def test_a_query_of_another_model_is_refused(tmp_path: Path) -> None:
    mine = Fingerprint(digest="a" * 64, view="224 px", dim=8, run="runs/x")
    index = Index.create(tmp_path / "i", [photos(10)], model=mine)
    q = points(0, 1)
    index.search(q, 1, model=mine.model_copy(update={"run": "moved/x"}))
    for change, words in (
        ({"digest": "b" * 64, "run": "runs/y"}, r"model: expected aaaaaaaaaaaa.*runs/x.*got bbbbbbbbbbbb.*runs/y"),
        ({"view": "256 px"}, "view: expected 224 px"),
        ({"dim": 16}, "dimension: expected 8"),
    ):
        with pytest.raises(InvalidInput, match=words):
            index.search(q, 1, model=mine.model_copy(update=change))


def test_lists_past_memory_are_on_disk_and_find_the_same(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    items = photos(500)
    q = points(1, 10)
    small = Settings(cells=10, probes=10, memory=5 * 8 * 60)  # eight parts and a bit
    index = Index.create(tmp_path / "i", [items], "ivf", settings=small)
    assert "lists" in index.description.place
    assert capfd.readouterr().out == ""
    exact = Index.build(items.vectors, items.ids.to_pylist(), columns={"price": items.columns["price"]})
    assert index.search(q, 9).ids.tolist() == exact.search(q, 9).ids.tolist()
    (tmp_path / "i").rename(tmp_path / "moved")  # the lists are found beside the index
    index = Index.open(tmp_path / "moved")
    assert index.search(q, 9).ids.tolist() == exact.search(q, 9).ids.tolist()
    index.add(Items.read(points(3, 1), ["one more"]))
    assert len(index) == 501


def test_a_query_does_not_find_what_it_excludes() -> None:
    x = points(0, 30)
    names = [f"p{i}" for i in range(30)]
    index = Index.build(x, names)
    found = index.search(x, 4, exclude=names)
    wanted = [[names[i] for i in row if i != q][:4] for q, row in enumerate(literal_nearest(x, x, 5))]
    assert found.ids.tolist() == wanted
    everything = index.search(x[:1], 30, exclude=["p0"])
    assert everything.ids.shape == (1, 29)
    uneven = index.search(x[:2], 30, exclude=["p0", None])
    assert uneven.ids.shape == (2, 30)
    assert uneven.ids[0, -1] == ""
    assert np.isnan(uneven.similarities[0, -1])
    assert index.search(x[:2], 2, exclude=[None, "p1"]).ids[0, 0] == "p0"


def test_a_failed_write_leaves_the_old_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Index.create(tmp_path / "i", [photos(30)])

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidInput, match="cannot be written: no space left"):
        Index.create(tmp_path / "i", [photos(40)])
    monkeypatch.undo()
    assert len(Index.open(tmp_path / "i")) == 30

    def lots() -> Any:
        yield photos(5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Index.create(tmp_path / "i", lots())
    assert len(Index.open(tmp_path / "i")) == 30
    Index.create(tmp_path / "i", [photos(7)])
    assert len(list((tmp_path / "i").glob("vectors-*"))) == 1  # what the failed ones left is gone


WRITER = """
import sys, time
from pathlib import Path
import numpy as np
from metrix.search import Index, Items
folder, name = Path(sys.argv[1]), sys.argv[2]
def lots():
    for n in range(20):
        x = np.random.default_rng(n).standard_normal((50, 8))
        yield Items.read(x, [f"{name}/{n}/{i}" for i in range(50)])
        print("wrote", flush=True)
        time.sleep(float(sys.argv[3]))
if name == "create":
    Index.create(folder, lots())
else:
    index = Index.open(folder)
    print("wrote", flush=True)
    for lot in list(lots())[:3]:
        index.add(lot)
"""


def writer(folder: Path, name: str, pause: float) -> Any:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), name, str(pause)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_writer_leaves_the_old_index(tmp_path: Path) -> None:
    Index.create(tmp_path / "i", [photos(30)])
    process = writer(tmp_path / "i", "create", 0.2)
    for _ in range(3):
        assert process.stdout.readline() == "wrote\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert list((tmp_path / "i").glob("vectors-000002*"))
    assert len(Index.open(tmp_path / "i")) == 30
    index = Index.open(tmp_path / "i")
    index.add(photos(5, start=100))  # the lock is free
    assert len(index) == 35


def test_two_writers_wait_for_each_other(tmp_path: Path) -> None:
    Index.create(tmp_path / "i", [Items.read(points(0, 30), [f"a/{i}" for i in range(30)])])
    both = [writer(tmp_path / "i", name, 0.0) for name in ("one", "two")]
    for process in both:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    index = Index.open(tmp_path / "i")
    assert len(index) == 30 + 2 * 150
    assert index.description.generation == 7


def test_a_reader_sees_one_index_or_the_other(tmp_path: Path) -> None:
    index = Index.create(tmp_path / "i", [photos(50)])
    before = index.search(points(1, 2), 3).ids.tolist()
    Index.create(tmp_path / "i", [photos(20, seed=3)])
    assert index.search(points(1, 2), 3).ids.tolist() == before  # its files are still mapped
    now = index.reopen()
    assert len(now) == 20
    assert now.reopen() is now
    stop = time.monotonic() + 1.0
    process = writer(tmp_path / "i", "create", 0.0)
    while process.poll() is None or time.monotonic() < stop:
        assert len(Index.open(tmp_path / "i")) in (20, 1000)
    _, errors = process.communicate()
    assert process.returncode == 0, errors


def test_an_index_that_is_replaced_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Index.create(tmp_path / "i", [photos(50)]).description
    new = Index.create(tmp_path / "i", [photos(20)]).description
    descriptions = [old, new, new]  # as read before and after another process switched
    monkeypatch.setattr(Description, "read", lambda folder: descriptions.pop(0))
    assert len(Index.open(tmp_path / "i")) == 20


def test_items_are_got_in_the_order_asked_for() -> None:
    index = Index.build(points(0, 9), [f"p{i}" for i in range(9)])
    assert index.get(["p4", "p1", "p4"]).ids.to_pylist() == ["p4", "p1", "p4"]
    np.testing.assert_array_equal(index.get(["p4", "p1", "p4"]).vectors, index.store.read_vectors(np.array([4, 1, 4])))


def the_file(folder: Path, kind: str) -> Path:
    (path,) = folder.glob(f"{kind}-*")
    return path


def changed(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **values}))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"version": 99}, "expected version 3, got 99"),
        ({"version": 1}, "expected version 3, got 1"),
        ({"format": "other"}, "something else"),
        ({"dim": -1}, "dim"),
        ({"dim": 9}, "dimension 9, got 8"),
        ({"count": 31}, "do not fit its description"),
        ({"columns": {"label": "colour"}}, "columns.label"),
        ({"columns": {"label": "text"}}, "do not fit its description"),
        ({"store": "usearch"}, "store"),
        ({"kind": "hnsw"}, "place.codes"),
        ({"surprise": 1}, "surprise"),
        ({"place": {"vectors": ["../../etc/passwd"], "items": ["items-000001.arrow"]}}, "leads out of the index"),
        ({"place": {"vectors": ["vectors-000001.npy"]}}, "place.items"),
        ({"place": {"vectors": "vectors-000001.npy", "items": []}}, "expected names of files"),
        ({"place": {"vectors": ["vectors-000009.npy"], "items": ["items-000001.arrow"]}}, "missing"),
        ({"place": {"vectors": [".lock"], "items": [".lock"]}}, "damaged"),
        ({"place": {"vectors": [".lock"], "items": [".lock"], "breadth": "x"}}, "place.breadth: expected an integer"),
        ({"place": {"vectors": [".lock"], "items": [".lock"], "links": 1}}, "place.links: expected an integer ≥ 2"),
        ({"place": {"vectors": [".lock"], "items": [".lock"], "half": "x"}}, "place.half: expected an integer"),
        (
            {"place": {"vectors": [".lock"], "items": [".lock"], "breadth": 1 << 70}},
            "place.breadth: expected an integer",
        ),
        ({"place": {"vectors": ["a\0b"], "items": [".lock"]}}, "expected a name that a file can have"),
        ({"place": {"vectors": ["é" * 200], "items": [".lock"]}}, "expected a name that a file can have"),
        ({"root": "\ud800"}, "expected JSON"),
        ({"relative_root": "x" * 5000, "relative_run": "a\0b", "count": 31}, "do not fit its description"),
        ({"model": {"digest": "x"}}, "model"),
        ({"threshold": 0.8}, "threshold"),
    ],
)
def test_a_description_that_is_wrong_is_one_clear_error(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    Index.create(tmp_path / "i", [photos(30)])
    changed(tmp_path / "i" / "description.json", **values)
    with pytest.raises(DataError, match=words):
        Index.open(tmp_path / "i")


def test_settings_that_end_the_process_are_refused() -> None:
    """A graph with one edge per node is a segmentation fault in faiss, one with none an assertion."""
    for wrong in ({"links": 1}, {"links": 0}, {"links": True}, {"breadth": 0}, {"candidates": -1}, {"cells": 0}):
        with pytest.raises(InvalidInput, match=f"{next(iter(wrong))}: expected an integer"):
            Settings(**wrong)


def test_an_id_of_another_type_is_unknown_and_others_are_found() -> None:
    index = Index.build(np.eye(3), ["a", "b", "c"])
    assert index.find(["b", 7, None, "\ud800", True, "b", "a"]).tolist() == [1, -1, -1, -1, -1, 1, 0]
    assert index.find([7]).tolist() == [-1]
    assert index.find([]).tolist() == []
    with pytest.raises(InvalidInput, match=r"got 7$"):
        index.get(["b", 7])
    assert Index.build(np.eye(2), [3, 1 << 62]).find([1 << 62, "3", 1 << 63, np.int64(3), True]).tolist() == [
        1,
        -1,
        -1,
        0,
        -1,
    ]


@pytest.mark.parametrize("values", [[["a"]], [{"a": 1}], [b"\xff"], [1 << 63], ["\ud800"], [{1}], [object()]])
def test_a_column_of_other_values_is_one_clear_error(values: list[Any]) -> None:
    with pytest.raises(DataError, match="column 'c': expected texts"):
        Items.read([[1.0, 0.0]], ["a"], {"c": values})


def test_what_is_not_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing there"):
        Index.open(tmp_path / "none")
    with pytest.raises(DataError, match="folder without one"):
        Index.open(tmp_path)
    Index.create(tmp_path / "i", [photos(30)])
    for path in (
        tmp_path / "i" / "description.json",
        the_file(tmp_path / "i", "vectors"),
        the_file(tmp_path / "i", "items"),
    ):
        whole = path.read_bytes()
        for cut in (0, 10, len(whole) // 2):
            path.write_bytes(whole[:cut])
            with pytest.raises(DataError, match=r"damaged|something else"):
                Index.open(tmp_path / "i")
        path.write_bytes(whole)
    for text in ("[]", "null", "[" * 100_000):
        (tmp_path / "i" / "description.json").write_text(text)
        with pytest.raises(DataError):
            Index.open(tmp_path / "i")
    Index.create(tmp_path / "i", [photos(9)])  # built over it
    assert len(Index.open(tmp_path / "i")) == 9
    Index.create(tmp_path / "h", [photos(30)], "hnsw")
    path = the_file(tmp_path / "h", "codes")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="damaged"):
        Index.open(tmp_path / "h")


def test_files_of_the_user_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for name in ("graph-1.png", "vectors-2020.npy", "items-list.arrow"):
        (tmp_path / "photos" / name).write_text("mine")
    with pytest.raises(InvalidInput, match=r"got one with graph-1\.png"):
        Index.create(tmp_path / "photos", [photos(3)])
    index = Index.create(tmp_path / "i", [photos(3)])
    (tmp_path / "i" / "graph-1.png").write_text("mine")
    index.add(photos(3, start=10))
    assert (tmp_path / "i" / "graph-1.png").read_text() == "mine"
    for name in ("graph-1.png", "vectors-2020.npy", "items-list.arrow"):
        assert (tmp_path / "photos" / name).read_text() == "mine"


def test_a_table_without_ids_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa

    Index.create(tmp_path / "i", [Items.read(points(0, 3), ["a", "b", "c"])])
    for table in (
        pa.table({"x": [1, 2, 3]}),
        pa.table({"id": ["a", "b", "c"], "when": pa.array([0, 1, 2], pa.date32())}),
        pa.table({"id": [["a"], ["b"], ["c"]]}),
        pa.table({"id": [{"x": 1}, {"x": 2}, {"x": 3}]}),
        pa.table({"id": ["a", None, "c"]}),
        pa.table({"id": pa.nulls(3)}),
        pa.table({"id": [0.5, 1.5, 2.5]}),
        pa.table([["a", "b", "c"], ["d", "e", "f"]], names=["id", "id"]),
    ):
        path = str(the_file(tmp_path / "i", "items"))
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        with pytest.raises(DataError, match="expected an id, text or an integer"):
            Index.open(tmp_path / "i")


@pytest.mark.parametrize("ids", [["b", "a", "b"], ["a", "a", "b"], [3, 1, 3]])
def test_ids_that_come_twice_in_a_file_are_refused(tmp_path: Path, ids: list[Any]) -> None:
    import pyarrow as pa

    known = ["c", "a", "b"] if isinstance(ids[0], str) else [3, 1, 2]
    Index.create(tmp_path / "i", [Items.read(points(0, 3), known)])
    assert len(Index.open(tmp_path / "i")) == 3  # in no order
    table = pa.table({"id": ids})
    path = str(the_file(tmp_path / "i", "items"))
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match=r"ids: expected each once, got .* 2 times in its files; build the index anew"):
        Index.open(tmp_path / "i")


def test_an_id_that_comes_again_in_an_added_file_is_refused(tmp_path: Path) -> None:
    index = Index.create(tmp_path / "i", [Items.read(points(0, 3), ["a", "b", "c"])])
    index.add(Items.read(points(1, 2), ["d", "e"]))
    first, second = (tmp_path / "i" / str(name) for name in index.description.place["items"])  # type: ignore[union-attr]
    second.write_bytes(first.read_bytes())
    for vectors in index.description.place["vectors"][1:]:  # type: ignore[index]
        np.save(tmp_path / "i" / str(vectors), points(1, 3).astype(np.float32))
    description = tmp_path / "i" / "description.json"
    description.write_text(description.read_text().replace('"count": 5', '"count": 6'))
    with pytest.raises(DataError, match=r"expected each once, got 'a' 2 times"):
        Index.open(tmp_path / "i")


def test_tensors_are_accepted() -> None:
    x = torch.from_numpy(points(0, 20))
    for dtype in (torch.float32, torch.bfloat16):
        index = Index.build(x.to(dtype), torch.arange(20), "exact")
        assert index.search(x.to(dtype).requires_grad_(), 1).ids[:, 0].tolist() == list(range(20))


def test_the_caller_may_change_the_vectors() -> None:
    x = Items.read(points(0, 20)).vectors
    index = Index.build(x)
    q = x[:3].copy()
    x[:] = x[::-1].copy()
    assert index.search(q, 1).ids[:, 0].tolist() == [0, 1, 2]


def test_an_index_answers_for_the_evaluation() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 30
    x = rng.standard_normal((30, 8))[labels] + 0.7 * rng.standard_normal((300, 8))
    exact = retrieval(x, labels, resamples=0)
    same = retrieval(x, labels, resamples=0, searcher=Index.build(x))
    assert same.recall == exact.recall
    assert same.map_at_r == pytest.approx(exact.map_at_r, abs=1e-12)
    index = Index.build(x, kind="ivf", settings=Settings(cells=40, probes=1))
    rough = retrieval(x, labels, resamples=0, searcher=index)
    assert rough.search_loss is not None
    assert rough.search_loss["map@r"] == pytest.approx(exact.map_at_r - rough.map_at_r, abs=1e-12)
    assert rough.search_loss["map@r"] > 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"kind": "exat"}, ChoiceError, "did you mean 'exact'"),
        ({"ids": [1, 2]}, ShapeError, "each of 3 vectors, got 2"),
        ({"ids": [1, 1, 2]}, LabelError, "got 1 2 times"),
        ({"ids": ["a", "a", "b"]}, LabelError, "got 'a' 2 times"),
        ({"ids": ["a", "", "b"]}, LabelError, "empty id"),
        ({"ids": [1, "a", 2]}, LabelError, "all integers or all text"),
        ({"ids": [Path("a"), Path("b"), Path("c")]}, LabelError, r"str\(path\)"),
        ({"kind": "ivf", "settings": Settings(cells=4)}, InvalidInput, "got cells=4, probes=1"),
        ({"kind": "ivf", "settings": Settings(cells=2, probes=3)}, InvalidInput, "probes <= cells"),
        ({"vectors": [[1.0, np.nan]] * 3}, EmbeddingError, "3 of 3 rows"),
        ({"vectors": np.full((3, 2), np.inf, np.float32)}, EmbeddingError, "3 of 3 rows"),
        ({"vectors": [[0.0, 0.0]] * 3}, EmbeddingError, "zero"),
        ({"vectors": np.empty((0, 2))}, ShapeError, "at least one row"),
        ({"vectors": [1.0, 2.0]}, ShapeError, "expected shape"),
        ({"vectors": [[1.0], [1.0, 2.0]]}, ShapeError, "different lengths"),
        ({"vectors": [["a"]]}, EmbeddingError, "real numbers"),
        ({"columns": {"label": ["a"]}}, ShapeError, "each of 3 vectors, got 1"),
        ({"columns": {"id": ["a"] * 3}}, InvalidInput, "other than id, vector"),
        ({"columns": {"x": [1, "a", None]}}, DataError, "all of one kind"),
    ],
)
def test_unusable_input_is_refused(arguments: dict[str, Any], error: Any, message: str) -> None:
    arguments = {"vectors": [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], **arguments}
    with pytest.raises(error, match=message):
        Index.build(**arguments)


def test_items_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    index = Index.create(tmp_path / "i", [photos(10)])
    for items, error, words in (
        (Items.read(points(0, 1, 9), ["x"]), ShapeError, "dimension 8"),
        (Items.read(points(0, 1), ["x"], {"colour": ["red"]}), DataError, "got also colour"),
        (Items.read(points(0, 1), ["x"], {"price": ["red"]}), DataError, "expected number"),
        (Items.read(points(0, 1)), InvalidInput, "all integers or all text"),
    ):
        with pytest.raises(error, match=words):
            index.add(items)
    assert len(Index.open(tmp_path / "i")) == 10
    with pytest.raises(LabelError, match=r"got 'a/0.jpg' 2 times"):
        Index.create(tmp_path / "j", [photos(5), photos(5)])
    with pytest.raises(InvalidInput, match="got none"):
        Index.create(tmp_path / "j", [])
    with pytest.raises(InvalidInput, match="store: expected"):
        Index.create(tmp_path / "j", [photos(5)], store="milvos:x")
    with pytest.raises(InvalidInput, match="in memory cannot be changed"):
        Index.build(points(0, 3)).delete([1])


def test_unusable_queries_are_refused() -> None:
    index = Index.build(points(0, 10))
    with pytest.raises(ShapeError, match="expected dimension 8"):
        index.search(points(0, 2, 3), 1)
    with pytest.raises(EmbeddingError, match="queries"):
        index.search([[np.nan] * 8], 1)
    for k in (0, -1, 1.5, True):
        with pytest.raises(InvalidInput, match="k: expected"):
            index.search(points(0, 2), k)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="exclude"):
        index.search(points(0, 2), 1, exclude=[1])
    with pytest.raises(InvalidInput, match="expected one of 10"):
        index.get([10])
    with pytest.raises(InvalidInput, match="expected one of 10"):
        index.get(["0"])


@pytest.mark.parametrize("count", [1, 3, 4, 5, 64, 300])
def test_few_and_many_queries_find_the_same(count: int) -> None:
    import faiss

    from metrix.search.faiss_store import nearest

    before = faiss.cvar.distance_compute_blas_threshold
    queries, vectors = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (points(1, count), points(0, 200)))
    similarities, rows = nearest(queries.astype(np.float32), vectors.astype(np.float32), 5)
    products = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    expected = np.argsort(-products, axis=1)[:, :5]
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_allclose(similarities, np.take_along_axis(products, expected, 1), atol=1e-6)
    assert faiss.cvar.distance_compute_blas_threshold == before  # other users of faiss keep theirs


def test_settings_stay_when_items_are_deleted_replaced_or_saved(tmp_path: Path) -> None:
    import faiss

    def cells(index: Index) -> tuple[int, int]:
        graph: Any = index.store
        ivf = faiss.extract_index_ivf(graph._codes)
        return ivf.nlist, ivf.nprobe

    x = points(0, 300)
    items = Items.read(x, [f"p{n}" for n in range(300)])
    index = Index.create(tmp_path / "i", [items], "ivf", settings=Settings(cells=12, probes=5, seed=3))
    index.delete([f"p{n}" for n in range(50)])
    assert cells(index) == cells(Index.open(tmp_path / "i")) == (12, 5)
    index.update(items.part(slice(100, 300)))
    assert cells(index) == (12, 5)
    assert cells(index.save(tmp_path / "copy")) == (12, 5)
    index.delete([f"p{n}" for n in range(50, 292)])  # eight are left: fewer than there were cells
    assert cells(index) == (8, 5)
    assert index.search(x[299:], 1).ids.tolist() == [["p299"]]

    free = Index.create(tmp_path / "free", [items], "ivf")
    assert cells(free) == Settings().cells_for(300)
    free.delete([f"p{n}" for n in range(200)])
    assert cells(free) == Settings().cells_for(100)  # a default follows the size

    hnsw = Index.create(tmp_path / "h", [items], "hnsw", settings=Settings(links=8, breadth=77))
    hnsw.delete(["p0"])
    store: Any = Index.open(tmp_path / "h").store
    assert (store.settings.links, store.settings.breadth) == (8, 77)
    assert store._codes.hnsw.nb_neighbors(1) == 8
