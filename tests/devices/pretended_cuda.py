"""A device that pretends to be CUDA: its tensors say `cuda:0` and hold their numbers on the CPU.

It finds what would go wrong on a GPU, and counts what would take time there, on a machine without one:

    with PretendedCuda() as device:
        embeddings = device.put(torch.randn(20, 16), requires_grad=True)
        objective = device.put_module(Metrix(losses.MultiSimilarity(), mixup="embed"))
        device.reset()
        objective(embeddings, labels).backward()
    assert device.synchronisations.total() <= 1, device.synchronisations

An operation on tensors of both devices, a generator of the wrong device and NumPy's view of a tensor raise
`DeviceError`, as CUDA would refuse them. With `double=False` so does float64, which MPS does not have.

`tensor.to("cuda")` and `torch.tensor(…, device="cuda")` ask the driver for a number: say `cuda:0` or `other.device`.

It cannot see autocast for CUDA, NCCL, cuDNN, memory, or the rounding and order of sums of a real GPU. So results are
to be compared with the CPU's, which must be equal: a difference is an error here or there.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

import metrix

CUDA, CPU, META = torch.device("cuda", 0), torch.device("cpu"), torch.device("meta")
_SOURCE = str(Path(metrix.__file__).parent) + "/"

# Operations whose result has a shape or a Python value that only the device knows, so that the host waits for it.
WAITING = {
    "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "nonzero_static", "masked_select", "bincount",
    "_unique", "_unique2", "unique_dim", "unique_consecutive",
    "_linalg_check_errors", "_linalg_eigh", "_linalg_svd", "linalg_lstsq",
}  # fmt: skip
# Operations that launch no kernel.
FREE = {
    "view", "_unsafe_view", "_reshape_alias", "alias", "as_strided", "chunk", "detach", "diagonal", "expand", "flatten",
    "lift_fresh", "permute", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind",
    "unfold", "unsqueeze", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
}  # fmt: skip
# CUDA takes a CPU scalar as an operand of most operations, but not of these.
NO_CPU_SCALAR = {
    "mm", "addmm", "bmm", "cat", "stack", "convolution", "embedding", "gather", "index_select", "take",
    "index_add", "index_add_", "scatter", "scatter_", "scatter_add", "scatter_add_",
}  # fmt: skip
BETWEEN_DEVICES = {"copy_", "_to_copy"}
INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}


class DeviceError(RuntimeError):
    """What a GPU would refuse."""


class PretendedTensor(Tensor):
    """A tensor that says it is on `cuda:0`; `held` has its numbers, on the CPU."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> PretendedTensor:
        with _disable_current_modes():
            elements = held.untyped_storage().nbytes() // max(1, held.element_size())
            shape = torch.empty(elements, dtype=held.dtype, device=META)
            own = Tensor._make_subclass(cls, shape.as_strided(held.size(), held.stride(), held.storage_offset()), False)
        own.held = held
        return own

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)

    def get_device(self) -> int:
        return 0

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def new_tensor(self, data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or CUDA, requires_grad=requires_grad)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise DeviceError(f"numpy() of a tensor on cuda at {source_line()}")

    __array__ = numpy

    def __repr__(self, *args: Any, **kwargs: Any) -> str:
        return f"PretendedTensor({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if PretendedCuda.current is None:
            raise RuntimeError(f"{func} of a pretended tensor outside of `with PretendedCuda()`")
        return PretendedCuda.current.run(func, args, kwargs or {})


def source_line() -> str:
    """The line of metrix that is being executed, e.g. `core/pairs.py:180`."""
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(_SOURCE):
        frame = frame.f_back  # type: ignore[assignment]
    return "elsewhere" if frame is None else f"{frame.f_code.co_filename.removeprefix(_SOURCE)}:{frame.f_lineno}"


