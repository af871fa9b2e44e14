"""`metrix.split`: cut any network after a layer into `features` and `head`, which mixup needs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from metrix.core.head import PoolLinear
from metrix.core.validation import at_least_float32
from metrix.errors import ModelError, unknown_choice


class Split(nn.Module):
    """A network in two parts: `features(x)` up to a layer, and `head(z)` from there to unit embeddings."""

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features, self.head = features, head

    def forward(self, x: Tensor) -> Tensor:
        """Unit embeddings (n, d)."""
        out: Tensor = self.head(self.features(x))
        return out


class Normalised(nn.Module):
    """A network with its output scaled to unit norm."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (n, d) of unit norm."""
        return F.normalize(at_least_float32(self.network(x)), dim=1)


def split(module: nn.Module, at: str) -> Split:
    """Cut a network after a layer; the parts share their parameters with the network.

    If the head is average or max pooling and a linear layer, feature mixup takes its fast path.

    Args:
        module: a network that torch.fx can trace, from inputs to vectors (n, d).
        at: the path of the layer, as in `module.named_modules()`. The rest of the network may depend on the input
            only through the output of this layer.

    Raises:
        ChoiceError: if there is no such layer.
        ModelError: if the network cannot be traced, or cannot be cut there.

    >>> from torchvision.models import resnet18
    >>> model = split(resnet18(num_classes=64), at="layer4")
    >>> features = model.features(torch.rand(2, 3, 64, 64))
    >>> features.shape, model.head(features).shape
    (torch.Size([2, 512, 2, 2]), torch.Size([2, 64]))
    """
    for name in ("_orig_mod", "module"):  # as torch.compile, and DataParallel and its kin, call the network inside
        if [*module._modules] == [name]:
            raise ModelError(
                f"split: expected the network itself, got a {type(module).__name__} around it; pass its `.{name}`, and "
                "compile or parallelise what split returns"
            )
    layers = dict(module.named_modules())
    if at not in layers or at == "":
        raise unknown_choice("layer", at, [name for name in layers if name])
    graph = _trace(module, at)
    cut = next((node for node in graph.nodes if node.op == "call_module" and node.target == at), None)
    if cut is None:
        raise ModelError(f"layer {at!r} of {type(module).__name__} is not called in its forward pass; choose another")
    features = fx.Graph()
    before: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        before[node] = features.node_copy(node, lambda n: before[n])
        if node is cut:
            break
    features.output(before[cut])
    return Split(_extract(module, features), _build_head(module, graph, cut, at))


def _extract(module: nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """The part of a module that a graph uses."""
    part = fx.GraphModule(module, graph)
    part.graph.eliminate_dead_code()
    part.delete_all_unused_submodules()
    part.recompile()
    return part


def _trace(module: nn.Module, at: str) -> fx.Graph:
    class Tracer(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, qualified_name: str) -> bool:
            return qualified_name == at or bool(super().is_leaf_module(m, qualified_name))

    try:
        return Tracer().trace(module)
    except Exception as error:
        raise ModelError(
            f"{type(module).__name__} cannot be traced by torch.fx ({error}); add methods "
            "features(x) and head(z) to it instead"
        ) from error


def _build_head(module: nn.Module, graph: fx.Graph, cut: fx.Node, at: str) -> nn.Module:
    head = fx.Graph()
    after: dict[fx.Node, Any] = {cut: head.placeholder("features")}

    def earlier(node: fx.Node) -> Any:
        if node not in after:
            raise ModelError(
                f"the network cannot be cut after layer {at!r}: the rest also uses {node.name!r}, computed before it; "
                "choose a layer that everything passes through"
            )
        return after[node]

    following = list(graph.nodes)[list(graph.nodes).index(cut) + 1 :]
    for node in graph.nodes:
        if node.op == "get_attr":
            after[node] = head.node_copy(node)
    for node in following:
        if node.op != "get_attr":
            after[node] = head.node_copy(node, earlier)
    return _recognise_pool_linear(module, following) or Normalised(_extract(module, head))


def _recognise_pool_linear(module: nn.Module, following: list[fx.Node]) -> PoolLinear | None:
    """A `PoolLinear`, if the head is pooling to one position, flattening, a linear layer and maybe normalisation."""
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
