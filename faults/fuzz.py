"""Mutated files and odd loss inputs: `make fuzz`, or `make fuzz ARGS="--inputs 500"`.

Each input is a number: it decides on the kind of input and on every mutation, so a finding is repeated by its number.
Allowed are a right answer, a broken image that is skipped and counted, and a `MetrixError`. Anything else is a finding:
another exception, a wrong answer, more than 10 seconds, more than 2 GB.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import random
import secrets
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from faults.material import FORMATS, Material, build, draw_photo, encode
from faults.mutation import ODD_TEXT, mutate_bytes, mutate_document, mutate_file, mutate_text

SECONDS = 10.0  # for one input
MEMORY = 2 << 30  # bytes above those of a worker that has all modules loaded
RIGHT, COUNTED, REFUSED = "right", "counted", "refused"


class Outcome(NamedTuple):
    """What became of an input: `right`, `counted`, `refused`, or a finding with its place and traceback."""

    number: int
    kind: str
    verdict: str
    place: str = ""
    details: str = ""

    @property
    def finding(self) -> bool:
        return self.verdict not in (RIGHT, COUNTED, REFUSED)


class Wrong(Exception):  # noqa: N818 - what it says
    """An answer that is not right, given without an error."""


def require(condition: object, words: str) -> None:
    if not condition:
        raise Wrong(words)


def image(rng: random.Random, made: Material, place: Path) -> str:
    """One image file."""
    from metrix.data import load_image

    picture = draw_photo(rng.randrange(4)).convert(rng.choice(("RGB", "L", "1")))
    file = place / "a.png"  # the content decides on the format
    file.write_bytes(mutate_bytes(rng, encode(picture, rng.choice(FORMATS))))
    require(load_image(file).mode == "RGB", "an image that is not RGB")
    return RIGHT


def folder(rng: random.Random, made: Material, place: Path) -> str:
    """A folder of class folders, one image of it damaged or with an odd name."""
    from metrix import data

    photos = Path(shutil.copytree(made.photos, place / "photos"))
    file = rng.choice(sorted(photos.rglob("*.jpg")))
    file.write_bytes(mutate_bytes(rng, file.read_bytes()))
    if rng.random() < 0.3:
        name = "".join(c for c in rng.choice(ODD_TEXT) if c not in "/\0")[:60]
        file.rename(file.with_name(f"{name}.jpg"))
    report = data.check(photos, max_bad=rng.choice((0, 1, 0.5)), workers=1)
    require(len(report.broken) <= 1, "images are called broken that are not")
    return COUNTED if report.broken else RIGHT


def manifest(rng: random.Random, made: Material, place: Path) -> str:
    """A CSV or Parquet table of images."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from metrix import data

    files = sorted(made.photos.rglob("*.jpg"))
    rows = [(f.parent.name, f.relative_to(made.photos).as_posix(), n % 2) for n, f in enumerate(files)]
    if rng.random() < 0.6:
        split = rng.random() < 0.5
        lines = ["label,path,split" if split else "label,path,x_1,y_1,x_2,y_2"]
        lines += [f"{c},{p},{('train', 'test')[int(c[-1]) % 2]}" if split else f"{c},{p},1,1,20,20" for c, p, _ in rows]
        table = place / "list.csv"
        table.write_bytes(mutate_text(rng, "\n".join(lines) + "\n", ",").encode("utf-8", "surrogatepass"))
    else:
        table = place / "list.parquet"
        pq.write_table(pa.table({"label": [r[0] for r in rows], "path": [r[1] for r in rows]}), table)
        table.write_bytes(mutate_bytes(rng, table.read_bytes()))
    report = data.check(table, root=made.photos, workers=1)
    return REFUSED if report.problems else COUNTED if report.broken else RIGHT


