"""Pictures with a mask each whose values number the objects of one kind: 0 for the background, 1, 2, ... for each.

    DATA/PNGImages/*.png with DATA/PedMasks/*_mask.png, Penn-Fudan
    DATA/images/*.jpg with DATA/instances/*.png

As boxes, each number is an object with a box and a mask; as a class for every pixel, all of them are one class beside
the background.
The class is called as the single line of classes.txt says, or else pedestrian (PedMasks) or object. There are no
splits: a share is held out, see `held_out`.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.annotations import objects_of
from vitreous.data.coco_masks import encode_pixels
from vitreous.data.image import LOSSLESS, ImageError
from vitreous.data.image_set import PairedFiles, picture_files
from vitreous.data.layouts.base import Layout, expanded
from vitreous.data.layouts.masks import read_mask, require_same_size
from vitreous.errors import InputError
from vitreous.files.reading import read_names

INSTANCE_FOLDERS = (("PNGImages", "PedMasks", "pedestrian"), ("images", "instances", "object"))
_MASK_ENDINGS = ("_mask", "")
MOST_INSTANCES = 10_000  # in one picture; a mask with more numbers numbers something else


def instance_folders(root: Path) -> tuple[Path, Path, str] | None:
    """Folders of pictures and of masks, and what the objects are called."""
    for pictures, masks, kind in INSTANCE_FOLDERS:
        if (root / pictures).is_dir() and (root / masks).is_dir():
            return root / pictures, root / masks, kind
    return None


class InstanceMasks(PairedFiles):
    """All pictures with their objects, as boxes and masks."""

    def __init__(self, root: Path) -> None:
        folders = instance_folders(root)
        if folders is None:
            raise InputError(f"folder '{root}' has no pictures with masks of instances")
        self.pictures, self.masks, kind = folders
        self.classes, self.category_ids = (_called(root, kind),), (1,)
        self.files, self.passed_over = picture_files(self.pictures)
        self._mask_names = set(picture_files(self.masks).names)
        if not any(self.target_file(index).is_file() for index in range(len(self))):
            raise InputError(f"no picture in '{self.pictures}' has a mask of the same name in '{self.masks}'")

    def target_file(self, index: int) -> Path:
        stem = Path(self.files[index]).with_suffix("").as_posix()
        names = [f"{stem}{ending}{suffix}" for ending in _MASK_ENDINGS for suffix in LOSSLESS]
        return self.masks / next((name for name in names if name in self._mask_names), names[0])

    def numbers(self, index: int) -> Any:
        """(H, W) of the mask; an ImageError names it if it does not fit."""
        file = self.target_file(index)
        found = read_mask(file)
        require_same_size(file, found, self.encoded(index))
        return found

    def target(self, index: int) -> dict[str, Any]:
        numbered = self.numbers(index)
        flat = numbered.flatten(order="F")
        there = np.flatnonzero(flat > 0)  # pixels of objects, down the columns
        there = there[np.argsort(flat[there], kind="stable")]  # those of an object together, still in order
        starts = np.flatnonzero(np.diff(flat[there], prepend=0))
        if len(starts) > MOST_INSTANCES:
            raise ImageError(
                f"mask '{self.target_file(index)}' numbers {len(starts)} objects; at most {MOST_INSTANCES:,}"
            )
        objects = np.split(there, starts[1:]) if len(starts) else []
        rows = [_row(pixels, numbered.shape, index * MOST_INSTANCES + place) for place, pixels in enumerate(objects, 1)]
        return {"objects": objects_of(rows, [0] * len(rows), masks=True), "image_id": index + 1}


class InstancesAsOneClass(InstanceMasks):
    """The same pictures with two classes of pixels: the background and the objects, whichever they belong to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.classes, self.category_ids = ("background", *self.classes), ()

    def target(self, index: int) -> dict[str, Any]:
        return {"semantic": (self.numbers(index) > 0).astype(np.uint8)}


def _row(pixels: NDArray[np.int64], size: tuple[int, ...], number: int) -> dict[str, Any]:
    """As in COCO's annotations, from the places of an object's pixels down the columns."""
    columns, rows = np.divmod(pixels, size[0])
    left, top = int(columns[0]), int(rows.min())
    box = [left, top, int(columns[-1]) + 1 - left, int(rows.max()) + 1 - top]
    return {"id": number, "bbox": box, "area": len(pixels), "segmentation": encode_pixels(pixels, size)}


def _called(root: Path, kind: str) -> str:
    listed = root / "classes.txt"
    named = read_names(listed) if listed.is_file() else []
    if len(named) > 1:
        raise InputError(
            f"{listed} names {len(named)} classes, but masks that number objects tell nothing of classes; leave one"
        )
    return named[0] if named else kind


LAYOUT = Layout(
    name="pictures with masks of instances",
    example="DIR/PNGImages/*.png, DIR/PedMasks/*_mask.png (Penn-Fudan), or DIR/images/*.jpg, DIR/instances/*.png",
    splits=lambda data: () if instance_folders(expanded(data)) else None,
    open_split=lambda request: (InstancesAsOneClass if request.targets == "semantic" else InstanceMasks)(request.path),
    targets=("boxes", "semantic"),
    order=110,
)
