"""A training script for pytorch-metric-learning in which only the line of the loss is changed."""

from __future__ import annotations

import torch
from pytorch_metric_learning.samplers import MPerClassSampler
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from metrix import Metrix, losses

digits = load_digits()
images = torch.tensor(digits.images / 16.0, dtype=torch.float32).flatten(1)
labels = torch.tensor(digits.target)
seen = labels < 5
dataset = TensorDataset(images[seen], labels[seen])

sampler = MPerClassSampler(labels[seen], m=8, batch_size=40, length_before_new_iter=2000)
loader = DataLoader(dataset, batch_size=40, sampler=sampler)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

# loss_func = pytorch_metric_learning.losses.MultiSimilarityLoss(alpha=18, beta=75, base=0.77)
loss_func = Metrix(losses.MultiSimilarity(beta=18, gamma=75, margin=0.77), mixup="embed")

for epoch in range(3):
    total = 0.0
    for data, target in loader:
        optimizer.zero_grad()
        loss = loss_func(model(data), target)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: loss {total / len(loader):.3f}")
