"""Anybody's network as `features` and `head`: cut at a layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from metrix.core.head import PoolLinear
from metrix.core.validation import at_least_float32
from metrix.errors import ModelError, unknown_choice


class Split(nn.Module):
    """A network in two parts: `features(x)` up to a layer, `head(z)` from there to the unit embedding."""

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features, self.head = features, head

    def forward(self, x: Tensor) -> Tensor:
        """The unit embedding (n, d)."""
        out: Tensor = self.head(self.features(x))
        return out


class Normalised(nn.Module):
    """A network whose output is brought to unit norm."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """The unit output (n, d)."""
        return F.normalize(at_least_float32(self.network(x)), dim=1)


def split(module: nn.Module, at: str) -> Split:
    """Cut a network behind the layer `at`; parameters stay those of the network.

    >>> model = split(torchvision.models.resnet50(num_classes=512), at="layer4")
    >>> model.features(images).shape, model.head(model.features(images)).shape
    (torch.Size([8, 2048, 7, 7]), torch.Size([8, 512]))

    What follows the layer must depend on the input only through it. Average or max pooling followed
    by a linear layer is recognised and gets the fast path of feature mixup.
    """
    layers = dict(module.named_modules())
    if at not in layers or at == "":
        raise unknown_choice("layer", at, [name for name in layers if name])
    graph = _traced(module, at)
    cut = next((node for node in graph.nodes if node.op == "call_module" and node.target == at), None)
    if cut is None:
        raise ModelError(f"layer {at!r} of {type(module).__name__} is never called: choose one that is")
    features = fx.Graph()
    before: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        before[node] = features.node_copy(node, lambda n: before[n])
        if node is cut:
            break
    features.output(before[cut])
    return Split(_module(module, features), _head(module, graph, cut, at))


def _module(module: nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """What a graph needs of a module, and no more."""
    part = fx.GraphModule(module, graph)
    part.graph.eliminate_dead_code()
    part.delete_all_unused_submodules()
    part.recompile()
    return part


def _traced(module: nn.Module, at: str) -> fx.Graph:
    class Tracer(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, qualified_name: str) -> bool:
            return qualified_name == at or bool(super().is_leaf_module(m, qualified_name))

    try:
        return Tracer().trace(module)
    except Exception as error:
        raise ModelError(
            f"{type(module).__name__} cannot be traced by torch.fx ({error}): give it methods "
            "features(x) and head(z) instead"
        ) from error


def _head(module: nn.Module, graph: fx.Graph, cut: fx.Node, at: str) -> nn.Module:
    head = fx.Graph()
    after: dict[fx.Node, Any] = {cut: head.placeholder("features")}

    def earlier(node: fx.Node) -> Any:
        if node not in after:
            raise ModelError(
                f"what follows layer {at!r} also uses {node.name!r}, computed before it: choose a layer that "
                "everything passes through"
            )
        return after[node]

    following = list(graph.nodes)[list(graph.nodes).index(cut) + 1 :]
    for node in graph.nodes:
        if node.op == "get_attr":
            after[node] = head.node_copy(node)
    for node in following:
        if node.op != "get_attr":
            after[node] = head.node_copy(node, earlier)
    return _recognised(module, following) or Normalised(_module(module, head))


def _recognised(module: nn.Module, following: list[fx.Node]) -> PoolLinear | None:
    """Pooling to one position, flattening, a linear layer, perhaps normalisation: a `PoolLinear`."""
    steps: list[Any] = []
    for node in following:
        if node.op == "call_module":
            steps.append(module.get_submodule(str(node.target)))
        elif node.op == "call_function" and node.target is torch.flatten and node.args[1:] == (1,):
            steps.append(nn.Flatten())
        elif node.op == "call_function" and node.target is F.normalize:
            steps.append(F.normalize)
        elif node.op != "output":
            return None
    if steps and steps[-1] is F.normalize:
        steps.pop()
    pools: dict[type, str] = {nn.AdaptiveAvgPool2d: "avg", nn.AdaptiveMaxPool2d: "max"}
    if [type(s) for s in steps[1:]] != [nn.Flatten, nn.Linear] or type(steps[0]) not in pools:
        return None
    if steps[0].output_size not in (1, (1, 1)):
        return None
    linear = steps[2]
    return PoolLinear(linear.in_features, linear.out_features, pools[type(steps[0])], linear)
