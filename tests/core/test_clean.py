"""Losses without mixup: of the generic form, and any other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from metrix import Clean, Metrix, PoolLinear, losses
from metrix.errors import InvalidInput


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 8, 1)
        self.head = PoolLinear(8, 4)


class Spread(nn.Module):
    """Not of the generic form, with a learnable part."""

    not_generic = "it is about no pairs at all"

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        assert embeddings.dtype == torch.float32
        return self.scale * embeddings.std()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return torch.rand(6, 3, 2, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 1, 1, 2, 2])


def test_is_the_loss_itself(batch: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    model, (images, labels) = Model(), batch
    loss = losses.MultiSimilarity()
    out = Clean(loss).step(model, images, labels)
    assert torch.equal(out.loss, loss(model.head(model.features(images)), labels))
    assert (out.mixup, out.pairs, float(out.mixed), out.left_out_mixed) == ("none", "none", 0.0, 0)
    assert torch.equal(out.loss, Metrix(loss, mixup="embed", strength=0.0).step(model, images, labels).loss)
    assert torch.equal(out.loss, Clean(loss)(out.embeddings, labels))
    assert Clean(loss).step(nn.Flatten(), images, torch.arange(6)).left_out_clean == 0
    assert Clean(losses.NCA()).step(model, images, torch.tensor([0, 0, 1, 2, 3, 4])).left_out_clean == 4


def test_a_loss_of_another_form_trains(batch: tuple[Tensor, Tensor]) -> None:
    objective, model = Clean(Spread()), Model().bfloat16()
    out = objective.step(model, batch[0].bfloat16(), batch[1])
    out.loss.backward()
    assert objective.loss.scale.grad is not None
    assert model.head.linear.weight.grad is not None
    assert "Spread" in objective.explain()


def test_it_cannot_be_mixed_and_says_why() -> None:
    with pytest.raises(InvalidInput, match=r"Spread cannot be mixed: it is about no pairs at all.*--mixup none"):
        Metrix(Spread())
    with pytest.raises(InvalidInput, match="expected a module with forward"):
        Clean("triplet")  # type: ignore[arg-type]
