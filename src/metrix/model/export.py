"""A model for other programs: ONNX, in float or int8, and the format of torch.export; both take any number of images.

Every file is compared with the model in torch before it is written.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metrix.errors import ModelError
from metrix.extras import require_extra
from metrix.files import write_atomically
from metrix.model.embedder import Embedder

INPUT, OUTPUT = "images", "embeddings"
ABOUT = "metrix"  # the key of the description in the metadata of a file
TOLERANCE = 1e-4  # largest difference of a float export to the model in torch
OPSET = 20
_LARGEST = 2_000_000_000  # bytes of weights; a protobuf message ends at 2 GiB
_CHECKED = (1, 3, 8)  # batch sizes


class StraightPass(nn.Module):
    """An embedder as one pass over the backbone and the head, whether a part of it is frozen or not."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.embedder = embedder

    def forward(self, images: Tensor) -> Tensor:
        """Embed images (n, channels, height, width) as unit vectors (n, dim)."""
        features = self.embedder._to_positions(self.embedder.backbone.forward_features(images))  # type: ignore[operator]
        embeddings: Tensor = self.embedder.head(features)
        return embeddings


def build_onnx(embedder: Embedder, size: int | None = None) -> Any:
    """The `onnx.ModelProto` of an embedder, from `images` (batch, channels, size, size) to `embeddings` (batch, dim).

    Args:
        embedder: stays as it is; the export is of its evaluation mode.
        size: of the images in pixels, if not that of `embedder.data_config`.

    Raises:
        ModelError: the model has an operation that ONNX lacks, or the packages of `metrix[onnx]` are not installed.
    """
    require_onnx()
    network, example = _prepare(embedder, size)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
    if weights > _LARGEST:
        raise ModelError(f"a model of {weights / 1e9:.1f} GB: expected at most 2 GB, the limit of a single ONNX file")
    try:
        with _quietly():
            program = torch.onnx.export(
                network,
                (example,),
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                input_names=[INPUT],
                output_names=[OUTPUT],
                verbose=False,
            )
    except Exception as error:  # the exporter has many kinds of errors
        raise _not_exportable(embedder, "ONNX", error) from error
    assert program is not None
    return _without_traces(program.model_proto)


