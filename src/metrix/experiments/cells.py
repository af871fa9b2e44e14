"""Cells: the training runs that tables, figures and studies are computed from.

cells/KEY/cell.json    the record of a cell: settings, version of the code, tries, last error
cells/KEY/run/         an ordinary run of `metrix train`
cells/KEY/log.txt      what the run printed
index.json             an overview of all cells, rewritten from the files above

KEY is a hash of the settings, the images and the code that trains. A cell shared by several tables is therefore trained
once, and a finished cell is trained again only if one of the three has changed. To merge the cells of several machines,
copy their folders into one.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import shutil
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import metrix
from metrix.errors import InvalidInput
from metrix.files import describe_failure, lock, write_json
from metrix.train.config import Config, parse_config
from metrix.train.run_folder import RunFolder

if TYPE_CHECKING:
    from metrix.train.watching import Watcher

TRAINED_BY = ("core", "data", "model", "train")  # packages whose code determines the result of a run
# Keys that change how or where a run computes, but not its result.
_NOT_IN_KEY = {"data": ("data", "workers"), "train": ("checkpoint_steps", "log")}


@dataclass(frozen=True)
class Cell:
    """One training run of a grid."""

    key: str
    config: Config
    name: str  # shown to the user

    @property
    def kind(self) -> str:
        """Clean, a mixup type or another mixing method; cells of one kind take about equally long per step."""
        return self.config.mixing.describe() if self.config.mixing.mixup else "clean"

    def to_record(self) -> dict[str, Any]:
        """The content of `cell.json` before the cell is run."""
        return {"name": self.name, "code": code_version(), "config": self.config.model_dump(mode="json")}


class CellData(Protocol):
    """A dataset that cells are trained on."""

    @property
    def name(self) -> str:
        """How it is called in the names of cells."""

    @property
    def fingerprint(self) -> str:
        """A hash of its images, labels and parts."""


def make_cell(config: Config, data: CellData) -> Cell:
    """Make the cell that trains a configuration on a dataset."""
    nested = config.model_dump(mode="json")
    for section, keys in _NOT_IN_KEY.items():
        for key in keys:
            del nested[section][key]
    nested["data"]["root"] = None  # a place, too; the fingerprint tells the images
    text = json.dumps([nested, data.fingerprint, code_version()], sort_keys=True)
    method = config.loss.loss if config.train.scheme == "none" else config.train.scheme
    mixed = f" + {config.mixing.describe()}" if config.mixing.mixup else ""
    name = f"{data.name}, {method}{mixed}, seed {config.train.seed}"
    return Cell(hashlib.sha256(text.encode()).hexdigest()[:16], config, name)


@dataclass(frozen=True)
class CellStore:
    """The folder that holds all cells."""

    folder: Path

    def prepare(self) -> None:
        """Create the folder, or explain why it cannot be created."""
        try:
            (self.folder / "cells").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(
                f"--output: cannot create the folder {self.folder}: {describe_failure(error)}; choose another"
            ) from error

    def drop_checkpoints(self, key: str) -> None:
        """Delete the checkpoints of a finished cell, most of its size, if a killed process has left them."""
        shutil.rmtree(self.run(key).last.parent, ignore_errors=True)

    def cell_folder(self, key: str) -> Path:
        """The folder of a cell."""
        return self.folder / "cells" / key

    def run(self, key: str) -> RunFolder:
        """The run folder of a cell."""
        return RunFolder(self.cell_folder(key) / "run")

    def results(self, key: str) -> dict[str, Any] | None:
        """The results of a finished cell; None if it is not finished."""
        return self.run(key).results

    def write_record(self, one: Cell, **values: Any) -> None:
        """Update `cell.json`; values recorded earlier and not given now are kept."""
        kept = self.read_record(one.key)
        path = self.cell_folder(one.key) / "cell.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**kept, **one.to_record(), **values})

    def read_record(self, key: str) -> dict[str, Any]:
        """The content of `cell.json`; empty if the cell was never started."""
        path = self.cell_folder(key) / "cell.json"
        found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        return found

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Key and record of every cell in the folder, whichever grid it belongs to."""
        for path in sorted((self.folder / "cells").glob("*/cell.json")):
            yield path.parent.name, json.loads(path.read_text("utf-8"))

    def write_index(self) -> None:
        """Write an overview of all cells to `index.json`."""
        content = {}
        for key, record in self.records():
            results = self.results(key)
            shown = {name: record.get(name) for name in ("name", "code", "tries", "error")}
            content[key] = {**shown, "finished": results is not None, "seconds": (results or {}).get("seconds")}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "index.json", content)


