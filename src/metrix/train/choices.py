"""What can be chosen by name besides the loss: mixing methods, mixup types, mixing pairs, pooling heads, schemes.

The configuration accepts exactly these names, and `metrix methods` lists them. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Accepts = Literal["generic", "pairs", "proxies"]
ACCEPTED_LOSSES: Mapping[Accepts, str] = MappingProxyType(
    {
        "generic": "every loss of the generic form (Table 1)",
        "pairs": "losses of pairs of examples",
        "proxies": "losses with proxies",
    }
)


@dataclass(frozen=True)
class Choice:
    """A name with one line about it and where it comes from."""

    line: str
    reference: str


@dataclass(frozen=True)
class Method(Choice):
    """A mixing method: which losses and names it goes with, its own defaults, and what of them cannot be changed."""

    losses: Accepts
    mixup: tuple[str, ...]
    pairs: tuple[str, ...]
    usual_loss: str  # that of the paper's comparison
    defaults: Mapping[str, Any]
    fixed: Mapping[str, str] = field(default_factory=dict)  # key: why


METRIX = "Venkataramanan et al., ICLR 2022"
MIXUPS: dict[str, Choice] = {
    "input": Choice("images are mixed, the whole network embeds the mixture", METRIX),
    "feature": Choice("the last feature maps are mixed, the head embeds the mixture", METRIX),
    "embed": Choice("embeddings are mixed; costs next to nothing", METRIX),
}
PAIRS: dict[str, Choice] = {
    "pos-neg": Choice("a positive of the anchor with a negative, label λ", METRIX),
    "anc-neg": Choice("the anchor with a negative, label λ", METRIX),
    "pos-pos": Choice("two positives, label 1", METRIX),
    "neg-neg": Choice("two negatives, label 0", METRIX),
}
POOLS: dict[str, Choice] = {
    "avg+max": Choice("average plus maximum over positions", METRIX),
    "avg": Choice("average over positions", "Lin et al., ICLR 2014"),
    "max": Choice("maximum over positions", "Tolias et al., ICLR 2016"),
    "gem": Choice("generalised mean with a learnt exponent", "Radenović et al., TPAMI 2018"),
    "cls": Choice("the class token, of a transformer only", "Dosovitskiy et al., ICLR 2021"),
    "attention": Choice("average weighted by a learnt query", "Ilse et al., ICML 2018"),
}
SCHEMES: dict[str, Choice] = {
    "none": Choice("every batch trains the whole embedding", ""),
    "divide-and-conquer": Choice(
        "batches of one cluster train one slice of the embedding", "Sanakoyeu et al., CVPR 2019"
    ),
}
ONE_LOSS = "real and synthetic examples are in one loss"
METHODS: dict[str, Method] = {
    "metrix": Method(
        "labels of mixed examples interpolated, for any additive loss",
        METRIX,
        losses="generic",
        mixup=tuple(MIXUPS),
        pairs=tuple(PAIRS),
        usual_loss="contrastive",
        defaults={"mixup": ("feature",), "pairs": ("pos-neg", "anc-neg"), "strength": 0.4, "alpha": 2.0},
    ),
    "imix": Method(
        "mixed anchors against the clean batch, labels interpolated over instances",
        "Lee et al., ICLR 2021",
        losses="pairs",
        mixup=tuple(MIXUPS),
        pairs=("anc-neg",),
        usual_loss="contrastive",
        defaults={"mixup": ("input",), "pairs": ("anc-neg",), "strength": 0.4, "alpha": 1.0},
        fixed={
            "pairs": "an anchor is mixed with one negative",
            "hard_negatives": "the negative is drawn from all of them",
        },
    ),
    "mochi": Method(
        "synthetic negatives mixed from the hardest ones, without gradient",
        "Kalantidis et al., NeurIPS 2020",
        losses="pairs",
        mixup=("embed",),
        pairs=("neg-neg", "anc-neg"),
        usual_loss="contrastive",
        defaults={"mixup": ("embed",), "pairs": ("neg-neg", "anc-neg"), "strength": 1.0, "alpha": 1.0},
        fixed={"strength": ONE_LOSS},
    ),
    "proxy-synthesis": Method(
        "embeddings and proxies of two classes mixed into new classes",
        "Gu et al., AAAI 2021",
        losses="proxies",
        mixup=("embed",),
        pairs=("pos-neg", "neg-neg"),
        usual_loss="proxy-anchor",
        defaults={
            "mixup": ("embed",),
            "pairs": ("pos-neg", "neg-neg"),
            "strength": 1.0,
            "alpha": 0.4,
            "lam_per": "batch",
        },
        fixed={
            "strength": ONE_LOSS,
            "pairs": "which pairs occur follows from the classes that are mixed",
            "hard_negatives": "the partner is drawn from all examples of other classes",
        },
    ),
}
