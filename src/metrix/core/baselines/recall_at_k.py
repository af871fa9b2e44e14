"""Recall@k surrogate: the measure itself, with steps made smooth."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from metrix.core.baselines.base import Baseline
from metrix.core.comparison import to_device
from metrix.core.compute.blocks import rows_in_block
from metrix.core.compute.stream import sum_over_blocks
from metrix.core.generic import Totals
from metrix.core.sets import Sets
from metrix.core.settings import check_scale
from metrix.core.similarity import gram, rows_of_gram
from metrix.errors import InvalidInput, check_integers, describe_value


class RecallAtK(Baseline):
    """1 - Recall@k with sigmoids in place of steps, averaged over several k and over the examples as queries.

    The rank of a positive p of a query q is r(p) = 1 + Σ_z σ((s_qz - s_qp)/T) over all other examples z. Of the
    positives P, Σ_p σ((k - r(p))/T_k) are among the first k, and at most min(k, |P|) can be: the loss is one less
    their share.

    A query compares each positive with all other examples, so a large batch is computed some queries at a time, in the
    memory of these few.

    Args:
        ks: the values of k.
        temperature: T, of the comparison of similarities.
        rank_temperature: T_k, of the comparison of ranks with k: a number is a multiple of k, T_k = number · k; a
            sequence has one T_k for each k, such as (1, 1, 1, 1, 1), with which the authors train. A k larger than the
            batch is the size of the batch, as theirs is.

    >>> embeddings, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([0, 0, 1, 1])
    >>> RecallAtK()(embeddings, labels).backward()
    """

    not_generic = (
        "a positive counts by its rank among all candidates, so it is no sum over positives plus a sum over negatives; "
        "SiMix (--mixup-method simix) mixes for it, and losses.NTXent, where a positive is compared with all, can be"
    )
    needs = "a positive"
    sort = "similarities"
    _shown = ("ks", "temperature", "rank_temperature")

    def __init__(
        self,
        ks: Sequence[int] = (1, 2, 4, 8, 16),
        temperature: float = 0.01,
        rank_temperature: float | Sequence[float] = 1.0,
    ) -> None:
        super().__init__()
        self.ks = check_integers("ks", ks, least=1, most=10**9)
        self.temperature = check_scale("temperature", temperature)
        self.rank_temperature = _check_rank_temperature(rank_temperature, len(self.ks))

    def of_unit(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The mean over queries that have a positive."""
        P = Sets.of_examples(x, labels).positive_lists()
        queries = P.counts.nonzero().squeeze(1)
        if len(queries) == 0:
            return x.sum() * 0.0, queries.new_zeros(())
        lists, sizes = P.examples[queries], P.counts[queries]
        listed = torch.arange(lists.shape[1]) < sizes.unsqueeze(1)
        ends = [0, *sizes.cumsum(0).tolist()]
        size = rows_in_block(len(x) * lists.shape[1], x.device)
        given = [queries, sizes, listed.nonzero()[:, 0], lists[listed], torch.tensor(self.ks).clamp(max=len(x))]
        queries, sizes, row, positive, ks = to_device(given, x.device)
        ks = ks.to(x.dtype)
        blocks = [slice(at, min(at + size, len(queries))) for at in range(0, len(queries), size)]

        def block_totals(block: slice, x: Tensor) -> Totals:
            pairs = slice(ends[block.start], ends[block.stop])
            own = queries[block]
            S = gram(x) if len(own) == len(x) else rows_of_gram(x, own)
            S = S.scatter(1, own.unsqueeze(1), -torch.inf)  # a query has no rank among its own candidates
            losses = self._of_queries(S, row[pairs] - block.start, positive[pairs], sizes[block], ks)
            count = torch.full((), len(own), device=x.device)
            return Totals(losses.sum().reshape(1), count.reshape(1), count)

        totals = sum_over_blocks(block_totals, blocks, [x])
        return totals.sums[0] / totals.counts[0], totals.anchors

    def _of_queries(self, S: Tensor, query: Tensor, positive: Tensor, sizes: Tensor, ks: Tensor) -> Tensor:
        """The loss of some queries, from similarities (queries, n) and the query and example of positives (pairs,)."""
        similar = S.index_select(0, query)  # (pairs, n)
        to_positive = similar.gather(1, positive.unsqueeze(1))
        rank = 0.5 + torch.sigmoid((similar - to_positive) / self.temperature).sum(1)  # p itself counts for 1/2
        given = self.rank_temperature
        scales = given * ks if isinstance(given, float) else ks.new_tensor(given)
        among = torch.sigmoid((ks - rank.unsqueeze(1)) / scales)  # (pairs, ks)
        found = S.new_zeros(len(S), len(ks)).index_add(0, query, among)
        possible = torch.minimum(ks, sizes.unsqueeze(1))
        return 1.0 - (torch.minimum(found, ks) / possible).mean(1)


def _check_rank_temperature(given: float | Sequence[float], count: int) -> float | tuple[float, ...]:
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        return float(check_scale("rank_temperature", given))
    values = tuple(float(check_scale("rank_temperature", value)) for value in given)
    if len(values) != count:
        raise InvalidInput(
            f"rank_temperature: expected a number > 0, or one for each of the {count} ks, got {describe_value(given)}"
        )
    return values
