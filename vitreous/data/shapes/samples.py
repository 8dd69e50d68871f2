"""The embedded data set `shapes`: scenes drawn on demand, with targets for every task. Nothing to download.

One to six objects of ten categories lie on a varied ground among lines, specks and smudges that belong to no
category. One object is clearly the largest; its category is the class of the image. Sample i of a split is a pure
function of (seed, split, difficulty, size, i): the same bytes in any process, in any order, with any number of
workers. Any ten samples from a multiple of ten on hold each class once, so small sets are balanced too.
`shortcut` plants marks in them.

    from vitreous.data.shapes.samples import Shapes
    scene = Shapes("train", size=64)[0]
    scene.image, scene.label, scene.boxes, scene.masks, scene.semantic, scene.keypoints

At 64 x 64 one core of a shared 2-core machine drew 700-1,000 `easy` scenes a second (numpy 2.4). A linear classifier on
the pixels of 10,000 of them reached 28 % on 2,000 others.

Legend: H W image, h w part of it, n objects, K keypoint names.
"""

import operator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from vitreous.data.shapes import geometry, paint
from vitreous.data.shapes.geometry import CATEGORIES, KEYPOINTS, Floats, Pose
from vitreous.data.shapes.shortcut import Shortcut, planted
from vitreous.errors import InputError, nearest

__all__ = ["CATEGORIES", "DEFAULT_COUNTS", "KEYPOINTS", "Difficulty", "Scene", "Shapes"]

Difficulty = Literal["easy", "medium", "hard"]
DEFAULT_COUNTS = {"train": 20_000, "val": 2_000, "test": 2_000}
MARK_STREAM = 1  # last number of the key of a picture's mark, which scenes do not have
SMALLEST_SCENE_PIXELS, LARGEST_SCENE_PIXELS = 16, 4096  # sides of an image that are drawn


class Scene(NamedTuple):
    image: NDArray[np.uint8]  # (H, W, 3)
    label: int  # category of the largest visible object, an index into CATEGORIES
    boxes: NDArray[np.float32]  # (n, 4) x0 y0 x1 y1 in pixels, tight around what is visible
    labels: NDArray[np.int64]  # (n,) categories; objects are listed from back to front
    masks: NDArray[np.bool_]  # (n, H, W) visible part; no two overlap
    semantic: NDArray[np.uint8]  # (H, W) 0 for background, 1 + category elsewhere
    keypoints: NDArray[np.float32]  # (n, K, 3) x, y, visibility: 0 not there, 1 hidden by an object, 2 visible


@dataclass(frozen=True)
class Level:
    """What makes a scene easy or hard. Sizes are fractions of the image's shorter side."""

    main: tuple[float, float]  # side of the largest object, as a square of equal area
    others: tuple[float, float]  # side of the others, relative to the largest
    more: float  # chance of one more object, asked up to five times
    rotation: float  # degrees either way
    overlap: float  # 0: outer circles do not touch; 1: anything goes
    outside: float  # share of an object's outer radius that may leave the image
    contrast: float  # least difference in brightness between object and ground
    ground: tuple[float, float]  # value (as in HSV) of the background's colours
    light_ground: float  # chance that the ground is light and the objects are dark
    distractors: tuple[int, int]
    grain: float  # amplitude of the noise on every pixel of the background
    plain: float  # share of objects in one colour; the others are outlined or textured, half and half
    shade: tuple[float, float]  # how dark the second colour of an outlined or textured object is; 1 is black


