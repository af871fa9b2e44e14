"""The stages of a backbone, after which it can be cut in two; found by recording a forward pass.

Freezing cuts a backbone after a stage into a trunk (frozen) and a rest (trained):

    features(x) = rest(trunk(x))

The rest has to be a chain of modules, each called once with exactly the output of the previous one. Any operation
between modules (adding a position embedding, a branch, a skip connection over stages) breaks the chain, so a cut is
possible only after it.
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
    """A stage and the paths of its modules in the order they run: `Stage("stem", ("conv1", "bn1"))`."""

    name: str
    modules: tuple[str, ...]


@dataclass(frozen=True)
class Anatomy:
    """What a forward pass of one image reveals about a backbone.

    stages   those after which it can be cut
    idle     the children that `forward_features` does not use, such as the classifier
    output   of `forward_features`
    """

    stages: tuple[Stage, ...]
    idle: tuple[str, ...]
    output: Tensor


class _Reached(Exception):  # noqa: N818 - a signal to leave the forward pass, caught below
    def __init__(self, output: Tensor) -> None:
        self.output = output


def run_up_to(backbone: nn.Module, boundary: str, x: Tensor) -> Tensor:
    """Run `forward_features(x)` up to the module with the path `boundary`, and return the output of that module."""

    def leave(_module: nn.Module, _args: object, output: Tensor) -> None:
        raise _Reached(output)

    handle = backbone.get_submodule(boundary).register_forward_hook(leave)
    try:
        backbone.forward_features(x)  # type: ignore[operator]
    except _Reached as reached:
        return reached.output
    finally:
        handle.remove()
    raise ModelError(f"{type(backbone).__name__} does not run {boundary!r} for images of shape {tuple(x.shape)}")


def examine(backbone: nn.Module, image: Tensor) -> Anatomy:
    """Run `forward_features` on an image (1, c, h, w) in eval mode and record which modules are called.

    >>> from metrix.model.glyphs_cnn import GlyphsCNN
    >>> [stage.name for stage in examine(GlyphsCNN(), torch.zeros(1, 1, 28, 28)).stages]
    ['stage1', 'stage2', 'stage3', 'stage4', 'stage5']
    """
    steps = dict(_list_steps(backbone))
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
            f"forward_features of {type(backbone).__name__} returns {_describe(output)}; expected maps "
            "(n, c, h, w), tokens (n, p, c) or vectors (n, c); choose another backbone"
        )
    idle = tuple(
        name
        for name, child in backbone.named_children()
        if ran.isdisjoint(child.modules()) and not _is_used_uncalled(backbone, name, image, output)
    )
    return Anatomy(_find_stages(backbone, calls, output), idle, output)


def _is_used_uncalled(backbone: nn.Module, name: str, image: Tensor, output: Tensor) -> bool:
    """Whether the output depends on a child that was never called, such as a table of position embeddings."""
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


def _describe(output: object) -> str:
    if isinstance(output, Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    return f"a {type(output).__name__}"


def _list_steps(backbone: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules between which the backbone may be cut: its children, with containers of stages expanded.

    timm's `feature_info` tells which containers have stages in them: it lists `blocks.0` of an EfficientNet, so that
    `blocks` is expanded, but `layer1` of a ResNet, which is kept.
    """
    information = getattr(backbone, "feature_info", None) or []
    named = [entry["module"] for entry in getattr(information, "info", information)]

    def expand(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        holds_stages = isinstance(module, nn.Sequential) and any(name.startswith(f"{path}.") for name in named)
        if holds_stages or isinstance(module, nn.ModuleList):
            for name, child in module.named_children():
                yield from expand(f"{path}.{name}", child)
        else:
            yield path, module

    for name, child in backbone.named_children():
        yield from expand(name, child)


def _find_stages(
    backbone: nn.Module, calls: list[tuple[str, Tensor | None, object]], output: Tensor
) -> tuple[Stage, ...]:
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
    for group in _group_steps(backbone, paths):
        if group.end > first_cut:
            stages.append(Stage(group.name, tuple(paths[group.start : group.end])))
    return tuple(stages)


@dataclass
class _Group:
    name: str
    start: int
    end: int


def _group_steps(backbone: nn.Module, paths: list[str]) -> list[_Group]:
    """Group steps into stages: those before the numbered stages are the `stem`, those after them the `tail`.

    A step without parameters, such as an activation or pooling, belongs to the stage before it.
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
