"""A run as a folder for a model hub: weights and config that `Embedder.load` reads, and a model card.

README.md            the card: a metadata header, measures, data, settings, usage
model.safetensors    a copy of the run's weights, so that their digest stays the same
config.json          the arguments of `Embedder`
preprocessing.json   how an image becomes the network's input, and the threshold of the run if it has one
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from metrix.errors import InvalidInput
from metrix.evaluate.few_classes import describe_few_classes
from metrix.model.saving import CONFIG_FILE, WEIGHTS_FILE
from metrix.runs.model_export import ExportedModel, describe_model, is_export_of
from metrix.runs.output import write_output
from metrix.runs.trained_model import TrainedModel
from metrix.train.config import Config
from metrix.train.run_folder import RunFolder

CARD = "README.md"
PREPROCESSING = "preprocessing.json"
USAGE = """from metrix import Embedder

model = Embedder.load("path/to/this/folder")
embeddings = model.encode(["photo.jpg"])  # (images, dim), of unit length: similarities are embeddings @ embeddings.T
"""


def export_hub(model: TrainedModel, folder: Path, *, overwrite: bool = False) -> ExportedModel:
    """Write the model of a run as a folder that can be pushed to a hub and that `Embedder.load` reads.

    Args:
        model: of the run, from `open_run`
        folder: created if necessary; files of other names in it stay
        overwrite: replace files of another model
    """
    if model.embedder.takes_vectors:
        raise InvalidInput(
            f"--hub: expected a run on images, got {model.run.path}, which was trained on vectors and needs the model "
            "that made them; export it with --onnx or --torch-export"
        )
    if not model.is_whole:
        raise InvalidInput(
            f"--hub: expected the whole embedding, which the card measures, got --dim {model.dim}; a folder says which "
            f"prefixes were trained: Embedder.load(FOLDER).shorten({model.dim})"
        )
    files = tuple(folder / name for name in (WEIGHTS_FILE, CONFIG_FILE, PREPROCESSING, CARD))
    taken = [file for file in files if file.exists()]
    if taken and not overwrite and not is_export_of(model, folder / PREPROCESSING):
        raise InvalidInput(f"{taken[0]} already exists with other content: choose another folder, or give --overwrite")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be created: {error.strerror or error}; choose another place") from error
    about = describe_model(model)
    described = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
    card = write_card(model, about, folder.resolve().name)
    write_output(files[0], lambda temporary: shutil.copyfile(model.weights, temporary))
    write_output(files[1], lambda temporary: shutil.copyfile(model.weights.with_name(CONFIG_FILE), temporary))
    write_output(files[2], lambda temporary: temporary.write_text(described, encoding="utf-8"))
    write_output(files[3], lambda temporary: temporary.write_text(card, encoding="utf-8"))
    return ExportedModel(files, None)


def write_card(model: TrainedModel, about: dict[str, Any], name: str) -> str:
    """The text of the model card; it names the data, but no path of this machine."""
    config = model.config
    data = Path(config.data.data.split(":")[-1]).name or config.data.data
    measured = _read_measures(model)
    own = measured if (model.run.results or {}).get("test") is not None else {}
    other = model.run.measured
    test = (model.run.results or {}).get("test") or (other or {}).get("test") or {}
    extent = f", {test['images']:,} images of {test['classes']:,} classes" if test else ""
    if test and (caution := describe_few_classes(test["classes"])):
        extent += f" (figures {caution})"
    mixup = config.mixing.describe()
    parts = [
        f"---\n{_header(name, data, own)}---\n",
        f"# {name}\n",
        f"Image embeddings, trained with metrix: {about['backbone']} with {about['pool']} pooling to unit vectors of "
        f"{about['embedding']['dim']} entries. Images of a class are close together, also of classes that were not "
        "trained on; similarity is the cosine.\n",
        "## Measures\n",
        f"{_describe_measured(data, extent, model.run)}\n",
        _table(("measure", "value"), [(key, f"{value:.4f}") for key, value in measured.items()]),
        *_describe_threshold(about["threshold"]),
        "## Data\n",
        _describe_data(data, config),
        "## Settings\n",
        f"Trained with {config.objective_name}, mixup {mixup}, {config.train.epochs} epochs with batches of "
        f"{config.train.batch_size}, learning rate {config.train.lr:g}, seed {config.train.seed}. "
        "Settings that are not at their default:\n",
        _table(("setting", "value"), _changed_settings(model, data)),
        "## Usage\n",
        f"```python\n{USAGE}```\n",
        f"`{PREPROCESSING}` describes the input for other programs. Weights: SHA-256 `{about['model']}`.\n",
    ]
    return "\n".join(parts)


def _describe_measured(data: str, extent: str, run: RunFolder) -> str:
    if (run.results or {}).get("test") is not None:
        return f"On classes of {data} that were not trained on{extent}:"
    if run.measured is None:
        return "None: the model was trained on all classes, so that nothing can be measured on it."
    return (
        f"Not of this model, which was trained on all classes of {data}, so that nothing can be measured on it, but of "
        f"one with the same settings, trained on a part of the classes, on those that it was not trained on{extent}:"
    )


def _describe_data(data: str, config: Config) -> str:
    if config.data.unseen == 0:
        return f"Trained on all classes of {data}.\n"
    return (
        f"Trained on the training classes of {data}, and measured on its test classes. In a dataset without a split of "
        f"its own, {config.data.unseen:.0%} of the classes are for testing (split seed {config.data.split_seed}).\n"
    )


def _read_measures(model: TrainedModel) -> dict[str, float]:
    """Recall@K from the end of training, or of the run measured in its place, and the means of the latest evaluation
    if it is of this model."""
    measured = (model.run.results or {}).get("test") or (model.run.measured or {}).get("test") or {}
    recall = measured.get("recall", {})
    found = {f"Recall@{k}": float(value) for k, value in recall.items()}
    try:
        content = json.loads((model.run.path / "evaluation.json").read_bytes())
        if content["model"] == model.digest:
            found |= {
                shown: float(content["retrieval"]["measures"][key])
                for key, shown in (("map@r", "MAP@R"), ("r_precision", "R-precision"))
            }
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return found


def _header(name: str, data: str, measured: dict[str, float]) -> str:
    import yaml

    metrics = [{"type": key.lower(), "value": round(value, 6), "name": key} for key, value in measured.items()]
    content: dict[str, Any] = {
        "library_name": "metrix",
        "pipeline_tag": "image-feature-extraction",
        "tags": ["metrix", "metric-learning", "image-retrieval", "embeddings"],
    }
    if metrics:
        result = {
            "task": {"type": "image-retrieval"},
            "dataset": {"name": data, "type": data, "split": "test (unseen classes)"},
            "metrics": metrics,
        }
        content["model-index"] = [{"name": name, "results": [result]}]
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def _describe_threshold(threshold: dict[str, Any] | None) -> list[str]:
    if threshold is None:
        return []
    return [
        f"Two images count as the same thing from a similarity of {threshold['similarity']:.4f} on "
        f"(chosen for {threshold['target']} {threshold['wanted']:g}).\n"
    ]


# settings that are paths of this machine, or about it
ELSEWHERE = ("data", "weights", "device", "workers", "teacher", "unlabelled")


def _changed_settings(model: TrainedModel, data: str) -> list[tuple[str, str]]:
    default = type(model.config)().model_dump()
    found = []
    for section, values in model.config.model_dump().items():
        for key, value in values.items():
            if value != default[section][key] and key not in ELSEWHERE:
                found.append((key, ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)))
    weights = model.config.model.weights
    return [("data", data), *([("weights", Path(str(weights)).name)] if weights else []), *found]


def _table(heads: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows)]
    return "\n".join(lines) + "\n"
