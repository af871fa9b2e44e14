from __future__ import annotations

import numpy as np
import pytest

from metrix.errors import ChoiceError, InvalidInput, check_integer, unknown_choice


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
