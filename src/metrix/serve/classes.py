"""The classes that `/classify` answers with: read once for each state of an index, in a thread."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import CancelledError

from metrix.errors import LabelError
from metrix.retrieve.classify import Classifier
from metrix.search import Index
from metrix.serve.pools import BusyError
from metrix.serve.state import ServedIndex

PATIENCE = 5.0  # seconds that a request waits for them


class _RetiredError(Exception):
    """The state was replaced while its classes were being read."""


def read_classes(state: ServedIndex) -> Classifier | None:
    """Read the classes of a state, and calibrate if need be; None if it was replaced meanwhile.

    It is one pass over the vectors, then at most 1,000 queries; `state.classes` has the result, or what went wrong.
    """

    def check(*_: object) -> None:
        if state.retired:
            raise _RetiredError

    with state.held() as there, contextlib.ExitStack() as stack:
        if not there or not state.classes.set_running_or_notify_cancel():
            state.classes.cancel()
            return None
        try:
            index = state.index
            if state.one_at_a_time:  # searches go on meanwhile, on the other client
                index = Index.open(state.folder, state.store)
                stack.callback(index.close)
                if index.description.generation != state.index.description.generation:
                    raise _RetiredError
            fitted = Classifier.fit(index, run=state.run, report=check)
            with contextlib.suppress(LabelError):  # it is the answer to queries by id, and to no others
                fitted.for_items()
            found = fitted.on(state.index)
        except _RetiredError:
            state.classes.set_exception(BusyError("the index was replaced; ask again"))
            return None
        except Exception as error:
            state.classes.set_exception(error)
            raise
        state.classes.set_result(found)
    return found


async def wait_for_classes(state: ServedIndex) -> Classifier:
    """The classes of a state, once they are read.

    Raises:
        LabelError: the index has no labels, or too few to calibrate.
        BusyError: they are still being read.
    """
    if not state.classes.done():
        await asyncio.wait([asyncio.wrap_future(state.classes)], timeout=PATIENCE)
    if not state.classes.done():
        raise BusyError("classify: the classes of the index are being read; try again in a moment")
    try:
        error = state.classes.exception()
    except CancelledError:
        error = BusyError("the index was replaced; ask again")
    if error is not None:
        raise error.with_traceback(None)  # it is raised for each request, and would grow
    return state.classes.result()


def count_classes(state: ServedIndex) -> int | None:
    """How many classes a state has; None until they are read, and where there are none."""
    read = state.classes
    return len(read.result().classes) if read.done() and not read.cancelled() and not read.exception() else None
