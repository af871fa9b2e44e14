"""Photos, and changes of an index of them, also in a process of its own that is killed: FOLDER STORE STEP MESSAGES."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from metrix.search import Index, Items, milvus_store

Q = np.random.default_rng(9).standard_normal((6, 12))


def photos(n: int, seed: int = 0, start: int = 0) -> Items:
    """Items with columns of every type, with gaps and characters that need quotes."""
    numbers = range(start, start + n)
    columns = {
        "label": [None if i % 7 == 0 else f'it\'s "{i % 3}" \\ ü' for i in numbers],
        "unit price": [None if i % 5 == 0 else float("nan") if i % 11 == 0 else i / 2 for i in numbers],
        "stock": list(numbers),
        "sold": [i % 2 == 0 for i in numbers],
    }
    vectors = np.random.default_rng(seed).standard_normal((n, 12))
    return Items.read(vectors, [f"a/{i}.jpg" for i in numbers], columns)


def apply_change(index: Index, change: str) -> None:
    """Change an index of 50 photos, and close it."""
    if change == "add":
        index.add(photos(20, seed=2, start=50))
    elif change == "update":
        index.update(photos(20, seed=3, start=40))
    elif change == "delete":
        index.delete([f"a/{n}.jpg" for n in range(5, 25)])
    else:
        index.merge(Index.build(photos(13, seed=4, start=900).vectors, [f"m/{n}" for n in range(13)]))
    index.close()


def all_ids(index: Index) -> list[str]:
    """The ids in an index, sorted."""
    return sorted(one for _, items in index.store.scan() for one in items.ids.to_pylist())


def take_step(folder: Path, store: str, step: str, messages: int | None = None) -> None:
    """Build or change an index in another process, which is killed after so many messages to Milvus."""
    command = [sys.executable, "-m", "tests.search.milvus_steps", str(folder), store, step]
    command += [] if messages is None else [str(messages)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert ended.returncode == (0 if messages is None else -signal.SIGKILL), ended.stderr


def main(folder: Path, store: str, step: str, messages: float = float("inf")) -> None:
    warnings.simplefilter("ignore")
    milvus_store.BATCH_BYTES = 12 * 4 * 6  # six rows in a message
    sent = milvus_store.MilvusStore._upsert
    left = messages

    def send_or_end(self: milvus_store.MilvusStore, rows: list[dict[str, Any]]) -> None:
        nonlocal left
        for start in range(0, len(rows), 6):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            sent(self, rows[start : start + 6])

    milvus_store.MilvusStore._upsert = send_or_end  # type: ignore[method-assign]
    if step == "build":
        Index.create(folder, [photos(50)], store=store).close()
    else:
        apply_change(Index.open(folder, store), step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4], *map(int, sys.argv[4:]))
