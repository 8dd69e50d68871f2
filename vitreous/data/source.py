"""What `--data` may be: the name of the embedded data or a path, recognised by its layout.

A new layout is one row of `LAYOUTS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from vitreous.data.arrays import array_splits, looks_like_arrays, open_arrays
from vitreous.data.cifar import find_cifar, open_cifar
from vitreous.data.folder import ClassFolder, split_folders
from vitreous.data.hugging_face import HuggingFaceSet, hugging_face_splits, looks_like_hugging_face
from vitreous.data.image_set import SPLITS, ImageSet, Without, own_splits
from vitreous.data.quarantine import read_quarantine, usual_place
from vitreous.data.shards import ShardSet, looks_like_shards, shard_splits
from vitreous.errors import InputError

SHAPES_SEED = 0  # the embedded data stay the same whatever the seed of a training run


@dataclass(frozen=True)
class Request:
    """What a layout is asked for; `size` and `count` matter only where the pictures are made on the fly."""

    data: str
    split: str
    size: tuple[int, int]  # (H, W)
    count: int | None
    strict: bool  # refuse what training could not use, such as a class without pictures

    @property
    def path(self) -> Path:
        return Path(self.data).expanduser()


@dataclass(frozen=True)
class Layout:
    name: str
    looks: str  # how it looks, for the error message
    recognises: Callable[[str], bool]
    splits: Callable[[str], tuple[str, ...]]  # those that are there
    open: Callable[[Request], ImageSet]


class ShapesImages(ImageSet):
    """The embedded scenes as pictures with targets."""

    def __init__(self, request: Request) -> None:
        from vitreous.data.shapes import Shapes

        difficulty = request.data.partition(":")[2] or "easy"
        self._scenes = Shapes(
            request.split,
            count=request.count,
            size=request.size,
            seed=SHAPES_SEED,
            difficulty=difficulty,  # type: ignore[arg-type]  # checked by Shapes
        )
        self.classes: tuple[str, ...] = self._scenes.classes
        self._difficulty = difficulty

    @property
    def fingerprint(self) -> str:
        scenes = self._scenes
        size = f"{scenes.height}x{scenes.width}"
        return f"shapes:{self._difficulty} {scenes.split} count={len(self)} size={size} seed={SHAPES_SEED}"

    def __len__(self) -> int:
        return len(self._scenes)

    def name(self, index: int) -> str:
        return f"{self._scenes.split}/{index}"

    def target(self, index: int) -> dict[str, Any]:
        return {"labels": self._scenes.label(index)}

    def picture(self, index: int, *, at_least: int | None = None) -> Image.Image:
        return Image.fromarray(self._scenes[index].image)

    def object_mask(self, index: int) -> Image.Image | None:
        scene = self._scenes[index]
        return Image.fromarray(scene.semantic == scene.label + 1)


def _path(data: str) -> Path:
    return Path(data).expanduser()


SHAPES = Layout(
    name="embedded shapes",
    looks="shapes, shapes:medium, shapes:hard (drawn on the fly, nothing to download)",
    recognises=lambda data: data.partition(":")[0] == "shapes",
    splits=lambda data: tuple(SPLITS),
    open=ShapesImages,
)
LAYOUTS = (  # the first that recognises the data; class folders come last, as others have folders named train too
    SHAPES,
    Layout(
        name="CIFAR",
        looks="cifar-10-batches-py/ or cifar-100-python/, the folder that holds it, or its .tar.gz",
        recognises=lambda data: find_cifar(_path(data)) is not None,
        splits=lambda data: ("train", "test"),
        open=lambda request: open_cifar(request.path, request.split),
    ),
    Layout(
        name="arrays",
        looks="FILE.npz with x_train, y_train, x_test, y_test (pictures are uint8, N x H x W x 3); classes if wanted",
        recognises=lambda data: looks_like_arrays(_path(data)),
        splits=lambda data: array_splits(_path(data)),
        open=lambda request: open_arrays(request.path, request.split),
    ),
    Layout(
        name="tar shards",
        looks="DIR/train-000000.tar, DIR/val-000000.tar, ... or a pattern such as 'DIR/{train,val}-{000..009}.tar'",
        recognises=looks_like_shards,
        splits=shard_splits,
        open=lambda request: ShardSet(request.data, request.split),
    ),
    Layout(
        name="Hugging Face data set",
        looks="DIR as written by save_to_disk of Hugging Face's datasets",
        recognises=lambda data: looks_like_hugging_face(_path(data)),
        splits=lambda data: hugging_face_splits(_path(data)),
        open=lambda request: HuggingFaceSet(request.path, request.split),
    ),
    Layout(
        name="class folders",
        looks="DIR/train/<class>/*.jpg and DIR/val/<class>/*.jpg (or test/ instead of val/)",
        recognises=lambda data: bool(own_splits(split_folders(_path(data)))),
        splits=lambda data: own_splits(split_folders(_path(data))),
        open=lambda request: ClassFolder(request.path, request.split, strict=request.strict),
    ),
)


def recognise(data: str) -> Layout:
    """The layout of a `--data` argument."""
    for layout in LAYOUTS:
        if layout.recognises(data):
            return layout
    path = _path(data)
    problem = "its layout is not recognised" if path.exists() else "there is no such folder or file"
    looks = "".join(f"\n  {layout.looks}" for layout in LAYOUTS)
    raise InputError(f"cannot use data '{data}': {problem}; accepted:{looks}")


def open_data(
    data: str,
    split: str,
    *,
    size: tuple[int, int],
    count: int | None = None,
    quarantine: Path | None = None,
    strict: bool = True,
) -> ImageSet:
    """The pictures and targets of one split.

    Args:
        data: One of the layouts.
        split: train, val or test.
        size: (H, W) at which embedded shapes are drawn.
        count: How many of the embedded shapes.
        quarantine: List of pictures to leave out; default: quarantine.txt in the data's folder, if there is one.
        strict: Refuse what training could not use.
    """
    layout = recognise(data)
    if count is not None and count < 1:
        raise InputError(f"{count} images of split '{split}' were asked for; it must be at least 1")
    if count is not None and layout is not SHAPES:
        raise InputError(
            f"{count} images of split '{split}' were asked for, but only the number of embedded shapes can be chosen; "
            f"of '{data}' all images are used. Leave out the count"
        )
    images = layout.open(Request(data, split, size, count, strict))
    if quarantine is None and layout is not SHAPES and usual_place(data).is_file():
        quarantine = usual_place(data)
    return images if quarantine is None else _without(images, quarantine, data, split)


def open_raw(data: str) -> dict[str, ImageSet]:
    """All splits as they are, with whatever is wrong with them."""
    layout = recognise(data)
    return {split: layout.open(Request(data, split, (64, 64), None, strict=False)) for split in layout.splits(data)}


def _without(images: ImageSet, quarantine: Path, data: str, split: str) -> ImageSet:
    kept = Without(images, read_quarantine(quarantine), str(quarantine))
    if not len(kept):
        raise InputError(f"{quarantine} leaves no picture of split '{split}' of '{data}'; correct it, or remove it")
    return kept


def describe(data: str, **splits: ImageSet) -> str:
    """What was recognised, how much there is, and how much of it is left out."""
    sizes = ", ".join(f"{len(images)} {name}" for name, images in splits.items())
    classes = len(next(iter(splits.values())).classes)
    lines = [f"data: {data} ({recognise(data).name}): {sizes} images, {classes} classes"]
    for name, images in splits.items():
        if isinstance(images, Without):
            lines.append(f"data: {len(images.left_out)} {name} images left out by {images.because}")
    return "\n".join(lines)
