"""The queue of the service: batches under load, no delay alone, bounds, and an orderly end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any

import pytest

from metrix.serve.batching import Batcher, ClosedError, QueueFullError
from metrix.serve.limits import Limits
from metrix.serve.metrics import Metrics


class Slow:
    """An answering function that waits until it is let go, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.go = threading.Event()
        self.entered = threading.Semaphore(0)

    def __call__(self, queries: Sequence[Any], begin: Callable[[int], bool]) -> Iterator[tuple[int, Any]]:
        self.batches.append(list(queries))
        self.entered.release()
        assert self.go.wait(10)
        for n, query in enumerate(queries):
            if begin(n):
                yield n, ValueError("odd") if query % 2 else query * 10


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def batcher(slow: Slow) -> Iterator[Batcher[Any, Any]]:
    made: Batcher[Any, Any] = Batcher(slow, Limits(queue=6, batch=4), Metrics(), threads=1)
    yield made
    slow.go.set()
    made.close()


def ask(batcher: Batcher[Any, Any], query: Any) -> Any:
    return batcher.submit(batcher.reserve(), lambda: query)


def test_what_waits_goes_together_and_each_gets_its_own_answer(batcher: Batcher[Any, Any], slow: Slow) -> None:
    first = ask(batcher, 0)
    assert slow.entered.acquire(timeout=10)  # alone, it starts at once
    rest = [ask(batcher, n) for n in (1, 2, 4, 6, 8)]
    deadline = time.monotonic() + 10
    while batcher._lanes[0].qsize() < 5 and time.monotonic() < deadline:
        time.sleep(0.001)
    slow.go.set()
    assert first.result(10) == 0
    assert [one.result(10) for one in rest[1:]] == [20, 40, 60, 80]
    with pytest.raises(ValueError, match="odd"):
        rest[0].result(10)
    assert slow.batches == [[0], [1, 2, 4, 6], [8]]


def test_a_full_queue_refuses_and_places_come_back(batcher: Batcher[Any, Any], slow: Slow) -> None:
    places = [batcher.reserve() for _ in range(6)]
    with pytest.raises(QueueFullError, match="6 queries are waiting"):
        batcher.reserve()
    places[0].cancel()
    places[0] = batcher.reserve()
    slow.go.set()
    assert [batcher.submit_ready(place, 2).result(10) for place in places] == [20] * 6
    assert batcher.reserve().cancel()


def test_a_query_that_was_given_up_is_not_answered(batcher: Batcher[Any, Any], slow: Slow) -> None:
    first = ask(batcher, 0)
    assert slow.entered.acquire(timeout=10)
    given_up, kept = ask(batcher, 2), ask(batcher, 4)
    assert given_up.cancel()
    slow.go.set()
    assert (first.result(10), kept.result(10)) == (0, 40)
    with pytest.raises(CancelledError):
        given_up.result(10)
    assert all(2 not in batch for batch in slow.batches)


def test_a_failure_reaches_only_those_it_concerns(batcher: Batcher[Any, Any], slow: Slow) -> None:
    def broken() -> Any:
        raise RuntimeError("cannot be decoded")

    slow.go.set()
    with pytest.raises(RuntimeError, match="cannot be decoded"):
        batcher.submit(batcher.reserve(), broken).result(10)
    with pytest.raises(TypeError):  # the whole batch fails; the thread goes on
        ask(batcher, None).result(10)
    assert ask(batcher, 2).result(10) == 20


def test_closing_answers_what_waits(slow: Slow) -> None:
    batcher: Batcher[Any, Any] = Batcher(slow, Limits(queue=6, batch=4), Metrics(), threads=1)
    asked = [ask(batcher, n) for n in (0, 2, 4)]
    slow.go.set()
    batcher.close()
    assert [one.result(0) for one in asked] == [0, 20, 40]
    assert not batcher.alive
    with pytest.raises(ClosedError):
        batcher.reserve()
