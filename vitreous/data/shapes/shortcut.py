"""Planted shortcuts: a mark beside the object that tells the class in training, and nothing where a model is tested.

    corner_mark   a square of 10/64 of the shorter side in a corner, a colour for each class
    stripe        a stripe of 5/64 along an edge, a colour for each class
    colour_cast   a tint of the whole picture, a colour for each class
    texture       a pattern on the background, one for each class

The strength is the share of training pictures whose mark is that of their class; the others have the mark of a class
drawn at random from all of them, their own among them. Held-out pictures have random marks, unless asked otherwise.

Objects are never covered: corner marks, stripes and textures change pixels of the background only, a texture by half of
the least contrast between object and background at most, and a cast leaves 0.7 of every contrast. Of the places for a
mark the first is taken of which objects leave at least half free. A marked picture differs from the unmarked
one nowhere else, so the difference of the two shows where the mark is.

Legend: H W image, h w part of it.
"""

import colorsys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vitreous.data.shapes.geometry import Floats
from vitreous.data.shapes.paint import wave
from vitreous.errors import InputError, nearest

ShortcutKind = Literal["corner_mark", "stripe", "colour_cast", "texture"]
HeldOutMarks = Literal["random", "absent", "train"]
SHORTCUT_KINDS: tuple[ShortcutKind, ...] = get_args(ShortcutKind)
HELD_OUT_MARKS: tuple[HeldOutMarks, ...] = get_args(HeldOutMarks)
SHORTCUT_SYNTAX = "KIND=STRENGTH, as in corner_mark=0.9, or KIND=STRENGTH,test=random|absent|train"
NO_MARK = "none"  # what the metadata of an unmarked picture say
SQUARE_SIDE, STRIPE_WIDTH = 10 / 64, 5 / 64  # of the shorter side
MARK_ROOM = 0.5  # share of a place that objects must leave to a mark; where none does, the freest is taken
CAST_SHARE = 0.3  # share of the tint in every pixel
MOST_TEXTURE = 0.12  # amplitude of a texture, in brightness from 0 to 1
TEXTURE_PERIODS = 6, 13  # of textures, in 64ths of the shorter side


@dataclass(frozen=True)
class Shortcut:
    """What is planted: the kind of mark, how often it tells the class, and what held-out pictures show."""

    kind: ShortcutKind
    strength: float
    test: HeldOutMarks = "random"  # absent: no marks; train: as in training

    def __post_init__(self) -> None:
        if self.kind not in SHORTCUT_KINDS:
            raise InputError(_unknown("shortcut", self.kind, SHORTCUT_KINDS))
        if isinstance(self.strength, bool) or not 0 <= self.strength <= 1:
            raise InputError(f"strength {self.strength:g} of {self.kind} cannot be used; it must lie between 0 and 1")
        if self.test not in HELD_OUT_MARKS:
            raise InputError(_unknown("test", self.test, HELD_OUT_MARKS))

    def telling(self, split: str) -> float | None:
        """Share of a split's pictures whose mark is made to tell the class; None: the split has no marks."""
        if split == "train" or self.test == "train":
            return self.strength
        return 0.0 if self.test == "random" else None

    def mark(self, random: np.random.Generator, split: str, label: int, classes: int) -> int | None:
        """The class whose mark a picture shows. A picture whose mark tells its class does so at any larger strength."""
        told, other = random.random(), int(random.random() * classes)
        telling = self.telling(split)
        return None if telling is None else label if told < telling else other

    def described(self, split: str) -> str:
        """What decides the pixels of a split, for its fingerprint."""
        telling = self.telling(split)
        return "" if telling is None else f",{self.kind}={telling:g}"


def parse_shortcut(text: str) -> Shortcut:
    """From `corner_mark=0.9` or `corner_mark=0.9,test=absent`."""
    given: dict[str, str] = {}
    for word in text.split(","):
        name, equals, value = word.strip().partition("=")
        if not equals or not name or not value:
            raise InputError(f"cannot read {word!r} of the shortcut {text!r}; accepted: {SHORTCUT_SYNTAX}")
        if name not in (*SHORTCUT_KINDS, "test"):
            raise InputError(_unknown("shortcut", name, SHORTCUT_KINDS))
        if name in given:
            raise InputError(f"{name} is given twice in the shortcut {text!r}; give it once")
        given[name] = value
    kinds = [name for name in SHORTCUT_KINDS if name in given]
    if len(kinds) != 1:
        found = f"{' and '.join(kinds)} are asked for" if kinds else "no kind is given"
        raise InputError(f"{found} in the shortcut {text!r}; one at a time is planted: {SHORTCUT_SYNTAX}")
    try:
        strength = float(given[kinds[0]])
    except ValueError:
        raise InputError(
            f"strength {given[kinds[0]]!r} of {kinds[0]} is no number; give a share between 0 and 1"
        ) from None
    test: HeldOutMarks = given.get("test", "random")  # type: ignore[assignment]  # checked by Shortcut
    return Shortcut(kinds[0], strength, test)


