"""Prefixes of embeddings: in embeddings, files, indexes, exports and measures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn import functional as F

from metrix import Embedder
from metrix.errors import InvalidInput, ModelError
from metrix.evaluate import recall_at_k
from metrix.retrieve.engine_choice import read_engine
from metrix.retrieve.queries import open_encoder
from metrix.runs.evaluation import embed_examples, evaluate_examples, measure_prefixes
from metrix.runs.thresholds import FILE, read_threshold
from metrix.runs.trained_model import open_run
from metrix.search import Index
from tests.command_line import metrix
from tests.photos import write_photos
from tests.trained_runs import own_copy


@pytest.fixture(scope="module")
def run(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prefixes")
    return own_copy(shared_folder, folder, "matryoshka", max_steps=12, dim=16, matryoshka=(4, 8))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos", classes=2, per_class=3)


@pytest.mark.parametrize(
    "settings",
    [{"pool": "avg+max"}, {"pool": "gem"}, {"pool": "attention"}, {"backbone": "mlp", "inputs": 5, "hidden": (6, 7)}],
    ids=str,
)
def test_a_shortened_network_gives_the_first_numbers_at_unit_length(settings) -> None:
    settings = {"backbone": "glyphs-cnn", "pool": "avg", "mix_at": 1 if "inputs" in settings else None, **settings}
    embedder = Embedder(dim=12, matryoshka=(3, 12, 5), **settings).eval()
    x = torch.randn(4, *embedder.input_shape())
    short = embedder.shorten(5)
    torch.testing.assert_close(short(x), F.normalize(embedder(x)[:, :5], dim=1))
    assert (short.config.dim, short.config.matryoshka, embedder.config.dim) == (5, (3,), 12)
    assert embedder.shorten(12).config.dim == 12
    with pytest.raises(InvalidInput, match=r"trained for, 3, 5, or the whole, 12, got 6; .* --force-dim"):
        embedder.shorten(6)
    assert embedder.shorten(6, force_dim=True)(x).shape == (4, 6)
    for wrong in (0, 13, 2.5):
        with pytest.raises(InvalidInput, match="dim: expected"):
            embedder.shorten(wrong, force_dim=True)


def test_encode_takes_a_prefix(run: Path) -> None:
    embedder, image = Embedder.load(run), np.arange(784, dtype=np.uint8).reshape(28, 28)
    whole, short = embedder.encode(image)[:, :4], embedder.encode(image, dim=4)
    np.testing.assert_allclose(short, whole / np.linalg.norm(whole), atol=1e-6)
    with pytest.raises(InvalidInput, match="got 5"):
        embedder.encode(image, dim=5)


def test_measures_of_prefixes_are_those_of_slices(run: Path) -> None:
    model = open_run(run)
    assert model.trained_prefixes == (4, 8)
    examples = embed_examples(model)
    whole = evaluate_examples(examples, (1,), resamples=0, clustered=False)
    for one in measure_prefixes(examples, (4, 8), whole.retrieval, resamples=0):
        cut = examples.vectors[:, : one.dim].astype(np.float64)
        S = (cut / np.linalg.norm(cut, axis=1, keepdims=True)) @ (cut / np.linalg.norm(cut, axis=1, keepdims=True)).T
        np.fill_diagonal(S, -np.inf)
        expected = np.mean(examples.labels[S.argmax(axis=1)] == examples.labels)
        assert one.retrieval.means["recall@1"] == pytest.approx(expected)
        difference = one.difference["recall@1"].difference
        assert difference == pytest.approx(expected - whole.retrieval.means["recall@1"])
    short = open_run(run, dim=4).embed("test").vectors
    np.testing.assert_allclose(short, examples.shorten(4, (4, 8)).vectors, atol=1e-5)
    assert recall_at_k(short, examples.labels, ks=(1,))[1] > 0


def test_evaluate_reports_the_trained_prefixes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = metrix("evaluate", run, "--bootstrap", 20, "--no-clustering")
    assert done.code == 0, done.err
    assert "Trained prefixes of the embedding" in done.out
    kept = json.loads((run / "evaluation.json").read_bytes())
    assert [one["dim"] for one in kept["prefixes"]] == [4, 8]
    only = metrix("evaluate", run, "--bootstrap", 0, "--no-clustering", "--dim", 4)
    assert "the first 4 of 16 numbers of each embedding" in " ".join(only.out.split())
    assert json.loads((run / "evaluation.json").read_bytes()) == kept
    monkeypatch.setattr("metrix.runs.evaluation.embed_examples", lambda *_: pytest.fail("embedded"))
    wrong = metrix("evaluate", run, "--dim", 5)
    assert (wrong.code, wrong.out) == (2, "")
    assert "trained for, 4, 8, or the whole, 16, got 5" in wrong.err


def test_an_index_of_a_prefix_is_searched_and_changed_with_it(run: Path, photos: Path, tmp_path: Path) -> None:
    target = tmp_path / "short.index"
    done = metrix("index", run, photos / "kind 0", "-o", target, "--dim", 4, "--root", photos)
    assert done.code == 0, done.err
    index = Index.open(target)
    assert (index.description.dim, index.description.model.dim) == (4, 4)  # type: ignore[union-attr]
    assert open_encoder(index).fingerprint.dim == 4
    done = metrix("index", run, photos / "kind 1", "-o", target, "--add")
    assert done.code == 0, done.err
    done = metrix("search", target, photos / "kind 1" / "1.jpg", "--json")
    assert done.code == 0, done.err
    assert "kind 1" in json.dumps(done.json)
    for flags in (("--dim", 8, "--add"), ("--dim", 16, "--update")):
        done = metrix("index", run, photos, "-o", target, *flags)
        assert done.code == 2
        assert "dimension: expected 4" in done.err


def test_embeddings_of_a_prefix_in_a_file(run: Path, photos: Path, tmp_path: Path) -> None:
    file = tmp_path / "short.parquet"
    done = metrix("embed", run, photos, "-o", file, "--dim", 8, "-q", "--engine", "torch")
    assert done.code == 0, done.err
    vectors = np.stack(pq.read_table(file)["vector"].to_numpy(zero_copy_only=False))
    assert vectors.shape == (6, 8)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    assert metrix("embed", run, photos, "-o", tmp_path / "other.parquet", "--dim", 7, "-q").code == 2


def test_an_exported_prefix_contains_the_slicing(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    file = tmp_path / "short.onnx"
    done = metrix("export", run, "--onnx", file, "--torch-export", tmp_path / "short.pt2", "--dim", 4, "-q")
    assert done.code == 0, done.err
    about = json.loads(Path(f"{file}.json").read_bytes())["embedding"]
    assert (about["dim"], about["of"], about["trained_prefixes"]) == (4, 16, [4, 8])
    engine, x = read_engine(str(file), open_run(run, dim=4)), torch.rand(3, 1, 28, 28)
    assert engine.opened is not None
    expected = F.normalize(Embedder.load(run)(x)[:, :4], dim=1)
    torch.testing.assert_close(engine.opened.run(x), expected, atol=1e-4, rtol=0)
    program = torch.export.load(str(tmp_path / "short.pt2"))
    torch.testing.assert_close(program.module()(x), expected, atol=1e-4, rtol=0)
    with pytest.raises(ModelError, match=r"expected embeddings of dimension 16, got 4; give --dim 4"):
        read_engine(str(file), open_run(run))
    hub = metrix("export", run, "--hub", tmp_path / "hub", "--dim", 4, "-q")
    assert hub.code == 2
    assert "shorten(4)" in hub.err


def test_thresholds_of_whole_embeddings_are_not_those_of_a_prefix(run: Path) -> None:
    assert metrix("threshold", run, "--far", 0.1).code == 0
    assert (run / FILE).is_file()
    assert read_threshold(open_run(run)) is not None
    assert read_threshold(open_run(run, dim=8)) is None
