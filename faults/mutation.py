"""Mutations that know the format: bytes, text, JSON documents, the header of a safetensors file."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

ODD_TEXT = (
    *(
        "",
        " ",
        "nan",
        "inf",
        "-inf",
        "1e999",
        "-1",
        "0",
        "true",
        "null",
        "~",
        "[]",
        "{}",
        "*a",
        "&a [*a]",
        "!!python/x",
    ),
    *(
        "\x00",
        "\x1b]52;c;eA==\x07",
        "[bold]",
        "../../etc/passwd",
        "/",
        "é",
        "\ud7ff",
        "9" * 40,
        "x" * 5000,
        "-",
        ":",
        '"',
    ),
)
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 2**70, -(2**63), 1e308, float("nan"), float("inf"), "", "x", "x" * 3000),
    *([], {}, [[]], [None], {"a": 1}, "\x00", "nan", "../x", [1, "2", None]),
)
NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


def mutate_bytes(rng: random.Random, content: bytes) -> bytes:
    """Flip bits, cut, repeat, insert, or write a large number somewhere; headers are hit more often than the rest."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        if not data:
            return bytes(rng.randbytes(rng.randrange(64)))
        at = rng.randrange(len(data) if rng.random() < 0.5 else min(len(data), 64))
        length = rng.randrange(1, 1 + min(64, len(data)))
        match rng.randrange(7):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:]
            case 2:
                del data[at : at + length]
            case 3:
                data[at:at] = data[at : at + length]
            case 4:
                data[at:at] = rng.randbytes(length)
            case 5:
                data[at : at + length] = bytes(length)
            case _:
                size = rng.choice((1, 2, 4, 8))
                number = rng.choice(NUMBERS) & ((1 << 8 * size) - 1)
                data[at : at + size] = number.to_bytes(size, rng.choice(("little", "big")))
    return bytes(data)


def mutate_text(rng: random.Random, text: str, separators: str = ",:\n ") -> str:
    """Replace, drop, repeat or swap cells and lines of a text."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        lines = text.split("\n")
        n = rng.randrange(len(lines))
        match rng.randrange(6):
            case 0:
                del lines[n]
            case 1:
                lines.insert(rng.randrange(len(lines) + 1), lines[n])
            case 2:
                lines[n] = rng.choice(ODD_TEXT)
            case 3:
                lines[n] += rng.choice(separators) + rng.choice(ODD_TEXT)
            case _:
                separator = rng.choice(separators)
                cells = lines[n].split(separator)
                cells[rng.randrange(len(cells))] = rng.choice(ODD_TEXT)
                lines[n] = separator.join(cells)
        text = "\n".join(lines)
    return text


def mutate_document(rng: random.Random, document: Any) -> Any:
    """Replace, remove or add a value anywhere in nested lists and mappings; the document is changed in place."""
    places: list[tuple[Any, Any]] = []

    def collect(value: Any) -> None:
        keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
        for key in keys:
            places.append((value, key))
            collect(value[key])

    collect(document)
    if not places or rng.random() < 0.03:
        return rng.choice(ODD_VALUES)
    for _ in range(rng.choice((1, 1, 2))):
        holder, key = rng.choice(places)
        if isinstance(holder, dict):
            key = rng.choice(list(holder)) if holder else "x"
            choice = rng.randrange(5)
            if choice == 0:
                holder.pop(key, None)
            elif choice == 1:
                holder[str(rng.choice(ODD_TEXT))] = rng.choice(ODD_VALUES)
            else:
                holder[key] = rng.choice(ODD_VALUES)
        elif holder:
            n = rng.randrange(len(holder))
            choice = rng.randrange(5)
            if choice == 0:
                del holder[n]
            elif choice == 1:
                holder.insert(n, rng.choice(ODD_VALUES))
            else:
                holder[n] = rng.choice(ODD_VALUES)
    return document


def mutate_json(rng: random.Random, content: bytes) -> bytes:
    """A JSON file with another structure; one time in four with other bytes."""
    if rng.random() < 0.25:
        return mutate_bytes(rng, content)
    return json.dumps(mutate_document(rng, json.loads(content)), ensure_ascii=False).encode("utf-8", "surrogatepass")


def mutate_safetensors(rng: random.Random, content: bytes) -> bytes:
    """A safetensors file with another header (names, shapes, types, offsets, metadata) or other bytes."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, content)
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = header.get("__metadata__") or {}
    held = [key for key, value in metadata.items() if value[:1] in "{["]
    if held and rng.random() < 0.5:  # a document within the header
        key = rng.choice(held)
        metadata[key] = json.dumps(mutate_document(rng, json.loads(metadata[key])))
    else:
        header = mutate_document(rng, header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def mutate_file(rng: random.Random, name: str, content: bytes) -> bytes:
    """A damaged version of a file, by the kind that its name says."""
    if name.endswith(".safetensors"):
        return mutate_safetensors(rng, content)
    if name.endswith(".json"):
        return mutate_json(rng, content)
    if name.endswith((".yaml", ".csv", ".jsonl", ".md", ".txt")) and rng.random() < 0.8:
        return mutate_text(rng, content.decode()).encode("utf-8", "surrogatepass")
    return mutate_bytes(rng, content)
