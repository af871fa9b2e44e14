"""The built-in dataset: characters in several typefaces; the task is to find a character in other typefaces.

The images are drawn from the DejaVu and STIX fonts that come with matplotlib: white on black, 28x28 pixels, centred.
A class is a character. Characters that look the same (Latin A, Greek Alpha, Cyrillic A) are one class: their outlines
are equal, up to the position, in at least half of the typefaces that have both, and this merges classes transitively.
Of classes that still share an image, outline for outline or pixel for pixel (Latin and Cyrillic K, dashes of a
monospaced typeface), only the first is part of the dataset: no image belongs to two classes.

>>> from metrix import data
>>> data.open("glyphs-mini").train.image(0).shape
torch.Size([1, 28, 28])
"""

from __future__ import annotations

import hashlib
import unicodedata
import zipfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrix.data.catalogue import UNSPLIT, Catalogue
from metrix.extras import import_extra, require_extra
from metrix.files import cache_folder, mark_used, warn_not_cached, write_atomically

NAMES = ("glyphs", "glyphs-mini")
RECIPE = 2  # increase it when the drawing changes, so that cached files are not used

FACES = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
)
MIN_FACES = 12  # typefaces that must have a character
MIN_IMAGES = 8  # images that a class must have
KINDS = "LNPS"  # letters, numbers, punctuation, symbols; no spaces, controls or combining marks
SIZE = 28  # pixels of a side
EM = 20  # pixels of the font size, which leaves room for accents
OVERSAMPLING = 4  # drawn larger and averaged, which smooths and hides the hinting of the font
MINI_START, MINI_CLASSES = 0x1E00, 120  # Latin letters with diacritics, about as hard as the full set


class _Glyph(NamedTuple):
    face: int
    outline: bytes


def load(name: str) -> Catalogue:
    """The catalogue of `glyphs` or `glyphs-mini`, drawn on first use and cached."""
    path = cache_folder() / "glyphs" / f"{name}-{_version()}.npz"
    content = _read(path)
    if content is not None:
        mark_used(path)
    else:
        pixels, labels, faces, class_names = draw(mini=name == "glyphs-mini")
        content = {"pixels": pixels, "labels": labels, "faces": faces, "class_names": np.array(class_names)}
        content["sha256"] = np.array(_digest(content))
        try:
            _write(path, content)
        except OSError as error:
            warn_not_cached("drawn glyphs", error)
    names = tuple(content["class_names"].tolist())
    labels = content["labels"].astype(np.int64)
    faces = content["faces"]
    return Catalogue(
        layout=name,
        root=None,
        paths=tuple(f"{names[k]}/{FACES[f]}" for k, f in zip(labels.tolist(), faces.tolist(), strict=True)),
        labels=labels,
        class_names=names,
        parts=np.full(len(labels), UNSPLIT, dtype="<U7"),
        pixels=content["pixels"],
    )


def _write(path: Path, content: Mapping[str, NDArray[Any]]) -> None:
    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # savez would add a suffix to a path
            np.savez(file, **content)  # type: ignore[arg-type]

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, write)


def draw(mini: bool = False) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.uint8], list[str]]:
    """Draw the dataset: pixels (images, 28, 28), labels, typefaces and class names; always the same."""
    from PIL import ImageFont

    folder = _font_folder()
    outlines = _read_outlines(folder)
    classes = _group_classes(outlines)
    if mini:
        classes = [members for members in classes if min(members.values()) >= MINI_START][:MINI_CLASSES]
    fonts = [
        ImageFont.truetype(str(folder / f"{face}.ttf"), EM * OVERSAMPLING, layout_engine=ImageFont.Layout.BASIC)
        for face in FACES
    ]
    images: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    faces: list[int] = []
    names: list[str] = []
    taken: set[bytes] = set()  # the pixels of the classes so far
    for members in classes:
        drawn = [_draw_character(fonts[face], chr(code)) for face, code in members.items()]
        pixels = {image.tobytes() for image in drawn}
        if pixels & taken:
            continue
        taken |= pixels
        images += drawn
        labels += [len(names)] * len(drawn)
        faces += members
        names.append(f"U+{min(members.values()):04X}")
    return np.stack(images), np.array(labels, np.int32), np.array(faces, np.uint8), names


