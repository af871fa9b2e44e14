"""Saved models: a folder with `model.safetensors` and `config.json`, no pickle.

The config is also in the header of `model.safetensors`, which is replaced atomically, so that weights and config always
belong together, even if saving is interrupted between the two files. `config.json` is a copy for people to read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from torch import Tensor

from metrix.errors import ModelError
from metrix.files import write_atomically, write_text
from metrix.model.backbones import DataConfig

if TYPE_CHECKING:
    from metrix.model.embedder import EmbedderConfig

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
RUN_MODEL = "model"
FORMAT = 1
_HEADER = "metrix_config"


@dataclass(frozen=True)
class ImageView:
    """How images become the input of a model, besides what its backbone expects.

    layout      of the data that it was trained on: the built-in glyphs have a view of their own
    short_side  length in pixels to which the shorter side of a photo is shrunk first, as by the image cache of the run
    """

    layout: str = "folder"
    short_side: int | None = None


@dataclass(frozen=True)
class SavedModel:
    """A saved model: the arguments of `Embedder`, the format and view of its images, and its tensors."""

    choices: dict[str, Any]
    data_config: DataConfig
    view: ImageView | None
    tensors: dict[str, Tensor]
    source: Path


def save(
    tensors: Mapping[str, Tensor],
    config: EmbedderConfig,
    data_config: DataConfig,
    view: ImageView | None,
    folder: Path,
) -> None:
    """Write both files, each atomically."""
    from safetensors.torch import save_file

    defaults = {field.name: field.default for field in fields(config)}
    # What has its default is left out where earlier versions have no such key, so that they can read the rest.
    chosen = {key: value for key, value in asdict(config).items() if defaults[key] is MISSING or value != defaults[key]}
    about = {"format": FORMAT, **chosen, "data": asdict(data_config)}
    text = json.dumps({**about, "view": None if view is None else asdict(view)}, indent=2) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    # Clones, because safetensors refuses tensors that share memory.
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomically(folder / WEIGHTS_FILE, lambda path: save_file(plain, path, metadata={_HEADER: text}))
    write_text(folder / CONFIG_FILE, text)


def digest_weights(file: Path) -> str:
    """SHA-256 of a file of weights."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def read(path: Path) -> SavedModel:
    """The model that `save` wrote; `path` is its folder, a run folder with `model/`, or the weight file itself."""
    from safetensors import SafetensorError, safe_open

    candidates = [path / RUN_MODEL / WEIGHTS_FILE, path / WEIGHTS_FILE, path]
    file = next((candidate for candidate in candidates if candidate.is_file()), None)
    if file is None:
        raise ModelError(
            f"no model in {str(path)!r}; expected a folder with {WEIGHTS_FILE}, written by Embedder.save, "
            f"or a run folder with {RUN_MODEL}/"
        )
    try:
        with safe_open(file, framework="pt") as opened:
            text = (opened.metadata() or {}).get(_HEADER)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file} cannot be read as safetensors (is the file complete?): {error}") from error
    beside = file.parent / CONFIG_FILE
    if text is None and beside.is_file():  # another program rewrote the weights without the header
        text = beside.read_text(encoding="utf-8", errors="replace")
    if text is None:
        raise ModelError(
            f"{file} has no config, so it was not written by Embedder.save; to use it as the weights of a "
            "backbone, set weights=FILE (--weights FILE)"
        )
    choices, data_config, view = _parse_config(text, file)
    return SavedModel(choices, data_config, view, tensors, file)


class _Header(BaseModel):
    """The stored config; the arguments of `Embedder` are the keys besides these."""

    model_config = ConfigDict(extra="allow", strict=True)

    format: int
    data: DataConfig
    view: ImageView | None = None  # models of 0.1.0 have none

    @field_validator("data")
    @classmethod
    def _check(cls, data: DataConfig) -> DataConfig:
        if min(data.size, data.channels) < 1 or {len(data.mean), len(data.std)} != {data.channels}:
            raise ValueError(f"expected sizes > 0, and a mean and a std of each channel, got {data}")
        return data


def _parse_config(text: str, file: Path) -> tuple[dict[str, Any], DataConfig, ImageView | None]:
    from metrix.model.embedder import EmbedderConfig

    try:
        header = _Header.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ModelError(f"the config of {file} cannot be parsed: {where}: {first['msg']}") from error
    choices = dict(header.model_extra or {})
    known = {field.name for field in fields(EmbedderConfig)}
    added = {field.name for field in fields(EmbedderConfig) if field.default is not MISSING}  # not in older models
    if header.format != FORMAT or not known - added <= set(choices) <= known:
        raise ModelError(
            f"the config of {file}: expected format {FORMAT} with the keys {sorted(known)}, got format {header.format} "
            f"with {sorted(choices)}; another version of metrix may be able to read it"
        )
    return choices, header.data, header.view
