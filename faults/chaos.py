"""Killed processes and failing writes: `make chaos`, or `make chaos ARGS="--points 20"`.

Each point disturbs one job: training with its various states, in one process or two, embed, evaluate, index (with faiss,
milvus-lite and a Milvus server, which is started for it: builds, merges, deletions, columns), report or reproduce. At a change of the file system, or at a random time, all its processes are killed (SIGKILL), or one of them,
or all are asked to end (SIGTERM); or a change or a single write fails, or writes less than it was given; or files may not
become longer than some bytes; or (as root) the disk is small. Then the command is repeated (a run is resumed), and what
it leaves must be what the undisturbed job leaves, bit for bit, with no temporary files. Anything else is a loss.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from faults import milvus_jobs
from faults.disturbing import Disturbance, Ended, load_shim, preload_shim, remove_shim, start
from faults.jobs import JOBS as OF_FILES
from faults.jobs import Job, Place, train_command
from faults.material import write_photos
from metrix.files import is_temporary
from tests.search.milvus_server import NoServer, run_server

JOBS = {**OF_FILES, **milvus_jobs.LITE, **milvus_jobs.ON_SERVER}
ROOM = 64 * 2**20  # bytes of a small disk after it was enlarged


class Whole(NamedTuple):
    """An undisturbed job: how it ended, what it left, and how large its files are."""

    ended: Ended
    contents: dict[str, Any]
    longest: int
    bytes: int


def leftovers(place: Place) -> list[str]:
    """Files and folders that only exist while something is written."""
    found = [path for path in place.folder.rglob("*") if not {"glyphs", "store.db"} & set(path.parts)]  # not ours
    return sorted(str(path.relative_to(place.folder)) for path in found if _is_unfinished(path))


def _is_unfinished(path: Path) -> bool:
    hidden = path.name.startswith(".") and not path.name.endswith("lock")
    return is_temporary(path) or path.suffix == ".building" or (hidden and path.is_dir())


@contextlib.contextmanager
def new_place(folder: Path, base: Path, job: Job, size: int = 0) -> Iterator[Place]:
    """A folder for a job, removed at the end; with a size, a disk of its own with so many bytes of room."""
    place = Place(folder, base)
    place.folder.mkdir(parents=True)
    try:
        if size:
            mount("-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(folder))
        shutil.copytree(base / "cache" / "glyphs", folder / "cache" / "glyphs")
        job.prepare(place)
        if size:
            used = sum(file.stat().st_blocks * 512 for file in folder.rglob("*"))
            mount("-o", f"remount,size={used + size}", str(folder))
        yield place
    finally:
        if size:
            subprocess.run(["umount", "--lazy", str(folder)], capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def mount(*arguments: str) -> None:
    """Call mount; raises if it fails."""
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def can_mount() -> bool:
    """Whether this process may mount a small disk."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        try:
            mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", folder)
        except subprocess.CalledProcessError:
            return False
        subprocess.run(["umount", folder], check=True)
    return True


def try_point(place: Place, job: Job, disturbances: list[Disturbance], expected: dict[str, Any]) -> tuple[bool, str]:
    """Disturb a job, repeat it, and compare; whether it was disturbed, and what was lost ('' if nothing)."""
    hit = False
    for one in disturbances:
        ended = start(place.folder, job.command(place), job.processes, one)
        hit = hit or ended.failed or one.fails
        unexpected = [code for code in ended.codes if code not in allowed_codes(one, job.processes)]
        if unexpected or (one.kind != "kill" and "Traceback" in ended.errors):
            return True, f"it ended with {ended.codes}:\n{ended.errors[-1500:]}"
        if one.kind == "full":
            mount("-o", f"remount,size={ROOM}", str(place.folder))
    ended = start(place.folder, job.command(place), job.processes, Disturbance())
    if ended.failed:
        return hit, f"repeating it ended with {ended.codes}: {ended.errors[-1500:]}"
    try:
        found = job.contents(place)
    except Exception as error:
        return hit, f"its output cannot be read: {error!r}"
    differing = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
    if differing:
        return hit, f"differs: {', '.join(differing[:5])}"
    left = leftovers(place)
    return hit, f"left behind: {', '.join(left[:5])}" if left else ""


