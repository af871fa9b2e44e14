"""Losses outside of the generic form, each with the sampling or mining of its authors.

loss         terms                                            over
Triplet      [D_ap - D_an + m]₊                               triplets with a semi-hard negative
Margin       [D_ap - β + m]₊, [β - D_an + m]₊                 positive pairs, and as many negatives drawn by distance
EPSHN        -log softmax([s_p, s_n]/T)₀                      anchors: easiest positive, hardest negative below it
SoftTriple   -log softmax(λ(S - δ 1_y))_y, S of K centres     examples
RecallAtK    1 - Σ_p σ(k - r(p)) / min(k, |P|)                queries, for several k; r is a smooth rank

D is the Euclidean distance and s the cosine of unit embeddings. A mixed example has no place in these
losses, so `Metrix` does not take them; each says why in `not_generic`.
"""

from metrix.core.baselines.epshn import EPSHN
from metrix.core.baselines.margin import Margin
from metrix.core.baselines.recall_at_k import RecallAtK
from metrix.core.baselines.soft_triple import SoftTriple
from metrix.core.baselines.triplet import Triplet
from metrix.core.choices import by_name
from metrix.core.loss import LossEntry
from metrix.core.spaces import LogUniform, OneOf, Uniform, WholeNumber

__all__ = ["EPSHN", "Margin", "RecallAtK", "SoftTriple", "Triplet"]

BASELINES: dict[str, LossEntry] = by_name(
    LossEntry(
        "triplet",
        "a hinge on triplets with semi-hard negatives",
        "Schroff et al., CVPR 2015",
        Triplet,
        space={"margin": LogUniform(0.05, 0.5), "mining": OneOf(("semi-hard", "all"))},
    ),
    LossEntry(
        "margin",
        "hinges on both sides of a learnt boundary, negatives drawn by distance",
        "Wu et al., ICCV 2017",
        Margin,
        own_lr=5e-4,
        space={"margin": Uniform(0.05, 0.4), "beta": Uniform(0.6, 1.4)},
    ),
    LossEntry(
        "epshn",
        "the easiest positive against a semi-hard negative in a softmax",
        "Xuan et al., WACV 2020",
        EPSHN,
        space={"temperature": LogUniform(0.03, 0.5)},
    ),
    LossEntry(
        "soft-triple",
        "cross entropy over classes with several learnt centres each",
        "Qian et al., ICCV 2019",
        SoftTriple,
        own_lr=1e-2,
        needs_pairs=False,
        space={
            "la": LogUniform(5.0, 40.0),
            "gamma": LogUniform(0.03, 0.3),
            "margin": Uniform(0.0, 0.1),
            "centers": WholeNumber(2, 10),
            "proxy_lr": LogUniform(1e-3, 0.1),
        },
    ),
    LossEntry(
        "recall-at-k",
        "1 - Recall@k with smooth ranks, for large batches",
        "Patel et al., CVPR 2022",
        RecallAtK,
        space={"temperature": LogUniform(0.005, 0.5)},
    ),
)
