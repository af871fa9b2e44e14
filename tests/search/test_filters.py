"""Filters: what they keep, what they refuse, and that no text takes long to read."""

from __future__ import annotations

import contextlib
import itertools
import operator
import random
import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from metrix.errors import InvalidInput
from metrix.search.filters import (
    LARGEST,
    AllOf,
    AnyOf,
    Condition,
    Not,
    compare_whole,
    expression,
    mask,
    read_filter,
    write_value,
)

TYPES = {"label": "text", "price": "number", "n": "integer", "sold": "boolean", "first name": "text"}
TABLE = pa.table(
    {
        "label": ["cat", "dog", "salt and pepper", "a (b)", None, "it's, so"],
        "price": [1.0, 2.5, None, 10.0, 3.0, 4.0],
        "n": [1, 2, 3, 4, None, 6],
        "sold": [True, False, True, None, False, True],
        "first name": ["Ann", "Bo", "Cy", "Di", "Ed", "Flo"],
    }
)


def kept(*texts: str) -> list[int]:
    return [row for row, met in enumerate(mask(read_filter(texts, TYPES), TABLE)) if met]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("label=cat or label=dog", [0, 1]),
        ("label in (cat, dog)", [0, 1]),
        ("label IN (cat,'salt and pepper', \"it's, so\")", [0, 2, 5]),
        ('label="salt and pepper"', [2]),
        ("label=a (b)", [3]),
        ("label=a (b) or n=1", [0, 3]),
        ("(label=a (b))", [3]),
        ("n in (1, 2.0, 6)", [0, 1, 5]),
        ("price in (2.5,10)", [1, 3]),
        ("sold in (true)", [0, 2, 5]),
        ("sold=true and n<3", [0]),
        ("n=1 or n=2 and sold=true", [0]),
        ("(n=1 or n=2) and sold=false", [1]),
        ("((n=1) or ((n=2)))", [0, 1]),
        ("first name=Ann", [0]),
        ("'first name'=Bo and price>=2", [1]),
        ("first name in (Bo, Cy)", [1, 2]),
        ("label!=cat", [1, 2, 3, 5]),
        (r'label="it\'s, so"', [5]),
        ("n==3", [2]),
        ("n < 2.5", [0, 1]),
        ("not label=cat", [1, 2, 3, 4, 5]),
        ("not not label=cat", [0]),
        ("not (label=cat or n=2) and sold=true", [2, 5]),
        ("sold=true and not label in (cat, dog)", [2, 5]),
        ("NOT price>1", [0, 2]),
    ],
)
def test_what_a_filter_keeps(text: str, rows: list[int]) -> None:
    assert kept(text) == rows


def test_several_filters_have_to_be_met_together() -> None:
    assert kept("n<4", "sold=true or label=dog") == [0, 1, 2]
    assert kept() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("label=salt and pepper", "expected COLUMN=VALUE.*got 'pepper'.*in quotes"),
        ("(label=cat", r"expected \), got the end"),
        ("label=cat)", "expected and, or, or the end"),
        ("label in cat", "expected COLUMN=VALUE"),
        ("label in (cat", r"expected , or \) in a list"),
        ("label in (a)b", "expected and, or, or the end"),
        ("label='cat", "expected a text that ends with '"),
        ("lable=cat", "did you mean 'label'"),
        ("", "expected COLUMN=VALUE"),
        ("=3", "expected COLUMN=VALUE"),
        ("label!cat", "expected in or one of"),
        ("n=1 or", "expected COLUMN=VALUE"),
        ("(" * 60 + "n=1" + ")" * 60, "at most 50"),
        ("n in (1, x)", "expected a number, got 'x'"),
    ],
)
def test_what_is_no_filter_is_refused_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        read_filter([text], TYPES)


def test_a_column_may_be_called_not() -> None:
    types = {"not": "integer", "not ok": "boolean"}
    assert read_filter(["not=3"], types) == Condition("not", "=", 3)
    assert read_filter(["not ok=true"], types) == Condition("not ok", "=", True)
    assert read_filter(["not not ok=true"], types) == Not(Condition("not ok", "=", True))


@pytest.mark.parametrize("value", ["cat", 'say "or"', "a\\b", "", "(x, y) and z", "'", 7, -2.5, True])
def test_a_written_value_is_read_again(value: Any) -> None:
    kind = {str: "text", bool: "boolean", int: "integer", float: "number"}[type(value)]
    assert read_filter([f"not c={write_value(value)}"], {"c": kind}) == Not(Condition("c", "=", value))