def allowed_codes(one: Disturbance, processes: int) -> tuple[int, ...]:
    """The exit codes that a disturbed command may have."""
    if one.kind in ("kill", "kill one"):  # 3: another process was lost; 1: a worker failed
        return (0, -9, 1, 3, *((-15, 143) if processes > 1 else ()))
    if one.kind == "term":
        return (0, -15, 143, *((3,) if processes > 1 else ()))
    if one.kind == "write" and not one.error:  # writing less than was asked for is no failure
        return (0,)
    return (0, 1, 2, *((3,) if processes > 1 else ()))


def choose(rng: random.Random, job: Job, whole: Whole, small_disks: bool) -> list[Disturbance]:
    """One disturbance, or two."""
    shim = whole.ended.writes > 0
    kinds = ["kill"] * 9 + ["kill one"] * (4 if job.processes > 1 else 1) + ["term"] * 3 + ["fail"] * 3
    kinds += ["limit"] * 2 + ["write"] * (4 if shim else 0)
    if job.only_kills:
        kinds = ["kill"]

    def one() -> Disturbance:
        kind = rng.choice(kinds)
        if kind == "limit":
            return Disturbance(kind, rng.randrange(1, whole.longest))
        if kind == "write":
            error = rng.choice((0, errno.EIO, errno.EIO, errno.ENOSPC))
            return Disturbance(kind, rng.randrange(1, whole.ended.writes + 1), error=error)
        if kind != "fail" and rng.random() < (0.7 if job.only_kills else 0.3):
            return Disturbance(kind, after=rng.uniform(0.01, max(0.02, whole.ended.seconds)))
        error = rng.choice((errno.ENOSPC, errno.EIO)) if kind == "fail" else 0
        return Disturbance(kind, rng.randrange(1, max(2, whole.ended.changes + 1)), error=error)

    if small_disks and not job.only_kills and rng.random() < 0.08:
        return [Disturbance("full", rng.randrange(1, max(2, whole.bytes)), error=errno.ENOSPC)]
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
            with contextlib.suppress(ImportError):  # of an extra
                importlib.import_module(module.name)
    milvus_jobs.send_little()
    for name in ("faiss", "pyarrow.parquet", "torch.utils.tensorboard", "lightning_fabric", "timm", "torchvision"):
        importlib.import_module(name)


def warm_up(base: Path, folder: Path) -> None:
    """Run some commands in this process: what they load and compute once, forked processes need not."""
    from metrix.cli import app

    arguments, before = sys.argv, os.environ.get("METRIX_CACHE")
    os.environ["METRIX_CACHE"] = str(base / "cache")
    for name in ("cache", "ema", "embed", "index", "report"):
        place = Place(folder / f"warm-{name}", base)
        place.folder.mkdir()
        JOBS[name].prepare(place)
        sys.argv = ["metrix", *JOBS[name].command(place)]
        silent = io.StringIO()
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
            app.main()
        shutil.rmtree(place.folder)
    sys.argv = arguments
    os.environ.pop("METRIX_CACHE")
    if before is not None:
        os.environ["METRIX_CACHE"] = before


def measure_whole(folder: Path, base: Path, name: str) -> Whole:
    """Run a job undisturbed."""
    job = JOBS[name]
    with new_place(folder, base, job) as place:
        before = {file for file in folder.rglob("*") if file.is_file()}
        ended = start(folder, job.command(place), job.processes, Disturbance())
        if ended.failed:
            sys.exit(f"{name}, undisturbed, ended with {ended.codes}: {ended.errors}")
        sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file() and file not in before]
        return Whole(ended, job.contents(place), max(sizes, default=0), sum(sizes))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m faults chaos", description=__doc__)
    parser.add_argument("--points", type=int, default=1000, help="how many (1,000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one (0)")
    parser.add_argument("--seed", type=int, help="of the choice of points; random by default")
    parser.add_argument("--jobs", default=",".join(JOBS), help=f"some of {', '.join(JOBS)}")
    parser.add_argument("--skip", default="", help="numbers of points to leave out, such as known losses: 8,12")
    parser.add_argument("--minutes", type=float, help="stop after this time, even before all points are tried")
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    names = options.jobs.split(",")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves through the blocks that remove what is temporary
    if load_shim() is None:
        preload_shim(list(arguments))  # does not come back if it can be compiled
        print("no C compiler: single writes that fail are not tried", flush=True)
    with remove_shim():
        return try_somewhere(options, names, seed)


