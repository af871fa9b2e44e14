"""Disks that are full or read-only, and permissions. (Tests run as root too, so failures are injected.)"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from metrix import data, files
from metrix.errors import InvalidInput, MetrixError, MetrixWarning
from metrix.runs.output import write_output
from metrix.runs.trained_model import open_run
from metrix.train import Config, checkpoint, train
from tests.command_line import Metrix
from tests.photos import write_photos


def full(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def blocked_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that cannot be created."""
    (tmp_path / "in the way").write_text("a file")
    monkeypatch.setenv("METRIX_CACHE", str(tmp_path / "in the way" / "cache"))
    return tmp_path


@pytest.mark.parametrize("cache", ["none", "disk"])
def test_a_cache_that_cannot_be_written_is_a_warning(cache: str, blocked_cache: Path) -> None:
    photos = write_photos(blocked_cache / "photos", classes=2, per_class=2)
    with pytest.warns(MetrixWarning, match=r"are not kept: the cache folder .* cannot be written \(Not a directory\)"):
        dataset = data.open(photos, cache=cache)
    assert len(dataset.train) == 2
    assert dataset.train[0][0].shape == (3, 48, 48)


def test_glyphs_without_a_cache(blocked_cache: Path) -> None:
    with pytest.warns(MetrixWarning, match="drawn glyphs are not kept"):
        assert len(data.open("glyphs-mini").train) > 0


def test_activations_need_a_cache_and_say_so(small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrix.train.batches.ActivationCache.build", full)
    config = small.with_values({"freeze_to": "stage2", "views": 2, "mixup": ["embed"]})
    with pytest.raises(InvalidInput, match=r"activations cannot be written to .*No space left.*METRIX_CACHE"):
        train(config, tmp_path / "run")


def test_a_full_disk_at_a_checkpoint(small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(small, tmp_path / "whole")
    written, save = [0], checkpoint.save_file

    def save_twice(*args: Any, **kwargs: Any) -> None:
        written[0] += 1
        if written[0] == 3:
            Path(args[1]).write_bytes(b"a part")
            full()
        save(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", save_twice)
        words = f"run cannot be written: No space left on device; make room .*resume with --resume {tmp_path}/run"
        with pytest.raises(MetrixError, match=words):
            train(small, tmp_path / "run")
    left = sorted(file.name for file in (tmp_path / "run" / "checkpoints").iterdir())
    assert left == ["best.safetensors", "last.safetensors"]  # best is the untrained network, and no part is left
    a, b = (load_file(run.path / "model" / "model.safetensors") for run in (whole, train(resume=tmp_path / "run")))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_an_output_that_cannot_be_created(small: Config, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InvalidInput, match=r"cannot be created: .*choose another with --output"):
        train(small, tmp_path / "file" / "run")


def test_files_of_a_run_follow_the_umask(small: Config, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        run = train(small.with_values({"max_steps": 2}), tmp_path / "run")
    finally:
        os.umask(before)
    found = {path.name: oct(path.stat().st_mode & 0o777) for path in run.path.rglob("*") if path.is_file()}
    assert set(found.values()) == {"0o640"}, found


def test_a_failure_without_words_of_the_system_is_described(tmp_path: Path) -> None:
    def cut_short(path: Path) -> None:
        raise OSError("25 requested and 0 written")

    with pytest.raises(InvalidInput, match="cannot be written: 25 requested and 0 written"):
        write_output(tmp_path / "a.npy", cut_short)
    assert files.describe_failure(OSError()) == "OSError"


def test_evaluate_prints_its_result_even_if_it_cannot_keep_it(
    run: Path, metrix: Metrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Path, *args: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    expected = metrix("evaluate", run, "--json", "--bootstrap", "0").json
    monkeypatch.setattr("metrix.runs.output.write_atomically", read_only)
    ended = metrix("evaluate", run, "--json", "--bootstrap", "0")
    assert ended.code == 0
    assert ended.json == expected
    assert "the result is not kept" in ended.err
    assert "Read-only file system" in ended.err


def test_embeddings_that_cannot_be_kept_are_there_all_the_same(
    small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(small.with_values({"max_steps": 1}), tmp_path / "run")
    monkeypatch.setattr("metrix.runs.output.write_atomically", full)
    with pytest.warns(MetrixWarning, match=r"No space left on device.*embeddings are not kept"):
        found = open_run(run.path).embed("test").vectors
    monkeypatch.undo()
    assert np.array_equal(found, open_run(run.path).embed("test").vectors)


def test_data_that_has_moved_is_asked_for(small: Config, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", classes=4, per_class=3)
    values = {"data": str(photos), "train_classes": None, "image_size": 28, "batch_size": 4, "per_class": 2}
    run = train(small.with_values({**values, "max_steps": 1}), tmp_path / "run")
    photos.rename(tmp_path / "elsewhere")
    with pytest.raises(InvalidInput, match=r"no longer at .*photos; give its place with --data"):
        open_run(run.path).embed("test")
    assert len(open_run(run.path).embed("test", str(tmp_path / "elsewhere"))) == 6


def test_a_full_disk_in_the_thread_of_tensorboard(
    small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tensorboard.compat.tensorflow_stub.io.gfile.LocalFileSystem._write", full)
    with pytest.raises(MetrixError, match=r"cannot be written: No space left on device.*--resume"):
        train(small, tmp_path / "run")
    assert "Traceback" not in capfd.readouterr().err
    monkeypatch.undo()
    assert train(resume=tmp_path / "run").results is not None


@pytest.mark.filterwarnings("ignore:drawn glyphs are not kept")
def test_views_without_a_cache_are_computed_and_said(small: Config, blocked_cache: Path) -> None:
    config = small.with_values({"freeze_to": "stage2", "views": 2, "mixup": ["embed"]})
    with pytest.warns(MetrixWarning, match=r"activations are not kept: the cache folder .* cannot be written"):
        run = train(config, blocked_cache / "run")
    assert run.results is not None