def test_a_filter_in_the_language_of_milvus() -> None:
    found = read_filter(['(label in (a, "b\'c") or n=2) and sold!=true'], TYPES)
    assert isinstance(found, AllOf)
    assert isinstance(found.parts[0], AnyOf)
    assert found.parts[1] == Condition("sold", "!=", True)
    text = expression(found, {"label": "c0", "n": "c1", "sold": "c2"}, {"sold": "has2"})
    assert text == '((c0 in ["a", "b\'c"]) or (c1 == 2)) and (has2 == true and c2 != true)'
    other = read_filter(["not (n<2.5 or sold=true)"], TYPES)
    assert expression(other, {"n": "c1", "sold": "c2"}, {"sold": "has2"}) == (
        "not ((c1 < 3) or (has2 == true and c2 == true))"
    )


def hostile(length: int) -> list[str]:
    units = [
        " ",
        "a ",
        "in ",
        "in(",
        "or ",
        "and ",
        "(",
        ")",
        "'",
        '"',
        "\\",
        "=",
        "! ",
        "label=",
        "n in (1,",
        "n=1 or ",
        ",",
    ]
    texts = [(unit * length)[:length] for unit in units]
    texts += ["label=" + (unit * length)[: length - 6] for unit in units]
    texts += ["label" + (unit * length)[: length - 8] + "=a" for unit in units]
    texts += ["label in (" + ("a, " * length)[: length - 12] + "b)", "label=" + " " * (length - 7) + "x"]
    draw = random.Random(0)
    texts += ["".join(draw.choice(units) for _ in range(length))[:length] for _ in range(50)]
    return texts


def seconds(text: str) -> float:
    def once() -> float:
        start = time.thread_time()  # of this thread alone: other processes have the processor, too
        with contextlib.suppress(InvalidInput):
            read_filter([text], TYPES)
        return time.thread_time() - start

    return min(once() for _ in range(3))


def test_no_text_of_the_length_that_a_service_allows_takes_five_milliseconds() -> None:
    slow = {text[:30]: taken for text in hostile(1000) if (taken := seconds(text)) > 0.005}
    assert not slow


def test_twice_the_text_takes_twice_the_time() -> None:
    """Quadratic reading would take sixteen times as long, cubic sixty-four times."""
    short, long = (sum(map(seconds, hostile(length))) for length in (4000, 16000))
    assert long < 9 * short


def test_random_texts_are_filters_or_refused() -> None:
    draw = random.Random(1)
    units: Any = ["label", "n", "=", "<", " ", "(", ")", "in", "or", "and", "'", "cat", "3", ","]
    for words in itertools.islice(iter(lambda: draw.choices(units, k=draw.randrange(12)), None), 3000):
        try:
            mask(read_filter(["".join(words)], TYPES), TABLE)
        except InvalidInput:
            continue


WHOLE = [-(1 << 63), -(1 << 53) - 1, -1, 0, 2, 3, (1 << 53) + 1, (1 << 63) - 1]
COMPARED = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@pytest.mark.parametrize("sign", COMPARED)
@pytest.mark.parametrize(
    "value", ["2.5", "2.0", "-0.5", "1e300", "-1e300", "inf", "-inf", "9007199254740993", str(LARGEST), str(10**30)]
)
def test_whole_numbers_are_compared_exactly_however_large(sign: str, value: str) -> None:
    """As Python compares them: 2**53 + 1 is no double, and Arrow refuses to make one of it."""
    number = int(value) if value.lstrip("-").isdigit() else float(value)
    found = read_filter([f"n{sign}{value}"], TYPES)
    table = pa.table({"n": [*WHOLE, None]})
    assert mask(found, table).tolist() == [*(COMPARED[sign](one, number) for one in WHOLE), False]
    assert "." not in expression(found, {"n": "c0"}, {})


def test_a_list_of_whole_numbers_leaves_out_what_is_none() -> None:
    table = pa.table({"n": WHOLE})
    found = read_filter(["n in (2.0, 2.5, 1e300, inf, 9007199254740993)"], TYPES)
    assert pc.filter(table["n"], mask(found, table)).to_pylist() == [2, 9007199254740993]
    assert compare_whole("n", "in", (1e300,)).value == ()


@pytest.mark.parametrize("text", ["label in ()", "label in (cat,)", "n in ( , 1)", "label >", "label <= and n = 1"])
def test_a_list_has_values(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected a value"):
        read_filter([text], TYPES)