LEVEL_NAMES: tuple[Difficulty, ...] = get_args(Difficulty)
_FIELDS = {  # of Level, for easy, medium and hard
    "main": ((0.30, 0.40), (0.26, 0.44), (0.18, 0.34)),
    "others": ((0.30, 0.48), (0.40, 0.65), (0.45, 0.65)),
    "more": (0.50, 0.65, 0.75),
    "rotation": (20, 60, 180),
    "overlap": (0.25, 0.35, 0.50),
    "outside": (0.0, 0.1, 0.2),
    "contrast": (0.40, 0.25, 0.12),
    "ground": ((0.10, 0.34), (0.10, 0.50), (0.10, 0.60)),
    "light_ground": (0.0, 0.4, 0.5),
    "distractors": ((0, 2), (2, 5), (5, 10)),
    "grain": (0.02, 0.04, 0.06),
    "plain": (0.5, 0.4, 0.34),
    "shade": ((0.25, 0.40), (0.35, 0.55), (0.45, 0.65)),
}
LEVELS = {
    name: Level(**{field: values[place] for field, values in _FIELDS.items()})  # type: ignore[arg-type]
    for place, name in enumerate(LEVEL_NAMES)
}
MOST_OBJECTS_IN_SCENE = 6
MAIN_VISIBLE = 0.65  # of the largest object; with `others` <= 0.65 it stays 1.5 times as large as the next
VISIBLE = 0.35  # of any other object, or it is left out
FEWEST_PIXELS = 8  # of any object, or it is left out


class Placed(NamedTuple):
    """An object and the part of the image it may touch."""

    category: int
    pose: Pose
    rows: slice
    columns: slice
    x: Floats  # (w,) pixel centres
    y: Floats  # (h,)
    distance: Floats  # (h, w) signed, in pixels


class Shapes:
    """Map-style data set of scenes.

    Args:
        split: "train", "val" or "test"; each is a stream of its own.
        count: Number of samples; as many as wanted. Default: 20,000 to train, 2,000 otherwise.
        size: Side of the image, or (height, width), in pixels.
        seed: Another seed is another data set.
        difficulty: "easy": objects stand out, turned by 20 degrees at most, few distractors; "medium";
            "hard": any rotation, low contrast, clutter, small objects.
        shortcut: A mark to plant in the pictures; what they show is the same with and without.
    """

    def __init__(
        self,
        split: str = "train",
        *,
        count: int | None = None,
        size: int | tuple[int, int] = 64,
        seed: int = 0,
        difficulty: Difficulty = "easy",
        shortcut: Shortcut | None = None,
    ) -> None:
        _known("split", split, list(DEFAULT_COUNTS))
        _known("difficulty", difficulty, list(LEVEL_NAMES))
        self.split, self.difficulty, self.shortcut = split, difficulty, shortcut
        self.count = _whole("count", DEFAULT_COUNTS[split] if count is None else count, 0)
        self.seed = _whole("seed", seed, 0)
        self.height, self.width = _height_width(size)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Scene:
        index, level = self._checked(index), LEVELS[self.difficulty]
        scene = draw_scene(self._random(index), _main_category(index), self.height, self.width, level)
        mark = self.mark(index)
        if self.shortcut is None or mark is None:
            return scene
        ground, kind = scene.semantic == 0, self.shortcut.kind
        return scene._replace(image=planted(scene.image, ground, kind, mark, len(CATEGORIES), level.contrast))

    def _random(self, index: int, *stream: int) -> np.random.Generator:
        """A generator that depends on nothing but the numbers that name the sample."""
        key = [self.seed, list(DEFAULT_COUNTS).index(self.split), LEVEL_NAMES.index(self.difficulty), index, *stream]
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))

    def label(self, index: int) -> int:
        """The class of a sample, which is known without drawing it."""
        return _main_category(self._checked(index))

    def mark(self, index: int) -> int | None:
        """The class whose mark a sample shows, known without drawing it; None without a mark."""
        if self.shortcut is None:
            return None
        index = self._checked(index)
        random = self._random(index, MARK_STREAM)
        return self.shortcut.mark(random, self.split, _main_category(index), len(CATEGORIES))

    def _checked(self, index: int) -> int:
        index = operator.index(index)
        if not -self.count <= index < self.count:
            raise IndexError(f"sample {index} of {self.count}; accepted: {-self.count} to {self.count - 1}")
        return index % self.count


def _main_category(index: int) -> int:
    """Each class once in every run of as many samples as there are classes (7 and 10 have no common factor)."""
    run, place = divmod(index, len(CATEGORIES))
    return (7 * place + 3 * run) % len(CATEGORIES)


def _known(what: str, given: str, known: list[str]) -> None:
    if given not in known:
        raise InputError(
            f"unknown {what} {given!r} of shapes; nearest: {nearest(str(given), known, 1)}; all: {', '.join(known)}"
        )


