"""Metrix in your own loop: learn five digits, find the other five.

Scikit-learn's 8×8 digits: 0-4 are seen in training, 5-9 are not. The same small network is trained
with and without mixup from the same seeds; what counts is Recall@1 on the unseen digits.
"""

from __future__ import annotations

import statistics

import torch
from sklearn.datasets import load_digits
from torch import nn

from metrix import Metrix, PoolLinear, losses

SEEDS, STEPS, PER_CLASS = 5, 150, 12

digits = load_digits()
images = torch.tensor(digits.images / 16.0, dtype=torch.float32).unsqueeze(1)
labels = torch.tensor(digits.target)
seen = labels < 5
train, train_labels = images[seen][::6], labels[seen][::6]  # few examples: this is where mixup pays
test, test_labels = images[~seen], labels[~seen]


class Network(nn.Module):
    """A network with `features` and `head`, which is all that feature mixup asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU())
        self.head = PoolLinear(64, 32, pool="avg+max")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


def recall_at_1(embeddings: torch.Tensor, labels: torch.Tensor) -> float:
    similarity = (embeddings @ embeddings.T).fill_diagonal_(-2)
    return (labels[similarity.argmax(1)] == labels).float().mean().item()


def trained(strength: float, seed: int) -> float:
    torch.manual_seed(seed)
    model = Network()
    draws = torch.Generator().manual_seed(seed)
    objective = Metrix(losses.MultiSimilarity(), mixup="feature", strength=strength, generator=draws)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    batches = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        index = torch.cat(
            [
                (train_labels == c)
                .nonzero()
                .flatten()[torch.randperm(int((train_labels == c).sum()), generator=batches)][:PER_CLASS]
                for c in range(5)
            ]
        )
        out = objective.step(model, train[index], train_labels[index])
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
    with torch.no_grad():
        return recall_at_1(model(test), test_labels)


clean = [trained(0.0, seed) for seed in range(SEEDS)]
mixed = [trained(0.4, seed) for seed in range(SEEDS)]
print(f"Recall@1 on unseen digits, {SEEDS} seeds (mean ± standard deviation)")
for name, found in (("clean", clean), ("with Metrix", mixed)):
    print(f"  {name:12s} {100 * statistics.mean(found):5.1f} ± {100 * statistics.stdev(found):.1f}")
gains = [100 * (m - c) for m, c in zip(mixed, clean, strict=True)]
print(f"  {'difference':12s} {statistics.mean(gains):+5.1f} ± {statistics.stdev(gains):.1f}")
