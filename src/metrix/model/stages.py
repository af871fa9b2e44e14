"""Where a backbone can be cut in two: its stages, found by watching one image go through.

A backbone is cut at a stage boundary into a trunk (frozen, run once) and a rest (trained):

    features(x) = rest(trunk(x))

The rest is a chain of modules, so a cut is offered only where everything after it is one: where each
module is called once, with exactly the output of the one before. Code between modules (a position
embedding that is added, a branch, a skip over stages) breaks the chain, and no cut is offered before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from metrix.errors import ModelError

_NUMBERED_STAGE = re.compile(r"(?:^|\.)(?:s|[a-z_]*(?:layers?|stages?|blocks?))[._]?\d+$")


@dataclass(frozen=True)
class Stage:
    """A stage and the paths of the modules that it runs, in order: `Stage("stem", ("conv1", "bn1"))`."""

    name: str
    modules: tuple[str, ...]


@dataclass(frozen=True)
class Anatomy:
    """What one image shows about a backbone.

    `stages` are those after which it can be cut, `idle` the children that `forward_features` does not use
    (the classifier), `output` what the image came out as.
    """

    stages: tuple[Stage, ...]
    idle: tuple[str, ...]
    output: Tensor


class _Reached(Exception):  # noqa: N818 - a signal, never seen by a caller
    def __init__(self, output: Tensor) -> None:
        self.output = output


def run_up_to(backbone: nn.Module, boundary: str, x: Tensor) -> Tensor:
    """The output of the module at path `boundary` while `forward_features(x)` runs; nothing after it runs."""

    def leave(_module: nn.Module, _args: object, output: Tensor) -> None:
        raise _Reached(output)

    handle = backbone.get_submodule(boundary).register_forward_hook(leave)
    try:
        backbone.forward_features(x)  # type: ignore[operator]
    except _Reached as reached:
        return reached.output
    finally:
        handle.remove()
    raise ModelError(f"{type(backbone).__name__} never ran {boundary!r} on images of shape {tuple(x.shape)}")


def examine(backbone: nn.Module, image: Tensor) -> Anatomy:
    """Run `image` (1, c, h, w) through `forward_features` in eval mode and look at what was called."""
    steps = dict(_steps(backbone))
    calls: list[tuple[str, Tensor | None, object]] = []  # (path, the only input, output), in order
    ran: set[nn.Module] = set()

    def watch(path: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def record(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
            ran.add(module)
            if path in steps:
                alone = args[0] if len(args) == 1 and not kwargs else None
                calls.append((path, alone if isinstance(alone, Tensor) else None, output))

        return module.register_forward_hook(record, with_kwargs=True)

    training = backbone.training
    handles = [watch(path, module) for path, module in backbone.named_modules() if path]
    try:
        with torch.no_grad():
            output = backbone.eval().forward_features(image)  # type: ignore[operator]
    finally:
        for handle in handles:
            handle.remove()
        backbone.train(training)
    if not isinstance(output, Tensor) or output.ndim not in (2, 3, 4):
        raise ModelError(
            f"forward_features of {type(backbone).__name__} returns {_described(output)}; accepted are a map "
            "(n, c, h, w), tokens (n, p, c) or vectors (n, c). Choose another backbone"
        )
    idle = tuple(
        name
        for name, child in backbone.named_children()
        if ran.isdisjoint(child.modules()) and not _used_unseen(backbone, name, image, output)
    )
    return Anatomy(_cuttable(backbone, calls, output), idle, output)


def _used_unseen(backbone: nn.Module, name: str, image: Tensor, output: Tensor) -> bool:
    """Whether a child that was never called matters all the same: some are only asked for a table."""
    child = backbone.get_submodule(name)
    if not child.state_dict() and not list(child.buffers()):
        return False
    training = backbone.training
    setattr(backbone, name, nn.Identity())
    try:
        with torch.no_grad():
            return not torch.equal(backbone.eval().forward_features(image), output)  # type: ignore[operator]
    except (AttributeError, TypeError):
        return True
    finally:
        setattr(backbone, name, child)
        backbone.train(training)


def _described(output: object) -> str:
    if isinstance(output, Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    return f"a {type(output).__name__}"


def _steps(backbone: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules between which a cut may fall: the children, and the members of containers of stages.

    timm's `feature_info` says which containers hold stages: it names `blocks.0` in an EfficientNet
    (so `blocks` is opened) but `layer1` in a ResNet (so that stays whole).
    """
    information = getattr(backbone, "feature_info", None) or []
    named = [entry["module"] for entry in getattr(information, "info", information)]

    def opened(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        holds_stages = isinstance(module, nn.Sequential) and any(name.startswith(f"{path}.") for name in named)
        if holds_stages or isinstance(module, nn.ModuleList):
            for name, child in module.named_children():
                yield from opened(f"{path}.{name}", child)
        else:
            yield path, module

    for name, child in backbone.named_children():
        yield from opened(name, child)


def _cuttable(backbone: nn.Module, calls: list[tuple[str, Tensor | None, object]], output: Tensor) -> tuple[Stage, ...]:
    paths = [path for path, _, _ in calls]
    first_cut = len(calls)  # a cut after step k is possible for k >= first_cut
    following: object = output
    for step in range(len(calls) - 1, -1, -1):
        path, alone, produced = calls[step]
        if produced is not following or paths.count(path) > 1:
            break
        first_cut = step
        following = alone
    stages: list[Stage] = []
    for group in _grouped(backbone, paths):
        if group.end > first_cut:
            stages.append(Stage(group.name, tuple(paths[group.start : group.end])))
    return tuple(stages)


@dataclass
class _Group:
    name: str
    start: int
    end: int


def _grouped(backbone: nn.Module, paths: list[str]) -> list[_Group]:
    """Steps to stages: what precedes the numbered stages is `stem`, what follows them `tail`.

    A step without parameters belongs to the stage before it: an activation or pooling is no boundary.
    """
    numbered = [step for step, path in enumerate(paths) if _NUMBERED_STAGE.search(path)]
    groups: list[_Group] = []
    for step, path in enumerate(paths):
        name = path
        if numbered:
            name = "stem" if step < numbered[0] else "tail" if step > numbered[-1] else path
        empty = next(backbone.get_submodule(path).parameters(), None) is None
        if groups and (empty or groups[-1].name == name):
            groups[-1].end = step + 1
        else:
            groups.append(_Group(name, step, step + 1))
    return groups
