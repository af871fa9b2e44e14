"""The configuration of a run: one pydantic model, which is also the YAML file and the flags of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from metrix.errors import InvalidInput, describe_value, unknown_choice
from metrix.files import describe_failure
from metrix.train.sections import ConfigSection, Data, Distillation, LossChoice, Mixing, Model, Training, table
from metrix.yaml_text import parse_yaml

# The mixup of distillation: both networks see mixtures of inputs, with λ uniform in [0, 1].
DISTILLATION_MIXING: dict[str, Any] = {"mixup": ("input",), "strength": 1.0, "alpha": 1.0}


class Config(ConfigSection):
    """All keys of a run, in sections."""

    data: Data = Field(default_factory=Data)
    model: Model = Field(default_factory=Model)
    loss: LossChoice = Field(default_factory=LossChoice)
    mixing: Mixing = Field(default_factory=Mixing)
    distil: Distillation = Field(default_factory=Distillation)
    train: Training = Field(default_factory=Training)

    @property
    def distils(self) -> bool:
        """Whether a teacher is imitated."""
        return self.distil.teacher is not None

    @property
    def uses_labels(self) -> bool:
        """Whether the loss of labelled examples is trained with."""
        return not self.distils or self.distil.label_weight > 0

    @property
    def objective_name(self) -> str:
        """What is trained with, in a word or two: the loss, distillation, or both."""
        if not self.distils:
            return self.loss.loss
        return f"distillation + {self.loss.loss}" if self.uses_labels else "distillation"

    def to_yaml(self) -> str:
        """The whole configuration, defaults included, as YAML."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    def differences_to(self, other: Config) -> dict[str, Any]:
        """The keys, without their sections, that have other values in another configuration, with the values here.

        >>> Config().differences_to(Config().with_values({"epochs": 3}))
        {'epochs': 60}
        """
        own, others = self.model_dump(mode="json"), other.model_dump(mode="json")
        return {key: value for name, part in own.items() for key, value in part.items() if others[name][key] != value}

    def dropped_by(self, values: dict[str, Any]) -> dict[str, Any]:
        """The parameters of this loss that `with_values(values)` leaves out, because it names another loss.

        >>> Config().with_values({"loss": "contrastive", "margin": 0.4}).dropped_by({"loss": "nca", "epochs": 3})
        {'margin': 0.4}
        """
        if values.get("loss", self.loss.loss) == self.loss.loss:
            return {}
        given = self.loss.model_dump(exclude={"loss"}, exclude_none=True)
        return {key: value for key, value in given.items() if key not in values}

    def with_values(self, values: dict[str, Any]) -> Config:
        """A copy with other values for some keys, which are named without their section.

        Another loss or mixing method starts from its own defaults: see `dropped_by`.

        >>> Config().with_values({"epochs": 3}).train.epochs
        3
        """
        nested: dict[str, Any] = self.model_dump(mode="json")
        if values.get("mixup_method", self.mixing.mixup_method) != self.mixing.mixup_method:
            nested["mixing"] = {}  # settings of one method do not carry over to another
        if (values.get("teacher", self.distil.teacher) is None) != (self.distil.teacher is None):
            nested["mixing"] = {}  # nor do those of training with and without a teacher
        if values.get("loss", self.loss.loss) != self.loss.loss:
            nested["loss"] = {}  # nor do the parameters of one loss
        for key, value in values.items():
            section = sections().get(key)
            if section is None:
                raise unknown_choice("key", key, sections())
            nested[section][key] = value
        nested = _with_scheme(nested)
        if "loss" in values and "mixup" not in values and not _takes_mixup(nested):
            nested["mixing"].pop("mixup", None)  # it was meant for the previous loss
        return parse_config(nested)


def sections() -> dict[str, str]:
    """The name of each key's section."""
    return {key: name for name, part in _parts().items() for key in part.model_fields}