def _whole(what: str, given: int, least: int) -> int:
    if isinstance(given, bool) or not hasattr(given, "__index__") or operator.index(given) < least:
        raise InputError(f"{what}={given!r} of shapes; a whole number of at least {least} is accepted")
    return operator.index(given)


def _height_width(size: int | tuple[int, int]) -> tuple[int, int]:
    sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
    whole = all(
        hasattr(side, "__index__") and SMALLEST_SCENE_PIXELS <= operator.index(side) <= LARGEST_SCENE_PIXELS
        for side in sides
    )
    if len(sides) != 2 or not whole:
        raise InputError(
            f"size={size!r} of shapes; one side or (height, width) is accepted, {SMALLEST_SCENE_PIXELS} to "
            f"{LARGEST_SCENE_PIXELS} pixels each"
        )
    return operator.index(sides[0]), operator.index(sides[1])


# ---- one scene: objects are arranged, hidden ones left out, then painted and described -------------------------


def draw_scene(random: np.random.Generator, main: int, height: int, width: int, level: Level) -> Scene:
    """Draw a scene whose largest object is of category `main`."""
    poses = _arrange(random, main, height, width, level)
    largest = int(random.random() * len(poses))  # how far back the largest object lies
    ordered = poses[1:]
    ordered.insert(largest, poses[0])
    placed = [_placed(category, pose, height, width) for category, pose in ordered]
    objects, owner = _visible(placed, largest, height, width)
    image = _painted(random, objects, height, width, level)
    return _with_targets(image, main, objects, owner)


def _arrange(random: np.random.Generator, main: int, height: int, width: int, level: Level) -> list[tuple[int, Pose]]:
    """Categories and poses, the largest object first. Objects that find no room after a few tries are left out."""
    short = min(height, width)
    side = max(paint.between(random, *level.main) * short, 7.0)
    found = [(main, _pose(random, main, side, height, width, level))]
    wanted = 1
    while wanted < MOST_OBJECTS_IN_SCENE and random.random() < level.more:
        wanted += 1
    for _ in range(wanted - 1):
        category = int(random.random() * len(CATEGORIES))
        smaller = max(paint.between(random, *level.others) * side, 4.0)
        for _ in range(6):
            pose = _pose(random, category, smaller, height, width, level)
            if all(_apart(category, pose, *other, level.overlap) for other in found):
                found.append((category, pose))
                break
    return found


def _pose(random: np.random.Generator, category: int, side: float, height: int, width: int, level: Level) -> Pose:
    margin = geometry.reach(category, side) * (1 - level.outside)
    margin_x, margin_y = min(margin, width / 2), min(margin, height / 2)
    x, y = paint.between(random, margin_x, width - margin_x), paint.between(random, margin_y, height - margin_y)
    # Beyond half its period a silhouette repeats itself and its keypoints would trade names.
    limit = min(level.rotation, geometry.SILHOUETTES[CATEGORIES[category]].period / 2)
    return Pose(x, y, side, paint.between(random, -limit, limit))


def _apart(category: int, pose: Pose, other_category: int, other: Pose, overlap: float) -> bool:
    together = geometry.reach(category, pose.side) + geometry.reach(other_category, other.side)
    x, y = pose.x - other.x, pose.y - other.y
    return x * x + y * y >= (together * (1 - overlap)) ** 2


def _placed(category: int, pose: Pose, height: int, width: int) -> Placed:
    x0, y0, x1, y1 = geometry.extent(category, pose)
    columns = slice(max(int(x0) - 1, 0), min(int(x1) + 2, width))
    rows = slice(max(int(y0) - 1, 0), min(int(y1) + 2, height))
    x = np.arange(columns.start, columns.stop, dtype=np.float32) + 0.5
    y = np.arange(rows.start, rows.stop, dtype=np.float32) + 0.5
    return Placed(category, pose, rows, columns, x, y, geometry.signed_distance(category, pose, x, y))


