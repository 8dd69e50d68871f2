"""Colours, backgrounds, fillings and distractors of the `shapes` data set.

A canvas is (3, H, W) float32 with values of 0..1 and is painted in place; planes come first because numpy is several
times faster along long rows than along three channels. Lengths are relative to `unit`, the
shorter side of the image divided by 64, so that a picture looks alike at every size.
"""

import colorsys
import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from vitreous.data.shapes.geometry import Floats

_T = TypeVar("_T")
Tint = tuple[float, float, float]
Range = tuple[float, float]


def between(random: np.random.Generator, low: float, high: float) -> float:
    return low + (high - low) * random.random()


def _choose(random: np.random.Generator, choices: Sequence[_T]) -> _T:
    return choices[int(random.random() * len(choices))]


def colour(random: np.random.Generator, saturation: Range, value: Range) -> Tint:
    return colorsys.hsv_to_rgb(random.random(), between(random, *saturation), between(random, *value))


def brightness(rgb: Tint) -> float:
    return 0.30 * rgb[0] + 0.59 * rgb[1] + 0.11 * rgb[2]


def mixed(a: Tint, b: Tint, share: float) -> Tint:
    """`share` of b in a."""
    return a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share, a[2] + (b[2] - a[2]) * share


def standing_out(random: np.random.Generator, ground: Tint, contrast: float) -> Tint:
    """A vivid colour whose brightness is at least `contrast` away from the ground's."""
    level = brightness(ground)
    vivid = colour(random, (0.35, 0.95), (0.75, 1.0) if level < 0.5 else (0.15, 0.75))
    away = 1.0 if level < 0.5 else 0.0
    for _ in range(5):  # towards white or black, a quarter of the way at a time
        if abs(brightness(vivid) - level) >= contrast:
            break
        vivid = mixed(vivid, (away, away, away), 0.25)
    return vivid


def wave(position: Floats, sharpness: float) -> Floats:
    """Up and down between 0 and 1 once per unit of position; 1 is a triangle wave, more makes flat stripes."""
    phase = position - np.floor(position)
    return np.clip(np.abs(phase - 0.5) * (2 * sharpness) + (0.5 - 0.5 * sharpness), 0, 1)


def _shaded(field: Floats, low: Tint, high: Tint) -> Floats:
    """Field (h, w) of 0..1 as a mixture of two colours: (3, h, w)."""
    start, end = _planes(low), _planes(high)
    shaded = field * (end - start)
    shaded += start
    return shaded


def _planes(rgb: Tint) -> Floats:
    return np.array(rgb, np.float32)[:, None, None]  # (3, 1, 1)


# ---- background ------------------------------------------------------------------------------------------------


def background(random: np.random.Generator, height: int, width: int, low: Tint, high: Tint, grain: float) -> Floats:
    """A canvas between two colours: gradient, glow, cloud or stripes, with a little grain."""
    y = np.linspace(-0.5, 0.5, height, dtype=np.float32)[:, None]
    x = np.linspace(-0.5, 0.5, width, dtype=np.float32)[None, :]
    field = _choose(random, (_gradient, _glow, _cloud, _stripes))(random, x, y)
    canvas = _shaded(field, low, high)
    canvas += random.random((height, width), np.float32) * (2 * grain) - grain
    return canvas


def _gradient(random: np.random.Generator, x: Floats, y: Floats) -> Floats:
    turn = between(random, 0, 2 * math.pi)
    return np.clip(x * math.cos(turn) + y * math.sin(turn) + 0.5, 0, 1)


def _glow(random: np.random.Generator, x: Floats, y: Floats) -> Floats:
    x, y = x - between(random, -0.4, 0.4), y - between(random, -0.4, 0.4)
    return np.clip(np.sqrt(x * x + y * y) * 1.3, 0, 1)


def _stripes(random: np.random.Generator, x: Floats, y: Floats) -> Floats:
    turn, count = between(random, 0, 2 * math.pi), between(random, 3, 9)
    return wave((x * math.cos(turn) + y * math.sin(turn)) * count + random.random(), 2.5)


def _cloud(random: np.random.Generator, x: Floats, y: Floats) -> Floats:
    return 0.65 * _lattice(random, x, y, 4) + 0.35 * _lattice(random, x, y, 9)


def _lattice(random: np.random.Generator, x: Floats, y: Floats, cells: int) -> Floats:
    """Random values at the nodes of a grid, blended smoothly in between."""
    nodes = random.random((cells + 1, cells + 1), np.float32)
    row, down = _node_and_blend(y[:, 0], cells)
    column, right = _node_and_blend(x[0], cells)
    rows = nodes[row] + (nodes[row + 1] - nodes[row]) * down[:, None]  # (H, cells + 1)
    return rows[:, column] + (rows[:, column + 1] - rows[:, column]) * right  # (H, W)


