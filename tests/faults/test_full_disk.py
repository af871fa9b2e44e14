"""A disk that is full at any write is one line, not a traceback; a killed process leaves nothing behind for good."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from metrix.retrieve.embedding_output import write_embeddings
from metrix.runs.embedding_blocks import EmbeddingBlocks
from metrix.runs.trained_model import open_run
from tests.command_line import Metrix


def test_lock_of_embeddings(run: Path, tmp_path: Path, metrix: Metrix, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: EmbeddingBlocks) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a.lock")

    monkeypatch.setattr(EmbeddingBlocks, "locked", full)
    ended = metrix("embed", run, "-o", tmp_path / "a.parquet", "--engine", "torch")
    assert ended.code == 1
    assert "a.lock: No space left on device; make room" in ended.err
    assert "Traceback" not in ended.err


def test_blocks_of_a_killed_process_are_removed(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_run(run)
    with monkeypatch.context() as killed:
        killed.setattr(EmbeddingBlocks, "remove", lambda self: None)
        write_embeddings(model, tmp_path / "a.parquet")
    assert len(list(tmp_path.iterdir())) == 2
    write_embeddings(model, tmp_path / "a.parquet")
    assert [file.name for file in tmp_path.iterdir()] == ["a.parquet"]
