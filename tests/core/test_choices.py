"""Tables of choices: each name once, each entry complete, and an unknown name never passes for a known one."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from metrix import PoolLinear, losses
from metrix.core.choices import Choice, by_name, find
from metrix.core.mixup import MIXUP_TYPES
from metrix.core.pairs import PAIR_KINDS
from metrix.core.split_model import check_model, is_split
from metrix.errors import ChoiceError, InvalidInput
from metrix.model.split import Split
from metrix.runs.mixed_examples import embed_mixtures
from metrix.train.names import LOSSES, METHODS, POOLS, SCHEMES
from metrix.train.sections import Mixing

TABLES = {
    "loss": LOSSES,
    "mixup": MIXUP_TYPES,
    "pairs": PAIR_KINDS,
    "mixup_method": METHODS,
    "pool": POOLS,
    "scheme": SCHEMES,
}


@pytest.mark.parametrize("what", TABLES)
def test_an_entry_is_found_by_its_own_name_and_says_what_it_is(what):
    for name, entry in TABLES[what].items():
        assert find(what, name, TABLES[what]) is entry
        assert entry.name == name
        assert entry.line
        assert entry.reference or name == "none"


@pytest.mark.parametrize("what", TABLES)
def test_an_unknown_name_is_an_error_with_the_nearest_one(what):
    name = list(TABLES[what])[-1]
    with pytest.raises(ChoiceError, match=f"unknown {what} '{name}x'; did you mean '{name}'"):
        find(what, f"{name}x", TABLES[what])


def test_a_name_occurs_once():
    with pytest.raises(InvalidInput, match="twice in the table avg, avg"):
        by_name(Choice("avg", "average", ""), Choice("avg", "mean", ""))


def test_every_class_of_table_1_can_be_named():
    assert {entry.make.__name__ for entry in LOSSES.values()} == set(losses.__all__) - {
        "GenericLoss",
        "from_pml",
        "functions",
    }


def test_methods_name_what_exists():
    for method in METHODS.values():
        assert set(method.mixup) <= set(MIXUP_TYPES)
        assert set(method.pairs) <= set(PAIR_KINDS)
        assert method.usual_loss in LOSSES
        assert set(method.settings) <= set(inspect.signature(method.make).parameters)
        assert set(method.settings.values()) <= set(Mixing.model_fields)


def test_an_unknown_mixup_type_is_not_analysed_as_another():
    model = Split(nn.Conv2d(3, 4, 3), PoolLinear(4, 2))
    one = torch.ones(1, dtype=torch.int64)
    with pytest.raises(ChoiceError, match="unknown mixup 'cutmix'"):
        embed_mixtures(model, "cutmix", torch.randn(2, 3, 5, 5), one, one - 1, torch.tensor([0.5]))
    for name in MIXUP_TYPES:
        v = embed_mixtures(model, name, torch.randn(2, 3, 5, 5), one, one - 1, torch.tensor([0.5]))
        assert v.shape == (1, 2)


def test_a_split_model_has_features_and_head():
    model = Split(nn.Conv2d(3, 4, 3), PoolLinear(4, 2))
    assert check_model(model) is model
    assert is_split(model)
    assert not is_split(nn.Linear(2, 2))
