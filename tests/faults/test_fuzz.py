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


PAST = {
    5000993: "damaged ids of an index",
    14008307: "a fingerprint that is a number",
    14004220: "a backbone that is a list",
    14002168: "a pooling that is a list",
    14002874: "a path that is too long for the system",
    14014506: "names of Parquet columns that are not UTF-8",
}


@pytest.mark.parametrize("number", PAST, ids=PAST.values())
def test_findings_of_the_past(made: Material, number: int) -> None:
    outcome = attempt(made, number)
    assert not outcome.finding, outcome.details
