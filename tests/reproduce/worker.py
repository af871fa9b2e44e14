"""A worker without training, to see what a grid does with it; what it does stands in the cell's settings.

A margin of 1 is done at once, 2 dies on the first try, 3 dies always, 4 fails for good, 5 waits for a signal.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path


def say(**content: object) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


for line in sys.stdin:
    place = Path(json.loads(line))
    noted = json.loads((place / "cell.json").read_text())
    with (place / "calls.txt").open("a") as file:
        file.write(f"{time.time()} {os.environ['OMP_NUM_THREADS']}\n")
    case = noted["config"]["loss"]["margin"]
    say(step=1, of=2)
    if case == 3 or (case == 2 and noted["tries"] == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if case == 4:
        say(error="the settings do not fit", again=False)
        continue
    if case == 5:
        signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
        time.sleep(60)
    time.sleep(0.2)
    (place / "run").mkdir(exist_ok=True)
    (place / "run" / "results.json").write_text(json.dumps({"seconds": 0.2, "steps": 2}))
    say(done=True)
