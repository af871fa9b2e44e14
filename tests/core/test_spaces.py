"""Every loss and mixing method says what `metrix tune` searches, and what it says can be built."""

from __future__ import annotations

import pytest

from metrix.core.spaces import LogUniform, OneOf, Range, Setting, Uniform, WholeNumber
from metrix.experiments.methods import find_methods_for
from metrix.train.build import build_loss, build_objective
from metrix.train.config import Config, sections
from metrix.train.names import LOSSES, METHODS


def ends(given: Range) -> tuple[Setting, ...]:
    return given.values if isinstance(given, OneOf) else (given.low, given.high)


@pytest.mark.parametrize("name", LOSSES)
def test_every_end_of_the_space_of_a_loss_builds(name: str) -> None:
    space = LOSSES[name].space
    assert space, "metrix tune would have nothing of this loss to search"
    for key, given in space.items():
        for value in ends(given):
            config = Config().with_values({"loss": name, "mixup": (), key: value})
            build_loss(config.loss, 5, 8)


@pytest.mark.parametrize("name", METHODS)
def test_every_end_of_the_space_of_a_mixing_method_builds_with_every_loss_that_it_goes_with(name: str) -> None:
    space = METHODS[name].space
    assert space
    losses = [loss for loss, entry in LOSSES.items() if name in find_methods_for(entry)]
    assert losses
    for loss in losses:
        for key, given in space.items():
            for value in ends(given):
                config = Config().with_values({"mixup_method": name, "loss": loss, key: value})
                build_objective(config, build_loss(config.loss, 5, 8), None)


def test_ranges_are_of_configuration_keys_and_not_empty() -> None:
    for entry in (*LOSSES.values(), *METHODS.values()):
        for key, given in entry.space.items():
            assert key in sections()
            if isinstance(given, OneOf):
                assert len(set(given.values)) == len(given.values) > 1
            else:
                assert isinstance(given, Uniform | LogUniform | WholeNumber)
                assert given.low < given.high
            if isinstance(given, LogUniform):
                assert given.low > 0


def test_the_default_of_a_loss_lies_within_its_space() -> None:
    import inspect

    for name, entry in LOSSES.items():
        defaults = {key: p.default for key, p in inspect.signature(entry.make).parameters.items()}
        for key, given in entry.space.items():
            if key not in defaults:
                assert key == "proxy_lr"
            elif isinstance(given, OneOf):
                assert defaults[key] in given.values, (name, key)
            else:
                assert given.low <= defaults[key] <= given.high, (name, key)
