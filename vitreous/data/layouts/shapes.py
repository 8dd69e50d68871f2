"""The embedded scenes as pictures with targets of any kind: nothing to download, no files.

shapes, shapes:hard                          a difficulty
shapes:corner_mark=0.9                       a planted shortcut, see `vitreous.data.shapes.shortcut`
shapes:hard,corner_mark=0.9,test=absent      both, and held-out pictures without marks
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from vitreous.data.annotations import Objects, mirrored_pairs
from vitreous.data.coco_masks import run_length_counts
from vitreous.data.image_set import SPLITS, ImageSet
from vitreous.data.layouts.base import PICTURES, TARGET_KINDS, Layout
from vitreous.data.shapes.samples import CATEGORIES, KEYPOINTS, Difficulty, Scene, Shapes
from vitreous.data.shapes.shortcut import NO_MARK, SHORTCUT_KINDS, Shortcut, parse_shortcut
from vitreous.errors import InputError

SHAPES_SEED = 0  # the embedded data stay the same whatever the seed of a training run
MIRRORED = mirrored_pairs(KEYPOINTS)
MARK_ATTRIBUTES = "mark", "agrees"


class ShapesVariant(NamedTuple):
    """Which of the embedded scenes are meant."""

    difficulty: Difficulty = "easy"  # checked by Shapes
    shortcut: Shortcut | None = None


PLAIN_SHAPES = ShapesVariant()


def parse_variant(text: str) -> ShapesVariant:
    """What stands behind `shapes:`, in any order: a difficulty, a shortcut, both or nothing."""
    words = text.split(",") if text else []
    levels = [word.strip() for word in words if "=" not in word]
    planted = [word for word in words if "=" in word]
    bare = next((word for word in levels if word in SHORTCUT_KINDS), None)
    if bare is not None:
        raise InputError(f"cannot read 'shapes:{text}': {bare} lacks its strength; write it as in {bare}=0.9")
    if len(levels) > 1:
        raise InputError(
            f"cannot read 'shapes:{text}': {' and '.join(map(repr, levels))} are given; accepted: one difficulty and "
            "one shortcut, as in shapes:hard,corner_mark=0.9"
        )
    difficulty: Any = levels[0] if levels else "easy"
    return ShapesVariant(difficulty, parse_shortcut(",".join(planted)) if planted else None)


class ShapesImages(ImageSet):
    """Scenes of one split.

    Targets of the kind "semantic" have the background as their first class; those of the kind "keypoints" are about
    the largest object, whose category is the class of the picture.
    """

    def __init__(
        self,
        split: str,
        *,
        targets: str,
        size: tuple[int, int],
        count: int | None = None,
        variant: ShapesVariant = PLAIN_SHAPES,
    ) -> None:
        self._scenes = Shapes(split, count=count, size=size, seed=SHAPES_SEED, **variant._asdict())
        self.attribute_names = () if variant.shortcut is None else MARK_ATTRIBUTES
        self._targets, self.drawn_side = targets, min(size)
        self._last: tuple[int, Scene] | None = None
        self.classes = ("background", *CATEGORIES) if targets == "semantic" else CATEGORIES
        if targets in ("boxes", "keypoints"):
            self.category_ids = tuple(range(1, len(CATEGORIES) + 1))  # as `vitreous shapes --format coco` writes them
            self.keypoint_names, self.keypoint_pairs = KEYPOINTS, MIRRORED
            centre = KEYPOINTS.index("centre")
            self.skeleton = tuple((centre, place) for place in range(len(KEYPOINTS)) if place != centre)

    @property
    def fingerprint(self) -> str:
        scenes = self._scenes
        size = f"{scenes.height}x{scenes.width}"
        planted = "" if scenes.shortcut is None else scenes.shortcut.described(scenes.split)
        return f"shapes:{scenes.difficulty}{planted} {scenes.split} count={len(self)} size={size} seed={SHAPES_SEED}"

    def __len__(self) -> int:
        return len(self._scenes)

    def name(self, index: int) -> str:
        return f"{self._scenes.split}/{index}"

    def target(self, index: int) -> dict[str, Any]:
        if self._targets == "labels":
            return {"labels": self._scenes.label(index)}
        scene = self._scene(index)
        if self._targets == "semantic":
            return {"semantic": scene.semantic}
        objects = _objects(scene, index)
        if self._targets == "keypoints":
            objects = objects[[int(np.where(objects.labels == scene.label, objects.area, -1).argmax())]]
        return {"objects": objects, "image_id": index + 1}

    def attributes(self, index: int) -> Mapping[str, str]:
        return mark_attributes(self._scenes, index) if self.attribute_names else {}

    def object_mask(self, index: int) -> Image.Image | None:
        scene = self._scene(index)
        return Image.fromarray(scene.semantic == scene.label + 1)

    def has_object_mask(self, index: int) -> bool:
        return True

    def picture(self, index: int, *, at_least: int | None = None) -> Image.Image:
        return Image.fromarray(self._scene(index).image)

    def _scene(self, index: int) -> Scene:
        """Drawn once for the picture and for its target."""
        if self._last is None or self._last[0] != index:
            self._last = index, self._scenes[index]
        return self._last[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}


def mark_attributes(scenes: Shapes, index: int) -> dict[str, str]:
    """The class whose mark a picture shows, and whether it is the picture's own."""
    mark = scenes.mark(index)
    values = NO_MARK if mark is None else CATEGORIES[mark], "yes" if mark == scenes.label(index) else "no"
    return dict(zip(MARK_ATTRIBUTES, values, strict=True))


def _objects(scene: Scene, index: int) -> Objects:
    count = len(scene.labels)
    return Objects(
        scene.boxes.astype(np.float64),
        scene.labels,
        np.zeros(count, np.bool_),
        np.count_nonzero(scene.masks, axis=(1, 2)).astype(np.float64),
        np.arange(count) + 16 * index + 1,  # no scene has so many objects
        tuple({"size": list(mask.shape), "counts": run_length_counts(mask)} for mask in scene.masks),
        scene.keypoints,
        MIRRORED,
    )


LAYOUT = Layout(
    name="embedded shapes",
    example="shapes, shapes:medium, shapes:hard, shapes:corner_mark=0.9 (drawn on the fly, nothing to download)",
    splits=lambda data: SPLITS if data.partition(":")[0] == "shapes" else None,
    open_split=lambda request: ShapesImages(
        request.split,
        targets=request.targets,
        size=request.size,
        count=request.count,
        variant=parse_variant(request.data.partition(":")[2]),
    ),
    targets=tuple(kind for kind in TARGET_KINDS if kind != PICTURES),
    drawn=True,
    order=10,
)
