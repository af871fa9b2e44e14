"""Every loss of the library is in the table that all tests read."""

from __future__ import annotations

import pytest

from metrix import losses
from metrix.core.loss import Loss
from metrix.train.names import LOSSES
from tests.losses_table import BASELINES, LITERAL, TABLE


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_by_name_has_a_row(name):
    generic = issubclass(LOSSES[name].make, Loss)
    made = TABLE[name].make(3, 4) if generic else BASELINES[name](3, 4)
    assert type(made) is LOSSES[name].make
    assert name in (LITERAL if generic else BASELINES)


def test_every_public_loss_is_tested():
    tested = {type(case.make(3, 4)).__name__ for case in TABLE.values()}
    tested |= {type(make(3, 4)).__name__ for make in BASELINES.values()}
    assert set(losses.__all__) - {"from_pml", "functions"} == tested


@pytest.mark.parametrize("name", TABLE)
def test_roles_are_those_of_the_loss(name):
    case, loss = TABLE[name], TABLE[name].make(3, 4)
    roles = {("examples", "examples"): "pairs", ("proxies", "examples"): "proxy anchors"}
    assert roles.get((loss.anchor_role, loss.candidate_role), "proxy candidates") == case.roles.split(" and ")[0]
    assert loss.centers == (case.centers if case.roles == "proxy candidates" else 1)
    assert loss.row.include_positive == case.include_positive
    assert (loss.row.needs_positive or loss.row.needs_negative) == case.log_of_sums
