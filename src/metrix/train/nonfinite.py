"""Steps whose loss or gradient is not finite: noticed before weights change, named, saved and taken back.

nonfinite/step-N.json          the step, the items of its batch, and what broke
nonfinite/step-N.safetensors   what `metrix replay` repeats it from: batch, weights, memory, random state
"""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import AfterValidator, ConfigDict
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from metrix.data.samplers import BatchSampler
from metrix.errors import EmbeddingError, InvalidInput, MetrixError
from metrix.files import describe_failure, parse_stored, write_atomically, write_json
from metrix.messages import first_few
from metrix.train.batches import ImageBatches
from metrix.train.checkpoint import Count, add_prefix
from metrix.train.distributed import unshard
from metrix.train.run_folder import RunFolder
from metrix.train.sections import Training
from metrix.train.state import TrainingState
from metrix.train.unlabelled import UnlabelledBatches

TERMS = ("loss", "clean", "mixed")
IN_A_ROW = 20  # skipped steps after which the run stops: weights that are ruined do not recover
SAVED, NAMED = 3, 100  # skipped steps of a run of which everything is saved; of which the items are named


class NonFiniteStep(MetrixError):  # noqa: N818 - named after what happened
    """A step had a loss or a gradient that is not finite, so the run stopped before the weights changed."""

    exit_code = 1


def _having(*keys: str) -> AfterValidator:
    """Requires some keys of a mapping."""

    def check(given: dict[str, Any]) -> dict[str, Any]:
        if missing := [key for key in keys if key not in given]:
            raise ValueError(f"expected the keys {', '.join(keys)}, got none of {', '.join(missing)}")
        return given

    return AfterValidator(check)


class StepReading(NamedTuple):
    """What the host knows of a step, of all processes.

    losses      loss, clean and mixed loss
    separation  of positives and negatives, in steps in which it was measured: see `metrix.train.collapse`
    broken      whether the loss or a gradient is not finite
    request     the number of a signal that asks the run to stop, or 0
    """

    losses: list[float]
    separation: list[float] | None
    broken: bool
    request: int


@dataclass(config=ConfigDict(extra="forbid", strict=True))
class BrokenStep:
    """What is known of a step that is not finite; `repr` of a number stands for one that JSON has no word for.

    broken      the term that broke first: inputs, weights, embeddings, clean loss, mixed loss or gradient
    said        the same as a sentence
    items       path and class of each example of the global batch, and whether its input is finite
    parameters  those whose gradient is not finite
    sizes       examples of each process
    learner     the slice of the embedding that the batch trains (divide-and-conquer)
    strength    w in this step, where it changes in a run (--mixup-after, --mixup-ramp)
    """

    step: Count
    epoch: Count
    batch: Count
    broken: str
    said: str
    losses: Annotated[dict[str, float | str], _having(*TERMS)]
    lr: float
    sizes: list[Count]
    num_classes: Count
    learner: int | None = None
    strength: float | None = None
    items: list[Annotated[dict[str, Any], _having("path", "class")]] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)


def as_json_number(value: float) -> float | str:
    """A number, or its name where JSON has none.

    >>> as_json_number(0.5), as_json_number(float("nan"))
    (0.5, 'nan')
    """
    return value if math.isfinite(value) else repr(value)


