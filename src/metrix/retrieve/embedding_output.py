"""Embeddings in files for other programs: Parquet, or NumPy with a CSV table beside it.

Blocks are written to a hidden folder beside the output first, so an interrupted command continues where it was, with
any number of processes. The process that completes the last block assembles them. The first process to start chooses
the engine for all of them, and leaves its choice in that folder.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metrix.data import Dataset, Part, glyphs
from metrix.data.layouts import LAYOUTS, hub, tables
from metrix.data.layouts.table_columns import ColumnChoice
from metrix.errors import InvalidInput
from metrix.files import describe_failure, remove_abandoned
from metrix.messages import first_few
from metrix.model.engines import AUTO, TORCH
from metrix.retrieve.engine_choice import agree_on_engine, describe_engine, key_of_engine, read_engine
from metrix.retrieve.image_lists import ImageList
from metrix.retrieve.indexing import list_for_model
from metrix.runs.embedding_blocks import EmbeddingBlocks
from metrix.runs.output import write_output
from metrix.runs.trained_model import TrainedModel

COLUMNS = ("id", "path", "label", "part")
_ABOUT = b"metrix"


def select_images(
    model: TrainedModel, given: Sequence[str], part: str | None = None
) -> tuple[str | None, ImageList | None]:
    """What a user wants to embed, for `write_embeddings`: data with classes (`spec`), or any `images`.

    Args:
        model: of the run; its settings of how images are read are used
        given: folders, images, lists of paths, manifests, or one dataset; the run's own data if nothing
        part: test or train is a part of one dataset
    """
    if not given:
        return None, None
    layout = given[0].partition(":")[0]
    embedded = given[0] in glyphs.NAMES or (layout in LAYOUTS and layout not in (hub.NAME, tables.NAME))
    if len(given) == 1 and (part in ("train", "test") or (embedded and not Path(given[0]).exists())):
        return given[0], None
    if part in ("train", "test"):
        raise InvalidInput(f"--part {part}: expected one dataset, got {first_few(given)}; give one, or --part all")
    reading = model.reading
    max_bad = reading.get("max_bad", model.config.data.max_bad)
    root = reading.get("root")
    return None, list_for_model(
        model,
        given,
        None if root is None else Path(root),
        max_bad=max_bad if max_bad < 1 else int(max_bad),
        follow_links=reading.get("follow_links", False),
        columns=ColumnChoice(reading.get("image_column"), reading.get("label_column")),
    )


def write_embeddings(
    model: TrainedModel,
    output: Path,
    spec: str | None = None,
    part_name: str = "test",
    *,
    images: ImageList | None = None,
    share: tuple[int, int] = (0, 1),
    overwrite: bool = False,
    engine: str = TORCH,
) -> WrittenEmbeddings | None:
    """Embed a part, or images with or without labels, and write the embeddings to a file.

    Args:
        model: the model of a run, from `open_run`
        output: FILE.parquet, FILE.npy, or a folder, which gets embeddings.npy
        spec: other data than the run's own
        part_name: test, train or all
        images: from `list_images`, to embed instead of a part of a dataset
        share: (rank, world size) of this process, if several work together
        overwrite: replace a file with other content
        engine: what runs the network: torch (exact), bf16, onnx, a file that `metrix export --onnx` wrote, or auto for
            the fastest on this machine

    Returns:
        What the complete output says of itself; None if other processes still have to finish their share.
    """
    output = _output_file(output)
    wanted = read_engine(engine, model)
    dataset = model.open_data(spec) if images is None else images.dataset
    part = model.select_part(dataset, part_name) if images is None else images.part
    key = model.embeddings_key(dataset, part)
    before = _read_about(output)
    blocks = EmbeddingBlocks(output.with_name(f".{output.name}.{wanted.extend_key(key)[:16]}"), len(part))
    if before is not None and _is_of(before, key, wanted.name):
        if share[1] == 1:
            _remove_leftovers(output, blocks)
        return WrittenEmbeddings(output, before)
    if output.exists() and not overwrite:
        raise InvalidInput(f"{output} already exists with other content: choose another name, or give --overwrite")
    try:
        blocks.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"{output.parent} cannot be written: {describe_failure(error)}; choose another place"
        ) from error
    chosen = agree_on_engine(model, blocks.folder, dataset, part, wanted)
    about: dict[str, Any] = {
        "run": str(model.run.path),
        "data": spec if spec is not None else model.config.data.data if images is None else images.given,
        "root": None if dataset.catalogue.root is None else str(dataset.catalogue.root),
        "part": part_name,
        "images": len(part),
        "skipped": len(dataset.broken if images is None else images.skipped),
        "dim": model.dim,
        "key": key_of_engine(key, chosen.engine.name),
        "engine": chosen.to_dict(),
    }
    model.fill_blocks(blocks, dataset, part, share, chosen.engine)
    with blocks.locked():
        if blocks.missing:
            # another process may have assembled the blocks in the meantime
            now = _read_about(output)
            return WrittenEmbeddings(output, now) if now is not None and now.get("key") == about["key"] else None
        if output.suffix == ".parquet":
            _write_parquet(output, dataset, part, blocks, about)
        else:
            _write_numpy(output, dataset, part, blocks, about)
        blocks.remove()
    return WrittenEmbeddings(output, about)


def _remove_leftovers(output: Path, blocks: EmbeddingBlocks) -> None:
    """Delete what processes left that were killed before or after the output was written by another one."""
    blocks.remove()
    for suffix in {output.suffix, ".csv", ".json"}:
        remove_abandoned(output.with_suffix(suffix))


@dataclass(frozen=True)
class WrittenEmbeddings:
    """A complete file of embeddings, and the description that is stored with it."""

    path: Path
    about: dict[str, Any]

    @property
    def engine(self) -> str:
        """The engine that made them, how fast it is and how exact, in a line.

        >>> WrittenEmbeddings(Path("x.npy"), {}).engine
        'torch (exact)'
        """
        return describe_engine(self.about.get("engine", {"name": TORCH, "measured": []}))


def _is_of(about: dict[str, Any], key: str, wanted: str) -> bool:
    """Whether a description is of embeddings with this key by the wanted engine; `auto` takes those of any."""
    used = about.get("engine", {}).get("name", TORCH)
    return bool(about.get("key") == key_of_engine(key, used) and wanted in (AUTO, used))


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
        "label": [catalogue.class_names[k] or None for k in catalogue.labels[positions].tolist()],  # "": unlabelled
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
