"""The folder of a run: one process at a time, and what killed processes leave."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from metrix.errors import InvalidInput
from metrix.experiments.train_once import train_once
from metrix.files import lock
from metrix.train import Config, train
from metrix.train.run_folder import RunFolder, hold, hold_new, open_run_folder
from metrix.train.watching import Watcher


def test_new_runs_of_the_same_second_have_folders_of_their_own(
    small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with hold_new(None, small) as first, hold_new(None, small) as second:
        assert first.path.is_dir()
        assert second.path.is_dir()
        assert first.path != second.path
    assert list((tmp_path / "runs").iterdir()) == []  # no run began in them


def test_a_folder_is_claimed_before_anything_else(small: Config, tmp_path: Path) -> None:
    class Second(Watcher):
        refused = ""

        def preparing(self, what: str, done: int, of: int) -> None:
            self._try()

        def begin(self, *args: object) -> None:
            self._try()

        def _try(self) -> None:
            with pytest.raises(InvalidInput) as error:
                train(small, tmp_path / "run")
            self.refused = str(error.value)

    second = Second()
    run = train(small.with_values({"max_steps": 1}), tmp_path / "run", watcher=second)
    assert "already exists" in second.refused or "in use" in second.refused
    assert not (run.path / ".lock").exists()
    assert run.results is not None


def _claim(path: Path, barrier: object, won: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    try:
        with hold_new(path, Config()):
            with won.get_lock():  # type: ignore[attr-defined]
                won.value += 1  # type: ignore[attr-defined]
            barrier.wait()  # type: ignore[attr-defined]
    except InvalidInput:
        barrier.wait()  # type: ignore[attr-defined]


def test_of_processes_that_ask_for_one_folder_one_gets_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, won = context.Barrier(3), context.Value("i", 0)
    processes = [context.Process(target=_claim, args=(tmp_path / "run", barrier, won)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert won.value == 1


def test_a_run_is_resumed_by_one_process_at_a_time(small: Config, tmp_path: Path) -> None:
    RunFolder(tmp_path).start(small, "")
    with lock(tmp_path / ".lock"), pytest.raises(InvalidInput, match="in use: another process trains this run"):
        train(resume=tmp_path)


def _killed_while_starting(folder: Path) -> Path:
    folder.mkdir()
    (folder / ".config.yaml.0a1b2c3d").write_text("data:\n  da")
    (folder / ".lock").touch()
    return folder


def test_killed_while_writing_the_config(small: Config, tmp_path: Path) -> None:
    config = small.with_values({"max_steps": 1})
    for number, begin in enumerate((train, train_once)):
        folder = _killed_while_starting(tmp_path / str(number))
        with pytest.raises(InvalidInput, match=f"killed before it began; start it again with --output {folder}"):
            train(resume=folder)
        run = begin(config, folder)
        assert run.results is not None
        assert [file.name for file in folder.iterdir() if file.name.startswith(".")] == []


def test_a_folder_with_files_of_the_users_is_not_taken(small: Config, tmp_path: Path) -> None:
    (tmp_path / ".profile").write_text("of the user")
    with pytest.raises(InvalidInput, match=r"already exists: choose another folder$"):  # and not: resume it
        train(small, tmp_path)
    with pytest.raises(InvalidInput, match="nowhere is no run: nothing is there"):
        open_run_folder(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="no config"):
        open_run_folder(tmp_path)
    assert (tmp_path / ".profile").exists()


def test_temporaries_of_killed_processes_are_removed(small: Config, tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.start(small, "")
    for folder in ("checkpoints", "model", "."):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / ".last.safetensors.01234567").write_bytes(bytes(100))
    with hold(tmp_path):
        pass
    assert [path.name for path in tmp_path.rglob(".*")] == []


def test_metric_lines_are_not_written_twice(small: Config, tmp_path: Path) -> None:
    """A run killed between the last checkpoint of an epoch, at its last step, and the next one."""

    class Crash(Exception):  # noqa: N818 - what it stands for
        pass

    class Crashing(Watcher):
        def validated(self, *args: object) -> None:
            raise Crash

    config = small.with_values({"checkpoint_steps": 1, "epochs": 1, "max_steps": None})
    whole = train(config, tmp_path / "whole")
    with pytest.raises(Crash):
        train(config, tmp_path / "run", watcher=Crashing())
    resumed = train(resume=tmp_path / "run")
    assert resumed.metrics() == whole.metrics()


def test_data_is_found_from_every_working_directory(
    small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("here/photos", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    from metrix.train.data_place import with_absolute_paths

    config = with_absolute_paths(small.with_values({"data": "folder:photos"}))
    run = RunFolder(tmp_path / "here" / "run")
    run.start(config, "")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run.config.data.data == f"folder:{tmp_path}/here/photos"
    (tmp_path / "here").rename(tmp_path / "moved")
    moved = RunFolder(tmp_path / "moved" / "run")
    assert moved.config.data.data == f"folder:{tmp_path}/moved/photos"
