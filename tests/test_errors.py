from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from metrix.errors import (
    ChoiceError,
    InvalidInput,
    check_flag,
    check_integer,
    check_integers,
    check_name,
    check_number,
    unknown_choice,
)


@pytest.mark.parametrize("value", [1, 7, np.int64(3), np.uint8(1)])
def test_integers_pass(value: object) -> None:
    found = check_integer("k", value, least=1)
    assert type(found) is int
    assert found == value


@pytest.mark.parametrize("value", [0, -1, 1.0, 1.5, True, "2", None, np.float32(2)])
def test_other_values_are_named(value: object) -> None:
    with pytest.raises(InvalidInput, match="k: expected an integer ≥ 1, got ") as caught:
        check_integer("k", value, least=1)
    assert repr(value) in str(caught.value)


def test_an_unknown_name_without_a_near_one() -> None:
    error = unknown_choice("loss", "xyz", ["nca", "margin"])
    assert isinstance(error, ChoiceError)
    assert str(error) == "unknown loss 'xyz'; expected one of: 'nca', 'margin'"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "0.5", b"1", None, True, [], 1j, 10**400, torch.ones(2)])
def test_what_is_no_finite_number_is_named(value: object) -> None:
    with pytest.raises(InvalidInput, match="margin: expected a finite number, got "):
        check_number("margin", value)


def test_a_tensor_to_be_trained_is_no_setting() -> None:
    with pytest.raises(InvalidInput, match=r"margin: expected a finite number, got .*requires_grad"):
        check_number("margin", torch.tensor(0.5, requires_grad=True))


def test_the_bound_that_was_passed_is_named() -> None:
    bounds = {"above": 0, "least": 1e-9, "most": 1e9}
    for value, bound in ((-1, "> 0"), (0, "> 0"), (1e-10, "≥ 1e-09"), (1e10, "≤ 1e+09")):
        with pytest.raises(InvalidInput, match=re.escape(f"scale: expected a number {bound}, got {value!r}")):
            check_number("scale", value, **bounds)
    assert check_number("scale", torch.tensor(2), **bounds) == 2.0


def test_only_truth_values_are_flags() -> None:
    assert check_flag("weighted", np.True_) is True
    assert check_flag("weighted", False) is False
    for value in ("no", 0, 1, None, torch.tensor(True), np.array([True])):
        with pytest.raises(InvalidInput, match="weighted: expected True or False, got "):
            check_flag("weighted", value)


@pytest.mark.parametrize("value", [[], {}, None, "summ", 1])
def test_only_known_texts_are_names(value: object) -> None:
    with pytest.raises(ChoiceError, match=r"unknown reduction .* expected one of: 'sum', 'mean'"):
        check_name("reduction", value, ("sum", "mean"))


@pytest.mark.parametrize("value", [5, "12", b"12", None, [], [0], [1.5], [10**9 + 1]])
def test_lists_of_integers(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"ks: expected .*integer"):
        check_integers("ks", value, least=1, most=10**9)


def test_an_integer_too_long_to_write_is_described() -> None:
    with pytest.raises(InvalidInput, match="margin: expected a finite number, got a value of type int"):
        check_number("margin", 10**5000)
