"""Embeddings for other programs: Parquet, or NumPy with a table beside it.

Blocks go to a hidden folder beside the output first, so an interrupted export goes on where it was, with
any number of processes. The process that completes the last block puts them together.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from metrix.data import Dataset, Part
from metrix.errors import InvalidInput
from metrix.runs.embedding import Blocks, TrainedModel, write_or_explain

COLUMNS = ("id", "path", "label", "part")
_ABOUT = b"metrix"


def export(
    model: TrainedModel,
    output: Path,
    spec: str | None = None,
    part_name: str = "test",
    *,
    share: tuple[int, int] = (0, 1),
    overwrite: bool = False,
) -> bool:
    """Embed a part into a file (.parquet, .npy) or a folder; False if other processes still have to finish."""
    output = _target(output)
    dataset = model.dataset(spec)
    part = model.part(dataset, part_name)
    about: dict[str, Any] = {
        "run": str(model.run.path),
        "data": spec if spec is not None else model.config.data.data,
        "part": part_name,
        "images": len(part),
        "dim": model.config.model.dim,
        "key": model.key(dataset, part),
    }
    before = _about(output)
    if before is not None and before.get("key") == about["key"]:
        return True
    if output.exists() and not overwrite:
        raise InvalidInput(
            f"{output} is there already and holds something else: choose another name, or give --overwrite"
        )
    blocks = Blocks(output.with_name(f".{output.name}.{about['key'][:16]}"), len(part))
    try:
        blocks.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{output.parent} cannot be written: {error.strerror}; choose another place") from error
    model.embed(dataset, part, blocks, share)
    with blocks.alone():
        if blocks.missing:
            # another process may have put everything together in the meantime
            now = _about(output)
            return now is not None and now.get("key") == about["key"]
        if output.suffix == ".parquet":
            _write_parquet(output, dataset, part, blocks, about)
        else:
            _write_numpy(output, dataset, part, blocks, about)
        blocks.remove()
    return True


def share_of_process(environment: Callable[[str], str | None]) -> tuple[int, int]:
    """(rank, world size) as torchrun and its kin set them: RANK and WORLD_SIZE.

    >>> share_of_process({"RANK": "1", "WORLD_SIZE": "4"}.get)
    (1, 4)
    """
    given = environment("RANK"), environment("WORLD_SIZE")
    try:
        rank, world = int(given[0] or 0), int(given[1] or 1)
    except ValueError:
        rank, world = -1, 0
    if not 0 <= rank < world:
        raise InvalidInput(
            f"RANK={given[0]} and WORLD_SIZE={given[1]} in the environment: accepted are whole numbers, rank from 0 "
            "to world size - 1"
        )
    return rank, world


def _target(output: Path) -> Path:
    """The file to write; a folder gets embeddings.npy."""
    if output.suffix.lower() in (".parquet", ".npy"):
        return output
    if output.suffix and not output.is_dir():
        raise InvalidInput(f"-o {output}: accepted are FILE.parquet, FILE.npy and a folder (without a suffix)")
    return output / "embeddings.npy"


def _about(output: Path) -> dict[str, Any] | None:
    """What a complete output says of itself; None if it is not there or not ours."""
    try:
        if output.suffix == ".parquet":
            import pyarrow.parquet as pq

            text = (pq.read_schema(output).metadata or {}).get(_ABOUT)
        else:
            text = output.with_suffix(".json").read_bytes() if output.is_file() else None
        found: dict[str, Any] | None = None if text is None else json.loads(text)
        return found if isinstance(found, dict) else None
    except (OSError, ValueError):  # pyarrow's errors are ValueErrors
        return None


def _columns(dataset: Dataset, part: Part, rows: range) -> dict[str, list[Any]]:
    catalogue = dataset.catalogue
    positions = part.indices[rows.start : rows.stop].tolist()
    return {
        "id": positions,
        "path": [catalogue.paths[i] for i in positions],
        "label": [catalogue.class_names[k] for k in catalogue.labels[positions].tolist()],
        "part": [str(catalogue.parts[i]) for i in positions],
    }


def _write_parquet(output: Path, dataset: Dataset, part: Part, blocks: Blocks, about: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("path", pa.string()),
            ("label", pa.string()),
            ("part", pa.string()),
            ("vector", pa.list_(pa.float32(), about["dim"])),
        ],
        metadata={_ABOUT: json.dumps(about)},
    )

    def write(temporary: Path) -> None:
        with pq.ParquetWriter(temporary, schema) as writer:
            for number in range(blocks.count):
                vectors = pa.FixedSizeListArray.from_arrays(pa.array(blocks.read(number).reshape(-1)), about["dim"])
                columns = {**_columns(dataset, part, blocks.rows(number)), "vector": vectors}
                writer.write_table(pa.table(columns, schema=schema))

    write_or_explain(output, write)


def _write_numpy(output: Path, dataset: Dataset, part: Part, blocks: Blocks, about: dict[str, Any]) -> None:
    """The array last, so that where it is, the table is too; what is said of it after that."""

    def table(temporary: Path) -> None:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for number in range(blocks.count):
                columns = _columns(dataset, part, blocks.rows(number))
                writer.writerows(zip(*(columns[name] for name in COLUMNS), strict=True))

    def array(temporary: Path) -> None:
        shape = (len(part), about["dim"])
        with temporary.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
            for number in range(blocks.count):
                file.write(np.ascontiguousarray(blocks.read(number), dtype="<f4").tobytes())

    write_or_explain(output.with_suffix(".csv"), table)
    write_or_explain(output, array)
    text = json.dumps(about, indent=2) + "\n"
    write_or_explain(output.with_suffix(".json"), lambda temporary: temporary.write_text(text, encoding="utf-8"))