class StepGuard:
    """Looks whether steps are finite, and can take back the one that was begun last.

    All processes of a run must call each method: they decide alike.
    """

    def __init__(self, settings: Training, run: RunFolder, state: TrainingState) -> None:
        self.run, self.state, self.team = run, state, state.team
        self.skips = settings.on_nonfinite == "skip"
        self._named = dict(_parameters(state))
        # a gradient scaler looks at gradients itself, and expects some that overflow
        self._looks_at_gradients = not state.scales_gradients
        self._buffers: list[tuple[Tensor, Tensor]] = []

    def begin(self) -> None:
        """Note what the step that follows changes before its loss is known."""
        state = self.state
        self._random = state.random_tensors()
        memory = state.objective.memory
        self._remembered = torch.as_tensor(memory.steps).clone() if memory is not None else torch.zeros(())
        if self.skips:  # running statistics; the others are only needed to repeat the step, which does not read them
            own = [*state.embedder.buffers(), *state.objective.loss.buffers()]
            self._buffers = [(tensor, tensor.detach().clone()) for tensor in own]

    def read(self, values: Tensor | None, request: int) -> StepReading:
        """Read what a step gave: the only transfer from the device to the host in a step.

        Args:
            values: what `NetworkWithLoss` returned; None: the embeddings were refused
            request: the number of a signal that asks this process to stop, or 0
        """
        if values is None:
            refused = self.team.max_tensor(torch.tensor([1.0, request], device=self.team.device)).tolist()
            return StepReading([math.nan] * 3, None, True, int(refused[1]))
        values = values.detach()
        watched = [values[:1].abs()]
        if self._looks_at_gradients:
            watched += largest_entries([p.grad for p in self._named.values() if p.grad is not None])
        broken = ~torch.isfinite(torch.cat(watched)).all()
        flags = torch.stack([broken.to(values.dtype), values.new_full((), request)])
        read = torch.cat([self.team.max_tensor(flags), values]).tolist()
        return StepReading(read[2:5], read[5:] or None, bool(read[0]), int(read[1]))

    def describe(
        self, inputs: Tensor, labels: Tensor, values: list[float], refusal: EmbeddingError | None
    ) -> tuple[BrokenStep, dict[str, Tensor]]:
        """What is known of the step, and the tensors to repeat it from; the step is taken back."""
        state, progress = self.state, self.state.progress
        named = [name for name, p in self._named.items() if p.grad is not None and not _all_finite([p.grad])]
        ruined = [name for name, p in self._named.items() if not _all_finite([p.detach()])]
        self.take_back()
        sizes = list(self.team.ranks.division(len(labels), self.team.device).sizes)
        inputs, labels = self.team.gather_rows(inputs, sizes), self.team.gather_rows(labels, sizes)
        finite = torch.isfinite(inputs).flatten(1).all(dim=1).tolist() if inputs.is_floating_point() else []
        broken, said = _name_term(values, finite, ruined, named, refusal)
        found = BrokenStep(
            progress.step + 1,
            progress.epoch,
            progress.batch,
            broken,
            said,
            {name: as_json_number(value) for name, value in zip(TERMS, values, strict=True)},
            float(state.optimizer.param_groups[0]["lr"]),
            sizes,
            state.batches.part.num_classes,
            getattr(state.scheme.network, "learner", None),
            getattr(state.objective, "strength", None),
            self._name_items(finite),
            named if refusal is None else [],
        )
        memory = state.objective.memory
        tensors = {
            "inputs": inputs,
            "labels": labels,
            **add_prefix("model", unshard(state.embedder.state_dict())),
            **add_prefix("loss", unshard(state.objective.loss.state_dict())),
            **add_prefix("memory", memory.state_dict() if memory is not None else {}),
            **self._random,
        }
        return found, tensors

    def take_back(self) -> None:
        """Undo what the step changed; only random numbers stay drawn."""
        memory = self.state.objective.memory
        if memory is not None and bool(torch.as_tensor(memory.steps) > self._remembered):
            memory.take_back()
        for tensor, before in self._buffers:
            tensor.copy_(before)
        self.state.optimizer.zero_grad()

    def save(self, found: BrokenStep, tensors: dict[str, Tensor]) -> str:
        """Save the step, and return a sentence on where, or on why not; rank 0 alone calls this."""
        if self.skips and self.state.progress.skipped >= NAMED:
            return ""
        whole = not self.skips or self.state.progress.skipped < SAVED
        try:
            file = write_step(self.run, found, tensors if whole else None)
        except (OSError, SafetensorError) as error:
            return f"the step could not be saved ({describe_failure(error)})"
        return f"its items are in {file}" + (f"; repeat it with: metrix replay {self.run.path}" if whole else "")

    def _name_items(self, finite: list[bool]) -> list[dict[str, Any]]:
        batches = self.state.batches
        sources: list[ImageBatches | UnlabelledBatches] = (
            [batches] if batches.unlabelled is None else [batches, batches.unlabelled]
        )
        items = []
        for rank in range(self.team.size):
            for source in sources:
                part, paths, labels = source.part, source.part.paths, source.part.labels.tolist()
                items += [(paths[i], part.class_names[labels[i]]) for i in self._rows_of(source.sampler, rank)]
        return [
            {"path": path, "class": name, "finite": bool(not finite or finite[row])}
            for row, (path, name) in enumerate(items)
        ]

    def _rows_of(self, sampler: BatchSampler, rank: int) -> list[int]:
        """The rows of a process in the current batch."""
        own, progress = copy.copy(sampler), self.state.progress  # the loader has the original
        own.rank = rank
        own.set_epoch(progress.epoch, progress.batch)
        return [int(index) for index in next(iter(own))]


