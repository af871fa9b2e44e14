"""Losses of pytorch-metric-learning (PML) as rows of the generic form, parameters included.

A translated loss has the value of the PML loss on the clean batch. It shares the proxies of ProxyNCALoss and
ProxyAnchorLoss, and starts from a copy of the weights of NormalizedSoftmaxLoss, CosFaceLoss, ArcFaceLoss and
SubCenterArcFaceLoss, which are transposed there. PML is not imported: a loss is recognised by the names of its class
and of its distance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from metrix.core.functions import Exponential, Hinge, Log, Shortfall, identity
from metrix.core.generic import Row, mean_of_nonzero_terms
from metrix.core.loss import Loss, ProxyLoss
from metrix.core.pair_losses import Circle, NTXent, SupCon, TupletMargin
from metrix.core.softmax_losses import ArcFace, CosFace, NormalizedSoftmax, SubCenterArcFace
from metrix.core.table1 import NCA, MultiSimilarity, ProxyAnchor, ProxyNCA
from metrix.errors import InvalidInput, check_number, describe_value

TRIPLETS = (
    "it compares pairs of a positive and a negative, forming triplets with the anchor, so it is no sum over "
    "positives plus a sum over negatives and a mixed example has no place in it; "
    "use losses.LiftedStructure, whose outer hinge is the nearest relative, or another loss of Table 1"
)
NOT_GENERIC = {
    "TripletMarginLoss": TRIPLETS,
    "FastAPLoss": "it ranks all candidates together",
    "LiftedStructureLoss": "it sums over negatives of both ends; use GeneralizedLiftedStructureLoss",
    "NPairsLoss": "it draws one pair of each class, and products of embeddings that are not unit; use losses.NTXent, "
    "which is that loss of unit embeddings over all pairs",
    "SoftTripleLoss": "it has several centres for each class; use ProxyNCALoss",
    "MarginLoss": TRIPLETS,
    "CrossBatchMemory": "it keeps past embeddings beside a loss; give Metrix the loss inside it, and the objective the "
    "memory: Metrix(loss, mixup='embed').with_memory(size, dim)",
}


@dataclass(frozen=True)
class Distance:
    """ρ(x) = hinge of sign · (distance - margin), with the Euclidean distance √(2-2x) of unit vectors."""

    margin: float
    sign: float

    def __post_init__(self) -> None:
        check_number("margin", self.margin)

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        # equal vectors: the derivative of the root is infinite, so it is cut off as PML does
        distance = (2.0 - 2.0 * x).clamp_min(torch.finfo(x.dtype).eps).sqrt()
        return torch.relu(self.sign * (distance - self.margin))


def generic_form(loss: nn.Module) -> Loss:
    """The loss itself, if it is of the generic form, or the translation of a PML loss.

    Raises:
        InvalidInput: the loss has no such form; its attribute `not_generic`, if it has one, says why.
    """
    return loss if isinstance(loss, Loss) else from_pml(loss)


def from_pml(loss: nn.Module) -> Loss:
    """The same loss as a row of Table 1, with the parameters of a pytorch-metric-learning (PML) loss.

    Args:
        loss: an instance of PML's ContrastiveLoss, GeneralizedLiftedStructureLoss, MultiSimilarityLoss, NCALoss,
            ProxyNCALoss, NormalizedSoftmaxLoss, ProxyAnchorLoss, SupConLoss, NTXentLoss, TupletMarginLoss, CircleLoss,
            CosFaceLoss, ArcFaceLoss or SubCenterArcFaceLoss, with its default reducer.

    Returns:
        A loss with the same value on clean batches, ready for `Metrix`. Proxies are shared, but for
        NormalizedSoftmaxLoss, CosFaceLoss, ArcFaceLoss and SubCenterArcFaceLoss, whose weights are copied.

    Raises:
        InvalidInput: the loss has no form for mixed examples, such as a triplet loss, or is set up in a way that has
            none.

    >>> from metrix import Metrix, losses
    >>> from pytorch_metric_learning import losses as pml
    >>> objective = Metrix(losses.from_pml(pml.MultiSimilarityLoss()), mixup="embed")
    """
    if not isinstance(loss, nn.Module):
        raise InvalidInput(
            f"loss: expected a loss of metrix.losses or pytorch-metric-learning, such as losses.MultiSimilarity(), got "
            f"{describe_value(loss)}"
        )
    name = type(loss).__name__
    translate = _TRANSLATIONS.get(name)
    if translate is None:
        unknown = "its form is not known here; write it as a row with losses.GenericLoss"
        why = getattr(loss, "not_generic", None) or NOT_GENERIC.get(name, unknown)
        known = ", ".join(sorted(_TRANSLATIONS))
        raise InvalidInput(
            f"{name} cannot be mixed: {why}. Expected a loss of Table 1 in metrix.losses or one of PML's {known}; "
            "without mixup (--mixup none, metrix.Clean) it trains as it is"
        )
    for regularizer in ("embedding_regularizer", "weight_regularizer"):
        if getattr(loss, regularizer, None) is not None:
            raise InvalidInput(f"{name} with {regularizer}: leave it out and add it in your loop")
    expected = type(loss.get_default_reducer()).__name__  # type: ignore[operator]
    for given in _reducers(loss):
        if given != expected:
            raise InvalidInput(f"{name}: expected its default reducer, {expected}, got {given}")
    return translate(loss)


def _reducers(loss: Any) -> list[str]:
    """The names of the reducers of a PML loss, one for each of its parts."""
    parts = getattr(loss.reducer, "reducers", None)
    return [type(r).__name__ for r in ([loss.reducer] if parts is None else parts.values())]


def _similarity(loss: Any, *expected: str) -> str:
    """cosine, euclidean or squared: how the distance of a PML loss depends on the cosine of unit vectors."""
    distance = loss.distance
    name, normalised = type(distance).__name__, distance.normalize_embeddings
    kind = "unknown"
    if name in ("CosineSimilarity", "DotProductSimilarity") and normalised and distance.power == 1:
        kind = "cosine"
    elif name == "LpDistance" and distance.p == 2 and normalised and distance.power in (1, 2):
        kind = "euclidean" if distance.power == 1 else "squared"
    if kind not in expected:
        raise InvalidInput(
            f"{type(loss).__name__}: expected a {' or '.join(expected)} distance of unit vectors, got "
            f"{name}(p={distance.p}, power={distance.power}, normalize_embeddings={normalised})"
        )
    return kind


def _contrastive(loss: Any) -> Loss:
    rho_pos: Callable[[Tensor], Tensor]
    rho_neg: Callable[[Tensor], Tensor]
    if _similarity(loss, "cosine", "euclidean") == "cosine":
        rho_pos, rho_neg = Shortfall(loss.pos_margin), Hinge(loss.neg_margin)
    else:
        rho_pos, rho_neg = Distance(loss.pos_margin, 1.0), Distance(loss.neg_margin, -1.0)
    return Loss(Row(identity, identity, identity, rho_pos, rho_neg), mean_of_nonzero_terms)


def _lifted(loss: Any) -> Loss:
    pos, neg = loss.pos_margin, loss.neg_margin
    if _similarity(loss, "cosine", "squared") == "cosine":
        rho_pos, rho_neg = Exponential(-1.0, pos), Exponential(1.0, neg)
    else:  # ‖a - p‖² = 2 - 2s
        rho_pos, rho_neg = Exponential(-2.0, 1.0 - pos / 2), Exponential(2.0, 1.0 - neg / 2)
    return Loss(Row(Hinge(), Log(), Log(), rho_pos, rho_neg))


def _multi_similarity(loss: Any) -> Loss:
    _similarity(loss, "cosine")
    return MultiSimilarity(loss.alpha, loss.beta, loss.base)


def _temperature(loss: Any, temperature: float) -> float:
    """The temperature of cosines, from that of the distance of a PML loss."""
    return temperature / (2.0 if _similarity(loss, "cosine", "squared") == "squared" else 1.0)  # ‖a - p‖² = 2 - 2s


def _nca_temperature(loss: Any) -> float:
    return _temperature(loss, 1.0 / float(loss.softmax_scale))


def _shape(proxies: Tensor) -> tuple[int, int]:
    return proxies.shape[0], proxies.shape[1]


def _proxy_nca(loss: Any) -> Loss:
    translated = ProxyNCA(*_shape(loss.proxies), _nca_temperature(loss), include_positive=True)
    translated.proxies = loss.proxies
    return translated


def _normalised_softmax(loss: Any) -> Loss:
    _similarity(loss, "cosine")
    return _with_weights(NormalizedSoftmax(*_shape(loss.W.T), loss.temperature), loss)


def _with_weights(translated: ProxyLoss, loss: Any) -> Loss:
    """The translation, with proxies that start as the transposed weights of the original."""
    translated.proxies = nn.Parameter(loss.W.detach().T.clone())
    return translated


def _subcenter_arcface(loss: Any) -> Loss:
    num_classes, dim = loss.num_classes, loss.W.shape[0]
    return _with_weights(SubCenterArcFace(num_classes, dim, loss.margin, loss.scale, loss.sub_centers), loss)


def _circle(loss: Any) -> Loss:
    _similarity(loss, "cosine")
    return Circle(loss.m, loss.gamma)


def _tuplet_margin(loss: Any) -> Loss:
    _similarity(loss, "cosine")
    return TupletMargin(float(loss.margin), loss.scale, reduction="pairs")


def _proxy_anchor(loss: Any) -> Loss:
    _similarity(loss, "cosine")
    translated = ProxyAnchor.original(*_shape(loss.proxies), loss.alpha, loss.margin)
    translated.proxies = loss.proxies
    return translated


_TRANSLATIONS: dict[str, Callable[[Any], Loss]] = {
    "ContrastiveLoss": _contrastive,
    "GeneralizedLiftedStructureLoss": _lifted,
    "MultiSimilarityLoss": _multi_similarity,
    "NCALoss": lambda loss: NCA(_nca_temperature(loss), include_positive=True),
    "ProxyNCALoss": _proxy_nca,
    "NormalizedSoftmaxLoss": _normalised_softmax,
    "ProxyAnchorLoss": _proxy_anchor,
    "SupConLoss": lambda loss: SupCon(_temperature(loss, float(loss.temperature))),
    "CircleLoss": _circle,
    "CosFaceLoss": lambda loss: _with_weights(CosFace(*_shape(loss.W.T), loss.margin, loss.scale), loss),
    "ArcFaceLoss": lambda loss: _with_weights(ArcFace(*_shape(loss.W.T), loss.margin, loss.scale), loss),
    "SubCenterArcFaceLoss": _subcenter_arcface,
    "NTXentLoss": lambda loss: NTXent(_temperature(loss, float(loss.temperature)), reduction="pairs"),
    "TupletMarginLoss": _tuplet_margin,
}
