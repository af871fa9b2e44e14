"""Data sets of Hugging Face: `hf:owner/name`, `hf:owner/name:config`, `hf:owner/name@revision`, or `hf:FOLDER`.

A folder is what `save_to_disk` of `datasets` wrote, or a copy of a repository. Anything else is downloaded by the
package `datasets` once and then read from its cache, in place; no code of a repository runs, and nothing is unpickled.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from metrix.data.catalogue import Catalogue
from metrix.data.layouts import tables
from metrix.data.layouts.table_columns import ColumnChoice
from metrix.data.layouts.tables import TableFile, TableImages
from metrix.errors import DataError
from metrix.extras import import_extra
from metrix.files import describe_failure
from metrix.machine.hub import network_answers
from metrix.messages import OnProgress, first_few

NAME = "hf"
PREFIX = f"{NAME}:"
READERS = ("arrow", "cache", "csv", "imagefolder", "json", "parquet", "webdataset")  # of `datasets`; none unpickles
_ADDRESS = re.compile(r"(?P<name>[\w.-]+(?:/[\w.-]+)?)(?::(?P<config>[^@:]+))?(?:@(?P<revision>[\w./-]+))?")


class HubAddress(NamedTuple):
    """Where a data set is: a folder on this machine, or a name, a configuration and a revision on the hub."""

    folder: Path | None
    name: str = ""
    config: str | None = None
    revision: str | None = None


def parse_address(text: str) -> HubAddress:
    """The address in a specification, without its prefix `hf:`.

    >>> parse_address("owner/birds:large@v2")[1:]
    ('owner/birds', 'large', 'v2')

    Raises:
        DataError: it is neither a folder nor a name.
    """
    if (local := find_folder(text)) is not None:
        return local
    matched = _ADDRESS.fullmatch(text)
    if matched is None or not is_named(text):
        raise DataError(
            f"{PREFIX}{text}: expected {PREFIX}owner/name, optionally with :config and @revision, or {PREFIX} and a "
            "folder that exists (written by save_to_disk, or a copy of a repository)"
        )
    return HubAddress(None, matched["name"], matched["config"], matched["revision"])


def find_folder(text: str) -> HubAddress | None:
    """The address of a folder that exists, with or without a configuration; None if there is none."""
    folder = Path(text).expanduser()
    if text and folder.is_dir():
        return HubAddress(folder.resolve())
    above, _, config = text.rpartition(":")
    if above and config and "@" not in config and Path(above).expanduser().is_dir():
        return HubAddress(Path(above).expanduser().resolve(), config=config)
    return None


def is_named(text: str) -> bool:
    """Whether an address is a name on the hub, and not a folder."""
    return find_folder(text) is None and _ADDRESS.fullmatch(text) is not None and not text.startswith(".")


def read(text: str, choice: ColumnChoice, progress: OnProgress | None = None) -> Catalogue:
    """The catalogue of a data set by its address."""
    root, found = list_images_at(text, choice, progress)
    catalogue = tables.compose(NAME, root, found, Path(f"{PREFIX}{text}"))
    # files in the cache of the hub are symbolic links to where their content is
    return dataclasses.replace(catalogue, follow_links=True)


def list_images_at(
    text: str,
    choice: ColumnChoice,
    progress: OnProgress | None = None,
    others: Collection[str] | None = (),
) -> tuple[Path, TableImages]:
    """The folder that a data set is in, and its images, labelled or not; arguments as of `tables.list_images_in`."""
    files = _find_files(parse_address(text), text)
    found = tables.list_images_in(files, choice, progress, others)
    if not found.images:
        raise DataError(f"{PREFIX}{text}: expected images, got none")
    places = {str(file.path.parent) for file in files}
    places |= {os.path.dirname(one.path) for one in found.images if one.is_file}
    return Path(os.path.commonpath(list(places))), found


def recognises(path: Path) -> bool:
    """Whether the path is a folder that `save_to_disk` of `datasets` wrote."""
    return (path / "dataset_dict.json").is_file() or all(
        (path / name).is_file() for name in ("state.json", "dataset_info.json")
    )


def _find_files(address: HubAddress, text: str) -> list[TableFile]:
    folder = address.folder
    if folder is not None and address.config is None:
        if (folder / "dataset_dict.json").is_file():
            splits = _read_json(folder / "dataset_dict.json").get("splits", [])
            return [file for split in splits for file in _saved_files(folder / str(split), str(split))]
        if (folder / "state.json").is_file():
            return _saved_files(folder, "")
        if tables.recognises(folder) and len(_configurations(folder)) < 2:
            return tables.find_tables(folder)[1]
    return _prepared_files(address, text)


def _saved_files(folder: Path, split: str) -> list[TableFile]:
    """The files of one split, as `save_to_disk` describes them."""
    listed = _read_json(folder / "state.json").get("_data_files", [])
    names = [str(one.get("filename")) for one in listed if isinstance(one, dict)]
    lost = [name for name in names if os.path.basename(name) != name or not (folder / name).is_file()]
    if lost or not names:
        raise DataError(
            f"{folder}: expected the files that state.json names, got none named {first_few(lost or ['…'])}"
        )
    return [TableFile(folder / name, split) for name in names]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected what save_to_disk writes, got {type(found).__name__}")
    return found


def _configurations(folder: Path) -> list[str]:
    """The configurations that the README of a repository names."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8")
        about = yaml.safe_load(text.split("---")[1]) if text.startswith("---") else {}
        return [str(one["config_name"]) for one in about.get("configs", [])]
    except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError, AttributeError):
        return []


def _prepared_files(address: HubAddress, text: str) -> list[TableFile]:
    """The Arrow files of a data set in the cache of `datasets`, downloaded if they are not there."""
    datasets = import_extra("datasets")
    spec = f"{PREFIX}{text}"
    where = str(address.folder or address.name)
    online = address.folder is not None or (not datasets.config.HF_HUB_OFFLINE and network_answers())
    try:
        with _offline(datasets, not online):
            builder = datasets.load_dataset_builder(where, address.config, revision=address.revision)
            reader = type(builder).__module__.rpartition(".")[2]
            if reader not in READERS:
                raise DataError(
                    f"{spec}: expected data that {', '.join(READERS)} of the package datasets read, got {reader}; save "
                    "it as Parquet, or with save_to_disk"
                )
            builder.download_and_prepare()
            found = builder.as_dataset()
    except DataError:
        raise
    except Exception as error:  # of the network, of the hub, of the files: of many packages
        if not online:
            raise DataError(
                f"{spec} is not in the cache of Hugging Face, and the hub cannot be reached (offline, or "
                "HF_HUB_OFFLINE or HF_DATASETS_OFFLINE is set): open it once with a network, copy the cache "
                "and set HF_HOME, or give "
                f"{PREFIX}FOLDER, written by save_to_disk ({_first_line(error)})"
            ) from error
        raise DataError(f"{spec} cannot be opened: {_first_line(error)}") from error
    files = [TableFile(Path(one["filename"]), str(split)) for split, part in found.items() for one in part.cache_files]
    if not files:
        raise DataError(f"{spec}: expected images, got none")
    return files


@contextmanager
def _offline(datasets: Any, wanted: bool) -> Iterator[None]:
    """Keep `datasets` from asking the hub, which it would do for most of a minute."""
    if not wanted:
        yield
        return
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _first_line(error: Exception) -> str:
    text = describe_failure(error) if isinstance(error, OSError) else str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
