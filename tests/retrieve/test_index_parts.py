"""An index by several processes: the same as by one, also after a kill."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from metrix.errors import DataError, InvalidInput, LabelError
from metrix.retrieve.index_parts import WrittenPart, index_share
from metrix.retrieve.indexing import Indexed, index_images
from metrix.runs.trained_model import open_run
from metrix.search import Fingerprint, Index, Items, Settings
from metrix.search.parts import write_index_part
from tests.photos import draw_photo, write_photos
from tests.shards import pack

WORLD = 4


def read_everything(index: Index) -> tuple[list[Any], Any, Any]:
    items = [items for _, items in index.store.scan(1000)]
    ids = [one for part in items for one in part.ids.to_pylist()]
    return ids, np.concatenate([part.vectors for part in items]), pa.concat_tables([part.columns for part in items])


def assert_same(found: Index, expected: Index) -> None:
    for one, other in zip(read_everything(found)[::2], read_everything(expected)[::2], strict=True):
        assert one == other
    np.testing.assert_allclose(read_everything(found)[1], read_everything(expected)[1], atol=1e-6)
    assert found.description.model_dump(exclude={"place", "generation", "relative_root"}) == (
        expected.description.model_dump(exclude={"place", "generation", "relative_root"})
    )


@pytest.mark.parametrize("source", ["files", "shards", "few shards"])
@pytest.mark.parametrize("kind", ["exact", "hnsw"])
def test_parts_are_the_index_of_one_process(run: Path, tmp_path: Path, source: str, kind: str) -> None:
    images = write_photos(tmp_path / "photos", 3, 9)
    (images / "kind 1" / "4.jpg").write_bytes(b"broken")
    if source != "files":
        images = pack(images, tmp_path / "packed", 2 if source == "few shards" else 5)
    model = open_run(run)
    expected = index_images(model, [images], tmp_path / "one.index", kind=kind).index
    output = tmp_path / "many.index"
    for rank in (2, 0, 3):
        part = index_share(model, [images], output, (rank, WORLD), kind=kind)
        assert isinstance(part, WrittenPart)
        assert not (output / "description.json").exists()
    part_files = {file.stat().st_ino for file in output.glob(".parts-*/vectors-*")}
    assert len(part_files) == 3
    done = index_share(model, [images], output, (1, WORLD), kind=kind)
    assert isinstance(done, Indexed)
    assert done.images == 26
    assert [one.path.endswith("kind 1/4.jpg") for one in done.skipped] == [True]
    assert_same(Index.open(output), expected)
    assert part_files < {file.stat().st_ino for file in output.glob("vectors-*")}  # the same files: nothing is copied
    assert [file.name for file in next(output.glob(".parts-*")).glob("*.json")] == ["joined.json"]


def test_a_finished_build_is_not_repeated_but_changed_images_are(run: Path, tmp_path: Path) -> None:
    images, output, model = write_photos(tmp_path / "photos"), tmp_path / "p.index", open_run(run)
    for rank in range(2):
        index_share(model, [images], output, (rank, 2))
    before = Index.open(output).description.generation
    again = index_share(model, [images], output, (0, 2))
    assert isinstance(again, Indexed)
    assert again.images == 0
    assert Index.open(output).description.generation == before
    draw_photo(2, 77).save(images / "kind 0" / "0.jpg")
    assert isinstance(index_share(model, [images], output, (0, 2)), WrittenPart)
    done = index_share(model, [images], output, (1, 2))
    assert isinstance(done, Indexed)
    assert done.index.description.generation == before + 1
    assert_same(done.index, index_images(model, [images], tmp_path / "one.index").index)
    assert len(list(output.glob(".parts-*"))) == 1


def test_more_images_can_be_added(run: Path, tmp_path: Path) -> None:
    from metrix.retrieve.indexing import add_images

    images, output, model = write_photos(tmp_path / "photos"), tmp_path / "p.index", open_run(run)
    for rank in range(3):
        index_share(model, [images], output, (rank, 3))
    draw_photo(2, 77).save(images / "kind 0" / "new.jpg")
    assert len(add_images(model, [images / "kind 0" / "new.jpg"], output).index) == 19
    found = Index.open(output)
    found.delete(["kind 0/new.jpg"])
    assert len(Index.open(output)) == 18


def test_limits_of_broken_images_are_of_all_parts(run: Path, tmp_path: Path) -> None:
    images, output, model = write_photos(tmp_path / "photos"), tmp_path / "p.index", open_run(run)
    for c in range(3):
        (images / f"kind {c}" / "0.jpg").write_bytes(b"broken")
    for rank in range(2):
        assert isinstance(index_share(model, [images], output, (rank, 3), max_bad=2), WrittenPart)
    with pytest.raises(DataError, match=r"3 of 18 images cannot be read: .*--max-bad 3"):
        index_share(model, [images], output, (2, 3), max_bad=2)
    assert not (output / "description.json").exists()
    assert isinstance(index_share(model, [images], output, (2, 3), max_bad=3), Indexed)


def test_what_several_processes_cannot_do(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.command_line import refused

    images, model = write_photos(tmp_path / "photos", 1, 3), open_run(run)
    with pytest.raises(InvalidInput, match="WORLD_SIZE: expected at most 3, as there are images, got 4"):
        index_share(model, [images], tmp_path / "i", (0, 4))
    with pytest.raises(InvalidInput, match="WORLD_SIZE: expected 1 for the embedded data glyphs-mini, got 4"):
        index_share(model, ["glyphs-mini"], tmp_path / "i", (0, 4))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused("index", run, images, "-o", tmp_path / "i", "--add", words=("WORLD_SIZE=2", "--add", "start one process"))
    store = "milvus:./x.db"
    refused(
        "index", run, images, "-o", tmp_path / "i", "--store", store, words=("expected a new index on faiss", store)
    )


MODEL = Fingerprint(digest="a" * 64, view="v", dim=2)


def test_columns_of_parts_become_one_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(ids: list[str], **columns: Any) -> Any:
        return write_index_part(tmp_path, [Items.read(np.eye(2), ids, columns)])

    parts = [
        write(["a", "b"], price=[None, None]),
        write(["c", "d"], price=[1, 2]),
        write(["e", "f"], price=[0.5, 1.0]),
    ]
    parts.append(write(["g", "h"], label=["x", None]))
    index = Index.join(tmp_path / "i", parts, model=MODEL)
    assert dict(index.columns) == {"price": "number", "label": "text"}
    table = index.store.read_table(np.arange(8))
    assert table["price"].to_pylist() == [None, None, 1.0, 2.0, 0.5, 1.0, None, None]
    assert table["label"].to_pylist() == [None] * 6 + ["x", None]
    with pytest.raises(DataError, match="column 'price': expected one type in all parts, got integer and text"):
        Index.join(tmp_path / "j", [parts[1], write(["y", "z"], price=["cheap", "dear"])], model=MODEL)
    with pytest.raises(LabelError, match="ids: expected each once, got 'b' 2 times"):
        Index.join(tmp_path / "j", [parts[0], write(["b", "z"])], model=MODEL)
    monkeypatch.setattr("metrix.search.parts.MOST_ID_BYTES", 30)
    with pytest.raises(InvalidInput, match=r"ids: expected less than 30 bytes in one index, got .* of each half"):
        Index.join(tmp_path / "j", parts, model=MODEL)
    monkeypatch.undo()
    with pytest.raises(InvalidInput, match="got parts with both"):
        Index.join(tmp_path / "j", [parts[0], write_index_part(tmp_path, [Items.read(np.eye(2), [1, 2])])], model=MODEL)


def test_a_file_system_without_links_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    parts = [write_index_part(tmp_path, [Items.read(np.eye(2), ids)], half=True) for ids in (["a", "b"], ["c", "d"])]
    index = Index.join(tmp_path / "i", parts, settings=Settings(half=True), model=MODEL)
    assert index.search([[1.0, 0.1]], 2).ids.tolist() == [["a", "c"]]
    assert index.store.settings.half


SLOW = """
import sys, time
from metrix.runs import trained_model
read = trained_model.read_ahead
def slow(part, batches, *rest):
    for images in read(part, batches, *rest):
        time.sleep(0.4)
        yield images