def _read_outlines(folder: Path) -> dict[int, dict[int, bytes]]:
    """Code point -> typeface -> outline in font units, of visible characters that most typefaces have."""
    from matplotlib.ft2font import FT2Font, LoadFlags
    from matplotlib.path import Path as Curve

    fonts = [FT2Font(str(folder / f"{face}.ttf")) for face in FACES]
    charmaps = [font.get_charmap() for font in fonts]
    held = Counter(code for charmap in charmaps for code in charmap)
    wanted = sorted(c for c, n in held.items() if n >= MIN_FACES and unicodedata.category(chr(c))[0] in KINDS)
    outlines: dict[int, dict[int, bytes]] = defaultdict(dict)
    for face, (font, charmap) in enumerate(zip(fonts, charmaps, strict=True)):
        for code in wanted:
            if code not in charmap:
                continue
            font.load_char(code, flags=LoadFlags.NO_SCALE)
            points, verbs = font.get_path()
            drawn = verbs != Curve.CLOSEPOLY  # closing points are zero, not points of the outline
            if drawn.any():
                moved = np.where(drawn[:, None], points - points[drawn].min(axis=0), 0)
                outlines[code][face] = moved.astype(np.int32).tobytes() + verbs.tobytes()
    return {code: found for code, found in outlines.items() if len(found) >= MIN_FACES}


def _group_classes(outlines: dict[int, dict[int, bytes]]) -> list[dict[int, int]]:
    """Each class as typeface -> code point, ordered by the smallest code point; no two share an outline."""
    sharing: dict[_Glyph, list[int]] = defaultdict(list)
    for code, found in outlines.items():
        for face, outline in found.items():
            sharing[_Glyph(face, outline)].append(code)
    same = Counter((a, b) for codes in sharing.values() for k, a in enumerate(codes) for b in codes[k + 1 :])
    leader = {code: code for code in outlines}
    for (a, b), faces in sorted(same.items()):
        if 2 * faces >= len(outlines[a].keys() & outlines[b].keys()):
            low, high = sorted((_find_leader(leader, a), _find_leader(leader, b)))
            leader[high] = low
    members: dict[int, dict[int, int]] = defaultdict(dict)
    glyphs: dict[int, set[_Glyph]] = defaultdict(set)
    for code in sorted(outlines):
        root = _find_leader(leader, code)
        for face, outline in sorted(outlines[code].items()):
            members[root].setdefault(face, code)
            glyphs[root].add(_Glyph(face, outline))
    kept: list[dict[int, int]] = []
    taken: set[_Glyph] = set()
    for root, codes in sorted(members.items()):
        if len(codes) >= MIN_IMAGES and not glyphs[root] & taken:
            taken |= glyphs[root]
            kept.append(dict(sorted(codes.items())))
    return kept


def _find_leader(leader: dict[int, int], code: int) -> int:
    while leader[code] != code:
        code = leader[code]
    return code


def _draw_character(font: Any, character: str) -> NDArray[np.uint8]:
    """A character in the centre of a square, shrunk if it does not fit."""
    from PIL import Image

    side = SIZE * OVERSAMPLING
    mask = font.getmask(character, mode="L")
    image = Image.frombytes("L", mask.size, bytes(mask))
    if max(image.size) > side:
        width, height = (max(1, round(length * side / max(image.size))) for length in image.size)
        image = image.resize((width, height), Image.Resampling.BOX)
    canvas = Image.new("L", (side, side))
    canvas.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return np.asarray(canvas.reduce(OVERSAMPLING))


def _font_folder() -> Path:
    matplotlib = import_extra("matplotlib")
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


def _version() -> str:
    """A hash of everything the pixels depend on: this code, the fonts and the rasteriser."""
    from PIL import features

    require_extra("matplotlib")

    text = f"{RECIPE} {version('matplotlib')} {version('pillow')} {features.version('freetype2')}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _digest(content: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for key in ("pixels", "labels", "faces", "class_names"):
        digest.update(content[key].tobytes())
    return digest.hexdigest()


def _read(path: Path) -> dict[str, Any] | None:
    """The arrays of a cached file; None if it is missing or damaged."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            content = {key: arrays[key] for key in arrays.files}
        return content if str(content["sha256"]) == _digest(content) else None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
