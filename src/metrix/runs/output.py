"""Files that commands write where the user asks for them."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from safetensors import SafetensorError

from metrix.errors import InvalidInput
from metrix.files import describe_failure, write_atomically


class CannotWrite(InvalidInput):
    """A file that cannot be written."""


def write_output(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file atomically; a path that cannot be written raises `CannotWrite`.

    Args:
        path: the file to write; its folder must exist
        write: called with a temporary path, which it must create and fill
    """
    try:
        write_atomically(path, write)
    except (OSError, SafetensorError) as error:
        raise CannotWrite(f"{path} cannot be written: {describe_failure(error)}; choose another place") from error


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table atomically; a path that cannot be written raises `CannotWrite`."""
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])
    write_output(path, lambda temporary: temporary.write_text(text.getvalue(), encoding="utf-8", newline=""))


def make_output_folder(run: Path | None, given: Path | None) -> Path:
    """Create the folder for the files of an analysis: the given one, else `analysis` in the run or here."""
    folder = given or (run / "analysis" if run is not None else Path("analysis"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"the folder {folder} cannot be created: {describe_failure(error)}; choose another with -o"
        ) from error
    return folder
