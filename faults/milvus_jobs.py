"""Builds and changes of an index in Milvus, in a local store and on a server, which `make chaos` disturbs.

What prepares an index and what reads it runs in processes of its own (FOLDER STORE STEP): an open store must not be
forked, and milvus-lite lets one process at a time open it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.jobs import Job, Place

SERVER = "METRIX_TEST_MILVUS"  # the variable with the address of one
ITEMS, MERGED, DELETED, DIM = 600, 300, 200, 16
ROWS = 20  # in a message


def send_little() -> None:
    """Let changes take many messages, so that there is much to be killed in."""
    from metrix.search import milvus_store

    milvus_store.BATCH_BYTES, milvus_store.AT_ONCE = 4 * DIM * ROWS, ROWS


def store_of(place: Place, server: bool) -> str:
    """The store as commands take it."""
    return f"milvus:{os.environ[SERVER] if server else place.folder / 'store.db'}"


def take_step(place: Place, step: str, server: bool) -> str:
    """Take a step in a process of its own; what it prints."""
    command = [sys.executable, "-m", "faults.milvus_jobs", str(place.folder), store_of(place, server), step]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise RuntimeError(found.stderr[-2000:])
    return found.stdout


def prepare(*steps: str, server: bool) -> Callable[[Place], None]:
    def take_steps(place: Place) -> None:
        for step in steps:
            take_step(place, step, server)

    return take_steps


def read(server: bool) -> Callable[[Place], dict[str, Any]]:
    def contents(place: Place) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(take_step(place, "read", server).splitlines()[-1])
        return found

    return contents


def build_command(server: bool) -> Callable[[Place], list[str]]:
    return lambda place: [
        *("index", str(place.base / "run"), str(place.base / "photos")),
        *("-o", str(place.output), "--store", store_of(place, server), "--json"),
    ]


def change_command(
    server: bool, count: int | None, change: Callable[[Place], list[str]]
) -> Callable[[Place], list[str]]:
    """A change, or a look at the index once it has so many items: what is there cannot be added again."""

    def command(place: Place) -> list[str]:
        described = json.loads((place.output / "description.json").read_bytes())
        done = described["count"] == count
        flags = ["--info"] if done else change(place)
        return ["index", "-o", str(place.output), *flags, "--store", store_of(place, server), "--json"]

    return command


CHANGES: dict[str, tuple[int | None, Callable[[Place], list[str]]]] = {
    "merge": (ITEMS + MERGED, lambda place: ["--merge", str(place.folder / "other")]),
    "delete": (ITEMS - DELETED, lambda place: [text for n in range(DELETED) for text in ("--delete", f"p{3 * n}")]),
    "set": (None, lambda place: ["--set", str(place.folder / "set.csv")]),
}


def jobs_of(name: str, server: bool) -> dict[str, Job]:
    """The jobs on one kind of store."""
    clear = ("clear",) if server else ()
    found = {f"{name} build": Job(prepare(*clear, server=server), build_command(server), read(server), only_kills=True)}
    for change, (count, flags) in CHANGES.items():
        command = change_command(server, count, flags)
        found[f"{name} {change}"] = Job(prepare(*clear, "build", server=server), command, read(server), only_kills=True)
    return found


LITE, ON_SERVER = jobs_of("lite", server=False), jobs_of("server", server=True)


def main(folder: Path, store: str, step: str) -> None:
    import numpy as np
    from pymilvus import MilvusClient

    from metrix.search import Index, Items

    def items(letter: str, count: int) -> Items:
        vectors = np.random.default_rng(ord(letter)).standard_normal((count, DIM))
        return Items.read(vectors, [f"{letter}{n}" for n in range(count)], {"n": [0] * count})

    address = store.removeprefix("milvus:")
    if step == "clear":
        client = MilvusClient(address)
        for name in client.list_collections():
            client.drop_collection(name)
    elif step == "build":
        Index.create(folder / "output", [items("p", ITEMS)], store=store).close()
        Index.create(folder / "other", [items("m", MERGED)]).close()
        lines = [f"p{n},{n}" for n in range(0, ITEMS, 2)]
        (folder / "set.csv").write_text("\n".join(["id,n", *lines]) + "\n")
    else:
        opened = Index.open(folder / "output", store)
        found = {
            str(record["id"]): [sorted(record.items()), float(vector[0])]
            for _, some in opened.store.scan()
            for record, vector in zip(some.records(), some.vectors, strict=True)
        }
        nearest = opened.search(np.eye(opened.dim), 20).ids.tolist()
        collections = len(MilvusClient(address).list_collections())  # one that is not in use is left behind
        print(json.dumps({**found, "count": len(opened), "nearest": nearest, "collections": collections}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4])
