"""FSDP: weights, gradients and optimizer state live in shares, one for each process.

The whole network is one unit: its weights are put together at the start of a step and taken apart at its end, so
that no exchange happens within a step. Mixed examples are embedded in chunks whose number differs between
processes, which must not wait for each other there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch import Tensor, nn


def sharded_strategy(timeout: timedelta) -> Any:
    """Fabric's strategy with FSDP over all processes."""
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard

    class Sharded(ModelParallelStrategy):
        def setup_environment(self) -> None:
            self._data_parallel_size, self._tensor_parallel_size = self.num_nodes * self.num_processes, 1
            super().setup_environment()

    def shard(module: nn.Module, mesh: Any) -> nn.Module:
        for parameter in module.parameters():
            parameter.data = parameter.data.contiguous()  # not channels last
        fully_shard(module, mesh=mesh["data_parallel"])
        return module

    return Sharded(shard, timeout=timeout)


def whole(tensor: Tensor) -> Tensor:
    """A tensor put together from its shares; every process must ask for it."""
    put: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return put


def whole_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """All of them."""
    return {name: whole(tensor) for name, tensor in tensors.items()}


def in_shares(tensor: Tensor, like: Tensor) -> Tensor:
    """The reverse of `whole`: this process's share, if `like` is one."""
    if not hasattr(like, "placements") or hasattr(tensor, "placements") or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    shared: Any = like
    return distribute_tensor(tensor.to(like.device), shared.device_mesh, shared.placements)


def load(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """`load_state_dict` of whole tensors into a module that may have them in shares."""
    own = module.state_dict()
    module.load_state_dict({name: in_shares(tensor, own.get(name, tensor)) for name, tensor in tensors.items()})


@contextmanager
def put_together(module: nn.Module, sharded: bool) -> Iterator[None]:
    """The weights of a module whole, for as long as they are only read."""
    if not sharded:
        yield
        return
    from torch.distributed.fsdp import FSDPModule

    units = [unit for unit in module.modules() if isinstance(unit, FSDPModule)]
    for unit in units:
        unit.unshard()
    try:
        yield
    finally:
        for unit in units:
            unit.reshard()
