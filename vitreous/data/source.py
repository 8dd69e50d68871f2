"""What `--data` may be: the name of the embedded data or a path, recognised by its layout.

A new layout is one row of `LAYOUTS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from vitreous.data.folder import ClassFolder, looks_like_class_folders
from vitreous.errors import InputError

SHAPES_SEED = 0  # the embedded data stay the same whatever the seed of a training run


class ImageSet(Protocol):
    """Pictures with targets, addressed by index; the fingerprint tells whether two sets hold the same ones."""

    classes: tuple[str, ...]

    @property
    def fingerprint(self) -> str: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[Image.Image, dict[str, Any]]: ...


@dataclass(frozen=True)
class Request:
    """What a layout is asked for; `size` and `count` matter only where the pictures are made on the fly."""

    data: str
    split: str
    size: tuple[int, int]  # (H, W)
    count: int | None


@dataclass(frozen=True)
class Layout:
    name: str
    looks: str  # how it looks, for the error message
    recognises: Callable[[str], bool]
    open: Callable[[Request], ImageSet]


class ShapesImages:
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
        height, width = request.size
        self.fingerprint = (
            f"shapes:{difficulty} {request.split} count={len(self)} size={height}x{width} seed={SHAPES_SEED}"
        )

    def __len__(self) -> int:
        return len(self._scenes)

    def __getitem__(self, index: int) -> tuple[Image.Image, dict[str, Any]]:
        scene = self._scenes[index]
        return Image.fromarray(scene.image), {"labels": int(scene.label)}


def _open_class_folders(request: Request) -> ImageSet:
    if request.count is not None:
        raise InputError(
            f"{request.count} images of split '{request.split}' were asked for, but only the number of embedded shapes "
            f"can be chosen; of the folder '{request.data}' all images are used. Leave out the count"
        )
    return ClassFolder(Path(request.data).expanduser(), request.split)


LAYOUTS = (
    Layout(
        name="embedded shapes",
        looks="shapes, shapes:medium, shapes:hard (drawn on the fly, nothing to download)",
        recognises=lambda data: data.partition(":")[0] == "shapes",
        open=ShapesImages,
    ),
    Layout(
        name="class folders",
        looks="DIR/train/<class>/*.jpg and DIR/val/<class>/*.jpg (or test/ instead of val/)",
        recognises=lambda data: looks_like_class_folders(Path(data).expanduser()),
        open=_open_class_folders,
    ),
)


def recognise(data: str) -> Layout:
    """The layout of a `--data` argument."""
    for layout in LAYOUTS:
        if layout.recognises(data):
            return layout
    path = Path(data).expanduser()
    problem = "its layout is not recognised" if path.is_dir() else "there is no such folder"
    looks = "".join(f"\n  {layout.looks}" for layout in LAYOUTS)
    raise InputError(f"cannot use data '{data}': {problem}; accepted:{looks}")


def open_data(data: str, split: str, *, size: tuple[int, int], count: int | None = None) -> ImageSet:
    """The pictures and targets of one split."""
    if count is not None and count < 1:
        raise InputError(f"{count} images of split '{split}' were asked for; it must be at least 1")
    return recognise(data).open(Request(data, split, size, count))


def describe(data: str, **splits: ImageSet) -> str:
    """One line for the console: what was recognised and how much there is."""
    sizes = ", ".join(f"{len(images)} {name}" for name, images in splits.items())
    classes = len(next(iter(splits.values())).classes)
    return f"data: {data} ({recognise(data).name}): {sizes} images, {classes} classes"
