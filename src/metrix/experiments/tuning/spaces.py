"""The spaces that a study searches: common settings, those of the loss and the mixing method, changes from a file.

lr: {log_uniform: [1.0e-4, 1.0e-1]}
margin: {uniform: [0.1, 0.5]}
per_class: {whole_number: [2, 8]}
backbone: [resnet18, resnet50]       # one of these
augment: none                        # fixed
length: {log_uniform: [0.5, 4]}      # of training, as a multiple of the epochs or steps of the base settings
contrastive+feature:                 # of one method only
  strength: {log_uniform: [0.2, 3]}
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from metrix.core.spaces import LogUniform, OneOf, Range, Space, Uniform, WholeNumber
from metrix.errors import InvalidInput, describe_value, unknown_choice
from metrix.experiments.tuning.methods import TunedMethod, parse_method
from metrix.files import describe_failure
from metrix.model.backbones import check_backbone
from metrix.train.config import Config, sections
from metrix.train.names import LOSSES, METHODS
from metrix.train.network import name_examples
from metrix.yaml_text import parse_yaml

LENGTH = "length"
RANGES: dict[str, type[Uniform] | type[LogUniform] | type[WholeNumber]] = {
    "uniform": Uniform,
    "log_uniform": LogUniform,
    "whole_number": WholeNumber,
}
DIGITS = 3  # significant digits of a setting: more make no difference, and are hard to read in best.yaml


def build_space(method: TunedMethod, base: Config, changes: Mapping[str, Any], fixed: Mapping[str, Any]) -> Space:
    """The space of a method.

    Args:
        method: the loss and what is mixed
        base: settings that are the same in all trials unless they are searched
        changes: the content of the file of spaces
        fixed: settings that the user gave by flags; they are not searched
    """
    space: dict[str, Any] = {**_common_space(base), **LOSSES[method.loss].space}
    space |= METHODS[method.mixup_method].space if method.mixing else {}
    own: dict[str, Any] = next((part for key, part in changes.items() if key == method.name), {})
    common = {key: given for key, given in changes.items() if not _names_method(key) and _concerns(method, key)}
    for key, given in {**common, **own}.items():
        space[key] = parse_range(key, given)
    return {key: given for key, given in space.items() if key not in fixed}


def _concerns(method: TunedMethod, key: str) -> bool:
    """Whether a method has a setting; a file of spaces may have ranges that only some methods do."""
    section = sections().get(key)
    if section == "mixing":
        return bool(method.mixing)
    return section != "loss" or key in inspect.signature(LOSSES[method.loss].make).parameters


def _common_space(base: Config) -> Space:
    """What every method has: length, learning rate, images per class, views, and the start of a pretrained network."""
    rate = base.train.lr
    space: dict[str, Range] = {
        LENGTH: LogUniform(0.5, 2.0),
        "lr": LogUniform(rate / 10, rate * 4),
        "weight_decay": LogUniform(1e-5, 1e-2),
    }
    if base.train.sampler == "balanced":
        space["per_class"] = WholeNumber(2, max(8, base.train.per_class))
    if name_examples(base) == "images":
        space["augment"] = OneOf(("none", "standard"))
    if base.model.weights is not None:
        space |= {"head_lr": LogUniform(rate, rate * 30), "head_init": OneOf(("random", "whiten"))}
    return space


def read_changes(path: Path) -> dict[str, Any]:
    """The content of a file of spaces, checked.

    Raises:
        InvalidInput: it cannot be read, or a key or a range in it is not one
    """
    try:
        content = parse_yaml(path.read_text("utf-8"), f"--space {path}")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"--space {path}: cannot be read: {describe_failure(error)}") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise InvalidInput(f"--space {path}: expected ranges by key, such as lr: {{log_uniform: [1.0e-4, 0.1]}}")
    for key, given in content.items():
        if _names_method(key):
            parse_method(key)
            if not isinstance(given, dict):
                raise InvalidInput(f"--space: {key}: expected ranges by key, got {describe_value(given)}")
            for inner, one in given.items():
                _check_backbones(inner, parse_range(inner, one))
        else:
            _check_backbones(key, parse_range(key, given))
    return content


def _check_backbones(key: str, given: Range) -> None:
    """Raise `InvalidInput` for an unknown backbone now: a study would try it after hours."""
    if key == "backbone" and isinstance(given, OneOf):
        for name in given.values:
            try:
                check_backbone(name)
            except InvalidInput as error:
                raise InvalidInput(f"--space: backbone: {error}") from error


def check_methods(changes: Mapping[str, Any], methods: Sequence[str]) -> None:
    """Raise `InvalidInput` where a file of spaces is about a method that is not compared."""
    for key in changes:
        if _names_method(key) and key not in methods:
            raise InvalidInput(f"--space: {key}: expected a method of the study ({', '.join(methods)}), got another")


def _names_method(key: str) -> bool:
    return key not in (LENGTH, *sections()) and any(key == loss or key.startswith(f"{loss}+") for loss in LOSSES)


def parse_range(key: str, given: Any) -> Range:
    """The range of a key, from what a file of spaces has for it.

    >>> parse_range("lr", {"log_uniform": [1e-4, 1e-1]}), parse_range("augment", "none")
    (LogUniform(low=0.0001, high=0.1), OneOf(values=('none',)))
    """
    if key not in (LENGTH, *sections()):
        raise unknown_choice("--space: key", key, (LENGTH, *sections()))
    if key in ("data", "fold", "holdout", "seed", "loss", "mixup", "mixup_method"):
        raise InvalidInput(f"--space: {key}: expected a setting of the training, got one that the study sets itself")
    if not isinstance(given, dict):
        values = tuple(tuple(v) if isinstance(v, list) else v for v in (given if isinstance(given, list) else [given]))
        if not values:
            raise InvalidInput(f"--space: {key}: expected one or several values, got none")
        for value in values:
            _check_setting(key, value)
        return OneOf(values)
    name, ends = next(iter(given.items())) if len(given) == 1 else ("", None)
    if name not in RANGES:
        raise InvalidInput(f"--space: {key}: expected one of {', '.join(RANGES)}, a list, or a value, got {given}")
    if not isinstance(ends, list) or len(ends) != 2 or not all(_is_number(end) for end in ends) or ends[0] >= ends[1]:
        raise InvalidInput(
            f"--space: {key}: {name}: expected [low, high] with low < high, got {describe_value(ends)}"
            + ("; YAML reads 1e-4 as text, write 1.0e-4" if isinstance(ends, list) else "")
        )
    if name == "log_uniform" and ends[0] <= 0:
        raise InvalidInput(f"--space: {key}: log_uniform: expected low > 0, got {ends[0]}")
    if name == "whole_number" and not all(isinstance(end, int) for end in ends):
        raise InvalidInput(f"--space: {key}: whole_number: expected two whole numbers, got {ends}")
    for end in ends:
        _check_setting(key, end)
    if name != "whole_number":
        try:
            _check_setting(key, ends[0] + (ends[1] - ends[0]) / math.pi)
        except InvalidInput as error:
            raise InvalidInput(f"--space: {key}: {name}: {error}; for whole numbers, give whole_number") from error
    return RANGES[name](*ends)


def _check_setting(key: str, value: Any) -> None:
    if key != LENGTH:
        Config().with_values({key: value})  # raises where the configuration does not accept it
    elif not _is_number(value) or value <= 0:
        raise InvalidInput(f"--space: {key}: expected a multiple > 0 of the usual length, got {describe_value(value)}")


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)


def describe_range(given: Range) -> str:
    """A range in words, for tables.

    >>> describe_range(LogUniform(0.001, 0.1)), describe_range(OneOf(("none", "standard")))
    ('0.001 to 0.1 (log)', 'none, standard')
    """
    if isinstance(given, OneOf):
        return ", ".join(as_choice(value) if isinstance(value, tuple) else str(value) for value in given.values)
    return f"{given.low:.3g} to {given.high:.3g}{' (log)' if isinstance(given, LogUniform) else ''}"


def space_to_dict(space: Space) -> dict[str, Any]:
    """Plain values, for study.json; the reverse of `space_from_dict`."""
    names = {kind: name for name, kind in RANGES.items()}
    return {
        key: list(given.values) if isinstance(given, OneOf) else {names[type(given)]: list(asdict(given).values())}
        for key, given in space.items()
    }


def space_from_dict(plain: Mapping[str, Any]) -> Space:
    """The space that `space_to_dict` wrote."""
    return {key: parse_range(key, given) for key, given in plain.items()}


def as_choice(value: Any) -> Any:
    """A value of `OneOf` as Optuna stores it: plain, or text with commas."""
    return ",".join(value) if isinstance(value, tuple) else value


def suggest(trial: Any, space: Space) -> dict[str, Any]:
    """The settings of an Optuna trial, by key."""
    found: dict[str, Any] = {}
    for key, given in space.items():
        if isinstance(given, OneOf):
            by_choice = {as_choice(value): value for value in given.values}
            found[key] = by_choice[trial.suggest_categorical(key, list(by_choice))]
        elif isinstance(given, WholeNumber):
            found[key] = trial.suggest_int(key, given.low, given.high)
        else:
            value = trial.suggest_float(key, given.low, given.high, log=isinstance(given, LogUniform))
            found[key] = float(f"{value:.{DIGITS}g}")
    return found


def find_usual(config: Config, space: Space) -> dict[str, Any]:
    """The point of a space that is nearest to the settings of a configuration, as Optuna's parameters."""
    return {key: as_choice(_find_nearest(_read_setting(config, key), given)) for key, given in space.items()}


