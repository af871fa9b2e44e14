"""Batch norm over the global batch of several processes, on any device.

Statistics are sums over examples, so they are added up over the processes as the sums of a loss are: the
output, its gradient and the running statistics are those of one process with the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from metrix.core.compute.derivatives import refuse_second_derivatives
from metrix.core.distributed.ranks import Ranks
from metrix.errors import InvalidInput


def normalise_globally(module: nn.Module, ranks: Ranks) -> nn.Module:
    """Make the batch norms of a module normalise by the statistics of the global batch, in place.

    Batch norms in eval mode still use their running statistics.

    Returns:
        The module itself.
    """
    if not ranks.alone:
        for norm in module.modules():
            if isinstance(norm, _BatchNorm):
                norm.across = ranks  # type: ignore[assignment]
                if not isinstance(norm, _Global):
                    norm.__class__ = type(f"Global{type(norm).__name__}", (_Global, type(norm)), {})
    return module


def refuse_waiting(norms: Sequence[nn.Module]) -> None:
    """Refuse torch's batch norm over processes where examples come in chunks whose number differs between processes.

    Its layers would wait for each other forever; those of `normalise_globally` can be told not to.
    """
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    if several and any(isinstance(norm, nn.SyncBatchNorm) and norm.training for norm in norms):
        raise InvalidInput(
            "batch norm: expected layers that do not wait for other processes in mixed examples, which come in chunks "
            "whose number differs between processes, got nn.SyncBatchNorm; use normalise_globally of "
            "metrix.core.distributed.batch_norm instead, put these layers into eval mode, or mix embeddings"
        )


class _Global(_BatchNorm):
    across: Ranks

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.across.alone:
            return super().forward(input)
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        axes, shape = [0, *range(2, x.ndim)], [1, -1, *[1] * (x.ndim - 2)]
        own = x.new_tensor(x.numel() // x.shape[1])
        total: Tensor = _Added.apply(torch.cat([x.sum(axes), own.reshape(1)]), self.across)
        count = total[-1].detach()
        mean = total[:-1] / count
        centred = x - mean.view(shape)
        var = _Added.apply(centred.square().sum(axes), self.across) / count
        self._follow(mean.detach(), var.detach() * (count / (count - 1).clamp_min(1)))
        out = centred * torch.rsqrt(var + self.eps).view(shape)
        if self.affine:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        # timm's batch norms have a dropout and an activation of their own
        for name in ("drop", "act"):
            if isinstance(getattr(self, name, None), nn.Module):
                out = getattr(self, name)(out)
        return out.to(input.dtype)

    def _follow(self, mean: Tensor, var: Tensor) -> None:
        """Update the running statistics."""
        if self.running_mean is None or self.running_var is None:
            return
        momentum = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum or 0.0)
            self.running_var.lerp_(var.to(self.running_var.dtype), momentum or 0.0)


class _Added(torch.autograd.Function):
    """A sum over processes; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        out = x.clone()
        dist.all_reduce(out, group=ranks.group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        refuse_second_derivatives()
        out = grad.clone()
        dist.all_reduce(out, group=ctx.ranks.group)
        return out, None