def _parts() -> dict[str, type[ConfigSection]]:
    return {
        "data": Data,
        "model": Model,
        "loss": LossChoice,
        "mixing": Mixing,
        "distil": Distillation,
        "train": Training,
    }


def field(key: str) -> Any:
    """The pydantic field of a key."""
    return _parts()[sections()[key]].model_fields[key]


def parse_config(nested: dict[str, Any]) -> Config:
    """The configuration given as a mapping of sections to keys to values.

    Raises:
        InvalidInput: an unknown section or key, with the nearest known one, or a value that is not allowed

    >>> parse_config({"train": {"epochs": 3}}).train.epochs
    3
    """
    if not isinstance(nested, dict):
        raise InvalidInput(f"configuration: expected a mapping of sections, got {type(nested).__name__}")
    for name, part in nested.items():
        if name not in _parts():
            raise unknown_choice("section", name, _parts())
        if not isinstance(part, dict):
            raise InvalidInput(f"section {name!r}: expected a mapping of keys to values, got {describe_value(part)}")
        for key in part:
            if key not in _parts()[name].model_fields:
                raise unknown_choice(f"key in {name}", key, _parts()[name].model_fields)
            if key in ("loss", "mixup_method") and not isinstance(part[key], str):
                raise unknown_choice(key, part[key], table(key))
    nested = _with_scheme(nested)
    mixing = nested.get("mixing", {})
    if nested.get("distil", {}).get("teacher") is not None:
        mixing = {**DISTILLATION_MIXING, **mixing}
        nested = {**nested, "mixing": mixing}
    asked_for = "mixup" in mixing or mixing.get("mixup_method", "metrix") != "metrix"
    if not asked_for and not _takes_mixup(nested):
        nested = {**nested, "mixing": {**mixing, "mixup": ()}}
    loss = nested.get("loss", {}).get("loss", LossChoice().loss)
    if loss not in table("loss"):
        raise unknown_choice("loss", loss, table("loss"))
    try:
        return Config.model_validate(nested)
    except ValidationError as error:
        raise InvalidInput(_describe_mistake(error)) from error


# what pydantic says is wrong -> what was expected
_EXPECTED = {
    "greater_than": "a number > {gt:g}",
    "greater_than_equal": "a number ≥ {ge:g}",
    "less_than": "a number < {lt:g}",
    "less_than_equal": "a number ≤ {le:g}",
    "literal_error": "{expected}",
    "int_parsing": "an integer",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_parsing": "a number",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "a text",
    "tuple_type": "a list",
}


def _describe_mistake(error: ValidationError) -> str:
    """The first value that is not allowed, with its key, and what was expected."""
    first = error.errors()[0]
    reason = first.get("ctx", {}).get("error")
    if isinstance(reason, InvalidInput):  # it names the key and the value already
        return str(reason)
    key = next((str(x) for x in first["loc"][1:]), str(first["loc"][0]))
    expected = _EXPECTED.get(first["type"])
    said = str(reason or first["msg"]) if expected is None else f"expected {expected.format(**first.get('ctx', {}))}"
    return f"{key}: {said}, got {describe_value(first['input'])}"


def _with_scheme(nested: dict[str, Any]) -> dict[str, Any]:
    """Replace a scheme given as the loss by that scheme, with its authors' loss."""
    name = nested.get("loss", {}).get("loss")
    if name not in table("scheme") or name == "none":
        return nested
    return {
        **nested,
        "loss": {**nested["loss"], "loss": "margin"},
        "train": {**nested.get("train", {}), "scheme": name},
    }


def _takes_mixup(nested: dict[str, Any]) -> bool:
    entry = table("loss").get(str(nested.get("loss", {}).get("loss", LossChoice().loss)))
    return entry is None or entry.takes_mixup


def read_config(path: Path) -> Config:
    """The configuration in a YAML file; keys that it leaves out have their defaults."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {describe_failure(error)}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} cannot be read: expected text in UTF-8, got other bytes") from error
    return parse_config(parse_yaml(text, str(path)) or {})
