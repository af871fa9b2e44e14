"""The cost of mixup: closed forms against forming all mixed examples, and against pytorch-metric-learning (PML)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from pytorch_metric_learning import distances
from pytorch_metric_learning import losses as peer
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measuring import at_least, at_most, extra_memory, together
from metrix import Metrix, PoolLinear, losses

GB = 2**30


def batch(classes: int, per_class: int, dim: int = 512) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(per_class)
    return torch.randn(len(labels), dim, generator=generator), labels


def forward_backward(loss: Any, x: Tensor, labels: Tensor) -> None:
    leaf = x.detach().requires_grad_()
    loss(leaf, labels).backward()


def formed(x: Tensor, labels: Tensor, lam: Tensor) -> Tensor:
    """eq. mix-MS with all mixed embeddings formed explicitly, differentiated by autograd."""
    loss = losses.MultiSimilarity()
    f = F.normalize(x, dim=1)
    same = labels[:, None] == labels[None, :]
    positive = same & ~torch.eye(len(f), dtype=torch.bool)
    a, p, n = (positive[:, :, None] & ~same[:, None, :]).nonzero().unbind(1)
    share = lam[p, n].unsqueeze(1)
    v = F.normalize(share * f[p] + (1 - share) * f[n], dim=1)  # (anchors · pairs, d)
    S = (f[a] * v).sum(1).view(len(f), -1)
    Y = share.view(len(f), -1)
    return loss.rows(S, Y, torch.ones_like(Y, dtype=torch.bool)).mean()


def embed_mixup() -> list[dict[str, Any]]:
    x, labels = batch(20, 5)
    lam = torch.rand(100, 100)
    objective = {k: Metrix(losses.MultiSimilarity(), mixup="embed", pairs=k) for k in ("pos-neg", "anc-neg")}
    mixed = {k: partial(o.mixed, pairs=k) for k, o in objective.items()}
    run = partial(partial, forward_backward)
    found = together(
        {
            "formed": run(lambda x, y: formed(x, y, lam), x, labels),
            "closed": run(lambda x, y: mixed["pos-neg"](x, y, lam=lam), x, labels),
        }
    )
    first = at_least(
        "embed pos-neg: closed form against forming all mixed embeddings",
        found["formed"] / found["closed"],
        150,
    )
    found = together(
        {
            "peer": run(peer.MultiSimilarityLoss(18, 75, 0.77), x, labels),
            "pos-neg": run(objective["pos-neg"], x, labels),
            "anc-neg": run(objective["anc-neg"], x, labels),
        }
    )
    note = "clean + mixed loss, λ drawn anew"
    return [
        first,
        at_most("embed pos-neg against PML's clean loss", found["pos-neg"] / found["peer"], 1.5, note=note),
        at_most("embed anc-neg against PML's clean loss", found["anc-neg"] / found["peer"], 1.2, note=note),
    ]


def matryoshka() -> list[dict[str, Any]]:
    x, labels = batch(20, 5)
    prefixes = (64, 128, 256)
    rows = []
    for kind in ("pos-neg", "anc-neg"):
        whole = Metrix(losses.MultiSimilarity(), mixup="embed", pairs=kind)
        trained = Metrix(losses.MultiSimilarity(), mixup="embed", pairs=kind, matryoshka=prefixes)

        def one_by_one(x: Tensor, y: Tensor, loss: Any = whole) -> Tensor:
            return loss(x, y) + sum(loss(x[:, :dim], y) for dim in prefixes)

        run = {"whole": whole, "trained": trained, "one by one": one_by_one}
        found = together({name: partial(forward_backward, loss, x, labels) for name, loss in run.items()})
        what = f"embed {kind} of d=512 with prefixes of 64, 128 and 256"
        rows += [
            at_most(f"{what}: against the whole alone", found["trained"] / found["whole"], 4),
            at_most(f"{what}: against four losses, one by one", found["trained"] / found["one by one"], 1),
        ]
    return rows


def _large_embed_step(n: int) -> Any:
    x, labels = batch(n // 4, 4)
    return partial(forward_backward, Metrix(losses.MultiSimilarity(), mixup="embed", pairs="pos-neg"), x, labels)


def growth() -> list[dict[str, Any]]:
    found = together({"256": _large_embed_step(256), "2048": _large_embed_step(2048)}, least=3)
    memory = extra_memory(partial(_large_embed_step, 4096)) / GB
    return [
        at_most("embed pos-neg: time from n=256 to n=2048", found["2048"] / found["256"], 80),
        at_most("embed pos-neg: extra peak memory at n=4096", memory, 1.5, "GB"),
    ]


class Features(nn.Module):
    """A model whose inputs are feature maps, with an avg+max head."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.head = PoolLinear(channels, 512, pool="avg+max")

    def features(self, x: Tensor) -> Tensor:
        return x


def _max_plus_step(channels: int) -> Any:
    model, labels = Features(channels), torch.arange(20).repeat_interleave(5)
    z = torch.randn(100, channels, 7, 7, generator=torch.Generator().manual_seed(0)).relu()
    objective = Metrix(losses.MultiSimilarity(), mixup="feature", pairs="pos-neg")

    def run() -> None:
        objective.mixed_features(model, z.detach().requires_grad_(), labels).backward()

    return run