def embeddings(rng: random.Random, made: Material, place: Path) -> str:
    """Embeddings or labels in a file of another program."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from metrix.data.vector_files import read_embeddings, read_labels

    values, kind = np.random.default_rng(0).random((6, 4)), rng.choice(("npy", "csv", "parquet"))
    file = place / f"a.{kind}"
    if kind == "npy":
        np.save(file, values)
    elif kind == "csv":
        file.write_text("id,label,a,b\n" + "".join(f"{n},{n % 2},{a},{b}\n" for n, (a, b, _, _) in enumerate(values)))
    else:
        pq.write_table(pa.table({"label": ["x", "y"] * 3, "vector": values.tolist()}), file)
    file.write_bytes(mutate_file(rng, file.name, file.read_bytes()))
    if kind != "npy" and rng.random() < 0.5:
        require(len(read_labels(file, 6, file)) == 6, "another number of labels")
    else:
        require(read_embeddings(file).ndim == 2, "embeddings that are no table")
    return RIGHT


def config(rng: random.Random, made: Material, place: Path) -> str:
    """A configuration file."""
    import yaml

    from metrix.train.config import read_config

    file = place / "config.yaml"
    text = (made.run / "config.yaml").read_text()
    structured = rng.random() < 0.6
    text = yaml.safe_dump(mutate_document(rng, yaml.safe_load(text))) if structured else mutate_text(rng, text)
    content = text.encode("utf-8", "surrogatepass")
    file.write_bytes(mutate_bytes(rng, content) if rng.random() < 0.1 else content)
    read_config(file).to_yaml()
    return RIGHT


def run(rng: random.Random, made: Material, place: Path) -> str:
    """A finished run with a damaged file: opened, its model loaded and used, its measures read."""
    import torch

    from metrix.runs.trained_model import open_run

    copy = Path(shutil.copytree(made.run, place / "run"))
    names = ("config.yaml", "environment.json", "results.json", "metrics.jsonl")
    files = [copy / name for name in names] + sorted(f for f in (copy / "model").iterdir() if f.is_file())
    file = rng.choice(files)
    file.write_bytes(mutate_file(rng, file.name, file.read_bytes()))
    opened = open_run(copy)
    opened.config.to_yaml()
    opened.run.metrics()
    _ = opened.run.results
    with torch.inference_mode():
        opened.embedder(torch.zeros(1, opened.embedder.data_config.channels, 28, 28))
    return RIGHT


def checkpoint(rng: random.Random, made: Material, place: Path) -> str:
    """A run to resume whose checkpoint, configuration or environment is damaged."""
    from metrix.train import train

    copy = Path(shutil.copytree(made.run, place / "run"))
    (copy / "results.json").unlink()
    file = copy / rng.choice(("checkpoints/last.safetensors",) * 4 + ("environment.json", "metrics.jsonl"))
    file.write_bytes(mutate_file(rng, file.name, file.read_bytes()))
    require(train(resume=copy).results is not None, "a run without results")
    return RIGHT


def cache(rng: random.Random, made: Material, place: Path) -> str:
    """A damaged cache of decoded images or of drawn glyphs; the pixels must be those without a cache."""
    from metrix import data

    def pixels(kind: str) -> list[Any]:
        part = data.open(made.photos, cache=kind, short_side=16, workers=1).train
        return [np.array(part[n][0]) for n in range(len(part))]

    before = os.environ.get("METRIX_CACHE")
    os.environ["METRIX_CACHE"] = str(place / "cache")
    try:
        expected = pixels("disk")
        file = rng.choice(sorted(f for f in (place / "cache").rglob("*") if f.suffix in (".json", ".raw")))
        content = file.read_bytes()
        if file.suffix == ".raw":  # changed bits in it are not noticed, another length is
            content = content[: rng.randrange(len(content))] if rng.random() < 0.5 else content + b"x"
        else:
            content = mutate_file(rng, file.name, content)
        file.write_bytes(content)
        found = pixels("disk")
    finally:
        os.environ.pop("METRIX_CACHE")
        if before is not None:
            os.environ["METRIX_CACHE"] = before
    require(all(map(np.array_equal, found, expected)) and len(found) == len(expected), "other pixels from the cache")
    return RIGHT


def index(rng: random.Random, made: Material, place: Path) -> str:
    """An index with a damaged file."""
    from metrix.search import Index

    copy = Path(shutil.copytree(made.index, place / "an.index"))
    file = rng.choice(sorted(f for f in copy.iterdir() if f.is_file() and f.stat().st_size))
    file.write_bytes(mutate_file(rng, file.name, file.read_bytes()))
    opened = Index.open(copy)
    try:
        found = opened.search(np.eye(opened.dim, dtype=np.float32)[:2], 3)
        require(np.asarray(found.similarities).shape[0] == 2, "another number of answers")
        repr(opened)
    finally:
        opened.close()
    return RIGHT


def loss(rng: random.Random, made: Material, place: Path) -> str:
    """Odd embeddings and labels for a loss, clean or mixed."""
    import torch

    from metrix import Metrix, losses

    names = [n for n in losses.__all__ if isinstance(getattr(losses, n), type) and n != "GenericLoss"]
    name = rng.choice(sorted(names))
    torch.manual_seed(rng.randrange(2**31))
    n, d = rng.choice(((6, 4), (2, 4), (1, 4), (6, 1), (12, 3)))
    made_loss = _make_loss(losses, name, d)
    x: Any = torch.randn(n, d) * rng.choice((1.0, 1e-6, 1e6, 1e18, 1e-30))
    y: Any = torch.randint(0, 3, (n,))
    odd_x = (
        *(
            lambda: x,
            lambda: x,
            lambda: x,
            lambda: x.double(),
            lambda: x.half(),
            lambda: x.bfloat16(),
            lambda: x.numpy(),
        ),
        *(lambda: x.tolist(), lambda: x.to_sparse(), lambda: x.t(), lambda: x[:, :0], lambda: x[None], lambda: None),
        *(lambda: x * float("nan"), lambda: x * float("inf"), lambda: x * 0, lambda: x.to("meta"), lambda: x.long()),
        *(lambda: x.to(torch.float8_e4m3fn), lambda: x.to(torch.complex64), lambda: x.expand(2, n, d), lambda: "x"),
    )
    odd_y = (
        *(lambda: y, lambda: y, lambda: y, lambda: y, lambda: y.int(), lambda: y.to(torch.uint8), lambda: y.bool()),
        *(
            lambda: y.to(torch.uint16),
            lambda: y.to(torch.uint64),
            lambda: y.float(),
            lambda: y.tolist(),
            lambda: y[:-1],
        ),
        *(lambda: y.numpy(), lambda: y - 1, lambda: y + 2**62, lambda: y * 0, lambda: torch.arange(n), lambda: None),
        *(lambda: y[:, None], lambda: y.to_sparse(), lambda: y.to("meta"), lambda: ["a"] * n),
    )
    odd = rng.randrange(4)  # embeddings, labels, both or none
    given = rng.choice(odd_x)() if odd in (0, 2) else x
    labels = rng.choice(odd_y)() if odd in (1, 2) else y
    if isinstance(given, torch.Tensor) and given.is_floating_point() and rng.random() < 0.7:
        given = given.detach().requires_grad_()
    if rng.random() < 0.5 and name in losses.table1.__all__:
        pairs = rng.choice(("pos-neg", "pos-pos", "anc-neg"))
        made_loss = Metrix(made_loss, mixup="embed", pairs=pairs, strength=rng.choice((0.0, 0.4, 1e6)))
    value = made_loss(given, labels)
    require(torch.isfinite(value).all(), f"{name}: the loss is {value}")
    if value.requires_grad:
        value.backward()
        if isinstance(given, torch.Tensor) and given.grad is not None and given.grad.dtype == torch.float32:
            require(torch.isfinite(given.grad).all() or x.abs().max() < 1e-20, f"{name}: a gradient that is not finite")
    return RIGHT


def _make_loss(losses: Any, name: str, dim: int) -> Any:
    kind = getattr(losses, name)
    try:
        return kind()
    except TypeError:  # it has proxies
        return kind(3, dim)


KINDS: tuple[Callable[[random.Random, Material, Path], str], ...] = (
    *(image, loss, manifest, config, run, index, embeddings, loss, folder, image, cache, checkpoint),
)


def attempt(made: Material, number: int) -> Outcome:
    """Try one input in this process."""
    from metrix.errors import MetrixError

    rng, kind = random.Random(number), KINDS[number % len(KINDS)]
    name = kind.__name__
    with tempfile.TemporaryDirectory(prefix="fuzz") as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                return Outcome(number, name, kind(rng, made, Path(place)))
        except MetrixError as error:
            if isinstance(error.__cause__, MemoryError):
                return Outcome(number, name, "memory", _place(error.__cause__), traceback.format_exc())
            return Outcome(number, name, REFUSED)
        except MemoryError as error:
            return Outcome(number, name, "memory", _place(error), traceback.format_exc())
        except Exception as error:
            return Outcome(number, name, type(error).__name__, _place(error), traceback.format_exc())


def _place(error: BaseException) -> str:
    """The last line of metrix (or of this file) that an exception went through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f"{os.sep}metrix{os.sep}" in f.filename] or list(frames)
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} {str(error).splitlines()[0][:120] if str(error) else ''}"


