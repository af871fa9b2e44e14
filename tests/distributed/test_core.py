"""The loss and the gradients of several processes are those of one process with the whole batch."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from metrix import Metrix
from metrix.core.generic import Totals
from metrix.core.loss import Loss, LossValue
from metrix.errors import InvalidInput
from tests.losses_table import TABLE

from .cases import OTHERS, PARTS, Case, batch, cases, gradients, made

WORKER = Path(__file__).with_name("core_worker.py")
WORLD = 4


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """What four processes, and two of them, have computed of all cases."""
    folder = tmp_path_factory.mktemp("processes")
    output = folder / "found.safetensors"
    commands = [[sys.executable, WORKER, str(rank), str(WORLD), folder / "rendezvous", output] for rank in range(WORLD)]
    processes = [subprocess.Popen(c, stderr=subprocess.PIPE, text=True) for c in commands]
    errors = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * WORLD, "\n".join(errors)
    return load_file(output)


def expected(case: Case, sizes: tuple[int, ...]) -> dict[str, Tensor]:
    """The same in one process: of the whole batch, or for local mixing of its parts, over all their anchors."""
    network, objective = made(case)
    inputs, labels = batch(case)
    if case.mix == "global":
        out = objective.step(network, inputs, labels)
        found = gradients(network, objective, [out.loss, out.clean, out.mixed])
        found |= {f"buffer {name}": b for name, b in network.named_buffers() if b.is_floating_point()}
        return {**found, "left out": torch.tensor([out.left_out_clean, out.left_out_mixed])}
    assert isinstance(objective, Metrix)
    clean = objective.loss(network.head(network.features(inputs)), labels)
    totals: list[Totals] = []

    def kept(self: Loss, found: Totals, anchors: int | Tensor, *_: object) -> LossValue:
        totals.append(found)
        return LossValue(found.sums.sum(), found.anchors, anchors)

    mixed_of = {"feature": lambda x, y, lam: objective.mixed_features(network, network.features(x), y, lam)}
    mixed_of["input"] = lambda x, y, lam: objective.mixed_inputs(network, x, y, lam)
    lam = float(_factor(case))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loss, "conclude", kept)
        for x, y in zip(inputs.split(sizes), labels.split(sizes), strict=True):
            if len(x):
                mixed_of[objective.mixup[0]](x, y, lam)
    sums, counts = (sum(t[i] for t in totals) for i in (0, 1))
    mixed = (sums / counts.clamp_min(1)).sum()
    return gradients(network, objective, [clean + 0.7 * mixed, clean, mixed])


def _factor(case: Case) -> Tensor:
    from metrix.core.factors import draw

    return draw((), 2.0, torch.Generator().manual_seed(3), torch.device("cpu"), torch.float64)


@pytest.mark.parametrize("loss", [*TABLE, *OTHERS])
def test_values_and_gradients(loss: str, found: dict[str, Tensor]) -> None:
    compared = 0
    for case in cases():
        if case.loss != loss:
            continue
        for sizes in PARTS[case.labels]:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*anchors is usable.*")
                wanted = expected(case, sizes)
            for key, value in wanted.items():
                torch.testing.assert_close(
                    found[f"{case}|{sizes}|{key}"],
                    value,
                    rtol=1e-9,
                    atol=1e-9,
                    msg=lambda m, k=key, c=case, s=sizes: f"{c} {s} {k}: {m}",
                )
                compared += 1
    assert compared > 20


def test_gradients_are_not_all_zero(found: dict[str, Tensor]) -> None:
    for loss in TABLE:
        key = f"{Case(loss, 'avg+max feature pos-neg', 'unbalanced')}|(3, 1, 0, 5)|network.trunk.weight"
        assert found[key].abs().max() > 1e-4


def test_without_a_process_group() -> None:
    _, objective = made(Case("nca", "embed pos-neg", "unbalanced"))
    with pytest.raises(InvalidInput, match="init_process_group"):
        objective.across_ranks()
    with pytest.raises(InvalidInput, match="mix 'everywhere'"):
        objective.across_ranks(mix="everywhere")