def _visible(objects: list[Placed], largest: int, height: int, width: int) -> tuple[list[Placed], NDArray[np.int8]]:
    """Leave out objects that hide too much of the largest one or are hidden too much themselves.

    Returns the others, back to front, and which of them is seen at each pixel: (H, W), -1 for the background.
    """
    seen = np.full((height, width), -1, np.int8)
    body = np.zeros((height, width), np.bool_)
    body[objects[largest].rows, objects[largest].columns] = objects[largest].distance <= 0
    may_hide = (1 - MAIN_VISIBLE) * np.count_nonzero(body)
    kept = []
    for number in reversed(range(len(objects))):  # front to back
        item = objects[number]
        there = seen[item.rows, item.columns]
        mask = item.distance <= 0
        visible = mask & (there < 0)
        if number != largest:
            hides = np.count_nonzero(visible & body[item.rows, item.columns]) if number > largest else 0
            if hides > may_hide or np.count_nonzero(visible) < max(VISIBLE * np.count_nonzero(mask), FEWEST_PIXELS):
                continue
            may_hide -= hides
        there[visible] = number
        kept.append(number)
    kept.reverse()
    renumbered = np.full(len(objects) + 1, -1, np.int8)  # the last entry is also entry -1, the background
    renumbered[kept] = range(len(kept))
    return [objects[number] for number in kept], renumbered[seen]


def _painted(
    random: np.random.Generator, objects: list[Placed], height: int, width: int, level: Level
) -> NDArray[np.uint8]:
    unit = min(height, width) / 64
    light = random.random() < level.light_ground
    value = (1 - level.ground[1] / 2, 1 - level.ground[0] / 2) if light else level.ground
    low = paint.colour(random, (0.1, 0.5), value)
    high = paint.colour(random, (0.1, 0.5), value)
    canvas = paint.background(random, height, width, low, high, level.grain)
    ground = paint.mixed(low, high, 0.5)
    for _ in range(int(paint.between(random, level.distractors[0], level.distractors[1] + 1))):
        tint = paint.mixed(ground, paint.standing_out(random, ground, level.contrast), paint.between(random, 0.3, 0.7))
        paint.distractor(random, canvas, tint, unit)
    for item in objects:
        main = paint.standing_out(random, ground, level.contrast)
        if random.random() < level.plain:
            filling: Floats | paint.Tint = main
        else:
            second = paint.mixed(main, (0.0, 0.0, 0.0), paint.between(random, *level.shade))
            filling = paint.pattern(random, item.distance, item.x, item.y, main, second, unit)
        paint.paint(canvas[:, item.rows, item.columns], np.clip(0.5 - item.distance, 0, 1), filling)
    pixels = (np.clip(canvas, 0, 1) * 255 + 0.5).astype(np.uint8)
    return np.ascontiguousarray(pixels.transpose(1, 2, 0))  # (H, W, 3)


def _with_targets(image: NDArray[np.uint8], main: int, objects: list[Placed], owner: NDArray[np.int8]) -> Scene:
    count = len(objects)
    labels = np.array([item.category for item in objects], np.int64)
    masks = np.equal(owner, np.arange(count, dtype=np.int8)[:, None, None])  # (n, H, W)
    semantic = np.append(labels + 1, 0).astype(np.uint8)[owner]  # the last entry is also entry -1, the background
    points = np.stack([_keypoints(item, number, owner) for number, item in enumerate(objects)])
    return Scene(image, main, _boxes(masks), labels, masks, semantic, points)


def _boxes(masks: NDArray[np.bool_]) -> Floats:
    """Tight boxes (n, 4) around masks (n, H, W), none of them empty."""
    _, height, width = masks.shape
    columns, rows = np.asarray(masks.any(1)), np.asarray(masks.any(2))  # (n, W), (n, H)
    first = columns.argmax(1), rows.argmax(1)
    last = width - columns[:, ::-1].argmax(1), height - rows[:, ::-1].argmax(1)
    return np.stack([*first, *last], axis=1).astype(np.float32)


def _keypoints(item: Placed, number: int, owner: NDArray[np.int8]) -> Floats:
    height, width = owner.shape
    points = np.zeros((len(KEYPOINTS), 3), np.float32)
    for name, (x, y) in geometry.keypoints(item.category, item.pose).items():
        if 0 <= x < width and 0 <= y < height:
            hidden = owner[int(y), int(x)] > number  # something further in front is seen there
            points[KEYPOINTS.index(name)] = x, y, 1 if hidden else 2
    return points
