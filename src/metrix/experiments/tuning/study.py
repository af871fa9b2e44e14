"""The folder of a study: what it compares, its trials in Optuna's storage, and who works on which of them.

study.json      what is compared, and how; it does not change
plan.json       trials of each method, and the time at which the search ends
study.db        Optuna's storage, unless another was asked for
cells/          the runs, each an ordinary run of `metrix train`
locks/          held by the process that works on a trial
best.yaml, index.html, results.json    written at the end
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from metrix.errors import InvalidInput, MetrixError
from metrix.experiments.cells import Cell, CellStore, make_cell
from metrix.experiments.tuning.methods import TunedMethod
from metrix.experiments.tuning.protocol import REDUCTION, Plan, Protocol
from metrix.experiments.tuning.spaces import find_usual, suggest
from metrix.extras import import_extra
from metrix.files import describe_failure, lock, parse_stored, write_json
from metrix.train.config import Config
from metrix.train.data_place import path_of

STARTUP = 5  # trials of each method that are drawn at random, the usual settings included


class StudyInterrupted(MetrixError):  # noqa: N818 - nothing went wrong
    """A signal ended the work on a study; it can be resumed."""

    def __init__(self, signum: int, folder: Path) -> None:
        name = signal.Signals(signum).name
        super().__init__(f"interrupted by {name}; nothing is lost: continue with metrix tune --resume {folder}")
        self.exit_code = 128 + signum


class StudyFolder:
    """A study on disk; several processes may have it open."""

    def __init__(self, path: Path, storage: str | None = None) -> None:
        self.path, self.store = path, CellStore(path)
        self.asked_storage = storage

    @cached_property
    def protocol(self) -> Protocol:
        """What the study compares.

        Raises:
            InvalidInput: there is no study in this folder, or study.json is damaged
        """
        file = self.path / "study.json"
        if not file.is_file():
            raise InvalidInput(f"{self.path} is no study: it has no study.json; start one with metrix tune DATA")
        try:
            plain = json.loads(file.read_text("utf-8"))
            older = "" if plain["storage"] is None else f"{self.path.name}: "  # studies had no prefix of their own
            return Protocol.from_dict({"prefix": older, **plain})
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"{file} is damaged ({error}); restore it, or start a new study") from error

    @property
    def plan(self) -> Plan:
        """How far the search goes, as of now."""
        file = self.path / "plan.json"
        if not file.is_file():
            raise InvalidInput(f"{file} is missing; restore it, or start a new study")
        return parse_stored(Plan, file.read_text("utf-8"), file)

    def write_plan(self, plan: Plan) -> None:
        """Set how far the search goes, for all processes that work on it."""
        write_json(self.path / "plan.json", dataclasses.asdict(plan))

    def create(self, protocol: Protocol, plan: Plan) -> None:
        """Write a new study; the usual settings are the first trial of each method.

        Raises:
            InvalidInput: there is something in the folder already
        """
        self.check_new()
        self.protocol = protocol
        self.store.prepare()
        self.write_plan(plan)
        with self.held():
            for method in protocol.methods:
                usual = find_usual(method.configure(protocol.base), protocol.spaces[method.name])
                self.studies[method.name].enqueue_trial(usual, user_attrs={"usual": True})
            write_json(self.path / "study.json", protocol.to_dict())  # last: with it, the study exists

    def check_new(self) -> None:
        """Raise `InvalidInput` unless a study can be created here."""
        if (self.path / "study.json").exists():
            raise InvalidInput(
                f"{self.path} has a study already; continue it with --resume {self.path}, or choose another --output"
            )
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            left = {"cells", "locks", "calibration", "plan.json", "study.db", "study.journal", "study.lock"}
            if not self.path.is_dir() or not {file.name for file in self.path.iterdir()} <= left:
                raise InvalidInput(f"{self.path} already exists and is no study; choose another --output")
            for name in ("study.db", "study.journal"):  # of a study that was killed before it began
                (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the study while its trials are handed out; other processes wait."""
        with lock(self.path / "study.lock"):
            yield

    @cached_property
    def studies(self) -> dict[str, Any]:
        """Optuna's study of each method, all in one storage."""
        optuna = import_extra("optuna")
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=REDUCTION)
        create = partial(optuna.create_study, direction="maximize", load_if_exists=True)
        open_study = optuna.load_study if (self.path / "study.json").is_file() else create
        given = self.asked_storage or self.protocol.storage
        storage = self.open_storage(given)
        with self._explain_storage(given):
            return {
                method.name: open_study(
                    storage=storage, study_name=f"{self.protocol.prefix}{method.name}", pruner=pruner
                )
                for method in self.protocol.methods
            }

    @contextmanager
    def _explain_storage(self, given: str | None) -> Iterator[None]:
        place = str(self.path / "study.db") if given is None else f"--storage: {strip_password(given)}"
        try:
            yield
        except KeyError as error:
            raise InvalidInput(f"{place} has no trials of {self.path}; restore it, or start a new study") from error
        except InvalidInput:
            raise
        except Exception as error:
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InvalidInput(f"{place} cannot be opened: {said}; restore it, or start a new study") from error

    def open_storage(self, given: str | None) -> Any:
        """Optuna's storage at a URL, in a journal, or in the study's own file.

        Raises:
            InvalidInput: it cannot be opened
        """
        optuna = import_extra("optuna")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with self._explain_storage(given):
            return self._open_storage(optuna, given)

    def _open_storage(self, optuna: Any, given: str | None) -> Any:
        if given == JOURNAL:
            from optuna.storages.journal import JournalFileBackend, JournalStorage

            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                return JournalStorage(JournalFileBackend(str(self.path / "study.journal")))
        if given is None:
            return optuna.storages.RDBStorage(
                f"sqlite:///{(self.path / 'study.db').absolute()}", engine_kwargs={"connect_args": {"timeout": 120}}
            )
        if "://" not in given:
            raise InvalidInput(f"--storage: expected {JOURNAL} or a URL such as postgresql://host/name, got {given!r}")
        return optuna.storages.RDBStorage(given)

    def count_trials(self) -> dict[str, int]:
        """The trials of each method that were started."""
        from optuna.trial import TrialState

        return {
            name: sum(trial.state != TrialState.WAITING for trial in study.get_trials(deepcopy=False))
            for name, study in self.studies.items()
        }

    def ask(self, method: TunedMethod, stack: ExitStack) -> tuple[Any, dict[str, Any]]:
        """A new trial of a method and its settings; its lock is held until the end of `stack`.

        The caller holds the study. A trial follows from the trials before it, also after a restart.
        """
        optuna = import_extra("optuna")
        study = self.studies[method.name]
        number = self.count_trials()[method.name]
        text = f"{self.protocol.base.train.seed}:{number}"  # the same for all methods, whose first trials thus agree
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
        study.sampler = optuna.samplers.TPESampler(n_startup_trials=STARTUP, seed=seed)
        trial = study.ask()
        stack.enter_context(lock(self._lock_of(method, trial.number), wait=False))
        return trial, suggest(trial, self.protocol.spaces[method.name])

    def adopt(self, stack: ExitStack) -> tuple[TunedMethod, Any, dict[str, Any]] | None:
        """A trial that a process began and left, killed or interrupted; None if there is none.

        The caller holds the study.
        """
        from optuna.trial import Trial, TrialState

        for method in self.protocol.methods:
            study = self.studies[method.name]
            for left in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                with contextlib.suppress(BlockingIOError):  # its process lives
                    with ExitStack() as own:
                        own.enter_context(lock(self._lock_of(method, left.number), wait=False))
                        if study.get_trials(deepcopy=False)[left.number].state != TrialState.RUNNING:
                            continue  # its process ended it, and then released the lock
                        stack.enter_context(own.pop_all())
                    trial = Trial(study, left._trial_id)
                    return method, trial, suggest(trial, self.protocol.spaces[method.name])
        return None

    def count_running(self) -> int:
        """The trials that some process works on, or left."""
        from optuna.trial import TrialState

        return sum(
            len(study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))) for study in self.studies.values()
        )

    def _lock_of(self, method: TunedMethod, number: int) -> Path:
        return self.path / "locks" / f"{method.name}-{number}.lock"

    def make_cell(self, config: Config) -> Cell:
        """The cell that trains a configuration on the data of the study."""
        return make_cell(config, self.protocol.data)

    def check_data(self) -> None:
        """Raise `InvalidInput` unless the data is what the study began with."""
        found, expected = fingerprint_data(self.protocol.base), self.protocol.data.fingerprint
        if found != expected:
            raise InvalidInput(
                f"{self.path} began with other data: expected fingerprint {expected[:12]}, got {found[:12]}; restore "
                "the data, or start a new study"
            )


