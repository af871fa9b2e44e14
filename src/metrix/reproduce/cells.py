"""Cells: the runs that tables are made of, each there once.

cells/KEY/cell.json    what it is: settings, code, tries, error
cells/KEY/run/         an ordinary run of `metrix train`
cells/KEY/log.txt      what it printed
index.json             all cells, for a reader; made anew from the files above

A key is the hash of the settings, the images and the code that trains, so a cell that several tables share is
trained once, and one that is finished is trained again only if something that matters has changed. Folders of
cells from several machines are put together by copying.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import metrix
from metrix.errors import InvalidInput
from metrix.files import write_json
from metrix.reproduce.datasets import Data
from metrix.train.config import Config, parsed
from metrix.train.run_folder import RunFolder

TRAINED_BY = ("core", "data", "model", "train")  # folders of source that a result depends on
# How and where a run computes, not what.
_WITHOUT = {"data": ("data", "workers"), "train": ("checkpoint_steps",)}


@dataclass(frozen=True)
class Cell:
    """One run of a grid."""

    key: str
    config: Config
    name: str  # for a person

    @property
    def kind(self) -> str:
        """Cells of a kind take about as long for a step: clean, a mixup type, another method."""
        return self.config.mixing.described() if self.config.mixing.mixup else "clean"

    def content(self) -> dict[str, Any]:
        """What its file says before it is run."""
        return {"name": self.name, "code": code_version(), "config": self.config.model_dump(mode="json")}


def cell(config: Config, data: Data) -> Cell:
    """The cell of settings on a dataset."""
    nested = config.model_dump(mode="json")
    for section, keys in _WITHOUT.items():
        for key in keys:
            del nested[section][key]
    text = json.dumps([nested, data.mark, code_version()], sort_keys=True)
    method = config.loss.loss if config.train.scheme == "none" else config.train.scheme
    mixed = f" + {config.mixing.described()}" if config.mixing.mixup else ""
    name = f"{data.name}, {method}{mixed}, seed {config.train.seed}"
    return Cell(hashlib.sha256(text.encode()).hexdigest()[:16], config, name)


@dataclass(frozen=True)
class Store:
    """The folder of all cells."""

    folder: Path

    def prepare(self) -> None:
        """Make the folder; one that cannot be made is a clear error."""
        try:
            (self.folder / "cells").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(
                f"the folder {self.folder} cannot be made: {error.strerror}; choose another with -o"
            ) from error

    def place(self, key: str) -> Path:
        """The folder of a cell."""
        return self.folder / "cells" / key

    def run(self, key: str) -> RunFolder:
        """The run of a cell."""
        return RunFolder(self.place(key) / "run")

    def results(self, key: str) -> dict[str, Any] | None:
        """What a finished cell measured; None if it is not finished."""
        return self.run(key).results

    def note(self, one: Cell, **values: Any) -> None:
        """Write the file of a cell; values that were noted before and are not given stay."""
        kept = self.noted(one.key)
        path = self.place(one.key) / "cell.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**kept, **one.content(), **values})

    def noted(self, key: str) -> dict[str, Any]:
        """The file of a cell; empty if there is none."""
        path = self.place(key) / "cell.json"
        found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        return found

    def everything(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """All cells of the folder, of this grid or another."""
        for path in sorted((self.folder / "cells").glob("*/cell.json")):
            yield path.parent.name, json.loads(path.read_text("utf-8"))

    def write_index(self) -> None:
        """All cells in one file."""
        content = {}
        for key, noted in self.everything():
            results = self.results(key)
            shown = {name: noted.get(name) for name in ("name", "code", "tries", "error")}
            content[key] = {**shown, "finished": results is not None, "seconds": (results or {}).get("seconds")}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "index.json", content)


def config_of(noted: dict[str, Any]) -> Config:
    """The settings in a cell's file."""
    return parsed(noted["config"])


def share(cells: Iterable[Cell], shard: tuple[int, int]) -> list[Cell]:
    """The cells of shard i of n (from 1): every n-th by key, so that all shards together are all cells."""
    number, of = shard
    chosen = {one.key for one in sorted(cells, key=lambda one: one.key)[number - 1 :: of]}
    return [one for one in cells if one.key in chosen]


def parse_shard(text: str) -> tuple[int, int]:
    """`i/n` as two numbers.

    >>> parse_shard("2/3")
    (2, 3)
    """
    number, slash, of = text.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise InvalidInput(f"--shard {text!r}: accepted is i/n with i from 1 to n, such as 1/3")
    return int(number), int(of)


def code_version() -> str:
    """A hash of the source that trains."""
    return source_hash(TRAINED_BY)


@cache
def source_hash(folders: tuple[str, ...]) -> str:
    """A hash of what the source in some folders of the package says, wherever in them it says it."""
    root = Path(metrix.__file__).parent
    sources = [path.read_text("utf-8") for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    return hash_sources(sources)


def hash_sources(sources: Iterable[str]) -> str:
    """A hash of the definitions in some sources: moving or reordering them between files leaves it as it is.

    Comments, docstrings, layout and imports from this package, which say where code is, do not count.

    >>> hash_sources(["x = 1\\ny = 2"]) == hash_sources(["from metrix.a import x\\ny = 2  # two", "x = 1"])
    True
    """
    said = {statement for source in sources for statement in _statements(source)}
    return hashlib.sha256("\n".join(sorted(said)).encode()).hexdigest()[:12]


def _statements(source: str) -> Iterator[str]:
    """The top-level statements of a source, bare and without imports from this package."""
    lines, tree = _bare_lines(source), ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and _module(node) == "metrix":
            _empty(lines, node)
    for statement in tree.body:
        first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])
        text = _joined(lines[first - 1 : statement.end_lineno])
        if text:
            yield text


def bare(source: str) -> str:
    """Source without docstrings, comments and empty lines; the same in every version of Python.

    >>> bare("x = 1  # one")
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