def train_cell(folder: Path, config: Config, watcher: Watcher | None = None, *, wait: bool = True) -> None:
    """Train the cell in a folder, or resume it, unless it is finished; a process that trains it already is waited for.

    Its checkpoints, most of its size, are deleted at the end.

    Raises:
        BlockingIOError: another process trains it, and `wait` is False
    """
    from metrix.experiments.train_once import train_once

    path = folder / "run"
    with lock(folder / "lock", wait=wait):
        if (path / "config.yaml").is_file():  # the images may have moved; what the data have changed stays
            now = {key: getattr(getattr(config, part), key) for part, keys in _NOT_IN_KEY.items() for key in keys}
            run = RunFolder(path)
            run.store_config(run.config.with_values({**now, "root": config.data.root}))
        train_once(config, path, watcher)
        shutil.rmtree(path / "checkpoints", ignore_errors=True)


def config_of_record(record: dict[str, Any]) -> Config:
    """The configuration in the record of a cell."""
    return parse_config(record["config"])


def take_shard(cells: Iterable[Cell], shard: tuple[int, int]) -> list[Cell]:
    """Select the cells of shard (i, n), with i from 1 to n: every n-th cell in the order of the keys."""
    number, of = shard
    chosen = {one.key for one in sorted(cells, key=lambda one: one.key)[number - 1 :: of]}
    return [one for one in cells if one.key in chosen]


def code_version() -> str:
    """A hash of the code that determines the result of a run."""
    return hash_code(TRAINED_BY)


@cache
def hash_code(folders: tuple[str, ...]) -> str:
    """Hash the code in some folders of the package, regardless of how it is divided into files."""
    root = Path(metrix.__file__).parent
    sources = [path.read_text("utf-8") for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    return hash_sources(sources)


def hash_sources(sources: Iterable[str]) -> str:
    """Hash the top-level statements of some source files.

    Moving or reordering definitions does not change the hash; neither do comments, docstrings, empty lines and imports
    from this package, which only say where code is.

    >>> hash_sources(["x = 1\\ny = 2"]) == hash_sources(["from metrix.a import x\\ny = 2  # two", "x = 1"])
    True
    """
    said = {statement for source in sources for statement in _statements(source)}
    return hashlib.sha256("\n".join(sorted(said)).encode()).hexdigest()[:12]


def _statements(source: str) -> Iterator[str]:
    """The top-level statements of a source file, without prose and imports from this package."""
    lines, tree = _bare_lines(source), ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and _module(node) == "metrix":
            _empty(lines, node)
    for statement in tree.body:
        first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])
        text = _joined(lines[first - 1 : statement.end_lineno])
        if text:
            yield text


def strip_prose(source: str) -> str:
    """Remove docstrings, comments and empty lines; the result is the same in every version of Python.

    >>> strip_prose("x = 1  # one")
    'x = 1'
    """
    return _joined(_bare_lines(source))


def _bare_lines(source: str) -> list[str]:
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.body and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
            _empty(lines, node.body[0])
    return lines


def _empty(lines: list[str], node: ast.Import | ast.ImportFrom | ast.Expr) -> None:
    for row in range(node.lineno - 1, node.end_lineno or node.lineno):
        lines[row] = ""


def _module(node: ast.Import | ast.ImportFrom) -> str:
    name = node.names[0].name if isinstance(node, ast.Import) else node.module or ""
    return name.split(".")[0]


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(line.rstrip() for line in lines if line.strip())
