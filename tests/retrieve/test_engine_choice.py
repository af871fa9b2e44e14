"""The engine of an index: stored with it, used for what is added and for queries, and never mixed with another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metrix.errors import InvalidInput, MetrixWarning, ModelError
from metrix.model import engines
from metrix.retrieve import engine_choice
from metrix.retrieve.encoder import ImageEncoder
from metrix.retrieve.indexing import add_images, index_images
from metrix.retrieve.queries import embed_queries, open_encoder
from metrix.runs.trained_model import open_run
from metrix.search import Index
from tests.photos import draw_photo, write_photos


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


@pytest.fixture
def inexact(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """In place of bf16, an engine whose vectors are clearly not the exact ones; returns the sizes of its batches."""
    batches: list[int] = []
    plain = engines.build_engine

    def build(name: str, embedder: Any, size: int | None = None) -> engines.Engine:
        if name != "bf16":
            return plain(name, embedder, size)

        def run(images: torch.Tensor) -> torch.Tensor:
            batches.append(len(images))
            exact = embedder(images)
            return torch.nn.functional.normalize(exact + 0.05 * exact.roll(1, 1))

        return engines.Engine("bf16", run, 4)

    monkeypatch.setattr(engine_choice, "build_engine", build)
    return batches


def test_an_engine_that_is_exact_up_to_rounding_is_stored_and_queries_are_exact(
    run: Path, photos: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    model = open_run(run)
    exact = index_images(model, [photos], tmp_path / "torch.index")
    done = index_images(model, [photos], tmp_path / "onnx.index", engine="onnx")
    assert exact.index.description.model is not None
    assert done.index.description.model is not None
    assert exact.index.description.model.engine.model_dump(exclude_none=True) == {"name": "torch"}
    used = done.index.description.model.engine
    assert used.name == "onnx"
    assert used.is_exact
    assert used.largest_difference is not None
    assert used.largest_difference < 1e-5
    assert done.engine is not None
    assert [one["engine"] for one in done.engine["measured"]] == ["torch", "onnx"]
    ids = [f"kind {c}/{n}.jpg" for c in range(3) for n in range(6)]
    np.testing.assert_allclose(done.index.get(ids).vectors, exact.index.get(ids).vectors, atol=1e-5)
    assert open_encoder(done.index).engine.name == "torch"
    few = index_images(model, [photos / "kind 0"], tmp_path / "few.index", engine="onnx", root=photos).index
    few.delete(["kind 0/0.jpg"])
    exact.index.delete([f"kind 0/{n}.jpg" for n in range(1, 6)])
    exact.index.merge(few)  # the same up to rounding
    assert len(exact.index) == 18


def test_queries_and_additions_go_through_the_engine_of_the_index(
    run: Path, photos: Path, tmp_path: Path, inexact: list[int]
) -> None:
    model = open_run(run)
    index = index_images(model, [photos], tmp_path / "p.index", engine="bf16").index
    assert index.description.model is not None
    assert index.description.model.engine.name == "bf16"
    assert not index.description.model.engine.is_exact
    assert max(inexact) == 4
    query = photos / "kind 1" / "2.jpg"

    def similarity(encoder: ImageEncoder) -> float:
        vectors = embed_queries(encoder, index, [query]).vectors
        return float((vectors @ index.get(["kind 1/2.jpg"]).vectors.T).item())

    assert similarity(open_encoder(Index.open(tmp_path / "p.index"))) == pytest.approx(1, abs=1e-6)
    assert similarity(ImageEncoder(model)) < 0.9999
    draw_photo(2, 50).save(photos / "kind 2" / "new.png")
    for engine in ("torch", "onnx"):
        with pytest.raises(InvalidInput, match=rf"--engine: expected bf16.*got {engine}; leave it out, or build"):
            add_images(model, [photos / "kind 2" / "new.png"], tmp_path / "p.index", engine=engine)
    inexact.clear()
    done = add_images(model, [photos / "kind 2" / "new.png"], tmp_path / "p.index")
    assert inexact
    assert done.engine is not None
    assert done.engine["name"] == "bf16"
    add_images(model, [photos / "kind 2" / "new.png"], tmp_path / "p.index", replace=True, engine="bf16")
    exact = index_images(model, [photos / "kind 0"], tmp_path / "exact.index", root=photos).index
    with pytest.raises(InvalidInput, match="engine: expected torch, which made the vectors of the index, got bf16"):
        exact.merge(index)


def test_an_engine_that_does_not_run_here_is_told(
    run: Path, photos: Path, tmp_path: Path, inexact: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    index = index_images(open_run(run), [photos], tmp_path / "p.index", engine="bf16").index
    plain = engines.build_engine

    def build(name: str, *rest: Any) -> engines.Engine:
        if name == "bf16":
            raise ModelError("engine bf16: expected another processor")
        return plain(name, *rest)

    monkeypatch.setattr(engine_choice, "build_engine", build)
    with pytest.warns(MetrixWarning, match=r"made by the engine bf16, which does not run here .*another processor"):
        assert open_encoder(index).engine.name == "torch"
    with pytest.raises(ModelError, match="another processor"):
        add_images(open_run(run), [photos / "kind 0" / "0.jpg"], tmp_path / "p.index", replace=True)


def test_an_interrupted_build_keeps_the_engine_of_the_first(
    run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inexact: list[int]
) -> None:
    monkeypatch.setattr("metrix.runs.embedding_blocks.BLOCK", 4)
    chosen: list[int] = []

    def choose(embedder: Any, images: torch.Tensor, total: int, size: int) -> Any:
        chosen.append(len(images))
        return engine_choice.build_engine("bf16", embedder), []

    def interrupt(what: str, done: int, of: int) -> None:
        if what == "embedding" and done > 8:
            raise KeyboardInterrupt

    monkeypatch.setattr(engine_choice, "choose_engine", choose)
    with pytest.raises(KeyboardInterrupt):
        index_images(open_run(run, interrupt), [photos], tmp_path / "p.index", engine="auto")
    done = index_images(open_run(run), [photos], tmp_path / "p.index", engine="auto")
    assert chosen == [16]
    assert done.index.description.model is not None
    assert done.index.description.model.engine.name == "bf16"
    assert not done.index.description.model.engine.is_exact  # nothing was measured


def test_engines_are_compared_on_images_that_can_be_read(
    run: Path, tmp_path: Path, inexact: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_choice, "_COMPARED", 2)
    photos = write_photos(tmp_path / "photos", 1, 6)
    for number in (0, 1, 5):  # the first and the last, which are tried at first, and the one after
        (photos / "kind 0" / f"{number}.jpg").write_bytes(b"no image")
    done = index_images(open_run(run), [photos], tmp_path / "p.index", engine="bf16")
    assert (done.images, len(done.skipped)) == (3, 3)
    assert done.engine is not None
    assert [one["images"] for one in done.engine["measured"]] == [2, 2]
    for file in photos.glob("*/*.jpg"):
        file.write_bytes(b"no image")
    with pytest.raises(InvalidInput, match="none that can be read"):
        index_images(open_run(run), [photos], tmp_path / "p.index", engine="bf16")
    assert len(Index.open(tmp_path / "p.index")) == 3
