"""A leaderboard: measured results of many people in one file of JSON lines, which anybody can append to.

Each line is a `LeaderboardRow`; fields, and what makes rows comparable, are on the page "Measure" of the documentation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from metrix.errors import InvalidInput, describe_value, unknown_choice
from metrix.evaluate.metrics import find_metric
from metrix.files import describe_failure, lock, write_text
from metrix.runs.output import CannotWrite

SCHEMA = 1
SUFFIX = ".jsonl"
UNITS = ("classes", "queries", "seeds")  # what an interval is over
Text = Annotated[str, Field(min_length=1, max_length=2000)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{12,}$")]


def _check_metric(name: str) -> str:
    metric = find_metric(name)
    if not metric.higher_is_better:
        raise ValueError(f"expected a measure of retrieval or clustering from 0 to 1, got {name!r}")
    return name


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Measured(_Record):
    """A measure: a fraction, and its 95 % interval with what it is over, if there is one."""

    value: Share
    low: Share | None = None
    high: Share | None = None
    over: Literal["classes", "queries", "seeds"] | None = None

    @model_validator(mode="after")
    def _check_interval(self) -> Measured:
        given = [self.low is not None, self.high is not None, self.over is not None]
        if any(given) and not all(given):
            raise ValueError("expected low, high and over together, or none of them")
        if self.low is not None and self.high is not None and not self.low <= self.high:
            raise ValueError(f"expected low ≤ high, got {self.low:g} and {self.high:g}")
        if self.low is not None and self.high is not None and not self.low <= self.value <= self.high:
            raise ValueError(f"expected low ≤ value ≤ high, got {self.low:g}, {self.value:g} and {self.high:g}")
        return self


class MeasuredData(_Record):
    """What was measured on: `digest` is that of the test examples, with their classes and sequences."""

    name: Text
    digest: Digest
    classes: Count
    queries: Count
    gallery: Count


class Protocol(_Record):
    """How it was measured; `training` is the digest of what was trained on, None if that is not known or nothing."""

    training: Digest | None = None
    search: Literal["exact", "approximate"] = "exact"
    sequences: bool = False  # what is of a query's own sequence does not count


class LeaderboardRow(_Record):
    """A result: one setting on one data set, measured for one seed or as the mean over several."""

    version: Literal[1] = Field(alias="schema")
    name: Text
    method: Text
    loss: Text
    mixup: Text
    backbone: Text
    dim: Count
    dataset: MeasuredData
    protocol: Protocol
    measures: dict[Annotated[str, AfterValidator(_check_metric)], Measured] = Field(min_length=1)
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = ()
    models: tuple[Digest, ...] = ()  # digests of the weights
    command: Text | None = None
    metrix: Text | None = None  # the version that measured it
    source: Text | None = None  # who or what reports it

    def to_line(self) -> str:
        """The row as one line of JSON."""
        return self.model_dump_json(by_alias=True)

    @property
    def identity(self) -> str:
        """What is the same for the same result: it is written once."""
        if self.models:
            return repr((sorted(self.models), self.dataset.digest, self.protocol))
        return self.to_line()

    def explain_difference(self, other: LeaderboardRow) -> str:
        """Why two rows cannot be compared; empty if they can."""
        if self.dataset.digest != other.dataset.digest:
            return f"other test data ({other.dataset.name}, {other.dataset.digest[:12]})"
        if (self.dataset.queries, self.dataset.gallery) != (other.dataset.queries, other.dataset.gallery):
            return "another number of queries or images to find"
        if self.protocol.search != other.protocol.search:
            return f"{other.protocol.search} search"
        if self.protocol.sequences != other.protocol.sequences:
            return "sequences count otherwise"
        if self.protocol.training != other.protocol.training:
            return "trained on other data, or on data that the row does not name"
        return ""


def read_leaderboard(path: Path) -> list[LeaderboardRow]:
    """The rows of a file.

    Raises:
        InvalidInput: it cannot be read, or a line is no row; the message names the line and the field.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {describe_failure(error)}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: expected JSON lines in UTF-8, got {error.reason}") from error
    # not splitlines: texts in JSON may have other line ends, such as U+2028
    return [_parse(f"{path}, line {n}", line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]


def append_to_leaderboard(path: Path, rows: Iterable[LeaderboardRow]) -> int:
    """Append rows to a file, made if there is none; rows that it has already are left out. Returns how many were new.

    Several processes may append at once: each waits for the others, and a reader finds the file of before or after.

    Raises:
        InvalidInput: a line of the file is no row; nothing is written.
        CannotWrite: it cannot be written.
    """
    try:
        with lock(path.with_name(f".{path.name}.lock")):
            there = read_leaderboard(path) if path.exists() else []
            known = {row.identity for row in there}
            new = {row.identity: row for row in rows if row.identity not in known}
            if new:
                before = path.read_text("utf-8").rstrip("\n") + "\n" if there else ""
                write_text(path, before + "".join(f"{row.to_line()}\n" for row in new.values()))
            return len(new)
    except OSError as error:
        raise CannotWrite(f"{path} cannot be written: {describe_failure(error)}; choose another place") from error


def _parse(where: str, line: str) -> LeaderboardRow:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where}: expected a JSON object, got {describe_value(line[:60])}: {error}") from error
    if not isinstance(found, dict):
        raise InvalidInput(f"{where}: expected a JSON object, got {type(found).__name__}")
    if found.get("schema") != SCHEMA or isinstance(found.get("schema"), bool):
        raise InvalidInput(f"{where}: schema: expected {SCHEMA}, got {describe_value(found.get('schema'))}")
    try:
        return LeaderboardRow.model_validate_json(line)
    except ValidationError as error:
        raise InvalidInput(_describe_error(where, error)) from error


def _describe_error(where: str, error: ValidationError) -> str:
    """The first field that is wrong, and why."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"] if part != "[key]") or "JSON"
    if first["type"] == "extra_forbidden":
        return f"{where}: {unknown_choice('field', field, _fields_beside(first['loc']))}"
    if first["type"] == "missing":
        return f"{where}: {field}: expected a value, got none"
    return f"{where}: {field}: {first['msg'].removeprefix('Value error, ')}, got {describe_value(first['input'])}"


def _fields_beside(place: Sequence[Any]) -> list[str]:
    above = ".".join(map(str, place[:-1]))
    kinds: dict[str, type[_Record]] = {"": LeaderboardRow, "dataset": MeasuredData, "protocol": Protocol}
    kind = kinds.get(above, Measured)
    names = [field.alias or name for name, field in kind.model_fields.items()]
    return [f"{above}.{name}" if above else name for name in names]
