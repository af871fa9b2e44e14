from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.tables import build_table, list_files, write_parquet
from tests.trained_runs import own_copy


@pytest.fixture(scope="session")
def reader_folder(tmp_path_factory: pytest.TempPathFactory, shared_folder: Path, run: Path, other_run: Path) -> Path:
    """A folder with what examples and commands of the documentation speak of: photos/, and runs that are finished."""
    folder = tmp_path_factory.mktemp("reader")
    rng = np.random.default_rng(0)
    for k in range(8):
        (folder / "photos" / f"class{k}").mkdir(parents=True)
        for n in range(4):
            pixels = rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / f"class{k}" / f"{n}.png")
    for name, trained in (("a", run), ("b", other_run), ("2026-…", run), ("final", run)):
        shutil.copytree(trained, folder / "runs" / name)
    own_copy(shared_folder, folder / "runs", "m", max_steps=3, dim=128, matryoshka=(64,))
    (folder / "tunes" / "a").mkdir(parents=True)
    shutil.copy(run / "config.yaml", folder / "tunes" / "a" / "best.yaml")
    write_parquet(folder / "photos.parquet", build_table(list_files(folder / "photos")))
    labels = np.repeat([f"class {k}" for k in range(8)], 8)
    np.savez(folder / "vectors.npz", vectors=rng.normal(size=(64, 6)), label=labels)
    pq.write_table(pa.table({"vector": list(rng.normal(size=(64, 6))), "label": labels}), folder / "vectors.parquet")
    _index_photos(folder)
    _export_model(folder)
    return folder


def _export_model(folder: Path) -> None:
    """model.onnx and my-model/, for the page on export."""
    from metrix.runs.hub_folder import export_hub
    from metrix.runs.model_export import export_onnx
    from metrix.runs.trained_model import open_run

    model = open_run(folder / "runs" / "a")
    export_onnx(model, folder / "model.onnx")
    export_hub(model, folder / "my-model")


def _index_photos(folder: Path) -> None:
    """photos.index and decisions on it, old.index, shop.csv and shop.index, query.jpg, other/ and query.npy, for the pages on indexes."""
    from metrix.retrieve.decisions import DecisionFile
    from metrix.retrieve.indexing import index_images
    from metrix.runs.thresholds import measure_threshold, write_threshold
    from metrix.runs.trained_model import open_run

    lines = [f"photos/class{k}/{n}.png,class{k},{k + n}" for k in range(8) for n in range(4)]
    (folder / "shop.csv").write_text("\n".join(["path,label,price", *lines]) + "\n")
    model = open_run(folder / "runs" / "a")
    path = write_threshold(model, measure_threshold(model, "far", 0.001, resamples=10))
    shutil.copy(path, folder / "runs" / "2026-…")  # of the same model
    index_images(model, [folder / "shop.csv"], folder / "shop.index")
    index = index_images(model, [folder / "photos"], folder / "photos.index").index
    shutil.copytree(folder / "photos.index", folder / "old.index")
    np.save(folder / "query.npy", index.get(["class0/0.png"]).vectors)
    DecisionFile(folder / "photos.labels.csv").add(index, "class0/1.png", "relabel", "class1")
    (folder / "other").mkdir()
    for name in ("query.jpg", "other/1.jpg"):
        Image.open(folder / "photos" / "class0" / "0.png").save(folder / name)
