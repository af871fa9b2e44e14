"""The worker process of a grid: `python -m metrix.reproduce.worker` trains cells one after another.

It reads the folder of a cell from each line of standard input and answers in lines of JSON: {"step": 3, "of": 100}
while training, then {"done": true} or {"error": "…", "again": true}. Whatever the run prints goes to the cell's log.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import IO, Any

REPORT_EVERY = 0.3  # seconds


def serve() -> None:
    """Train until the input ends or a signal arrives."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # print() must not write among the answers
    for line in sys.stdin:
        folder = Path(json.loads(line))
        with open(folder / "log.txt", "ab", buffering=0) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        answer(answers, **train_and_answer(folder, answers))


def answer(answers: IO[str], **content: Any) -> None:
    """Write one line to the parent process."""
    answers.write(json.dumps(content) + "\n")
    answers.flush()


def train_and_answer(folder: Path, answers: IO[str]) -> dict[str, Any]:
    """Train or resume the cell in a folder and return the answer to the parent."""
    from metrix.errors import InvalidInput
    from metrix.experiments.cells import config_of_record, train_cell
    from metrix.train.interruption import Interrupted
    from metrix.train.watching import Watcher

    class StepReporter(Watcher):
        """Reports the progress of the run to the parent process."""

        def __init__(self) -> None:
            self.of, self.told = 0, 0.0

        def begin(self, run: Any, config: Any, part: Any, steps: int, progress: Any) -> None:
            self.of = steps

        def step(self, progress: Any, losses: list[float], images: int) -> None:
            now = time.monotonic()
            if now - self.told >= REPORT_EVERY:
                self.told = now
                answer(answers, step=progress.step, of=self.of)

    config = config_of_record(json.loads((folder / "cell.json").read_text("utf-8")))
    try:
        train_cell(folder, config, StepReporter())
    except Interrupted as ended:  # the run has written its checkpoint, and no answer is expected
        raise SystemExit(ended.exit_code) from None
    except InvalidInput as error:
        return {"error": str(error), "again": False}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}", "again": True}
    return {"done": True}


if __name__ == "__main__":
    try:
        serve()
    except KeyboardInterrupt:  # between two cells
        sys.exit(130)
