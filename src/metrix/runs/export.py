"""Export of embeddings for other programs: Parquet, or NumPy with a CSV table beside it.

Blocks are written to a hidden folder beside the output first, so an interrupted export continues where it was, with
any number of processes. The process that completes the last block assembles them.
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
from metrix.runs.embedding_blocks import EmbeddingBlocks
from metrix.runs.output import write_output
from metrix.runs.trained_model import TrainedModel

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
    """Embed a part and write it to a file.

    Args:
        model: the model of a run, from `open_run`
        output: FILE.parquet, FILE.npy, or a folder, which gets embeddings.npy
        spec: other data than the run's own
        part_name: test, train or all
        share: (rank, world size) of this process, if several export together
        overwrite: replace a file with other content

    Returns:
        Whether the output is complete; False if other processes still have to finish their share.
    """
    output = _output_file(output)
    dataset = model.open_data(spec)
    part = model.select_part(dataset, part_name)
    about: dict[str, Any] = {
        "run": str(model.run.path),
        "data": spec if spec is not None else model.config.data.data,
        "part": part_name,
        "images": len(part),
        "dim": model.config.model.dim,
        "key": model.embeddings_key(dataset, part),
    }
    before = _read_about(output)
    if before is not None and before.get("key") == about["key"]:
        return True
    if output.exists() and not overwrite:
        raise InvalidInput(f"{output} already exists with other content: choose another name, or give --overwrite")
    blocks = EmbeddingBlocks(output.with_name(f".{output.name}.{about['key'][:16]}"), len(part))
    try:
        blocks.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{output.parent} cannot be written: {error.strerror}; choose another place") from error
    model.fill_blocks(blocks, dataset, part, share)
    with blocks.locked():
        if blocks.missing:
            # another process may have assembled the blocks in the meantime
            now = _read_about(output)
            return now is not None and now.get("key") == about["key"]
        if output.suffix == ".parquet":
            _write_parquet(output, dataset, part, blocks, about)
        else:
            _write_numpy(output, dataset, part, blocks, about)
        blocks.remove()
    return True


def read_process_share(environment: Callable[[str], str | None]) -> tuple[int, int]:
    """(rank, world size) from the variables RANK and WORLD_SIZE, which launchers such as torchrun set.

    >>> read_process_share({"RANK": "1", "WORLD_SIZE": "4"}.get)
    (1, 4)
    """
    given = environment("RANK"), environment("WORLD_SIZE")
    try:
        rank, world = int(given[0] or 0), int(given[1] or 1)
    except ValueError:
        rank, world = -1, 0
    if not 0 <= rank < world:
        raise InvalidInput(
            "RANK and WORLD_SIZE: expected integers with 0 ≤ RANK < WORLD_SIZE in the environment, got "
            f"{given[0]} and {given[1]}"
        )
    return rank, world


def _output_file(output: Path) -> Path:
    """The file to write; `embeddings.npy` if a folder is given."""
    if output.suffix.lower() in (".parquet", ".npy"):
        return output
    if output.suffix and not output.is_dir():
        raise InvalidInput(f"-o: expected FILE.parquet, FILE.npy or a folder (without a suffix), got {output}")
    return output / "embeddings.npy"


def _read_about(output: Path) -> dict[str, Any] | None:
    """The description that an export wrote with its output; None if there is no output, or another program's."""
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


def _write_parquet(output: Path, dataset: Dataset, part: Part, blocks: EmbeddingBlocks, about: dict[str, Any]) -> None:
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

    write_output(output, write)


def _write_numpy(output: Path, dataset: Dataset, part: Part, blocks: EmbeddingBlocks, about: dict[str, Any]) -> None:
    """Write the table, then the array, then the description: an output with a description is complete."""

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

    write_output(output.with_suffix(".csv"), table)
    write_output(output, array)
    text = json.dumps(about, indent=2) + "\n"
    write_output(output.with_suffix(".json"), lambda temporary: temporary.write_text(text, encoding="utf-8"))