def _formed_maps_step(channels: int) -> Any:
    model, n = Features(channels), 100
    z = torch.randn(n, channels, 7, 7, generator=torch.Generator().manual_seed(0)).relu()
    i, j = torch.cartesian_prod(torch.arange(n), torch.arange(n)).unbind(1)
    lam = torch.rand(n * n, 1, 1, 1)

    def run() -> None:
        x = z.detach().requires_grad_()
        V = model.head(lam * x[i] + (1 - lam) * x[j])
        (model.head(x) @ V.T).sum().backward()

    return run


def max_plus() -> list[dict[str, Any]]:
    fewer = 128
    found = together({"ours": _max_plus_step(2048), "formed": _formed_maps_step(fewer)}, least=3)
    ratio = found["formed"] * (2048 / fewer) / found["ours"]
    memory = extra_memory(partial(_max_plus_step, 2048)) / GB
    note = f"formed maps measured with {fewer} channels and scaled by {2048 // fewer}"
    return [
        at_least("avg+max head, n=100, 2048×7×7, all pairs: against formed maps", ratio, 20, note=note),
        at_most("the same: extra peak memory", memory, 0.8, "GB"),
    ]


def clean_losses() -> list[dict[str, Any]]:
    cosine = distances.CosineSimilarity
    peers: dict[str, Any] = {
        "Contrastive": lambda c: peer.ContrastiveLoss(1, 0.5, distance=cosine()),
        "LiftedStructure": lambda c: peer.GeneralizedLiftedStructureLoss(distance=cosine()),
        "MultiSimilarity": lambda c: peer.MultiSimilarityLoss(18, 75, 0.77),
        "NCA": lambda c: peer.NCALoss(distance=cosine()),
        "ProxyAnchor": lambda c: peer.ProxyAnchorLoss(c, 512),
        "ProxyNCA": lambda c: peer.ProxyNCALoss(c, 512, distance=cosine()),
        "ProxyNCA++": lambda c: peer.NormalizedSoftmaxLoss(c, 512, temperature=1 / 18),
        "Circle": lambda c: peer.CircleLoss(),
        "SupCon": lambda c: peer.SupConLoss(),
        "NTXent": lambda c: peer.NTXentLoss(),
        "TupletMargin": lambda c: peer.TupletMarginLoss(),
        "NormalizedSoftmax": lambda c: peer.NormalizedSoftmaxLoss(c, 512),
        "CosFace": lambda c: peer.CosFaceLoss(c, 512),
        "ArcFace": lambda c: peer.ArcFaceLoss(c, 512),
        "SubCenterArcFace": lambda c: peer.SubCenterArcFaceLoss(num_classes=c, embedding_size=512),
    }
    ours: dict[str, Any] = {
        "Contrastive": lambda c: losses.Contrastive(reduction="mean_nonzero"),
        "LiftedStructure": lambda c: losses.LiftedStructure(),
        "MultiSimilarity": lambda c: losses.MultiSimilarity(),
        "NCA": lambda c: losses.NCA(include_positive=True),
        "ProxyAnchor": lambda c: losses.ProxyAnchor.original(c, 512),
        "ProxyNCA": lambda c: losses.ProxyNCA(c, 512, include_positive=True),
        "ProxyNCA++": lambda c: losses.ProxyNCAPlusPlus(c, 512),
        "Circle": lambda c: losses.Circle(),
        "SupCon": lambda c: losses.SupCon(),
        "NTXent": lambda c: losses.NTXent(),
        "TupletMargin": lambda c: losses.TupletMargin(),
        "NormalizedSoftmax": lambda c: losses.NormalizedSoftmax(c, 512),
        "CosFace": lambda c: losses.CosFace(c, 512),
        "ArcFace": lambda c: losses.ArcFace(c, 512),
        "SubCenterArcFace": lambda c: losses.SubCenterArcFace(c, 512),
    }
    of_all_pairs = ("NTXent", "TupletMargin")  # PML's form positives × negatives, gigabytes for a thousand examples
    rows = []
    for n in (100, 1000):
        x, labels = batch(n // 5, 5)
        for name in peers:
            if n > 100 and name in of_all_pairs:
                continue
            found = together(
                {
                    "peer": partial(forward_backward, peers[name](n // 5), x, labels),
                    "ours": partial(forward_backward, ours[name](n // 5), x, labels),
                },
                seconds=1.5,
            )
            rows.append(at_most(f"clean {name}, n={n}, against PML", found["ours"] / found["peer"], 1.0))
    return rows


def whole_step() -> list[dict[str, Any]]:
    """Time a step of ResNet-50, batch 100 at 224 px; takes minutes on a CPU."""
    from torchvision.models import resnet50

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            network = resnet50()
            self.body = nn.Sequential(*list(network.children())[:-2])
            self.head = PoolLinear(2048, 512, pool="avg+max")

        def features(self, x: Tensor) -> Tensor:
            out: Tensor = self.body(x)
            return out

    torch.manual_seed(0)
    model, x = ResNet(), torch.randn(100, 3, 224, 224)
    labels = torch.arange(20).repeat_interleave(5)

    def step(strength: float) -> None:
        objective = Metrix(losses.MultiSimilarity(), mixup="feature", pairs="pos-neg", strength=strength)
        objective.step(model, x, labels).loss.backward()
        model.zero_grad()

    found = together({"clean": partial(step, 0.0), "mixed": partial(step, 0.4)}, seconds=0, least=2, warm=1)
    return [
        at_most(
            "whole step, ResNet-50 avg+max, batch 100: feature mixup against clean",
            found["mixed"] / found["clean"],
            1.10,
        )
    ]


PARTS = (embed_mixup, matryoshka, growth, max_plus, clean_losses, whole_step)