def _parameters(state: TrainingState) -> list[tuple[str, nn.Parameter]]:
    """The trained parameters of network and loss, by name."""
    modules = (("model", state.embedder), ("loss", state.objective.loss))
    return [(f"{of}.{name}", p) for of, m in modules for name, p in m.named_parameters() if p.requires_grad]


def largest_entries(tensors: list[Tensor]) -> list[Tensor]:
    """The largest absolute value of each tensor, or of this process's shard of it: (1,) each; NaN stays NaN."""
    local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return [x.reshape(1).float() for x in torch._foreach_norm(local, torch.inf) if x.numel()] if local else []


def _all_finite(tensors: list[Tensor]) -> bool:
    """Whether all numbers of this process's shards of some tensors are finite."""
    largest = largest_entries(tensors)
    return not largest or bool(torch.isfinite(torch.cat(largest)).all())


def _name_term(
    values: list[float], finite: list[bool], ruined: list[str], gradients: list[str], refusal: EmbeddingError | None
) -> tuple[str, str]:
    """The term that broke first, and a sentence on it."""
    if not all(finite):
        rows = [row for row, sound in enumerate(finite) if not sound]
        return "inputs", f"the inputs of {len(rows)} of {len(finite)} items are not finite (rows {first_few(rows)})"
    if ruined:
        return "weights", f"{len(ruined)} of the weights' tensors are not finite ({first_few(ruined, 3)})"
    if refusal is not None:
        return "embeddings", str(refusal).split(";")[0]
    for name, value in zip(TERMS[1:], values[1:], strict=True):
        if not math.isfinite(value):
            return f"{name} loss", f"the {name} loss is {value}"
    if not math.isfinite(values[0]):
        return "loss", f"the loss is {values[0]}, the sum of {values[1]} (clean) and w · {values[2]} (mixed)"
    of = f"{len(gradients)} parameters ({first_few(gradients, 3)})" if gradients else "another process"
    return "gradient", f"the loss is {values[0]:g}, but its gradient is not finite in {of}"


def write_step(run: RunFolder, found: BrokenStep, tensors: dict[str, Tensor] | None) -> Path:
    """Write a step to the folder of its run; returns the JSON file, which is written last."""
    run.nonfinite.mkdir(exist_ok=True)
    file = run.nonfinite / f"step-{found.step}.json"
    if tensors is not None:
        plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        write_atomically(file.with_suffix(".safetensors"), lambda temporary: save_file(plain, temporary))
    write_json(file, asdict(found))
    return file


def list_steps(run: RunFolder) -> list[int]:
    """The steps of a run that can be repeated, in order."""
    files = run.nonfinite.glob("step-*.safetensors") if run.nonfinite.is_dir() else ()
    numbers = (file.stem.removeprefix("step-") for file in files)
    return sorted(int(number) for number in numbers if number.isdecimal())


def read_step(run: RunFolder, step: int) -> BrokenStep:
    """What is known of a saved step."""
    file = run.nonfinite / f"step-{step}.json"
    try:
        text = file.read_text("utf-8", errors="replace")
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {describe_failure(error)}") from error
    return parse_stored(BrokenStep, text, file)
