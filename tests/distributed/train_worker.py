"""One process of a training run, started by torchrun: python train_worker.py RUN VALUES [resume] [fsdp] [broken].

Plain gradient descent takes the place of AdamW, whose first steps are the signs of gradients: what rounding makes of
a gradient near zero would be all that weights differ in.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch


class Descent(torch.optim.SGD):
    """What stands in for AdamW."""

    def __init__(self, groups, weight_decay):
        super().__init__(groups, lr=0.1, momentum=0.5, weight_decay=weight_decay)


def break_third_step_on_rank_1() -> None:
    """Let the loss of one process, after all exchanges, be infinite in the third step."""
    import os
    from dataclasses import replace

    from metrix import Metrix

    step, steps = Metrix.step, [0]

    def broken(self, *arguments):
        out = step(self, *arguments)
        steps[0] += 1
        return replace(out, loss=out.loss * torch.inf) if steps[0] == 3 and os.environ["RANK"] == "1" else out

    Metrix.step = broken


def main(run: str, values: str, *flags: str) -> None:
    from metrix.train import Config, build, train
    from metrix.train.distributed import Launch

    build.torch.optim.AdamW = Descent
    if "broken" in flags:
        break_third_step_on_rank_1()
    launch = Launch(strategy="fsdp" if "fsdp" in flags else "auto")
    if "resume" in flags:
        train(resume=Path(run), launch=launch)
    else:
        train(Config().with_values(json.loads(values)), Path(run), launch=launch)


if __name__ == "__main__":
    from metrix.errors import MetrixError

    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # of torch's and Fabric's own doing
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        main(*sys.argv[1:])
    except MetrixError as error:
        print(f"metrix: {error}", file=sys.stderr)
        sys.exit(int(getattr(error, "exit_code", 2)))
