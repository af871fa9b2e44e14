"""The model of a finished run, and the embeddings that it keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from metrix.errors import DataError, InvalidInput, MetrixWarning
from metrix.runs.embedding_blocks import BLOCK, BlocksInMemory, EmbeddingBlocks
from metrix.runs.trained_model import open_run
from metrix.train import Config, train
from metrix.train.batches import ImageBatches, open_data, select_training_part
from metrix.train.run_folder import RunFolder


@pytest.fixture
def finished(small: Config, tmp_path: Path) -> RunFolder:
    return train(small.with_values({"epochs": 1, "max_steps": 2}), tmp_path / "run")


def test_embeds_as_training_does(finished: RunFolder) -> None:
    model = open_run(finished.path)
    dataset = open_data(model.config)
    batches = ImageBatches(model.config, model.embedder, dataset, select_training_part(model.config, dataset))
    with torch.no_grad():
        expected = {name: batches.embed(part, torch.device("cpu")) for name, part in (("test", dataset.test),)}
        expected["train"] = batches.embed(batches.part, torch.device("cpu"))
    for name, vectors in expected.items():
        assert np.array_equal(model.embed(name).vectors, vectors.numpy())


def test_embeds_each_image_once(finished: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_run(finished.path).embed("test")
    assert [path.name for path in (finished.path / "embeddings").iterdir()] == ["test.safetensors"]
    monkeypatch.setattr("metrix.runs.trained_model.read_ahead", None)  # an error if it is called
    again = open_run(finished.path).embed("test")
    assert np.array_equal(first.vectors, again.vectors)
    assert first.fingerprint == again.fingerprint


def test_a_folder_that_cannot_be_written_keeps_nothing(finished: RunFolder) -> None:
    (finished.path / "embeddings").write_text("in the way")
    with pytest.warns(MetrixWarning, match="embeddings are not kept"):
        found = open_run(finished.path).embed("test")
    np.testing.assert_allclose(np.linalg.norm(found.vectors, axis=1), 1, atol=1e-5)


def test_a_write_that_fails_leaves_no_blocks(finished: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: EmbeddingBlocks, number: int, vectors: object, broken: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(EmbeddingBlocks, "write", fail)  # not of blocks in memory, which have their own
    with pytest.warns(MetrixWarning, match="Input/output error"):
        open_run(finished.path).embed("test")
    assert [file.name for file in (finished.path / "embeddings").iterdir()] == []


def test_what_is_left_beside_kept_embeddings_is_removed(finished: RunFolder) -> None:
    model = open_run(finished.path)
    model.embed("test")
    (kept,) = (finished.path / "embeddings").glob("*.safetensors")
    dataset = model.open_data()
    key = model.embeddings_key(dataset, model.select_part(dataset, "test"))
    blocks = kept.with_name(f".test-{key[:16]}")
    blocks.mkdir()
    (blocks / "00000000.npy").write_bytes(b"half")
    model.embed("test")
    assert not blocks.exists()


def test_a_run_that_is_not_finished_has_no_model_but_an_initial_one(small: Config, tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.start(small, "fingerprint")
    with pytest.raises(InvalidInput, match=f"not finished; resume it with metrix train --resume {tmp_path}"):
        open_run(tmp_path)
    before = torch.get_rng_state()
    initial = open_run(tmp_path, initial=True)
    assert initial.digest == open_run(tmp_path, initial=True).digest
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_blocks_are_read_as_they_were_written(kind: str, tmp_path: Path) -> None:
    rows = 2 * BLOCK + 3
    blocks = EmbeddingBlocks(tmp_path / "blocks", rows) if kind == "files" else BlocksInMemory(rows)
    vectors = np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)
    for number in (2, 0):
        blocks.write(number, vectors[blocks.rows(number)])
    assert blocks.missing == [1]
    blocks.write(1, vectors[blocks.rows(1)])
    assert np.array_equal(blocks.read_all(), vectors)
    assert blocks.broken() == {}


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_blocks_say_which_rows_are_broken(kind: str, tmp_path: Path) -> None:
    rows = BLOCK + 3
    blocks = EmbeddingBlocks(tmp_path / "blocks", rows) if kind == "files" else BlocksInMemory(rows)
    broken = {BLOCK: "not an image", BLOCK + 2: "no such fi…le"}
    blocks.write(1, np.ones((1, 4), dtype=np.float32), broken)
    assert blocks.broken() == broken
    assert blocks.read(1).tolist() == [[1.0] * 4]
    blocks.write(0, np.empty((0, 4), dtype=np.float32), dict.fromkeys(range(BLOCK), "x"))
    assert blocks.read(0).shape == (0, 4)
    assert len(blocks.broken()) == BLOCK + 2
    blocks.write(1, np.ones((3, 4), dtype=np.float32))
    assert len(blocks.broken()) == BLOCK


@pytest.mark.parametrize("damage", ["cut", "bit", "old"])
def test_a_damaged_block_is_embedded_again(damage: str, tmp_path: Path) -> None:
    blocks = EmbeddingBlocks(tmp_path / "blocks", 2 * BLOCK)
    for number in (0, 1):
        blocks.write(number, np.full((BLOCK, 4), number, dtype=np.float32))
    content = blocks.file(1).read_bytes()
    changed = {"cut": content[:-40], "bit": content[:200] + b"\x01" + content[201:], "old": content[:-32]}[damage]
    assert changed != content
    blocks.file(1).write_bytes(changed)
    with pytest.raises(DataError, match="is damaged: it has another checksum"):
        blocks.read_all()
    assert EmbeddingBlocks(tmp_path / "blocks", 2 * BLOCK).missing == [1]
