"""Generations: names never come back, readers keep what they opened, and a change costs what changes."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrix.errors import DataError
from metrix.search import Description, Index, Items, Settings, faiss_files, faiss_store
from metrix.search.faiss_kinds import faiss_silenced


def items(count: int, start: int = 0, seed: int = 0) -> Items:
    vectors = np.random.default_rng(seed + start).standard_normal((count, 8))
    return Items.read(vectors, [f"p{n}" for n in range(start, start + count)])


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


@pytest.mark.parametrize("damage", ["{", "", '{"format": "metrix.index", "version": 3}', None])
def test_a_damaged_description_does_not_touch_a_mapped_file(tmp_path: Path, damage: str | None) -> None:
    """Under a reader, a file that is written again would be cut short, which ends the reader with SIGBUS."""
    reader = Index.create(tmp_path / "i", [items(50)])
    before = reader.search(np.eye(8), 3).ids.tolist()
    old = files(tmp_path / "i")
    if damage is None:
        (tmp_path / "i" / "description.json").unlink()
    else:
        (tmp_path / "i" / "description.json").write_text(damage)
    rebuilt = Index.create(tmp_path / "i", [items(4)])
    assert not {name for name in files(tmp_path / "i") if name != "description.json"} & old
    assert rebuilt.description.generation == 2  # above those that left files
    assert reader.search(np.eye(8), 3).ids.tolist() == before


def test_a_stale_handle_does_not_overwrite_a_rebuilt_index(tmp_path: Path) -> None:
    stale = Index.create(tmp_path / "i", [items(5)])
    shutil.rmtree(tmp_path / "i")
    rebuilt = Index.create(tmp_path / "i", [items(7, start=100)])
    assert rebuilt.description.generation == stale.description.generation
    stale.add(items(1, start=50))
    assert len(Index.open(tmp_path / "i")) == 8
    assert (Index.open(tmp_path / "i").find(["p100", "p106", "p50"]) >= 0).all()


def test_codes_that_vanish_while_an_index_is_opened_are_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Index.create(tmp_path / "i", [items(50)], "hnsw").description
    kept = {name: (tmp_path / "i" / name).read_bytes() for name in files(tmp_path / "i")}
    new = Index.create(tmp_path / "i", [items(20)], "hnsw").description
    for name, content in kept.items():
        if name.startswith(("vectors", "items")):  # the reader was fast enough for these two
            (tmp_path / "i" / name).write_bytes(content)
    descriptions = [old, new, new]
    monkeypatch.setattr(Description, "read", lambda folder: descriptions.pop(0))
    assert len(Index.open(tmp_path / "i")) == 20


def test_codes_that_are_missing_for_good_are_a_clear_error(tmp_path: Path) -> None:
    index = Index.create(tmp_path / "i", [items(50)], "hnsw")
    (tmp_path / "i" / str(index.description.place["codes"])).unlink()
    with pytest.raises(DataError, match=r"expected .*codes-.*which is missing"):
        Index.open(tmp_path / "i")


def test_codes_that_ask_for_all_memory_are_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import faiss

    Index.create(tmp_path / "i", [items(50)], "hnsw")

    def out_of_memory(*_: Any) -> None:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr(faiss, "read_index", out_of_memory)
    with pytest.raises(DataError, match="damaged"):
        Index.open(tmp_path / "i")


@pytest.mark.parametrize("kind", ["exact", "hnsw", "ivf", "sq8", "ivf-pq"])
def test_an_addition_writes_only_what_is_new(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_store, "TAIL", 25)
    settings = Settings(cells=8, probes=8, candidates=400)
    index = Index.create(tmp_path / "i", [items(400)], kind, settings=settings)
    before = files(tmp_path / "i")
    index.add(items(20, start=400))
    assert before < files(tmp_path / "i")  # nothing was written again
    index.add(items(20, start=420))  # now too many without codes
    everything = Index.build(
        np.concatenate([items(400).vectors, items(20, start=400).vectors, items(20, start=420).vectors]),
        [f"p{n}" for n in range(440)],
    )
    q = np.random.default_rng(5).standard_normal((9, 8))
    for opened in (index, Index.open(tmp_path / "i")):
        assert opened.search(q, 7).ids.tolist() == everything.search(q, 7).ids.tolist()
        np.testing.assert_allclose(opened.search(q, 7).similarities, everything.search(q, 7).similarities, atol=2e-6)
    index.delete(["p3", "p405"])
    assert len(index.description.place["vectors"]) == 1  # type: ignore[arg-type]
    assert (index.find(["p3", "p405", "p439"]) >= 0).tolist() == [False, False, True]


def test_many_additions_do_not_leave_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_store, "MOST_PARTS", 4)
    index = Index.create(tmp_path / "i", [items(5)])
    for n in range(9):
        index.add(items(1, start=10 + n))
        assert len(list((tmp_path / "i").glob("vectors-*"))) <= 4
    assert len(Index.open(tmp_path / "i")) == 14


def test_vectors_in_half_precision_are_found_and_kept(tmp_path: Path) -> None:
    given = items(300)
    index = Index.create(tmp_path / "i", [given], settings=Settings(half=True))
    (path,) = (tmp_path / "i").glob("vectors-*")
    assert np.load(path, mmap_mode="r").dtype == np.float16
    exact = Index.build(given.vectors, given.ids.to_pylist())
    found, right = index.search(given.vectors, 1), exact.search(given.vectors, 1)
    assert found.ids.tolist() == right.ids.tolist()
    np.testing.assert_allclose(found.similarities, right.similarities, atol=1e-3)
    index.add(items(5, start=400))
    index.delete(["p0"])
    (path,) = (tmp_path / "i").glob("vectors-*")
    assert np.load(path, mmap_mode="r").dtype == np.float16


@pytest.mark.parametrize("kind", ["hnsw", "ivf", "sq8", "ivf-pq"])
def test_codes_are_smaller_than_the_vectors(tmp_path: Path, kind: str) -> None:
    vectors = np.random.default_rng(0).standard_normal((2000, 64))
    index = Index.create(tmp_path / "i", [Items.read(vectors)], kind, settings=Settings(links=8))
    (codes,), (whole,) = (
        [path.stat().st_size for path in (tmp_path / "i").glob(f"{name}-*")] for name in ("codes", "vectors")
    )
    assert codes < 0.75 * whole
    assert index.description.recall is not None


def test_a_file_is_synced_by_a_handle_that_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Windows demands."""
    import fcntl

    real, modes = os.fsync, []

    def record(handle: int) -> None:
        modes.append(fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE)
        real(handle)

    monkeypatch.setattr(faiss_files.os, "fsync", record)
    Index.create(tmp_path / "i", [items(50)], "hnsw")
    assert len(modes) >= 3
    assert os.O_RDONLY not in modes


def test_files_that_cannot_be_removed_yet_are_removed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows, as long as another process has them mapped."""
    index = Index.create(tmp_path / "i", [items(50)])
    old = files(tmp_path / "i") - {"description.json"}

    remove = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name in old:
            raise PermissionError(13, "in use", str(path))
        remove(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        index.delete(["p0"])
    assert len(index) == 49
    assert old <= files(tmp_path / "i")
    index.delete(["p1"])
    assert not old & files(tmp_path / "i")


def test_two_silences_at_once_end(capfd: pytest.CaptureFixture[str]) -> None:
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with faiss_silenced():
            inside.set()
            leave.wait(0.5)

    def second() -> None:
        inside.wait()
        with faiss_silenced():
            pass

    threads = [threading.Thread(target=one) for one in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.write(1, b"heard\n")
    assert capfd.readouterr().out == "heard\n"