def _work(pipe: Connection, folder: Path) -> None:
    """Answer numbers with outcomes, until the pipe is closed; in a process of its own, with bounded memory."""
    import resource

    import torch

    torch.set_num_threads(1)
    made = Material(folder)
    for number in range(len(KINDS)):  # loads all modules
        attempt(made, number)
    virtual = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (virtual + MEMORY, virtual + MEMORY))
    pipe.send(None)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(attempt(made, pipe.recv()))


class Worker:
    """A process that tries inputs, and is replaced when it hangs or dies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, self.folder), daemon=True)
        self.process.start()
        other.close()
        self.pipe.recv()

    def attempt(self, number: int, seconds: float = SECONDS) -> Outcome:
        """Try an input within the limit of time."""
        name, verdict = KINDS[number % len(KINDS)].__name__, "hang"
        self.pipe.send(number)
        if self.pipe.poll(seconds):
            try:
                answer: Outcome = self.pipe.recv()
            except EOFError:
                self.process.join()
                verdict = f"died with {self.process.exitcode}"
            else:
                return answer
        self.process.kill()
        self.process.join()
        self._start()
        return Outcome(number, name, verdict, f"input {number % len(KINDS)}")

    def close(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.join(5)
        self.process.kill()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m faults fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="how many (20,000)")
    parser.add_argument("--first", type=int, help="number of the first one; random by default")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="repeat one input in this process")
    options = parser.parse_args(arguments)
    first = secrets.randbelow(2**40) if options.first is None else options.first
    with tempfile.TemporaryDirectory(prefix="faults") as place:
        os.environ["METRIX_CACHE"] = str(Path(place) / "cache")
        made = build(Path(place) / "material")
        if options.only is not None:
            outcome = attempt(made, options.only)
            print(outcome.kind, outcome.verdict, outcome.place, outcome.details, sep="\n")
            return int(outcome.finding)
        print(f"{options.inputs:,} inputs from number {first}")
        began, outcomes = time.monotonic(), []
        worker = Worker(made.folder)
        for number in range(first, first + options.inputs):
            outcomes.append(worker.attempt(number))
            if sys.stderr.isatty():
                print(f"\r{len(outcomes):,}", end="", file=sys.stderr)
        worker.close()
    return show(outcomes, time.monotonic() - began)


def show(outcomes: list[Outcome], seconds: float) -> int:
    """Print the counts and the findings, each once with the number that repeats it."""
    print(f"{'kind':12} {'right':>7} {'counted':>7} {'refused':>7} {'findings':>8}")
    for kind in dict.fromkeys(k.__name__ for k in KINDS):
        of = Counter("finding" if o.finding else o.verdict for o in outcomes if o.kind == kind)
        print(f"{kind:12} {of[RIGHT]:7,} {of[COUNTED]:7,} {of[REFUSED]:7,} {of['finding']:8,}")
    findings = [o for o in outcomes if o.finding]
    places = Counter((o.kind, o.verdict, o.place.split(" ")[0]) for o in findings)
    print(f"{len(outcomes):,} inputs in {seconds:.0f} s: {len(findings)} findings at {len(places)} places")
    for (kind, verdict, place), times in places.most_common():
        one = next(o for o in findings if (o.kind, o.verdict, o.place.split(" ")[0]) == (kind, verdict, place))
        print(f"\n{kind}: {verdict} at {one.place} ({times} times)\n  python -m faults fuzz --only {one.number}")
    return int(bool(findings))
