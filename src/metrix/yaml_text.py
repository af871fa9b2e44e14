"""YAML that people write: each key of a mapping is there once, and what is wrong is one error."""

from __future__ import annotations

from typing import Any

import yaml

from metrix.errors import InvalidInput, describe_value


class _RepeatedKeyError(Exception):
    pass


class _UniqueKeyLoader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # before aliases are merged: `<<: *usual` may repeat a key, which then overrides that of the alias
        mapping: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in mapping.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                if (before := lines.get((key.tag, key.value))) is not None:
                    raise _RepeatedKeyError(
                        f"line {line}: expected each key once, got {describe_value(key.value)} again, which is in line "
                        f"{before} already; leave one of them out"
                    )
                lines[key.tag, key.value] = line
        return mapping


def parse_yaml(text: str, source: str) -> Any:
    """The content of a YAML text; `source` names it in errors.

    >>> parse_yaml("lr: 0.1\\nepochs: 3", "settings.yaml")
    {'lr': 0.1, 'epochs': 3}

    Raises:
        InvalidInput: it is not YAML, or a mapping has a key twice.
    """
    try:
        return yaml.load(text, _UniqueKeyLoader)  # nosec B506 - a SafeLoader
    except _RepeatedKeyError as error:
        raise InvalidInput(f"{source}, {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2020-13-01
        raise InvalidInput(f"{source} is not YAML: {error}") from error
