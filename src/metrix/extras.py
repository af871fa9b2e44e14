"""Optional packages: which extra of metrix installs each, and an error that says so where one is missing.

`pip install metrix` installs what training needs; `pip install 'metrix[search]'` adds what the extra `search` has.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from metrix.errors import MetrixError

EXTRAS = {  # the module that is imported: the extra of metrix that installs it
    "faiss": "search",
    "matplotlib": "report",
    "tensorboard": "tensorboard",
    "fastapi": "serve",
    "uvicorn": "serve",
    "prometheus_client": "serve",
    "python_multipart": "serve",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "pymilvus": "milvus",
    "milvus_lite": "milvus",
    "pillow_heif": "heic",
    "sentence_transformers": "text",
    "datasets": "hf",
    "optuna": "tune",
    "wandb": "wandb",
    "mlflow": "mlflow",
}


class MissingExtra(MetrixError, ImportError):  # noqa: N818 - reads as a statement
    """A package that an extra of metrix installs is missing."""


def has_extra(module: str) -> bool:
    """Whether an optional package is installed."""
    return find_spec(module) is not None


def require_extra(*modules: str) -> None:
    """Check that optional packages are installed, before work that needs them later.

    Raises:
        MissingExtra: one of them is missing; the message names the extra.

    >>> require_extra("faiss")
    """
    missing = [module for module in modules if not has_extra(module)]
    if missing:
        extras = ",".join(sorted({EXTRAS[module] for module in missing}))
        packages, are = ("package", "is") if len(missing) == 1 else ("packages", "are")
        raise MissingExtra(
            f"expected the {packages} {', '.join(missing)}, which {are} not installed; "
            f"run pip install 'metrix[{extras}]'"
        )


def import_extra(module: str) -> Any:
    """The optional package of this name.

    Raises:
        MissingExtra: it is missing; the message names the extra.

    >>> import_extra("faiss").__name__
    'faiss'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError:
        require_extra(module)
        raise  # it is there, and something that it needs is not