def try_somewhere(options: argparse.Namespace, names: list[str], seed: int) -> int:
    """Try points in a folder that is removed at the end."""
    memory = Path("/dev/shm")  # nothing here is about surviving a loss of power: fsync need not take time
    parent = memory if memory.is_dir() and shutil.disk_usage(memory).free > 2**30 else None
    with tempfile.TemporaryDirectory(prefix="chaos", dir=parent, ignore_cleanup_errors=True) as text:
        skipped = {int(number) for number in options.skip.split(",") if number}
        points = [p for p in range(options.first, options.first + options.points) if p not in skipped]
        with serve_milvus(names) as possible:
            return try_points(Path(text), possible, points, seed, options.minutes)


@contextlib.contextmanager
def serve_milvus(names: list[str]) -> Iterator[list[str]]:
    """Start a Milvus server if jobs need one; the jobs that are possible."""
    if not set(names) & set(milvus_jobs.ON_SERVER):
        yield names
        return
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos", ignore_cleanup_errors=True))
        try:
            os.environ[milvus_jobs.SERVER] = stack.enter_context(run_server(Path(folder)))
        except NoServer as error:
            print(error, flush=True)
            names = [name for name in names if name not in milvus_jobs.ON_SERVER]
        yield names


def try_points(folder: Path, names: list[str], points: list[int], seed: int, minutes: float | None) -> int:
    """Try points and print what was lost; returns the exit code."""
    began, base, small_disks = time.monotonic(), folder / "base", can_mount()
    base.mkdir()
    write_photos(base / "photos", classes=8)
    load_modules()
    prepared = Place(base, base)
    made = start(base, train_command("plain")(prepared), 1, Disturbance())  # also draws glyphs
    if made.failed:
        sys.exit(f"the run to start from failed: {made.errors}")
    prepared.output.rename(base / "run")
    warm_up(base, folder)
    wholes: dict[str, Whole] = {}
    tried, kinds, lost, missed = Counter[str](), Counter[str](), list[str](), 0
    print(
        f"{len(points):,} points from number {points[0]}, seed {seed}" + ("" if small_disks else "; no small disks"),
        flush=True,
    )
    for point in points:
        if minutes is not None and time.monotonic() - began > 60 * minutes:
            print(f"stopped after {minutes:g} minutes", flush=True)
            break
        name, rng = names[point % len(names)], random.Random(f"{seed} {point}")
        if name not in wholes:
            wholes[name] = measure_whole(folder / f"whole-{name.replace(' ', '-')}", base, name)
        job, whole = JOBS[name], wholes[name]
        disturbances = choose(rng, job, whole, small_disks)
        size = disturbances[0].at if disturbances[0].kind == "full" else 0
        with new_place(folder / f"point-{point}", base, job, size) as place:
            hit, loss = try_point(place, job, disturbances, whole.contents)
        tried[name] += 1
        kinds.update(one.kind for one in disturbances)
        missed += not hit
        if loss:
            lost.append(f"{name}, point {point}: {' then '.join(map(str, disturbances))}: {loss}")
            print(lost[-1], flush=True)
    for name, times in tried.items():
        ended = wholes[name].ended
        size = f"{ended.changes} changes, {ended.writes} writes, {ended.seconds:.1f} s undisturbed"
        print(f"{name:14} {times:5,} points  ({size})")
    print(", ".join(f"{kind}: {times:,}" for kind, times in kinds.most_common()))
    print(
        f"{sum(tried.values()):,} points tried ({missed} ended before the disturbance), {len(lost)} losses, "
        f"{time.monotonic() - began:.0f} s ({time.process_time() + sum(os.times()[2:4]):.0f} s of a core)"
    )
    return int(bool(lost))