def find_moved(config: Config, space: Space) -> dict[str, Any]:
    """The settings of a configuration that are not in a space, and the nearest values that are.

    >>> find_moved(Config(), {"augment": OneOf(("none",)), "lr": LogUniform(1e-5, 1e-3)})
    {'augment': 'none'}
    """
    pairs = {key: (_read_setting(config, key), given) for key, given in space.items()}
    return {key: found for key, (value, given) in pairs.items() if (found := _find_nearest(value, given)) != value}


def _read_setting(config: Config, key: str) -> Any:
    value = 1.0 if key == LENGTH else getattr(getattr(config, sections()[key]), key)
    value = tuple(value) if isinstance(value, list) else value
    return _own_default(config, key) if value is None else value


def _find_nearest(value: Any, given: Range) -> Any:
    if isinstance(given, OneOf):
        return value if value in given.values else given.values[0]
    return min(max(value, given.low), given.high) if _is_number(value) else given.low


def _own_default(config: Config, key: str) -> Any:
    """What a key that is not set means: the default of the loss, or a rate that follows from another."""
    train, loss = config.train, LOSSES[config.loss.loss]
    if key == "head_lr":
        return train.lr
    if key == "proxy_lr":
        return loss.own_lr or 100 * (train.head_lr or train.lr)
    parameters = inspect.signature(loss.make).parameters
    default = parameters[key].default if key in parameters else None
    return 0.2 if default is None and key == "instance_temperature" else default


def apply_settings(config: Config, settings: Mapping[str, Any], share: float = 1.0) -> Config:
    """The configuration of a trial.

    Args:
        config: of the method, without what is searched
        settings: what was suggested, by key
        share: of the length, for cheap trials
    """
    values = {key: value for key, value in settings.items() if key != LENGTH}
    return scale_length(config.with_values(values), share * settings.get(LENGTH, 1.0))


def scale_length(config: Config, factor: float) -> Config:
    """The configuration with a training of another length; what happens at given epochs moves along.

    >>> scale_length(Config().with_values({"max_steps": 500}), 0.5).train.max_steps
    250
    """
    train, values = config.train, dict[str, Any]()
    for key in ("epochs", "max_steps", "decay_every"):
        value = getattr(train, key)
        values |= {} if value is None else {key: max(1, round(factor * value))}
    return config.with_values({**values, "warmup_epochs": round(factor * train.warmup_epochs)})
