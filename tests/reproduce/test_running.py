"""What happens to the cells of a grid, with a worker that trains nothing (worker.py)."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from metrix.experiments.cells import Cell, CellStore
from metrix.reproduce.running import GridState, GridWatcher, Stopped, run_cells
from tests.reproduce.conftest import cells_of

COMMAND = (sys.executable, str(Path(__file__).with_name("worker.py")))


def calls(store: CellStore, one: Cell) -> int:
    file = store.cell_folder(one.key) / "calls.txt"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_finished_cells_are_not_trained_again(store: CellStore) -> None:
    cells = cells_of(3, margin=1)
    first = run_cells(cells[:2], store, command=COMMAND)
    assert (first.total, first.reused, len(first.done)) == (2, 0, 2)
    second = run_cells(cells, store, command=COMMAND)
    assert (second.total, second.reused, len(second.done)) == (3, 2, 1)
    assert [calls(store, one) for one in cells] == [1, 1, 1]
    index = json.loads((store.folder / "index.json").read_text())
    assert {key: one["finished"] for key, one in index.items()} == {one.key: True for one in cells}


def test_a_crash_is_tried_once_more_and_then_reported(store: CellStore) -> None:
    once, always, misfit, fine = (cells_of(1, margin=margin)[0] for margin in (2, 3, 4, 1))
    state = run_cells([once, always, misfit, fine], store, command=COMMAND)
    assert [one.key for one in state.done] == [once.key, fine.key]
    assert [calls(store, one) for one in (once, always, misfit, fine)] == [2, 2, 1, 1]
    assert set(state.failed) == {always.key, misfit.key}
    assert "killed by SIGKILL" in state.failed[always.key][1]
    assert str(store.cell_folder(always.key) / "log.txt") in state.failed[always.key][1]
    assert store.read_record(misfit.key)["error"] == "the settings do not fit"
    assert store.read_record(once.key)["error"] is None
    run_cells([always], store, command=COMMAND)  # asked for again, it is tried again
    assert calls(store, always) == 4


def test_jobs_run_side_by_side_and_share_the_cores(store: CellStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    most = 0

    class Count(GridWatcher):
        def update(self, state: GridState) -> None:
            nonlocal most
            most = max(most, len(state.running))

    cells = cells_of(4, margin=1)
    run_cells(cells, store, 2, Count(), COMMAND)
    assert most == 2
    threads = {(store.cell_folder(one.key) / "calls.txt").read_text().split()[1] for one in cells}
    assert threads == {"4"}


def test_a_signal_ends_the_workers_and_leaves_their_cells_unfinished(store: CellStore) -> None:
    done, waits, later = cells_of(1, margin=1)[0], cells_of(1, margin=5)[0], cells_of(2, margin=1)[1]

    def interrupt() -> None:
        while calls(store, waits) == 0:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(Stopped, match="SIGINT; 2 runs left") as ended:
        run_cells([done, waits, later], store, command=COMMAND)
    assert ended.value.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is handler
    assert store.results(done.key) is not None
    assert store.results(waits.key) is None
    assert store.read_record(waits.key)["error"] is None
    assert calls(store, later) == 0


def test_checkpoints_that_a_killed_worker_left_go(store: CellStore) -> None:
    (one,) = cells_of(1)
    store.prepare()
    left = store.run(one.key).last
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x")
    (store.run(one.key).path / "results.json").write_text("{}")
    state = run_cells([one], store)
    assert state.reused == 1
    assert not left.parent.exists()
