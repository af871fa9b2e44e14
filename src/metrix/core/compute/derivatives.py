"""What the hand-written gradients of this package share: second derivatives, `torch.func` and autocast.

An autograd function with a backward pass of its own has a plain twin, the same computation in differentiable
operations of torch. The twin takes over where a gradient is differentiated again (`create_graph=True`), under the
transforms of `torch.func` and in the compiler. So second derivatives are those of autograd; only first ones are faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from metrix.errors import MetrixError

Backward = TypeVar("Backward", bound=Callable[..., Any])


def use_twin() -> bool:
    """Whether a transform of `torch.func` or the compiler runs, which take no autograd functions of this kind."""
    return torch.compiler.is_compiling() or transforms_are_active()


def transforms_are_active() -> bool:
    """Whether a transform of `torch.func` runs."""
    active: bool = torch._C._are_functorch_transforms_active()
    return active


def refuse_vmap(x: Tensor) -> None:
    """Raise an error for a batch of batches under `torch.func.vmap`: how many pairs there are depends on labels."""
    if torch.compiler.is_compiling():
        return
    functorch = torch._C._functorch
    while transforms_are_active() and functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            raise MetrixError("torch.func.vmap: expected one batch, got several; call the loss for each of them")
        x = functorch.get_unwrapped(x)


def twin_gradients(
    twin: Callable[..., Tensor | tuple[Tensor, ...]], inputs: Sequence[Tensor | None], grads: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """The gradients of the twin's outputs with respect to its inputs, which can be differentiated again.

    Args:
        twin: from the inputs to one or several outputs.
        inputs: tensors as they were saved; None, and what needs no gradient, gets None.
        grads: of the outputs.
    """
    # a view of each: a tensor that is given twice has two gradients, which autograd would add up for both
    inputs = [x if x is None or not x.requires_grad else x.view_as(x) for x in inputs]
    found: list[Tensor | None] = [None] * len(inputs)
    wanted = [i for i, x in enumerate(inputs) if x is not None and x.requires_grad]
    outputs = twin(*inputs)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    known = [(out, grad) for out, grad in zip(outputs, grads, strict=True) if out.requires_grad]
    if wanted and known:
        outs, grads = zip(*known, strict=True)
        leaves = [inputs[i] for i in wanted]
        computed = torch.autograd.grad(outs, leaves, grads, create_graph=True, allow_unused=True)  # type: ignore[arg-type]
        for i, grad in zip(wanted, computed, strict=True):
            found[i] = grad
    return tuple(found)


def refuse_second_derivatives() -> None:
    """Called in a backward pass that goes on in other processes: raise an error if it would be differentiated again."""
    if torch.is_grad_enabled():
        raise MetrixError(
            "second derivatives (create_graph=True) are not computed across processes: add gradient penalties in a "
            "single process, or call the loss of each process without across_ranks()"
        )


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """A context in which operations on the device of x compute in the precision of their tensors."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def in_full_precision(backward: Backward) -> Backward:
    """A backward pass that computes in the precision of its tensors, even if it is called under autocast."""

    @wraps(backward)
    def run(ctx: Any, *grads: Tensor) -> Any:
        with without_autocast(grads[0]):
            return backward(ctx, *grads)

    return run  # type: ignore[return-value]