def build_torch_export(embedder: Embedder, size: int | None = None) -> torch.export.ExportedProgram:
    """The `ExportedProgram` of an embedder, for any number of images; arguments as for `build_onnx`."""
    network, example = _prepare(embedder, size)
    try:
        with _quietly(), torch.no_grad():
            program = torch.export.export(network, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:
        raise _not_exportable(embedder, "torch.export", error) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of the machine that exported it
    return program


def write_onnx(model: Any, path: Path, about: Mapping[str, Any]) -> None:
    """Write a `ModelProto` atomically, with a description in its metadata under the key `metrix`, as JSON."""
    import onnx

    described = type(model)()
    described.CopyFrom(model)
    onnx.helper.set_model_props(described, {ABOUT: json.dumps(about, ensure_ascii=False)})
    write_atomically(path, lambda temporary: temporary.write_bytes(described.SerializeToString()))


def write_torch_export(program: torch.export.ExportedProgram, path: Path, about: Mapping[str, Any]) -> None:
    """Write an `ExportedProgram` atomically, with a description in its extra file `metrix`, as JSON."""

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file, _quietly():
            torch.export.save(program, file, extra_files={ABOUT: json.dumps(about, ensure_ascii=False)})

    write_atomically(path, save)


def read_onnx_about(path: Path) -> dict[str, Any]:
    """The description that `write_onnx` stored in a file.

    Raises:
        ModelError: it cannot be read, or metrix did not write it.
    """
    require_onnx()
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
        found = {entry.key: entry.value for entry in model.metadata_props}
        about: dict[str, Any] = json.loads(found[ABOUT])
        return about
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist; expected an ONNX file that metrix export wrote") from None
    except Exception as error:  # protobuf has errors of its own
        raise ModelError(
            f"{path}: expected an ONNX file that metrix export wrote, got another ({type(error).__name__})"
        ) from error


class OnnxSession:
    """An ONNX model on onnxruntime, on the CPU: images (n, channels, height, width) to vectors (n, dim).

    Args:
        model: a `ModelProto`, its bytes, or the path of a file.
        threads: of onnxruntime; as many as torch uses by default.
    """

    def __init__(self, model: Any, threads: int | None = None) -> None:
        require_onnx()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or torch.get_num_threads()
        options.log_severity_level = 3  # errors only
        # Idle threads would otherwise take the processor from the threads that decode images.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        given = os.fspath(model) if isinstance(model, (str, Path)) else model
        given = given if isinstance(given, (str, bytes)) else given.SerializeToString()
        try:
            self._session = onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own kinds
            raise ModelError(f"onnxruntime cannot run the model: {_first_line(error)}") from error
        self._input = self._session.get_inputs()[0].name

    def __call__(self, images: Tensor) -> Tensor:
        """Embed images."""
        given = {self._input: images.cpu().contiguous().numpy()}
        try:
            found: NDArray[np.float32] = self._session.run(None, given)[0]
        except Exception as error:  # onnxruntime's own kinds, as of a constant that no memory holds
            raise ModelError(f"onnxruntime cannot run the model: {_first_line(error)}") from error
        return torch.from_numpy(found)


def measure_difference(embedder: Embedder, run: Any, size: int | None = None) -> float:
    """The largest absolute difference of `run(images)` to the embedder, over batches of 1, 3 and 8 random images."""
    network, _ = _prepare(embedder, size)
    generator = torch.Generator().manual_seed(0)
    shape = embedder.input_shape(size)
    largest = 0.0
    with torch.inference_mode():
        for count in _CHECKED:
            images = torch.randn(count, *shape, generator=generator)
            difference = (run(images) - network(images)).abs().max().item()
            largest = max(largest, difference) if difference == difference else float("nan")
    return largest


def check_difference(difference: float, what: str) -> None:
    """Raise `ModelError` if an export differs from the model in torch by more than `TOLERANCE`."""
    if not difference <= TOLERANCE:
        raise ModelError(
            f"{what}: expected the embeddings of the model in torch to {TOLERANCE:g}, got a difference of "
            f"{difference:.2g}; nothing was written"
        )


def quantise(model: Any, batches: Iterable[NDArray[np.float32]] | None = None) -> Any:
    """A `ModelProto` in int8.

    Args:
        model: in float.
        batches: images (n, channels, height, width) to calibrate the ranges of activations on (static quantisation).
            Without them, activations are quantised anew for every batch (dynamic), which is slower: several times
            slower than float for convolutions.
    """
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Images(CalibrationDataReader):  # type: ignore[misc, unused-ignore]
        """What onnxruntime reads images to calibrate from."""

        def __init__(self, given: Iterable[NDArray[np.float32]]) -> None:
            self.rest = iter(given)

        def get_next(self) -> dict[str, NDArray[np.float32]] | None:
            images = next(self.rest, None)
            return None if images is None else {INPUT: images}

    with tempfile.TemporaryDirectory() as name, _quietly():
        folder = Path(name)
        plain, ready, result = (str(folder / f"{stage}.onnx") for stage in ("plain", "ready", "result"))
        onnx.save(model, plain)
        quant_pre_process(plain, ready, skip_symbolic_shape=True)
        kinds = {"weight_type": QuantType.QInt8, "per_channel": True}
        if batches is not None:
            quantize_static(ready, result, Images(batches), **kinds)
        else:
            prepared = onnx.load(ready)
            del prepared.graph.value_info[:]  # shapes of weights that are transposed in between
            quantize_dynamic(prepared, result, **kinds)
        return onnx.load(result)


def require_onnx() -> None:
    """Raise `MissingExtra` unless the packages of `metrix[onnx]` are installed."""
    require_extra("onnx", "onnxruntime", "onnxscript")


def _prepare(embedder: Embedder, size: int | None) -> tuple[StraightPass, Tensor]:
    """A copy on the CPU in evaluation mode, and a batch of two images (a batch of one would be taken for constant)."""
    network = StraightPass(copy.deepcopy(embedder).cpu()).eval()
    return network.requires_grad_(False), torch.zeros(2, *embedder.input_shape(size))


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the warnings and log lines of exporters, which are about their own internals."""
    import logging

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _without_traces(model: Any) -> Any:
    """The model without stack traces of the machine that exported it."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.value_info, *graph.initializer, *graph.input, *graph.output):
        del part.metadata_props[:]
    for function in model.functions:
        for part in (function, *function.node):
            del part.metadata_props[:]
    return model


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _not_exportable(embedder: Embedder, what: str, error: Exception) -> ModelError:
    reason: BaseException = error
    while reason.__cause__ is not None:  # the exporter wraps the reason in advice on reporting bugs
        reason = reason.__cause__
    config = embedder.config
    return ModelError(
        f"{config.backbone!r} with pool {config.pool!r} cannot be exported as {what}: "
        f"{_first_line(reason if isinstance(reason, Exception) else error)}"
    )
