"""What a reality check compares: methods, and datasets with the settings that are the same for all methods."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from metrix.errors import InvalidInput
from metrix.experiments.tuning.methods import TunedMethod, pair_with_mixup, parse_methods
from metrix.experiments.tuning.protocol import StudyData
from metrix.experiments.tuning.study import fingerprint_data
from metrix.reproduce.datasets import PAPER_ON_GLYPHS
from metrix.reproduce.paper import DATASETS
from metrix.train.config import Config, read_config, sections
from metrix.train.data_place import exists, path_of, with_absolute_paths
from metrix.train.names import METHODS
from metrix.train.network import with_usual_weights
from metrix.train.presets import preset
from metrix.train.sections import LossChoice

LOSSES_COMPARED = (
    *("contrastive", "multi-similarity", "proxy-anchor", "proxy-nca++", "supcon", "arcface", "recall-at-k"),
)
# Characters by the name of the dataset, as changes of the preset `glyphs`; more classes take more steps to be fitted.
CHARACTERS: dict[str, dict[str, Any]] = {
    "glyphs-30": {"train_classes": 30},
    "glyphs-300": {"train_classes": 300, "max_steps": 1500},
    "glyphs": {},
    "glyphs-mini": {"data": "glyphs-mini"},
}
USUAL_DATA = ("glyphs-30", "glyphs-300")
OWN_SETTINGS = ("fold", "holdout")
OWN_FOLDERS = ("locks", "calibration", "index-files")  # in the folder of a reality check, beside those of datasets
CONFIG_SUFFIXES = (".yaml", ".yml")


def choose_methods(given: Sequence[str]) -> list[TunedMethod]:
    """The methods of `--method`; without any, the usual losses clean and mixed, and the other mixing methods.

    >>> [method.name for method in choose_methods([])][-4:]
    ['contrastive+imix', 'contrastive+mochi', 'proxy-anchor+proxy-synthesis', 'recall-at-k+simix']

    Raises:
        InvalidInput: a method is unknown or was given twice, or there is only one
    """
    methods = parse_methods(given)
    if len(methods) == 1:
        raise InvalidInput(f"--method: expected at least two methods to compare, got only {methods[0].name}")
    rivals = [TunedMethod(entry.usual_loss, name) for name, entry in METHODS.items() if name != "metrix"]
    return methods or [*pair_with_mixup(LOSSES_COMPARED), *rivals]


@dataclass(frozen=True)
class CheckedData:
    """A dataset, and the settings of all its runs unless they are searched."""

    name: str
    base: Config

    @cached_property
    def study_data(self) -> StudyData:
        """What the study's runs are known by."""
        return StudyData(self.name, fingerprint_data(self.base))


def choose_datasets(given: Sequence[str], flags: Mapping[str, Any]) -> list[CheckedData]:
    """The datasets of `--data NAME=PATH`; without any, characters with 30 and with 300 training classes.

    Args:
        given: NAME=PATH, where PATH is a folder, a manifest, or a YAML file of settings that names its data
        flags: settings of all runs on all datasets

    Raises:
        InvalidInput: a name or a path makes no sense, or a flag sets what is searched
    """
    refused = [key for key in flags if key in OWN_SETTINGS or sections()[key] in ("loss", "mixing")]
    if refused:
        names = ", ".join("--" + key.replace("_", "-") for key in refused)
        raise InvalidInput(
            f"reality-check with {names}: expected settings that all methods share (data, model, training); folds are "
            "set by the check itself, settings of losses and mixup are searched"
        )
    found: dict[str, CheckedData] = {}
    for text in given or USUAL_DATA:
        name, equals, spec = text.partition("=")
        spec = spec if equals else name if name in CHARACTERS else ""
        if not spec or not re.fullmatch(r"\w[\w-]*", name) or name.casefold() in OWN_FOLDERS:
            raise InvalidInput(
                "--data: expected NAME=PATH, such as birds=~/photos, with a NAME of letters, digits, _ and - (other "
                f"than {', '.join(OWN_FOLDERS)}), or one of {', '.join(CHARACTERS)}, got {text!r}"
            )
        if name.casefold() in (one.casefold() for one in found):
            raise InvalidInput(f"--data: {name} was given twice; give each dataset a name of its own")
        try:
            base = _choose_base(name, spec, flags).with_values({"holdout": 0.0})
        except InvalidInput as error:
            raise InvalidInput(f"--data {text}: {error}") from error
        found[name] = CheckedData(name, with_absolute_paths(base))
    return list(found.values())


def _choose_base(name: str, spec: str, flags: Mapping[str, Any]) -> Config:
    """The settings of a dataset with those of the user: a file's, those of characters, or the usual ones of photos."""
    if spec in CHARACTERS:
        no_parameters = {**dict.fromkeys(LossChoice.model_fields), "loss": LOSSES_COMPARED[0]}
        return preset("glyphs").with_values({**PAPER_ON_GLYPHS, **no_parameters, **CHARACTERS[spec], **flags})
    path = path_of(spec)
    if path is not None and path.suffix.lower() in CONFIG_SUFFIXES:
        base = read_config(path).with_values(dict(flags))
    else:
        layout = {"layout": name} if name in DATASETS else {}
        base = Config().with_values({"data": spec.removeprefix(f"{name}:"), **layout, **flags})
        base = base if "weights" in flags else with_usual_weights(base)
    if not exists(base.data.data):
        raise InvalidInput(
            "expected a folder, a manifest, or a YAML file of settings with the key data, but "
            f"{path_of(base.data.data)} does not exist"
        )
    return base
