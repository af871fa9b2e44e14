from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metrix.files import (
    cache_folder,
    is_temporary,
    lock,
    mark_used,
    remove_temporaries,
    write_atomically,
    write_json,
    write_text,
)


def test_a_file_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old ü")
    assert path.read_bytes() == "old ü".encode()

    def fail(temporary: Path) -> None:
        temporary.write_text("new")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text("utf-8") == "old ü"
    assert list(tmp_path.iterdir()) == [path]


def test_json_is_utf8_and_ends_with_a_newline(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"name": "müsli"})
    assert (tmp_path / "a.json").read_text("utf-8") == '{\n  "name": "müsli"\n}\n'
    write_json(tmp_path / "a.json", [1, 2], indent=None)
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == [1, 2]
    assert (tmp_path / "a.json").read_text("utf-8").count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_the_umask_decides_the_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a", "")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_another_process_waits_at_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.lock"
    code = (
        "import sys; from pathlib import Path; from metrix.files import lock\n"
        "print('ready', flush=True)\n"
        "with lock(Path(sys.argv[1])): print('held', flush=True)"
    )
    with lock(path):
        process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
    assert process.communicate(timeout=30)[0] == "held\n"


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("METRIX_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("METRIX_CACHE")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache_folder() == tmp_path / "xdg" / "metrix"
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache_folder() == Path.home() / ".cache" / "metrix"


def test_what_a_killed_process_left_of_a_file_goes_with_the_next_write(tmp_path: Path) -> None:
    def left(name: str, hours: float) -> Path:
        file = tmp_path / name
        file.write_text("half")
        os.utime(file, (time.time() - 3600 * hours,) * 2)
        return file

    old, recent, other = left(".a.json.0a1b2c3d", 2), left(".a.json.1a1b2c3d", 0.5), left(".b.json.0a1b2c3d", 2)
    own = left(".a.json.mine", 2)
    write_json(tmp_path / "a.json", {})
    assert not old.exists()
    assert recent.exists()  # perhaps another process writes it just now
    assert other.exists()
    assert own.exists()


@pytest.mark.skipif(os.name != "posix", reason="whether a process runs is only asked on POSIX")
def test_what_a_process_left_goes_at_once_when_it_is_known_to_have_ended(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from metrix.files import write_atomically\n"
        "write_atomically(Path(sys.argv[1]), lambda path: os.kill(os.getpid(), signal.SIGKILL))"
    )
    path = tmp_path / "a.json"
    for clean in (lambda: write_json(path, {}), lambda: mark_used(path), lambda: remove_temporaries(tmp_path, 86400)):
        assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -signal.SIGKILL
        (left,) = (file for file in tmp_path.iterdir() if file != path)
        assert is_temporary(left)
        clean()
        assert list(tmp_path.iterdir()) == [path]


def test_what_a_running_process_writes_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.json"

    def write(temporary: Path) -> None:
        temporary.write_text("half")
        write_json(path, {})
        mark_used(path)
        remove_temporaries(tmp_path, older_than=60)
        assert temporary.read_text() == "half"
        temporary.write_text("whole")

    write_atomically(path, write)
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_process_elsewhere_left_goes_after_an_hour(tmp_path: Path) -> None:
    left = tmp_path / f".a.json.0a1b2c3d-000000-{2**22 + 1:x}"  # no number of a process here
    left.write_text("half")
    write_json(tmp_path / "a.json", {})
    assert left.exists()
    os.utime(left, (time.time() - 7200,) * 2)
    write_json(tmp_path / "a.json", {})
    assert not left.exists()