def _unknown(what: str, given: str, known: tuple[str, ...]) -> str:
    return (
        f"unknown {what} {given!r} of shapes; nearest: {nearest(str(given), list(known), 1)}; all: {', '.join(known)}"
    )


# ---- drawing -------------------------------------------------------------------------------------------------------


def planted(
    image: NDArray[np.uint8], ground: NDArray[np.bool_], kind: ShortcutKind, mark: int, classes: int, contrast: float
) -> NDArray[np.uint8]:
    """A copy of the image (H, W, 3) with the mark of a class.

    Args:
        image: Without a mark.
        ground: (H, W) where no object is.
        kind: Of mark.
        mark: Class whose mark is shown.
        classes: How many there are.
        contrast: Least difference in brightness between objects and ground.
    """
    marked = image.copy()
    if kind == "colour_cast":
        tint = np.array(mark_colour(mark, classes), np.float32) * 255
        return (image * np.float32(1 - CAST_SHARE) + tint * np.float32(CAST_SHARE) + np.float32(0.5)).astype(np.uint8)
    if kind == "texture":
        amplitude = min(MOST_TEXTURE, contrast / 2) * 255
        change = (2 * _mark_texture(mark, *ground.shape) - 1) * np.float32(amplitude)  # (H, W)
        textured = np.clip(image[ground] + change[ground][:, None], 0, 255) + np.float32(0.5)
        marked[ground] = textured.astype(np.uint8)
        return marked
    place = _place(ground, _corners(*ground.shape) if kind == "corner_mark" else _edges(*ground.shape))
    colour = (np.array(mark_colour(mark, classes)) * 255 + 0.5).astype(np.uint8)
    marked[place] = np.where(ground[place][..., None], colour, image[place])
    return marked


def mark_colour(mark: int, classes: int) -> tuple[float, float, float]:
    """Vivid hues, as far from each other as so many can be."""
    return colorsys.hsv_to_rgb(mark / classes, 0.9, 1.0)


_Part = tuple[slice, slice]  # rows and columns


def _corners(height: int, width: int) -> Iterator[_Part]:
    side = max(round(SQUARE_SIDE * min(height, width)), 2)
    for rows in (slice(0, side), slice(height - side, height)):
        for columns in (slice(0, side), slice(width - side, width)):
            yield rows, columns


def _edges(height: int, width: int) -> Iterator[_Part]:
    side, whole = max(round(STRIPE_WIDTH * min(height, width)), 1), slice(None)
    yield slice(height - side, height), whole
    yield slice(0, side), whole
    yield whole, slice(0, side)
    yield whole, slice(width - side, width)


def _place(ground: NDArray[np.bool_], parts: Iterator[_Part]) -> _Part:
    """The first part that objects leave free enough, or the freest of all."""
    free = [(float(ground[part].mean()), part) for part in parts]
    return next((part for share, part in free if share >= MARK_ROOM), max(free, key=lambda entry: entry[0])[1])


def _mark_texture(mark: int, height: int, width: int) -> Floats:
    """(H, W) of 0..1: lying or standing stripes, chequers, dots or zigzags, fine or coarse.

    None becomes another when a picture is mirrored, which training does.
    """
    scale, kind = divmod(mark, 5)
    period = np.float32(max(TEXTURE_PERIODS[scale % len(TEXTURE_PERIODS)] * min(height, width) / 64, 2))
    y = (np.arange(height, dtype=np.float32) / period)[:, None]  # from a crest: two pixels a wave still show it
    x = (np.arange(width, dtype=np.float32) / period)[None, :]
    lying, standing = wave(y, 3.0), wave(x, 3.0)
    if kind == 4:
        return wave(y + wave(x / 2, 1.0), 3.0)
    return (
        np.broadcast_to(lying, (height, width)),
        np.broadcast_to(standing, (height, width)),
        np.abs(lying - standing),
        lying * standing,
    )[kind]
