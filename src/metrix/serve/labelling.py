"""The page that asks about labels, and its routes: what is asked, and decisions, which need the right to change.

Nothing but the table of decisions is ever written: neither the index nor the images change.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Query, Request
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from metrix.explore.collection import Later
from metrix.explore.page_data import STATIC
from metrix.retrieve.decisions import MOST_TEXT, DecisionFile
from metrix.retrieve.label_queue import NEIGHBOURS, REASONS, Question, list_questions
from metrix.runs.output import CannotWrite
from metrix.search import LABEL
from metrix.serve.access import Access
from metrix.serve.asking import read_json, read_short_body
from metrix.serve.page import PATIENCE, POLICY
from metrix.serve.pools import Pool
from metrix.serve.service import Service
from metrix.serve.state import ServedIndex

LONGEST_BODY = 20_000  # bytes of a decision
MOST_AT_ONCE = 200  # questions in an answer
LONGEST_ID = 4096
ROUTES = "/labelling"


class GivenDecision(BaseModel):
    """A decision as the page sends it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: str = Field(max_length=LONGEST_ID)
    decision: str = Field(max_length=20)
    label: str | None = Field(None, max_length=MOST_TEXT)
    of: str | None = Field(None, max_length=LONGEST_ID)
    who: str = Field("", max_length=MOST_TEXT)


class Labelling:
    """What is asked about the index of a service, and what was decided.

    Args:
        service: with the index.
        file: the table of decisions.
        k: neighbours that an item is compared with.
        reasons: only items for these reasons are asked about.
        who: decides, unless the page says another name.
    """

    def __init__(
        self, service: Service, file: Path, k: int = NEIGHBOURS, reasons: tuple[str, ...] = REASONS, who: str = ""
    ) -> None:
        self.service, self.k, self.reasons, self.who = service, k, reasons, who
        self.decisions = DecisionFile(file)
        service.private.append(file)
        self.pool = Pool("metrix-labelling", 2, waiting=16)
        self._listing = Pool("metrix-label-queue", 1)
        self._version, self._questions = "", Later(lambda: [], self._listing.submit)

    async def questions(self) -> list[Question]:
        """What is asked, computed once for each state of the index; 202 until then."""
        with self.service.holding() as state:
            if state.version != self._version:
                self._questions.drop()
                self._version, self._questions = state.version, Later(lambda: self._list(state), self._listing.submit)
        future = asyncio.wrap_future(self._questions.start())
        done, _ = await asyncio.wait({future}, timeout=PATIENCE)
        if not done:
            future.cancel()  # only this waiting for it
            raise HTTPException(202, "looking for doubtful labels; ask again")
        found: list[Question] = future.result()
        return found

    def _list(self, state: ServedIndex) -> list[Question]:
        with state.held() as there:
            if not there:
                raise HTTPException(410, "the index was replaced; load the page again")
            with state.using_store() as index:
                return list_questions(index, self.k, self.reasons)

    def classes(self) -> list[str]:
        """The labels that there are: of the index, and new ones that were given."""
        with self.service.holding() as state, state.using_store() as index:
            labels: set[Any] = set()
            for _, items in index.store.scan():
                labels.update(items.columns[LABEL].unique().to_pylist())
        labels.update(one.new for one in self.decisions.read().values())
        return sorted(str(one) for one in labels if one is not None)

    def decide(self, given: GivenDecision) -> dict[str, Any]:
        """Write a decision; the answer has the one that counted before, too."""
        with self.service.holding() as state, state.using_store() as index:
            who = given.who or self.who
            try:
                made, before = self.decisions.add(
                    index, given.id, given.decision, given.label, of=given.of or None, who=who
                )
            except CannotWrite as error:
                raise HTTPException(507, self.service.conceal(str(error))) from error
        return {"made": asdict(made), "before": None if before is None else asdict(before)}


def add_labelling(app: FastAPI, labelling: Labelling, access: Access) -> None:
    """Add the page and its routes."""
    api = APIRouter(prefix=ROUTES, include_in_schema=False)

    @api.get("")
    async def about(request: Request) -> Any:
        questions = await labelling.questions()
        known = await labelling.pool.run(labelling.decisions.read)
        refusal = access.refuse("POST", ROUTES, request.headers, True)
        return JSONResponse(
            {
                "name": labelling.service.folder.resolve().name,
                "version": labelling.service.current.version,
                "total": len(questions),
                "left": [n for n, one in enumerate(questions) if one.id not in known],
                "classes": await labelling.pool.run(labelling.classes),
                "writable": refusal is None,
                "locked": None if refusal is None else refusal.detail,
                "tokens": access.write_token is not None,
                "who": labelling.who,
                "file": labelling.decisions.path.name,
            }
        )

    @api.get("/questions")
    async def questions(start: int = Query(0, ge=0, le=10**9), count: int = Query(20, ge=1, le=MOST_AT_ONCE)) -> Any:
        found = await labelling.questions()
        known = await labelling.pool.run(labelling.decisions.read)
        return JSONResponse(
            [
                {**asdict(one), "decision": asdict(known[one.id]) if one.id in known else None}
                for one in found[start : start + count]
            ]
        )

    @api.post("/decisions")
    async def decide(request: Request) -> Any:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HTTPException(415, "body: expected application/json")
        given: GivenDecision = read_json(await read_short_body(request, LONGEST_BODY), GivenDecision)
        return JSONResponse(await labelling.pool.run(labelling.decide, given))

    async def page() -> Any:
        return FileResponse(STATIC / "label.html", headers={"Content-Security-Policy": POLICY})

    app.get("/label", include_in_schema=False)(page)
    app.include_router(api)
