"""One loss over the batch of all processes, with the gradients of a single process.

Every process holds a part of the global batch. Embeddings and labels are gathered once, then each process
computes the rows of its own anchors against all candidates; sums and counts over anchors are added up over
the processes, and the loss of each is the loss of the global batch:

    forward     gathers n × d embeddings and n labels, computes n_own × n similarities, adds up a few numbers
    backward    the gradient of a gathered tensor is added up over the processes, and each takes that of its own part

Averaging the gradients of all processes, as DistributedDataParallel and FSDP do, then gives exactly those of one
process with the whole batch, learnable parts of the loss included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from metrix.core.compute.derivatives import refuse_second_derivatives
from metrix.core.generic import Totals
from metrix.errors import InvalidInput, ShapeError, unknown_choice

MIX = ("local", "global")


class Share(NamedTuple):
    """The rows of this process: from `start` to `stop`, out of `of` in all."""

    start: int
    stop: int
    of: int

    @property
    def rows(self) -> slice:
        """The rows as a slice."""
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class Ranks:
    """The processes that train together. In a single-process run (`ALONE`) every method leaves things as they are.

    Args:
        rank: number of this process.
        size: how many processes there are.
        group: of torch.distributed; None is the default one.
        mix: where the partners of mixed features and inputs come from: the part of this process ("local"), or those
            of all ("global"), whose features or inputs are then gathered too.
    """

    rank: int = 0
    size: int = 1
    group: Any = None
    mix: str = "local"

    @classmethod
    def join(cls, group: Any = None, mix: str = "local") -> Ranks:
        """The processes of an initialised group of torch.distributed; arguments are those of the class."""
        if mix not in MIX:
            raise unknown_choice("mix", mix, MIX)
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidInput(
                "expected a process group of torch.distributed, got none: call init_process_group first, and start "
                "with torchrun"
            )
        return cls(dist.get_rank(group), dist.get_world_size(group), group, mix)

    @property
    def alone(self) -> bool:
        """Whether there is only one process."""
        return self.size == 1

    def agree_on(self, generator: torch.Generator | None) -> torch.Generator | None:
        """The generator, set on all processes to the state it has on rank 0."""
        if self.alone:
            return generator
        generator = generator or torch.Generator().manual_seed(torch.initial_seed() % 2**63)
        device = torch.device("cuda" if dist.get_backend(self.group) == "nccl" else "cpu")
        state = generator.get_state().to(device)
        dist.broadcast(state, group=self.group, group_src=0)
        generator.set_state(state.cpu())
        return generator

    def own_generator(self, generator: torch.Generator | None) -> torch.Generator:
        """A generator of this process alone, seeded with one draw of the generator that all have in common."""
        at = torch.device("cpu") if generator is None else generator.device
        seed = int(torch.randint(2**62, (), generator=generator, device=at))
        return torch.Generator().manual_seed(seed + self.rank)

    def division(self, own: int, device: torch.device) -> Division:
        """How the batch is divided, from the number of examples of this process."""
        if self.alone:
            return Division((own,), self)
        counts = torch.zeros(self.size, dtype=torch.int64, device=device)
        dist.all_gather_into_tensor(counts, counts.new_tensor([own]), group=self.group)
        return Division(tuple(counts.tolist()), self)

    def add_up(self, totals: Totals, anchors: int | Tensor) -> tuple[Totals, int | Tensor]:
        """Sums and counts of all processes, and the number of all anchors, from those of this one."""
        if self.alone:
            return totals, anchors
        own = torch.as_tensor(anchors).to(totals.counts)
        numbers = torch.cat([totals.counts, totals.anchors.reshape(1), own.reshape(1)])
        sums, numbers = _AddedUp.apply(totals.sums, numbers, self)
        return Totals(sums, numbers[:-2], numbers[-2]), numbers[-1]


ALONE = Ranks()


class Division(NamedTuple):
    """How a global batch is divided among processes: the number of examples of each, in the order of ranks."""

    sizes: tuple[int, ...]
    ranks: Ranks

    def gather(self, x: Tensor) -> Tensor:
        """The rows of all processes, rank after rank, from those of this one; differentiable."""
        if self.ranks.alone:
            return x
        out: Tensor = _Gathered.apply(x, self.ranks, self.sizes)
        return out

    def of_examples(self) -> Share | None:
        """Which examples of the global batch are this process's; None: all."""
        start = sum(self.sizes[: self.ranks.rank])
        return None if self.ranks.alone else Share(start, start + self.sizes[self.ranks.rank], sum(self.sizes))

    def of_shared(self, rows: int) -> Share | None:
        """An even share of rows that every process has, as proxies are; None: all."""
        rank, size = self.ranks.rank, self.ranks.size
        return None if self.ranks.alone else Share(rows * rank // size, rows * (rank + 1) // size, rows)


WHOLE = Division((), ALONE)


class Batch(NamedTuple):
    """Embeddings and labels of the global batch, and how it is divided."""

    embeddings: Tensor  # (n, d)
    labels: Any  # (n,)  a tensor, or GradedLabels
    division: Division = WHOLE


def gather_batch(embeddings: Tensor, labels: Tensor, ranks: Ranks) -> Batch:
    """Embeddings and labels of all processes, from those of this one."""
    if ranks.alone:
        return Batch(embeddings, labels)
    if embeddings.ndim != 2 or labels.ndim != 1 or len(labels) != len(embeddings):
        raise ShapeError(
            "embeddings and labels: expected shapes (examples, dimensions) and (examples,), got "
            f"{tuple(embeddings.shape)} and {tuple(labels.shape)} on rank {ranks.rank}"
        )
    division = ranks.division(len(labels), embeddings.device)
    labels = labels.to(device=embeddings.device, dtype=torch.int64)
    return Batch(division.gather(embeddings), division.gather(labels), division)


class Gathering:
    """Gathers the tensors of a step, and makes a loss depend on all of them.

    The backward pass of a gathered tensor is a collective call. A process whose own anchors do not need that tensor
    would skip the call, and the others would wait for it: so every loss depends on it, with gradient zero. Without a
    division, or in a single process, tensors stay as they are.
    """

    def __init__(self, division: Division | None) -> None:
        self.division = None if division is None or division.ranks.alone else division
        self._gathered: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        """The rows of all processes."""
        if self.division is None:
            return x
        self._gathered.append(self.division.gather(x))
        return self._gathered[-1]

    def tie(self, loss: Tensor) -> Tensor:
        """The same loss, which now depends on all that was gathered."""
        out: Tensor = _Tied.apply(loss, *self._gathered) if self._gathered else loss
        return out


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, parts: tuple[int, ...]) -> Tensor:
        ctx.ranks, ctx.parts = ranks, parts
        longest = max(parts)
        padded = x if len(x) == longest else torch.cat([x, x.new_zeros(longest - len(x), *x.shape[1:])])
        whole = x.new_empty(ranks.size * longest, *x.shape[1:])
        dist.all_gather_into_tensor(whole, padded.contiguous(), group=ranks.group)
        if min(parts) == longest:
            return whole
        return torch.cat([whole[r * longest : r * longest + n] for r, n in enumerate(parts)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        refuse_second_derivatives()
        ranks, parts = ctx.ranks, ctx.parts
        longest, own = max(parts), parts[ranks.rank]
        if min(parts) != longest:
            padded = grad.new_zeros(ranks.size, longest, *grad.shape[1:])
            for r, part in enumerate(torch.split(grad, parts)):
                padded[r, : len(part)] = part
            grad = padded.flatten(0, 1)
        out = grad.new_empty(longest, *grad.shape[1:])
        dist.reduce_scatter_tensor(out, grad.contiguous(), group=ranks.group)
        return out[:own], None, None


class _AddedUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sums: Tensor, counts: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor]:
        ctx.size = ranks.size
        both = torch.cat([sums.double(), counts.double()])  # one call for both; counts are exact up to 2^53
        dist.all_reduce(both, group=ranks.group)
        found_sums, found_counts = both[: len(sums)], both[len(sums) :]
        found_counts = found_counts.round().long()
        ctx.mark_non_differentiable(found_counts)
        return found_sums.to(sums.dtype), found_counts

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        refuse_second_derivatives()
        return grad * ctx.size, None, None  # every process has the same gradient here: their sum


class _Tied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, *gathered: Tensor) -> Tensor:
        ctx.like = [(x.shape, x.dtype, x.device) for x in gathered]
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        refuse_second_derivatives()
        zeros = [torch.zeros((), dtype=dtype, device=device).expand(shape) for shape, dtype, device in ctx.like]
        return (grad, *zeros)