JOURNAL = "journal"


def fingerprint_data(config: Config) -> str:
    """A hash of the images, labels and parts that a configuration names."""
    from metrix.data.opening import read_catalogue

    choice = config.data
    catalogue = read_catalogue(
        choice.data,
        unseen=choice.unseen,
        seed=choice.split_seed,
        layout=choice.layout,
        root=choice.root,
        follow_links=choice.follow_links,
    )
    return catalogue.fingerprint()


def name_data(config: Config) -> str:
    """A short name of the data, for folders and tables."""
    path = path_of(config.data.data)
    return config.data.data if path is None else path.resolve().stem or "data"


def new_folder(config: Config, parent: Path = Path("tunes")) -> Path:
    """A folder for a new study, named after the time and the data; nothing is there yet."""
    name, number = f"{time.strftime('%Y-%m-%d-%H%M%S')}-{name_data(config)}", 1
    path = parent / name
    while path.exists():
        number += 1
        path = parent / f"{name}-{number}"
    return path


def strip_password(url: str | None) -> str | None:
    """A storage URL without its password, to be kept in a file.

    >>> strip_password("postgresql://me:secret@host/tunes")
    'postgresql://me@host/tunes'
    """
    if url is None or "://" not in url:
        return url
    from urllib.parse import urlsplit, urlunsplit

    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username}@{host}" if parts.username else host))


def check_folder(path: Path) -> None:
    """Raise `InvalidInput` if a folder cannot be created at a path."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"--output: the folder {path} cannot be created: {describe_failure(error)}; choose another"
        ) from error
