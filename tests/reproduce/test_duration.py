"""How long runs will take: every part is counted, the estimate is near the truth, and finished cells replace it."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

import pytest
import torch

from metrix.errors import MetrixWarning
from metrix.experiments.cells import CellStore
from metrix.reproduce import calibration, duration
from metrix.reproduce.calibration import Calibration
from metrix.reproduce.duration import DurationEstimate, estimate_time_left
from metrix.reproduce.running import GridState
from metrix.train.loop import train
from metrix.train.state import TrainingState
from tests.reproduce.conftest import cells_of


class Clock:
    """A clock that stands still unless the parts of a run advance it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def slow_down(self, patch: pytest.MonkeyPatch, place: object, name: str, seconds: float) -> None:
        """Let a function take some seconds by this clock."""
        whole = getattr(place, name)

        def run(*args: object, **kwargs: object) -> object:
            self.now += seconds
            return whole(*args, **kwargs)

        patch.setattr(place, name, run)


@pytest.mark.parametrize(
    ("place", "part", "times"),
    [
        (calibration, "open_data", 1),
        (calibration, "prepare", 1),
        (calibration, "_take_step", 7),
        (calibration, "count_hits", 2),  # of the untrained network and of the model
        (TrainingState, "save", 1),
    ],
)
def test_each_part_of_a_run_is_counted(place, part, times, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(calibration, "clock", clock)
    clock.slow_down(monkeypatch, place, part, 10.0)
    (one,) = cells_of(1, max_steps=7)
    found = Calibration().estimate(one.config)
    assert found == pytest.approx(10.0 * times)


def test_each_image_that_is_measured_is_counted(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(calibration, "clock", clock)
    embed = calibration.embed_batches

    def embed_slowly(network, part, batches, *rest):
        clock.now += 0.5 + 0.001 * sum(map(len, batches))  # half a second to start, as loaders take it
        return embed(network, part, batches, *rest)

    monkeypatch.setattr(calibration, "embed_batches", embed_slowly)
    (one,) = cells_of(1)
    test = len(calibration.open_data(one.config).query)
    assert Calibration().estimate(one.config) == pytest.approx(2 * 0.001 * test)


def test_validations_are_counted():
    (one,) = cells_of(1, max_steps=None, epochs=6, holdout=0.2, validate_every=2)
    dataset = calibration.open_data(one.config)
    part = calibration.select_training_part(one.config, dataset)
    counts = calibration.count_parts(one.config, dataset, part)
    held_out, test = len(dataset.part("val")), len(dataset.query)
    assert held_out > 0
    assert counts.image == 4 * held_out + test  # the untrained network, three validations, the model at the end
    assert counts.pair == 4 * held_out**2 + test**2
    assert counts.step == 6 * calibration.build_sampler(one.config, part).batches_per_epoch


def test_the_estimate_is_within_a_factor_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In processor time, so that other load on the machine does not matter."""
    monkeypatch.setattr(calibration, "clock", time.process_time)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for changes in ({"max_steps": 60}, {"max_steps": 5}):  # most of it steps, most of it measurements
            one, again = cells_of(2, batch_size=24, **changes)
            train(one.config, tmp_path / f"warm-up-{changes}")
            estimate = Calibration().estimate(one.config)
            began = time.process_time()
            train(again.config, tmp_path / f"run-{changes}")
            needed = time.process_time() - began
            assert 0.5 < estimate / needed < 2.0, (changes, estimate, needed)
    finally:
        torch.set_num_threads(threads)


def test_a_run_that_cannot_be_trained_takes_no_time(store: CellStore) -> None:
    fine, wrong = cells_of(1)[0], cells_of(1, train_classes=10_000)[0]
    estimate = DurationEstimate([fine, wrong], store)
    with pytest.warns(MetrixWarning, match="the time of 1 run could not be measured"):
        assert estimate.seconds(wrong) == 0.0
    assert estimate.seconds(fine) > 0.0
    start = estimate.calibrated[0]
    assert start > 0.0
    assert estimate.total([fine, wrong]) == start + estimate.seconds(fine)
    assert estimate.source == "from a short calibration"


def test_finished_cells_replace_the_calibration(store: CellStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duration, "calibrate", lambda configs, *_: (2.0, [50.0] * len(configs)))
    first, second, third = cells_of(3)
    (longer,) = cells_of(1, max_steps=9)
    store.prepare()
    for one, seconds in ((first, 4.0), (second, 6.0)):
        store.write_record(one, seconds=seconds)
        store.run(one.key).path.mkdir(parents=True)
        store.run(one.key).write_json("results.json", {"seconds": 1.0, "steps": 2})
    estimate = DurationEstimate([third, longer], store, jobs=2)
    assert (estimate.seconds(third), estimate.seconds(longer)) == (5.0, 50.0)
    assert estimate.total([third]) == 5.0
    assert estimate.total([third, longer]) == 2.0 + 55.0 / 2


def test_the_time_left_follows_the_cells_that_are_finished() -> None:
    done, waiting = cells_of(2)
    (other,) = cells_of(1, mixup=("embed",))
    expected = {done.key: 10.0, waiting.key: 10.0, other.key: 20.0}
    state = GridState(3, 0, deque([waiting, other]), running={done.key: (done, 0.5)})
    assert estimate_time_left(state, expected, 1) == 5.0 + 10.0 + 20.0
    state.running.clear()
    state.done.append(done)
    state.seconds[done.key] = 30.0  # three times as long as expected: so will be the others
    assert estimate_time_left(state, expected, 1) == 30.0 + 60.0
    assert estimate_time_left(state, expected, 2) == 45.0
    assert estimate_time_left(GridState(1, 0, deque([waiting])), {}, 1) is None
