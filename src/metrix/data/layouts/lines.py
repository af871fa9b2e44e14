"""Reading the plain-text lists that the official layouts use."""

from __future__ import annotations

from pathlib import Path

from metrix.errors import DataError


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank."""
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except FileNotFoundError:
        raise DataError(f"{path} is missing; it is required by this layout") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text") from None


def read_numbered(path: Path) -> dict[int, str]:
    """The lines `<number> <text>` of a file as a dictionary; the lists of CUB-200-2011 have this form."""
    entries: dict[int, str] = {}
    for line_number, line in enumerate(read_lines(path), start=1):
        number, _, text = line.strip().partition(" ")
        if not number.isdigit() or not text.strip():
            raise DataError(f"{path}, line {line_number}: expected '<number> <text>', got {line!r}")
        if int(number) in entries:
            raise DataError(f"{path}, line {line_number}: duplicate number {number}")
        entries[int(number)] = text.strip()
    return entries


def read_table(path: Path, names: tuple[str, ...], skip: int = 0) -> list[tuple[str, ...]]:
    """The rows of a table separated by spaces with the header `names`, which comes after `skip` lines."""
    lines = read_lines(path)[skip:]
    if not lines or tuple(lines[0].split()) != names:
        given = lines[0] if lines else "an empty file"
        raise DataError(f"{path}: expected the header '{' '.join(names)}', got {given!r}")
    rows: list[tuple[str, ...]] = []
    for line_number, line in enumerate(lines[1:], start=skip + 2):
        row = tuple(line.split(maxsplit=len(names) - 1))
        if len(row) != len(names):
            raise DataError(f"{path}, line {line_number}: expected {len(names)} columns, got {line!r}")
        rows.append(row)
    return rows
