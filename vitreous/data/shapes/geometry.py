"""The silhouettes of the `shapes` data set: outlines, keypoints and signed distances.

A silhouette is described upright in its own frame: x to the right, y down, about one unit from the centre to the
farthest point. `Pose` puts it into an image: every silhouette covers the same area at the same pose, so that area
says nothing about category. Distances are in pixels, negative inside, which gives anti-aliased edges, outlines
and masks from one array.

Only additions, products, comparisons and square roots touch whole arrays: these are exact to the last bit on every
processor, where array sines are not. So the same sample has the same pixels everywhere.

Legend: h w patch rows and columns, E edges of a polygon.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]  # float32 in fact; numpy types products with Python floats as wider
XY = tuple[float, float]

# One list of names for all categories; each silhouette uses those that make sense for it.
# A name says where the point lies while the silhouette is upright; it turns along with it.
KEYPOINTS = ("centre", "top", "top_right", "right", "bottom_right", "bottom", "bottom_left", "left", "top_left")


class Silhouette(NamedTuple):
    area: float  # in square units
    reach: float  # from the centre to the farthest point, in units
    period: float  # degrees of rotation after which it looks the same
    outline: tuple[XY, ...]  # empty for the curved ones
    keypoints: dict[str, XY]


class Pose(NamedTuple):
    x: float  # centre in pixels; pixel i covers i to i + 1
    y: float
    side: float  # side in pixels of the square that has the same area
    angle: float  # degrees, clockwise as seen on the screen


def _polygon(period: float, *corners: XY | tuple[float, float, str], **keypoints: XY) -> Silhouette:
    """From its corners, some of them named as keypoints, and keypoints that are no corners."""
    outline = tuple((corner[0], corner[1]) for corner in corners)
    named = {corner[2]: (corner[0], corner[1]) for corner in corners if len(corner) == 3}
    following = outline[1:] + outline[:1]
    area = abs(sum(x * v - u * y for (x, y), (u, v) in zip(outline, following, strict=True))) / 2
    reach = max(math.hypot(x, y) for x, y in outline)
    return Silhouette(area, reach, period, outline, {"centre": (0.0, 0.0), **named, **keypoints})


def _around(radius: float, degrees: float) -> XY:
    """A point at `degrees` clockwise from the top."""
    return radius * math.sin(math.radians(degrees)), -radius * math.cos(math.radians(degrees))


STAR = tuple(_around(0.46 if corner % 2 else 1.0, 36 * corner) for corner in range(10))
TRIANGLE = tuple(_around(1.0, degrees) for degrees in (0, 120, 240))
ARM = 0.34  # half width of the cross's arms

# Heart: a square on its corner with a disc on each of the two upper sides.
HEART_SIDE = 0.52  # half side of the square, and the discs' radius
HEART_LOBE = (HEART_SIDE / math.sqrt(2), -HEART_SIDE / math.sqrt(2))  # centre of the right disc
HEART_TIP = HEART_SIDE * math.sqrt(2)
HEART_DROP = 0.12  # moves the centre of the area to the origin

# Crescent: a disc without a smaller one to its right.
BITE_X, BITE_RADIUS = 0.48, 0.80
HORN_X = (BITE_X**2 + 1 - BITE_RADIUS**2) / (2 * BITE_X)
HORN_Y = math.sqrt(1 - HORN_X**2)
BITTEN_OFF = (  # the lens common to both discs: two circular sectors without the kite between them
    math.acos(HORN_X) + BITE_RADIUS**2 * math.acos((BITE_X - HORN_X) / BITE_RADIUS) - BITE_X * HORN_Y
)

SILHOUETTES: dict[str, Silhouette] = {
    "circle": Silhouette(math.pi, 1.0, 0.0, (), {"centre": (0.0, 0.0)}),
    "square": _polygon(90, (-1, -1, "top_left"), (1, -1, "top_right"), (1, 1, "bottom_right"), (-1, 1, "bottom_left")),
    "triangle": _polygon(120, *TRIANGLE, top=TRIANGLE[0], bottom_right=TRIANGLE[1], bottom_left=TRIANGLE[2]),
    "star": _polygon(  # the five tips
        72, *STAR, top=STAR[0], right=STAR[2], bottom_right=STAR[4], bottom_left=STAR[6], left=STAR[8]
    ),
    "heart": Silhouette(
        4 * HEART_SIDE**2 + math.pi * HEART_SIDE**2,
        1.0,
        360,
        (),
        {  # notch, tip, and the crown of each lobe
            "centre": (0.0, 0.0),
            "top": (0.0, HEART_DROP - HEART_TIP),
            "bottom": (0.0, HEART_DROP + HEART_TIP),
            "top_right": (HEART_LOBE[0], HEART_DROP + HEART_LOBE[1] - HEART_SIDE),
            "top_left": (-HEART_LOBE[0], HEART_DROP + HEART_LOBE[1] - HEART_SIDE),
        },
    ),
    "cross": _polygon(
        90,
        *((-ARM, -1), (ARM, -1), (ARM, -ARM), (1, -ARM), (1, ARM), (ARM, ARM)),
        *((ARM, 1), (-ARM, 1), (-ARM, ARM), (-1, ARM), (-1, -ARM), (-ARM, -ARM)),
        top=(0, -1),
        right=(1, 0),
        bottom=(0, 1),
        left=(-1, 0),  # the ends of the arms
    ),
    "arrow": _polygon(  # tip, barbs, tail
        360,
        *((0, -1, "top"), (0.8, -0.1, "right"), (0.3, -0.1), (0.3, 0.95)),
        *((-0.3, 0.95), (-0.3, -0.1), (-0.8, -0.1, "left")),
        bottom=(0, 0.95),
    ),
    "crescent": Silhouette(
        math.pi - BITTEN_OFF,
        1.0,
        360,
        (),
        {  # the two horns, the back, and the middle of the thickest part
            "centre": ((BITE_X - BITE_RADIUS - 1) / 2, 0.0),
            "top_right": (HORN_X, -HORN_Y),
            "bottom_right": (HORN_X, HORN_Y),
            "left": (-1.0, 0.0),
        },
    ),
    "bolt": _polygon(
        180,
        *((0.3, -1, "top"), (-0.62, 0.2, "left"), (-0.16, 0.2)),
        *((-0.3, 1, "bottom"), (0.62, -0.2, "right"), (0.16, -0.2)),
    ),
    "hourglass": _polygon(
        180,
        *((-0.8, -0.9, "top_left"), (0.8, -0.9, "top_right"), (0.16, 0)),
        *((0.8, 0.9, "bottom_right"), (-0.8, 0.9, "bottom_left"), (-0.16, 0)),
    ),
}
CATEGORIES: tuple[str, ...] = tuple(sorted(SILHOUETTES))  # as class folders are ordered


def reach(category: int, side: float) -> float:
    """Radius in pixels of the circle around the pose's centre that holds the whole silhouette."""
    shape = SILHOUETTES[CATEGORIES[category]]
    return shape.reach * side / math.sqrt(shape.area)


