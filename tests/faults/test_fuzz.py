"""A fixed set of mutated inputs: each is answered, skipped and counted, or refused."""

from __future__ import annotations

import pytest

from faults.fuzz import KINDS, attempt
from faults.material import Material, build


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return build(tmp_path_factory.mktemp("material"))


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=lambda n: f"{KINDS[n].__name__}-{n}")
def test_fixed_inputs(made: Material, kind: int) -> None:
    outcomes = [attempt(made, kind + len(KINDS) * n) for n in range(5)]
    assert [o.details for o in outcomes if o.finding] == []


@pytest.mark.parametrize("number", [5000993], ids=["damaged ids of an index"])
def test_findings_of_the_past(made: Material, number: int) -> None:
    outcome = attempt(made, number)
    assert not outcome.finding, outcome.details
