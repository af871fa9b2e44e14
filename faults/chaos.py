"""Killed processes and failing writes: `make chaos`, or `make chaos ARGS="--points 20"`.

Each point disturbs one job: training with its various states, embed, evaluate or index. The process (with its workers)
is killed with SIGKILL just before its k-th change of the file system, or at a random time; or that change fails once
because the disk is full or broken. Then the command is repeated (a run is resumed), and what it leaves must be what the
undisturbed job leaves, bit for bit, with no temporary files. Anything else is a loss.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from faults.material import SETTINGS, write_photos

SECONDS = 120.0  # in which a command has to end
CHANGES = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")
TRAINING: dict[str, dict[str, Any]] = {
    "plain": {},
    "ema": {"ema": 0.9, "schedule": "cosine", "mixup": ["embed", "feature"]},
    "proxies": {"loss": "proxy-anchor", "clip": 1.0, "warmup_epochs": 1},
    "memory": {"memory": 24, "memory_after": 1},
    "micro-batches": {"micro_batch": 4},
    "workers": {"data": "photos", "workers": 2, "train_classes": None, "batch_size": 6},
    "cache": {"data": "photos", "cache": "disk", "train_classes": None, "batch_size": 6},
}


@dataclass(frozen=True)
class Place:
    """The folder of one disturbed or undisturbed job; `base` has what all share: photos, a run, drawn glyphs."""

    folder: Path
    base: Path

    @property
    def output(self) -> Path:
        return self.folder / "output"


class Job(NamedTuple):
    """A command, what it leaves, and how it is repeated."""

    prepare: Callable[[Place], None]
    command: Callable[[Place], list[str]]
    contents: Callable[[Place], dict[str, Any]]


class Ended(NamedTuple):
    """How a command ended."""

    code: int  # negative: the signal
    errors: str
    changes: int  # of the file system
    seconds: float


class Disturbance(NamedTuple):
    """What happens to a process: nothing; `kill` or `fail` at the change `at`; `kill` after `after` seconds."""

    kind: str = "none"
    at: int = 0
    after: float = 0.0
    error: int = errno.ENOSPC

    def __str__(self) -> str:
        what = f"fails with {errno.errorcode[self.error]}" if self.kind == "fail" else "killed"
        return f"{what} at change {self.at}" if self.at else f"{what} after {self.after:.3f} s"


def train_command(kind: str) -> Callable[[Place], list[str]]:
    def command(place: Place) -> list[str]:
        if (place.output / "config.yaml").exists():
            return ["train", "--resume", str(place.output), "--quiet"]
        values = SETTINGS | TRAINING[kind]
        data = str(place.base / "photos") if values["data"] == "photos" else values["data"]
        flags = [
            part
            for key, value in values.items()
            if key != "data" and value is not None
            for part in ("--" + key.replace("_", "-"), ",".join(value) if isinstance(value, list) else str(value))
        ]
        return ["train", data, *flags, "--output", str(place.output), "--quiet"]

    return command


def read_run(place: Place) -> dict[str, Any]:
    from safetensors.numpy import load_file

    found: dict[str, Any] = {}
    for name in ("model/model.safetensors", "checkpoints/last.safetensors", "checkpoints/best.safetensors"):
        if (place.output / name).exists():
            tensors = load_file(place.output / name)
            found |= {f"{name}: {key}": (value.shape, value.tobytes()) for key, value in tensors.items()}
    found["metrics.jsonl"] = (place.output / "metrics.jsonl").read_text()
    results = json.loads((place.output / "results.json").read_text())
    found["results.json"] = {key: value for key, value in results.items() if key != "seconds"}
    return found


def read_files(*patterns: str) -> Callable[[Place], dict[str, Any]]:
    def read(place: Place) -> dict[str, Any]:
        files = sorted(file for pattern in patterns for file in place.folder.glob(pattern))
        own = str(place.folder).encode()  # some files name the run that they belong to
        return {str(file.relative_to(place.folder)): file.read_bytes().replace(own, b"") for file in files}

    return read


def read_index(place: Place) -> dict[str, Any]:
    """The current generation; a second build that follows a complete one has another number."""
    from metrix.search import Index

    opened = Index.open(place.output)
    generation = dict(opened.manifest.place)
    opened.close()
    return {key: (place.output / str(generation[key])).read_bytes() for key in ("vectors", "items")}


def copy_run(place: Place) -> None:
    shutil.copytree(place.base / "run", place.output)


def nothing(place: Place) -> None:
    pass


JOBS: dict[str, Job] = {
    **{kind: Job(nothing, train_command(kind), read_run) for kind in TRAINING},
    "embed": Job(
        nothing,
        lambda p: ["embed", str(p.base / "run"), "-o", str(p.output) + ".parquet", "--engine", "torch", "--quiet"],
        read_files("*.parquet"),
    ),
    "evaluate": Job(
        copy_run,
        lambda p: ["evaluate", str(p.output), "--bootstrap", "20", "--json"],
        read_files("output/embeddings/*.safetensors", "output/evaluation.json"),
    ),
    "index": Job(
        nothing,
        lambda p: ["index", str(p.base / "run"), str(p.base / "photos"), "-o", str(p.output)],
        read_index,
    ),
}


def start(place: Place, command: list[str], disturbance: Disturbance) -> Ended:
    """Run a command in a forked process (all modules are loaded already) and disturb it."""
    log, counted = place.folder / "stderr", place.folder / "changes"
    counted.write_text("0")
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        with contextlib.suppress(BaseException):
            _run_command(place, command, disturbance, log, counted)
        os._exit(70)  # not reached
    deadline = began + (disturbance.after or SECONDS)
    status = 0
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            break
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # workers that outlive it
    code = os.waitstatus_to_exitcode(status)
    return Ended(code, log.read_text(errors="replace"), int(counted.read_text() or 0), time.monotonic() - began)


def _run_command(place: Place, command: list[str], disturbance: Disturbance, log: Path, counted: Path) -> None:
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    os.environ["METRIX_CACHE"] = str(place.folder / "cache")
    own, root, bookkeeping, changes = os.getpid(), f"{place.folder}/", (str(log), str(counted)), 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal changes
        if event not in CHANGES or os.getpid() != own or not isinstance(arguments[0], str | os.PathLike):
            return
        if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        path = os.fspath(arguments[0])
        if not isinstance(path, str) or not path.startswith(root) or path in bookkeeping:
            return
        failing = disturbance.kind == "fail"
        if failing and event in ("os.remove", "os.rmdir"):  # neither needs room
            return
        changes += 1
        if changes == disturbance.at:
            if failing:
                raise OSError(disturbance.error, os.strerror(disturbance.error), path)
            os.killpg(0, signal.SIGKILL)

    sys.addaudithook(watch)
    code = 1
    try:
        from metrix.cli import app

        sys.argv = ["metrix", *command]
        app.main()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    counted.write_text(str(changes))
    os._exit(code)


def leftovers(place: Place) -> list[str]:
    """Files and folders that only exist while something is written."""
    found = [path for root in (place.output, place.folder / "cache") for path in root.rglob("*")]
    found += list(place.folder.glob(".*"))
    names = [str(path.relative_to(place.folder)) for path in found if _is_unfinished(path)]
    return sorted(names)


def _is_unfinished(path: Path) -> bool:
    from metrix.files import is_temporary

    hidden = path.name.startswith(".") and not path.name.endswith("lock")
    return is_temporary(path) or path.suffix == ".building" or (hidden and path.is_dir())


def new_place(folder: Path, base: Path, job: Job) -> Place:
    place = Place(folder, base)
    place.folder.mkdir(parents=True)
    shutil.copytree(base / "cache" / "glyphs", folder / "cache" / "glyphs")
    job.prepare(place)
    return place


def try_point(place: Place, job: Job, disturbances: list[Disturbance], expected: dict[str, Any]) -> tuple[bool, str]:
    """Disturb a job, repeat it, and compare; whether it was disturbed, and what was lost ('' if nothing)."""
    hit = False
    for disturbance in disturbances:
        ended = start(place, job.command(place), disturbance)
        hit = hit or ended.code != 0
        if disturbance.kind == "fail" and (ended.code not in (0, 1, 2) or "Traceback" in ended.errors):
            return True, f"the failed write ended with {ended.code}:\n{ended.errors[-1500:]}"
    ended = start(place, job.command(place), Disturbance())
    if ended.code != 0:
        return hit, f"repeating it ended with {ended.code}: {ended.errors[-1500:]}"
    try:
        found = job.contents(place)
    except Exception as error:
        return hit, f"its output cannot be read: {error!r}"
    differing = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
    if differing:
        return hit, f"differs: {', '.join(differing[:5])}"
    left = leftovers(place)
    return hit, f"left behind: {', '.join(left[:5])}" if left else ""


def choose(rng: random.Random, whole: Ended) -> list[Disturbance]:
    """One disturbance, or two."""

    def one() -> Disturbance:
        kind = rng.random()
        if kind < 0.2:
            return Disturbance("kill", after=rng.uniform(0.01, max(0.02, whole.seconds)))
        at = rng.randrange(1, max(2, whole.changes + 1))
        if kind < 0.75:
            return Disturbance("kill", at)
        return Disturbance("fail", at, error=rng.choice((errno.ENOSPC, errno.EIO)))

    return [one() for _ in range(rng.choice((1, 1, 1, 2)))]


def load_modules() -> None:
    """Import all that the commands need, so that forked processes start at once."""
    import importlib
    import pkgutil

    import torch

    import metrix

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(metrix.__path__, "metrix."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("faiss", "pyarrow.parquet", "torch.utils.tensorboard", "lightning_fabric", "timm", "torchvision"):
        importlib.import_module(name)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m faults chaos", description=__doc__)
    parser.add_argument("--points", type=int, default=1000, help="how many (1,000)")
    parser.add_argument("--seed", type=int, help="of the choice of points; random by default")
    parser.add_argument("--jobs", default=",".join(JOBS), help=f"some of {', '.join(JOBS)}")
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    names = options.jobs.split(",")
    load_modules()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos", ignore_cleanup_errors=True) as folder:
        base = Path(folder) / "base"
        base.mkdir()
        write_photos(base / "photos", classes=8)
        prepared = Place(base, base)
        made = start(prepared, train_command("plain")(prepared), Disturbance())  # also draws the glyphs
        if made.code:
            sys.exit(f"the run to start from failed: {made.errors}")
        prepared.output.rename(base / "run")
        expected: dict[str, tuple[Ended, dict[str, Any]]] = {}
        tried, lost = Counter[str](), list[str]()
        missed = 0
        print(f"{options.points:,} points, seed {seed}", flush=True)
        for point in range(options.points):
            name = names[point % len(names)]
            job, rng = JOBS[name], random.Random(f"{seed} {point}")
            if name not in expected:
                place = new_place(Path(folder) / f"whole-{name}", base, job)
                whole = start(place, job.command(place), Disturbance())
                if whole.code:
                    sys.exit(f"{name}, undisturbed, ended with {whole.code}: {whole.errors}")
                expected[name] = whole, job.contents(place)
            whole, contents = expected[name]
            place = new_place(Path(folder) / f"point-{point}", base, job)
            disturbances = choose(rng, whole)
            hit, loss = try_point(place, job, disturbances, contents)
            tried[name] += 1
            missed += not hit
            if loss:
                lost.append(f"{name}, point {point}: {' then '.join(map(str, disturbances))}: {loss}")
                print(lost[-1], flush=True)
            shutil.rmtree(place.folder, ignore_errors=True)
    for name, times in tried.items():
        whole = expected[name][0]
        print(f"{name:14} {times:5,} points  ({whole.changes} changes, {whole.seconds:.1f} s undisturbed)")
    print(
        f"{sum(tried.values()):,} points tried ({missed} ended before or in spite of the disturbance), "
        f"{len(lost)} losses, {time.monotonic() - began:.0f} s"
    )
    return int(bool(lost))
