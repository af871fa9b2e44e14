"""A page of search results: each query with the images that it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metrix.data import load_image
from metrix.errors import MetrixError
from metrix.messages import count
from metrix.report.page import Block, Gallery, Hit, Page, Picture, Query, Section, Text
from metrix.retrieve.item_images import read_item_image
from metrix.retrieve.queries import Queries
from metrix.search import LABEL, Duplicates, Index, Suspect

MOST = 200  # queries, groups or suspects on a page


def compose_search_page(
    index: Index, queries: Queries, answers: Sequence[Sequence[Mapping[str, Any]]], about: str = ""
) -> Page:
    """A gallery of queries and their neighbours; right and wrong where the class of the query is known."""
    shown = []
    for n in range(min(len(answers), MOST)):
        label = find_label(index, queries, n)
        picture = find_query_picture(index, queries, n, label)
        hits = [find_hit(index, one["id"], one.get(LABEL), label, one["similarity"]) for one in answers[n]]
        shown.append(Query(picture, {"nearest": hits}))
    title = f"{len(answers):,} {'query' if len(answers) == 1 else 'queries'} in {count(len(index), _noun(index))}"
    return Page("Search", [Section(title, [Gallery(shown, _more(len(answers)), "search")])], about)


def compose_duplicates_page(index: Index, groups: Sequence[Duplicates]) -> Page:
    """A row for each group of near-identical images."""
    shown = []
    for group in groups[:MOST]:
        first, *others = group.ids[:13]
        vectors = index.get([first, *others]).vectors
        similarities = (vectors[1:] @ vectors[0]).tolist()
        hits = [find_hit(index, one, None, None, s) for one, s in zip(others, similarities, strict=True)]
        said = f"{count(len(group.ids), _noun(index))}, each at least {group.similarity:.3f} similar to another"
        shown.append(Query(find_picture(index, first, None), {said: hits}))
    blocks: list[Block] = [Gallery(shown, _more(len(groups)), "duplicates")] if shown else [Text("None were found.")]
    return Page("Duplicates", [Section(count(len(groups), "group"), blocks)])


def compose_suspects_page(index: Index, suspects: Sequence[Suspect]) -> Page:
    """A row for each image whose label its neighbours contradict."""
    shown = []
    for one in suspects[:MOST]:
        hits = [find_hit(index, near.id, near.label, one.label, near.similarity) for near in one.neighbours]
        said = f"{one.id}: {100 * one.share:.0f} % of the neighbours' similarity says {one.suggested}"
        shown.append(Query(find_picture(index, one.id, f"labelled {one.label}"), {said: hits}))
    blocks: list[Block] = [Gallery(shown, _more(len(suspects)), "suspects")] if shown else [Text("None were found.")]
    return Page("Suspects", [Section(count(len(suspects), _noun(index)), blocks)])


def _more(number: int) -> str:
    return f"The first {MOST} of {number:,}." if number > MOST else ""


def find_label(index: Index, queries: Queries, n: int) -> str | None:
    """The label of a query that is an item of the index; None for others."""
    if queries.own[n] < 0 or LABEL not in index.columns:
        return None
    label: str | None = index.store.read_table(np.array([queries.own[n]]))[LABEL][0].as_py()
    return label


def find_hit(index: Index, one: Any, label: str | None, wanted: str | None, similarity: float) -> Hit:
    """An item with its picture; right or wrong where the wanted label is given."""
    right = None if wanted is None or label is None else label == wanted
    return Hit(find_picture(index, one, label), right, similarity)


def find_picture(index: Index, one: Any, label: str | None) -> Picture:
    """The picture of an item, under its label or its id; grey if there is none."""
    try:
        pixels = read_item_image(index, str(one))
    except (MetrixError, ValueError):  # moved since, or an index of vectors alone
        pixels = np.full((28, 28), 200, dtype=np.uint8)
    return Picture(pixels, str(one) if label is None else label)


def find_query_picture(index: Index, queries: Queries, n: int, label: str | None) -> Picture:
    """The picture of a query, under its label or its name."""
    file = queries.files[n]
    name = label or queries.names[n].rpartition("/")[2]
    if queries.own[n] >= 0:
        one = index.store.read_table(np.array([queries.own[n]]))["id"][0].as_py()
        return find_picture(index, one, name)
    if file is None:
        return find_picture(index, queries.names[n], name)
    return Picture(np.array(load_image(file, None, 512)), name)


def _noun(index: Index) -> str:
    return index.description.examples.removesuffix("s")