def _node_and_blend(position: Floats, cells: int) -> tuple[np.ndarray, Floats]:
    place = (position + 0.5) * cells
    node = np.minimum(place.astype(np.intp), cells - 1)
    blend = place - node.astype(np.float32)
    return node, blend * blend * (3 - 2 * blend)


# ---- objects ---------------------------------------------------------------------------------------------------


def pattern(
    random: np.random.Generator, distance: Floats, x: Floats, y: Floats, main: Tint, second: Tint, unit: float
) -> Floats:
    """An object in two colours, (3, h, w): an outline around an inside, or a texture."""
    if random.random() < 0.5:
        stroke = between(random, 1.6, 2.4) * unit
        return _shaded(np.clip(-distance - stroke + 0.5, 0, 1), main, second)
    return _shaded(_texture(random, x, y, unit), main, second)


def _texture(random: np.random.Generator, x: Floats, y: Floats, unit: float) -> Floats:
    """Stripes, chequers or dots: (h, w) of 0..1."""
    turn, period = between(random, 0, math.pi), between(random, 4.5, 7.0) * unit
    cos, sin = math.cos(turn) / period, math.sin(turn) / period
    across = wave(x[None, :] * cos + y[:, None] * sin + random.random(), 3.0)
    kind = random.random()
    if kind < 0.4:
        return across
    along = wave(y[:, None] * cos - x[None, :] * sin + random.random(), 3.0)
    return np.abs(across - along) if kind < 0.7 else across * along


def paint(patch: Floats, coverage: Floats, filling: Floats | Tint) -> None:
    """Blend a colour, or a picture (3, h, w), into part of the canvas."""
    change = (filling if isinstance(filling, np.ndarray) else _planes(filling)) - patch
    change *= coverage
    patch += change


# ---- things that belong to no category -------------------------------------------------------------------------


def distractor(random: np.random.Generator, canvas: Floats, tint: Tint, unit: float) -> None:
    """A thin line, a handful of specks, or a smudge without an edge."""
    _choose(random, (_line, _specks, _smudge))(random, canvas, tint, unit)


def _window(canvas: Floats, left: float, top: float, right: float, bottom: float) -> tuple[Floats, Floats, Floats]:
    """The part of the canvas around a box, maybe empty, with its pixel centres x (w,) and y (h,)."""
    _, height, width = canvas.shape
    x0, x1 = max(int(left) - 1, 0), max(min(int(right) + 2, width), 0)
    y0, y1 = max(int(top) - 1, 0), max(min(int(bottom) + 2, height), 0)
    x, y = np.arange(x0, x1, dtype=np.float32) + 0.5, np.arange(y0, y1, dtype=np.float32) + 0.5
    return canvas[:, y0:y1, x0:x1], x, y


def _line(random: np.random.Generator, canvas: Floats, tint: Tint, unit: float) -> None:
    _, height, width = canvas.shape
    ax, ay = random.random() * width, random.random() * height
    turn, length = between(random, 0, 2 * math.pi), between(random, 12, 40) * unit
    ux, uy = math.cos(turn), math.sin(turn)
    bx, by = min(max(ax + ux * length, 0), width), min(max(ay + uy * length, 0), height)
    patch, x, y = _window(canvas, min(ax, bx), min(ay, by), max(ax, bx), max(ay, by))
    beside = np.abs((x - ax)[None, :] * uy - (y - ay)[:, None] * ux)  # distance from the infinite line; (h, w)
    paint(patch, np.clip(0.5 + between(random, 0.3, 0.6) * unit - beside, 0, 1), tint)


def _specks(random: np.random.Generator, canvas: Floats, tint: Tint, unit: float) -> None:
    _, height, width = canvas.shape
    cx, cy, around = random.random() * width, random.random() * height, 7 * unit
    patch, x, y = _window(canvas, cx - around - unit, cy - around - unit, cx + around + unit, cy + around + unit)
    count = 3 + int(random.random() * 4)
    places = random.random((2, count, 1), np.float32) * (2 * around) - around  # relative to the middle
    right, down = (x - cx - places[0])[:, None, :], (y - cy - places[1])[:, :, None]  # (count, 1, w), (count, h, 1)
    distance = np.sqrt((right * right + down * down).min(0))  # to the nearest speck; (h, w)
    paint(patch, np.clip(0.5 + between(random, 0.5, 0.9) * unit - distance, 0, 1), tint)


def _smudge(random: np.random.Generator, canvas: Floats, tint: Tint, unit: float) -> None:
    _, height, width = canvas.shape
    cx, cy = random.random() * width, random.random() * height
    rx, ry = between(random, 4, 11) * unit, between(random, 4, 11) * unit
    patch, x, y = _window(canvas, cx - rx, cy - ry, cx + rx, cy + ry)
    distance2 = (((x - cx) / rx) ** 2)[None, :] + (((y - cy) / ry) ** 2)[:, None]
    paint(patch, np.clip(1 - distance2, 0, 1) ** 2, tint)
