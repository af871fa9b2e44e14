"""The processes that train together: how they are started, and what they tell each other.

Under torchrun there are as many as torchrun started; else `devices` of them are started on each of `nodes` machines.
The rank 0 process alone writes the run's folder and talks to the terminal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from metrix.core.distributed.ranks import ALONE, Ranks
from metrix.errors import InvalidInput, MetrixError, unknown_choice
from metrix.files import cache_folder, lock
from metrix.train.config import Training

# A process that waits longer than this for the others ends. One that died is noticed at once: its connections close.
WAIT = timedelta(minutes=15)
_LOST = ("closed by peer", "reset by peer", "broken pipe", "timed out", "connection refused", "remote process")


StrategyName = Literal["auto", "ddp", "fsdp"]


class LostProcess(MetrixError):  # noqa: N818 - named after what happened
    """Another process of the run ended, so this one cannot go on."""

    exit_code = 3

    def __init__(self, run: Path, rank: int) -> None:
        hint = f"go on with --resume {run}" if (run / "checkpoints" / "last.safetensors").exists() else "start again"
        super().__init__(f"rank {rank} lost another process of this run, which was killed or failed; {hint}")


@dataclass(frozen=True)
class Launch:
    """How many processes train, and how they share the work; None is what torchrun says, or one."""

    devices: int | None = None  # on each machine
    nodes: int | None = None
    strategy: StrategyName = "auto"

    def sizes(self) -> tuple[int, int]:
        """Processes on each machine, and machines; those of torchrun if it started this process."""
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return self.devices or 1, self.nodes or 1
        world, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
        started = local, max(1, world // local)
        for name, asked, found in zip(("devices", "nodes"), (self.devices, self.nodes), started, strict=True):
            if asked is not None and asked != found:
                raise InvalidInput(f"{name}={asked}, but torchrun started {found}: leave --{name} out under torchrun")
        return started


def strategy_of(name: str) -> StrategyName:
    """A way to share the work, by its name."""
    for known in get_args(StrategyName):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise unknown_choice("strategy", name, get_args(StrategyName))


def is_first() -> bool:
    """Whether this process is the one that talks, also after it has left its group."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0


class Team:
    """The processes of a run as one of them sees them."""

    def __init__(self, fabric: Any, sharded: bool = False) -> None:
        self.fabric, self.sharded = fabric, sharded  # whether weights and optimizer live in shares
        self.rank, self.size = int(fabric.global_rank), int(fabric.world_size)
        self.ranks: Ranks = Ranks.joined() if self.size > 1 else ALONE

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and talks."""
        return self.rank == 0

    def largest(self, number: int) -> int:
        """The largest of the numbers that the processes have."""
        if self.size == 1:
            return number
        value = torch.tensor(number, device=self.fabric.device)
        torch.distributed.all_reduce(value, torch.distributed.ReduceOp.MAX)
        return int(value)

    def added(self, numbers: list[int]) -> list[int]:
        """Numbers added up over the processes."""
        if self.size == 1:
            return numbers
        values = torch.tensor(numbers, device=self.fabric.device)
        torch.distributed.all_reduce(values)
        return [int(value) for value in values.tolist()]

    def text(self, text: str) -> str:
        """A text of rank 0."""
        if self.size == 1:
            return text
        content = text.encode()
        length = self.largest(len(content) if self.first else 0)
        padded = content.ljust(length, b"\0") if self.first else bytes(length)
        values = torch.tensor(list(padded), dtype=torch.uint8, device=self.fabric.device)
        torch.distributed.broadcast(values, 0)
        return bytes(values.tolist()).decode()

    def in_order(self, own: Tensor, counts: list[int]) -> Tensor:
        """Rows of all processes, rank after rank, on the CPU; `counts` are how many each has."""
        if self.size == 1:
            return own
        from metrix.core.distributed.ranks import Division

        return Division(tuple(counts), self.ranks).gathered(own.to(self.fabric.device)).cpu()

    def wait(self) -> None:
        """Until all processes are here."""
        self.largest(0)

    @contextmanager
    def one_at_a_time(self, what: str) -> Iterator[None]:
        """What a first process leaves in the cache folder, the others of its machine find there."""
        if self.size == 1:
            yield
            return
        with lock(cache_folder() / f"{what}.lock"):
            yield


def started(settings: Training, launch: Launch) -> Team:
    """Fabric and its processes, all of them running from here on."""
    from lightning_fabric import Fabric

    if settings.device in ("cuda", "mps") and not getattr(torch, settings.device).is_available():
        raise InvalidInput(f"device={settings.device!r} is not there: accepted are 'auto' and 'cpu'")
    on_cpu = settings.device == "cpu" or (settings.device == "auto" and not torch.cuda.is_available())
    if settings.precision == "16-mixed" and on_cpu:
        raise InvalidInput("precision='16-mixed' needs a GPU: accepted on a CPU are '32-true' and 'bf16-mixed'")
    devices, nodes = launch.sizes()
    if not on_cpu and settings.device != "mps" and devices > torch.cuda.device_count():
        raise InvalidInput(f"devices={devices}, but there are {torch.cuda.device_count()} GPUs on this machine")
    alone = devices * nodes == 1
    if alone and launch.strategy == "fsdp":
        raise InvalidInput(
            "strategy='fsdp' with one process: there is nothing to share; give --devices, or use torchrun"
        )
    fabric = Fabric(
        accelerator=settings.device,
        devices=devices,
        num_nodes=nodes,
        precision=settings.precision,
        strategy="auto" if alone else _strategy(launch),
    )
    with _lightning_quiet():
        fabric.launch()
    return Team(fabric, sharded=launch.strategy == "fsdp")


def _strategy(launch: Launch) -> Any:
    from lightning_fabric.strategies.ddp import DDPStrategy

    if launch.strategy == "fsdp":
        return sharded_strategy(WAIT)
    return DDPStrategy(timeout=WAIT)


@contextmanager
def _lightning_quiet() -> Iterator[None]:
    """Without Fabric's own lines about ranks."""
    import logging

    loggers = [logging.getLogger(name) for name in ("lightning_fabric", "lightning.fabric")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@contextmanager
def noticing_lost(run: Path, team: Team) -> Iterator[None]:
    """A failed exchange with the others as what it means."""
    try:
        yield
    except RuntimeError as error:
        if team.size > 1 and any(sign in str(error).lower() for sign in _LOST):
            raise LostProcess(run, team.rank) from error
        raise


# FSDP: weights, gradients and optimizer state live in shares, one for each process. The whole network is one unit:
# its weights are put together at the start of a step and taken apart at its end, so that no exchange happens within
# a step. Mixed examples are embedded in chunks whose number differs between processes, which must not wait for each
# other there.


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


def load_shares(module: nn.Module, tensors: dict[str, Tensor]) -> None:
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