class PretendedCuda(TorchDispatchMode):
    """Within the block, "cuda" is a device: checked, and its work counted since `reset`.

    synchronisations  how often the host waited for the device, by operation and line
    copies            tensors copied from the host to the device, by line
    launches          kernels, by operation and line
    bytes             read and written by these kernels

    Args:
        double: whether the device has float64
        shapes_only: compute nothing, so that launches and bytes can be counted at true sizes
    """

    current: ClassVar[PretendedCuda | None] = None

    def __init__(self, *, double: bool = True, shapes_only: bool = False) -> None:
        super().__init__()
        self.double, self.host = double, META if shapes_only else CPU
        self._replaced: dict[str, Any] = {}
        self.reset()

    def reset(self) -> None:
        """Count from zero."""
        self.synchronisations: Counter[tuple[str, str]] = Counter()
        self.copies: Counter[str] = Counter()
        self.launches: Counter[tuple[str, str]] = Counter()
        self.bytes = 0

    def put(self, tensor: Tensor, requires_grad: bool | None = None) -> Tensor:
        """A copy of a CPU tensor on the device."""
        copy = PretendedTensor(tensor.detach().to(self.host, copy=True))
        return copy.requires_grad_(tensor.requires_grad if requires_grad is None else requires_grad)

    def put_module(self, module: nn.Module) -> nn.Module:
        """The module, its parameters and buffers replaced by copies on the device."""
        for part in module.modules():
            for name, parameter in _on_host(part._parameters):
                part._parameters[name] = nn.Parameter(self.put(parameter, False), parameter.requires_grad)
            for name, buffer in _on_host(part._buffers):
                part._buffers[name] = self.put(buffer)
        return module

    def __enter__(self) -> PretendedCuda:
        # Parts of torch that ask the driver before a tensor exists, or that know real devices only.
        stand_ins = {
            "_lazy_init": lambda: None,
            "get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8),
            "set_rng_state": lambda state, device=None: None,
        }
        self._replaced = {name: getattr(torch.cuda, name) for name in stand_ins}
        for name, function in stand_ins.items():
            setattr(torch.cuda, name, function)
        self._lifted = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device="cuda"): first on the CPU, then a copy
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        PretendedCuda.current = self
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        PretendedCuda.current = None
        torch.__future__.set_overwrite_module_params_on_conversion(False)
        torch._C._set_only_lift_cpu_tensors(self._lifted)
        for name, function in self._replaced.items():
            setattr(torch.cuda, name, function)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Check one operation, count it, and compute it on the numbers held."""
        name: str = func._overloadpacket.__name__
        if name == "device":
            return CUDA
        leaves = tree_leaves((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        on_device = [x for x in tensors if isinstance(x, PretendedTensor)]
        asked = kwargs.get("device")
        to_device = bool(on_device) if asked is None else torch.device(asked).type in ("cuda", "meta")
        for generator in leaves:
            if isinstance(generator, torch.Generator) and generator.device.type != ("cuda" if to_device else "cpu"):
                raise DeviceError(f"{func}: a generator of {generator.device} at {source_line()}")
        if on_device:
            self._check(func, name, args, tensors)
        moved = self._count_transfers(name, args, kwargs, to_device) if on_device or to_device else False

        held_args, held_kwargs = tree_map(_held, args), tree_map(_held, kwargs)
        if asked is not None:
            held_kwargs["device"] = self.host if to_device else CPU
            if to_device:
                held_kwargs.pop("pin_memory", None)
        result = func(*held_args, **held_kwargs)
        if (on_device or to_device) and name not in FREE and not moved:
            self.launches[name, source_line()] += 1
            touched = (x for x in tree_leaves((held_args, held_kwargs, result)) if isinstance(x, Tensor))
            self.bytes += sum(x.numel() * x.element_size() for x in touched)
        return tree_map(lambda x: self._wrap(x, func, tensors, to_device), result)

    def _check(self, func: Any, name: str, args: Any, tensors: list[Tensor]) -> None:
        """Refuse CPU tensors where CUDA does."""
        on_host = [x for x in tensors if not isinstance(x, PretendedTensor)]
        if not on_host or name in BETWEEN_DEVICES:
            return
        refused = [x for x in on_host if x.ndim > 0 or name in NO_CPU_SCALAR]
        if name in INDEXING:  # an index on the host is copied
            indices = [x for x in tree_leaves(args[1]) if isinstance(x, Tensor)]
            self.copies[source_line()] += sum(not isinstance(x, PretendedTensor) for x in indices)
            refused = [x for x in refused if not any(x is index for index in indices)]
        if name.endswith("_") and not isinstance(args[0], PretendedTensor):
            refused.append(args[0])
        if refused:
            where = [(tuple(x.shape), x.device.type) for x in tensors]
            raise DeviceError(f"{func}: expected all tensors on one device, got {where} at {source_line()}")

    def _count_transfers(self, name: str, args: Any, kwargs: dict[str, Any], to_device: bool) -> bool:
        """Count waiting and copies; returns whether nothing happens, because the tensor is there already."""
        waits, indices = name, [x for x in tree_leaves(args[1:2]) if isinstance(x, Tensor)] if name in INDEXING else []
        source = args[1] if name == "copy_" else args[0] if name == "_to_copy" else None
        on_device = isinstance(source, PretendedTensor)
        if name == "copy_":
            to_device = isinstance(args[0], PretendedTensor)
        if any(x.dtype in (torch.bool, torch.uint8) for x in indices):
            waits = f"{name}[bool]"
        elif on_device and not to_device:
            waits = "copy to the host"
        elif name not in WAITING and not (name == "repeat_interleave" and kwargs.get("output_size") is None):
            waits = ""
        if waits:
            self.synchronisations[waits, source_line()] += 1
        if isinstance(source, Tensor) and not on_device and to_device and (source.ndim or name == "_to_copy"):
            self.copies[source_line()] += 1
        unchanged = kwargs.get("dtype") in (None, getattr(source, "dtype", None)) and not kwargs.get("memory_format")
        return name == "_to_copy" and on_device and to_device and unchanged

    def _wrap(self, result: Any, func: Any, tensors: list[Tensor], to_device: bool) -> Any:
        """A result as a tensor of its device: the operand itself where an operation writes into it."""
        if not isinstance(result, Tensor) or isinstance(result, PretendedTensor):
            return result
        for operand in tensors:
            if result is operand or (result is getattr(operand, "held", None) and func._schema.is_mutable):
                return operand
        if to_device and not self.double and result.dtype == torch.float64:
            raise DeviceError(f"{func}: float64, which the device does not have, at {source_line()}")
        return PretendedTensor(result) if to_device else result


def _held(value: Any) -> Any:
    return value.held if isinstance(value, PretendedTensor) else value


def _on_host(tensors: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, x) for name, x in list(tensors.items()) if x is not None and not isinstance(x, PretendedTensor))
