"""A process that trains cells, one after another: `python -m metrix.reproduce.worker`.

It reads the folder of a cell from each line of its input and answers in lines of JSON: {"step": 3, "of": 100}
while it trains, then {"done": true} or {"error": "…", "again": true}. What the run prints goes to the cell's log.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import IO, Any

STEP_EVERY = 0.3  # seconds between two reports of a step


def main() -> None:
    """Train until there is no more input, or a signal."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what is printed must not look like an answer
    for line in sys.stdin:
        place = Path(json.loads(line))
        with open(place / "log.txt", "ab", buffering=0) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        answer(answers, **train_cell(place, answers))


def answer(answers: IO[str], **content: Any) -> None:
    """One line to the parent."""
    answers.write(json.dumps(content) + "\n")
    answers.flush()


def train_cell(place: Path, answers: IO[str]) -> dict[str, Any]:
    """Train a cell, or go on with it; what went wrong is an answer, a signal is not caught."""
    from metrix.errors import InvalidInput
    from metrix.experiments.train_once import finished
    from metrix.files import lock
    from metrix.reproduce.cells import config_of
    from metrix.train.interruption import Interrupted
    from metrix.train.run_folder import RunFolder
    from metrix.train.watching import Watcher

    class Steps(Watcher):
        """Tells the parent how far the run is."""

        def __init__(self) -> None:
            self.of, self.told = 0, 0.0

        def begin(self, run: Any, config: Any, part: Any, steps: int, progress: Any) -> None:
            self.of = steps

        def step(self, progress: Any, losses: list[float], images: int) -> None:
            now = time.monotonic()
            if now - self.told >= STEP_EVERY:
                self.told = now
                answer(answers, step=progress.step, of=self.of)

    config = config_of(json.loads((place / "cell.json").read_text("utf-8")))
    path = place / "run"
    try:
        with lock(place / "lock"):  # another machine or command may be at it; then it is only read
            if (path / "config.yaml").is_file():
                RunFolder(path).write_text("config.yaml", config.to_yaml())  # the images may have moved
            finished(config, path, Steps())
            shutil.rmtree(path / "checkpoints", ignore_errors=True)  # most of a run's size, and nothing goes on from it
    except Interrupted as ended:  # the run has its checkpoint, and nobody waits for an answer
        raise SystemExit(ended.exit_code) from None
    except InvalidInput as error:
        return {"error": str(error), "again": False}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}", "again": True}
    return {"done": True}


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # between two cells
        sys.exit(130)