trained_model.read_ahead = slow
from metrix.runs import embedding_blocks
from metrix.cli.app import main
sys.argv = ["metrix", *sys.argv[1:]]
main()
"""


def test_one_of_four_processes_is_killed_and_repeated(run: Path, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "some", 4, 5)
    images = tmp_path / "photos"
    for n in range(140):  # 2,800 images: three blocks for each process
        shutil.copytree(photos, images / f"{n:03d}")
    expected = index_images(open_run(run), [images], tmp_path / "one.index").index
    output = tmp_path / "many.index"
    command = [sys.executable, "-c", SLOW, "index", str(run), str(images), "-o", str(output), "--json"]
    environment = {**os.environ, "WORLD_SIZE": str(WORLD), "OMP_NUM_THREADS": "1"}

    def start(rank: int) -> subprocess.Popen[str]:
        own = {**environment, "RANK": str(rank)}
        return subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    started = [start(rank) for rank in range(WORLD)]
    waiting = time.monotonic() + 120
    while not list(output.glob(".parts-*/2/*/*.npy")) and started[2].poll() is None and time.monotonic() < waiting:
        time.sleep(0.02)
    started[2].send_signal(signal.SIGKILL)
    ended = [one.communicate(timeout=240) for one in started]
    assert [one.returncode for one in started] == [0, 0, -signal.SIGKILL, 0], ended
    assert not (output / "description.json").exists()
    assert all('"complete": false' in out for n, (out, _) in enumerate(ended) if n != 2)
    repeated = start(2)
    out, err = repeated.communicate(timeout=240)
    assert repeated.returncode == 0, err
    assert '"count": 2800' in out
    assert_same(Index.open(output), expected)