def _placed(shape: Silhouette, pose: Pose, points: Iterable[XY]) -> list[XY]:
    """From the silhouette's frame into the image."""
    scale = pose.side / math.sqrt(shape.area)
    cos, sin = scale * math.cos(math.radians(pose.angle)), scale * math.sin(math.radians(pose.angle))
    return [(pose.x + cos * x - sin * y, pose.y + sin * x + cos * y) for x, y in points]


def extent(category: int, pose: Pose) -> tuple[float, float, float, float]:
    """Box x0 y0 x1 y1 in pixels around the silhouette; tight for polygons."""
    shape = SILHOUETTES[CATEGORIES[category]]
    if shape.outline:
        x, y = zip(*_placed(shape, pose, shape.outline), strict=True)
        return min(x), min(y), max(x), max(y)
    radius = reach(category, pose.side)
    return pose.x - radius, pose.y - radius, pose.x + radius, pose.y + radius


def keypoints(category: int, pose: Pose) -> dict[str, XY]:
    """The silhouette's named points in pixels."""
    shape = SILHOUETTES[CATEGORIES[category]]
    return dict(zip(shape.keypoints, _placed(shape, pose, shape.keypoints.values()), strict=True))


def signed_distance(category: int, pose: Pose, x: Floats, y: Floats) -> Floats:
    """Pixels from the outline, negative inside, at columns x (w,) and rows y (h,): (h, w)."""
    name = CATEGORIES[category]
    shape = SILHOUETTES[name]
    if shape.outline:
        corners = np.array(_placed(shape, pose, shape.outline), np.float32)
        return _distance_to_polygon(corners, x, y)
    scale = pose.side / math.sqrt(shape.area)
    cos, sin = math.cos(math.radians(pose.angle)), math.sin(math.radians(pose.angle))
    right, down = (x - pose.x)[None, :] / scale, (y - pose.y)[:, None] / scale
    u, v = right * cos + down * sin, down * cos - right * sin  # (h, w) each, in the silhouette's frame
    return CURVED[name](u, v) * scale


def _distance_to_polygon(corners: Floats, x: Floats, y: Floats) -> Floats:
    start = corners[:, :, None, None]  # (E, 2, 1, 1)
    step = np.concatenate([corners[1:], corners[:1]])[:, :, None, None] - start
    (start_x, start_y), (step_x, step_y) = start.swapaxes(0, 1), step.swapaxes(0, 1)  # (E, 1, 1) each
    from_x, from_y = x - start_x, y[:, None] - start_y  # (E, 1, w), (E, h, 1)
    length2 = step_x * step_x + step_y * step_y
    along = from_x * (step_x / length2) + from_y * (step_y / length2)  # (E, h, w); 0..1 beside the edge
    along = np.minimum(np.maximum(along, 0, out=along), 1, out=along)
    gap = from_x - along * step_x
    gap *= gap
    along *= step_y
    along -= from_y
    along *= along
    gap += along
    distance = np.sqrt(gap.min(0))  # (h, w)
    # A ray to the right crosses the outline an odd number of times when it starts inside.
    crosses = (from_y >= 0) != (from_y >= step_y)  # (E, h, 1)
    slope = step_x / np.where(step_y == 0, np.float32(1), step_y)
    inside = np.logical_xor.reduce(crosses & (from_x < from_y * slope), axis=0)  # (h, w)
    return np.where(inside, -distance, distance)


def _heart(u: Floats, v: Floats) -> Floats:
    u, v = np.abs(u), v - HEART_DROP
    disc = np.sqrt((u - HEART_LOBE[0]) ** 2 + (v - HEART_LOBE[1]) ** 2) - HEART_SIDE
    square = (u + np.abs(v) - HEART_TIP) / math.sqrt(2)  # a square on its corner is |u| + |v| <= its half diagonal
    return np.minimum(disc, square)


def _crescent(u: Floats, v: Floats) -> Floats:
    disc = np.sqrt(u * u + v * v) - 1
    bite = np.sqrt((u - BITE_X) ** 2 + v * v) - BITE_RADIUS
    return np.maximum(disc, -bite)


CURVED = {"circle": lambda u, v: np.sqrt(u * u + v * v) - 1, "heart": _heart, "crescent": _crescent}
