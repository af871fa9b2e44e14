"""Run a machine: `make fuzz`, `make chaos`, `make soak`, each with ARGS="--help"."""

from __future__ import annotations

import importlib
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")  # everything here is small

MACHINES = ("fuzz", "chaos", "soak")


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in MACHINES:
        sys.exit(f"usage: python -m faults {'|'.join(MACHINES)} [--help]")
    machine = importlib.import_module(f"faults.{sys.argv[1]}")
    return int(machine.main(sys.argv[2:]))


if __name__ == "__main__":
    sys.exit(main())
