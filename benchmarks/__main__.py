"""Measure the figures on speed and memory in the README: `make bench`, or `make bench ARGS="core --json FILE"`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

GROUPS = (
    "core",
    "devices",
    "methods",
    "scale",
    "distributed",
    "loading",
    "training",
    "embedding",
    "evaluation",
    "search",
    "service",
)
LARGE = ("large", "duplicates")  # from minutes to hours, so only on request


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("groups", nargs="*", help=f"{', '.join(GROUPS)}; all of these by default; {', '.join(LARGE)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to a file")
    parser.add_argument("--skip-slow", action="store_true", help="omit benchmarks that take minutes")
    parser.add_argument("--count", type=int, metavar="N", help="vectors in the groups large and duplicates")
    options = parser.parse_args()
    groups = options.groups or list(GROUPS)
    console = Console(stderr=True)
    rows: list[dict[str, Any]] = []
    for name, part in parts(groups, options.skip_slow, options.count):
        with console.status(f"measuring {name}"):
            found = part()
        rows += found
        for row in found:
            console.print(f"{row['name']}: {row['value']:.3g} {row['unit']}  ({row['target'] or 'no target'})")
    show(rows)
    if options.json:
        machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        options.json.write_text(json.dumps({"machine": machine, "figures": rows}, indent=2) + "\n")
    return 0 if all(row["reached"] is not False for row in rows) else 1


def parts(groups: list[str], skip_slow: bool, count: int | None) -> Any:
    for group in groups:
        if group == "core":
            from benchmarks import core

            for part in core.PARTS:
                if not (skip_slow and part is core.whole_step):
                    yield f"core: {part.__name__.replace('_', ' ')}", part
        elif group == "devices":
            from benchmarks import devices

            for part in devices.PARTS:
                yield f"devices: {part.__name__.replace('_', ' ')}", part
        elif group == "methods":
            from benchmarks import methods

            for part in methods.PARTS:
                yield f"methods: {part.__name__.replace('_', ' ')}", part
        elif group == "scale":
            from benchmarks import scale

            for case in scale.CASES:
                yield f"scale: {case}", partial(scale.run, case, skip_slow)
        elif group == "distributed":
            from benchmarks import distributed

            yield "distributed", distributed.run
        elif group == "loading":
            from benchmarks import loading

            yield "loading", loading.run
        elif group == "training":
            from benchmarks import training

            yield "training", training.run
        elif group == "embedding":
            from benchmarks import embedding

            yield "embedding", embedding.run
        elif group == "evaluation":
            from benchmarks import evaluation

            yield "evaluation", lambda: evaluation.run(0.1 if skip_slow else 1.0)
        elif group == "search":
            from benchmarks import search

            for part in search.PARTS:
                yield f"search: {part.__name__.replace('_', ' ')}", part
        elif group == "service":
            from benchmarks import service

            for part in service.PARTS:
                yield f"service: {part.__name__.replace('_', ' ')}", part
        elif group == "large":
            from benchmarks import large

            for kind, data in large.CASES:
                yield f"large: {kind}, {data}", partial(large.run, kind, data, count)
        elif group == "duplicates":
            from benchmarks import large

            yield "duplicates", partial(large.duplicates, count)
        else:
            sys.exit(f"unknown group {group!r}; expected one of: {', '.join(GROUPS + LARGE)}")


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("what", "measured", "required", "reached", "note")
    for row in rows:
        verdict = {True: "yes", False: "NO", None: ""}[row["reached"]]
        value = f"{row['value']:.3g} {row['unit']}"
        table.add_row(row["name"], value, str(row["target"] or ""), verdict, row.get("note", ""))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
