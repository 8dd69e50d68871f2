"""What `--data` may be: the name of the embedded data or a path, recognised by its layout.

A new layout is one row of `LAYOUTS`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from vitreous.data.annotations import OneObjectEach
from vitreous.data.image_files import holds_pictures, told
from vitreous.data.image_set import SPLITS, ImageSet, Without, own_splits
from vitreous.data.layouts.arrays import array_splits, looks_like_arrays, open_arrays
from vitreous.data.layouts.cifar import find_cifar, open_cifar
from vitreous.data.layouts.coco import coco_files, open_coco
from vitreous.data.layouts.coco_anywhere import coco_file_splits, find_coco_files, open_coco_files
from vitreous.data.layouts.flat_folder import SPLIT_LIKE, FlatFolder, is_flat
from vitreous.data.layouts.folder import (
    PICTURE_FOLDERS,
    TARGET_FOLDERS,
    ClassFolder,
    has_class_folders,
    split_folders,
)
from vitreous.data.layouts.held_out import VAL_FRACTION, held_out
from vitreous.data.layouts.hugging_face import HuggingFaceSet, hugging_face_splits, looks_like_hugging_face
from vitreous.data.layouts.instance_masks import InstanceMasks, InstancesAsOneClass, instance_folders
from vitreous.data.layouts.masks import MaskSet, mask_splits
from vitreous.data.layouts.oxford_pets import PetBreeds, PetMasks, looks_like_pets, pets_lists
from vitreous.data.layouts.shards import ShardSet, looks_like_shards, shard_splits
from vitreous.data.layouts.voc import open_voc, voc_splits
from vitreous.data.layouts.yolo import YoloSet, yolo_splits
from vitreous.data.quarantine import read_quarantine, usual_place
from vitreous.data.shapes.images import ShapesImages
from vitreous.data.targets import TARGET_KINDS, Wording
from vitreous.errors import InputError, printable
from vitreous.files.reading import reading

OBJECTS = ("boxes", "keypoints")
DEFAULT_WORDING = Wording()
MOST_INNER = 20  # folders that are looked into for a better suggestion


@dataclass(frozen=True)
class Request:
    """What a layout is asked for; `size` and `count` matter only where the pictures are made on the fly."""

    data: str
    split: str
    size: tuple[int, int]  # (H, W)
    count: int | None
    strict: bool  # refuse what training could not use, such as a class without pictures
    targets: str = "labels"
    ignore: tuple[int, ...] | None = None  # values of masks that stand for no class
    reduce_zero_label: bool = False  # value 0 of masks stands for no class, 1 for the first
    follow: bool = False  # open what names in the data's files lead to, wherever it lies

    @property
    def path(self) -> Path:
        return Path(self.data).expanduser()


@dataclass(frozen=True)
class Layout:
    name: str
    looks: str  # how it looks, for the error message
    recognises: Callable[[str], bool]
    splits: Callable[[str], tuple[str, ...]]  # those that are there; none: `open` gives all, and a share is held out
    open: Callable[[Request], ImageSet]
    targets: tuple[str, ...] = ("labels",)  # the kinds that it offers, of TARGET_KINDS
    drawn: bool = False  # on the fly: there is no file, and as many pictures as are asked for
    ignores: bool = False  # its masks hold values of classes, some of which may be ignored


def _path(data: str) -> Path:
    return Path(data).expanduser()


SHAPES = Layout(
    name="embedded shapes",
    looks="shapes, shapes:medium, shapes:hard (drawn on the fly, nothing to download)",
    recognises=lambda data: data.partition(":")[0] == "shapes",
    splits=lambda data: tuple(SPLITS),
    open=lambda request: ShapesImages(
        request.split,
        targets=request.targets,
        size=request.size,
        count=request.count,
        difficulty=request.data.partition(":")[2] or "easy",
    ),
    targets=tuple(TARGET_KINDS),
    drawn=True,
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
        open=lambda request: HuggingFaceSet(request.path, request.split, follow=request.follow),
    ),
    Layout(
        name="COCO",
        looks="DIR/annotations/instances_train*.json, instances_val*.json (or person_keypoints_...) and their pictures",
        recognises=lambda data: bool(coco_files(_path(data))),
        splits=lambda data: own_splits(coco_files(_path(data))),
        open=lambda request: open_coco(
            request.path, request.split, targets=request.targets, strict=request.strict, follow=request.follow
        ),
        targets=OBJECTS,
    ),
    Layout(
        name="COCO files",
        looks="DIR --annotations TRAIN.json VAL.json, or DIR+TRAIN.json+VAL.json (pictures anywhere below DIR)",
        recognises=lambda data: find_coco_files(data) is not None,
        splits=coco_file_splits,
        open=lambda request: open_coco_files(
            request.data, request.split, targets=request.targets, strict=request.strict, follow=request.follow
        ),
        targets=OBJECTS,
    ),
    Layout(
        name="Pascal VOC",
        looks="DIR/JPEGImages, DIR/Annotations/*.xml, DIR/ImageSets/Main/{train,val}.txt; or DIR/train/*.jpg and *.xml",
        recognises=lambda data: bool(voc_splits(_path(data))),
        splits=lambda data: own_splits(voc_splits(_path(data))),
        open=lambda request: open_voc(request.path, request.split, strict=request.strict, follow=request.follow),
        targets=("boxes",),
    ),
    Layout(
        name="YOLO",
        looks="DIR/images/train/*.jpg, DIR/labels/train/*.txt (the same with val) and DIR/data.yaml with names",
        recognises=lambda data: bool(yolo_splits(_path(data))),
        splits=lambda data: own_splits(yolo_splits(_path(data))),
        open=lambda request: YoloSet(request.path, request.split, strict=request.strict),
        targets=OBJECTS,
    ),
    Layout(
        name="Oxford pets",
        looks="DIR/images/<class>_<number>.jpg, DIR/annotations/trimaps/*.png, DIR/annotations/{trainval,test}.txt",
        recognises=lambda data: looks_like_pets(_path(data)),
        splits=lambda data: own_splits(pets_lists(_path(data))),
        open=lambda request: (PetMasks if request.targets == "semantic" else PetBreeds)(
            request.path, request.split, follow=request.follow
        ),
        targets=("labels", "semantic"),
    ),
    Layout(
        name="pictures with masks of instances",
        looks="DIR/PNGImages/*.png, DIR/PedMasks/*_mask.png (Penn-Fudan), or DIR/images/*.jpg, DIR/instances/*.png",
        recognises=lambda data: instance_folders(_path(data)) is not None,
        splits=lambda data: (),
        open=lambda request: (InstancesAsOneClass if request.targets == "semantic" else InstanceMasks)(request.path),
        targets=("boxes", "semantic"),
    ),
    Layout(
        name="pictures with masks",
        looks="DIR/images/train/*.jpg, DIR/masks/train/*.png (or annotations/, labels/; Cityscapes, CamVid), the same "
        "with val, or without train and val; and DIR/classes.txt",
        recognises=lambda data: bool(mask_splits(_path(data))),
        splits=lambda data: own_splits(mask_splits(_path(data))),
        open=lambda request: MaskSet(
            request.path,
            request.split,
            ignore=request.ignore,
            reduce_zero_label=request.reduce_zero_label,
        ),
        targets=("semantic",),
        ignores=True,
    ),
    Layout(
        name="class folders without splits",
        looks="DIR/<class>/*.jpg, of which a share is held out for validation",
        recognises=lambda data: is_flat(_path(data)),
        splits=lambda data: (),
        open=lambda request: FlatFolder(request.path, strict=request.strict),
    ),
    Layout(
        name="class folders",
        looks="DIR/train/<class>/*.jpg and DIR/val/<class>/*.jpg (or test/ instead of val/)",
        recognises=lambda data: has_class_folders(_path(data)),
        splits=lambda data: own_splits(split_folders(_path(data))),
        open=lambda request: ClassFolder(request.path, request.split, strict=request.strict),
    ),
)


def recognise(data: str, targets: str = "labels", wording: Wording = DEFAULT_WORDING) -> Layout:
    """The layout of a `--data` argument that offers this kind of targets."""
    if targets not in TARGET_KINDS:
        raise InputError(f"unknown kind of targets '{targets}'; accepted: {', '.join(TARGET_KINDS)}")
    with reading_data(data):
        for layout in LAYOUTS:
            if targets in layout.targets and layout.recognises(data):
                return layout
        other = next((layout for layout in LAYOUTS if layout.recognises(data)), None)
        use = "" if other is None else f"it looks like {other.name}; use {wording.options(other.targets)}"
        problem = use or _unrecognised(data)
    looks = "".join(f"\n  {layout.looks}" for layout in LAYOUTS if targets in layout.targets)
    purpose = wording.purpose or f"get {targets}"
    raise InputError(f"cannot use data '{data}' to {purpose}: {problem}; accepted:{looks}")


def usable_as(data: str, wording: Wording = DEFAULT_WORDING) -> dict[str, Layout]:
    """Every kind of targets that a layout of the data offers."""
    with reading_data(data):
        found = {kind: layout for layout in reversed(LAYOUTS) if layout.recognises(data) for kind in layout.targets}
    if not found:
        looks = "".join(f"\n  {layout.looks} ({wording.options(layout.targets)})" for layout in LAYOUTS)
        raise InputError(f"cannot use data '{data}': {_unrecognised(data)}; accepted:{looks}")
    return {kind: found[kind] for kind in TARGET_KINDS if kind in found}


def _unrecognised(data: str) -> str:
    path = _path(data)
    if not path.exists():
        return "there is no such folder or file"
    annotations = sorted(file for folder in (path, path / "annotations") for file in folder.glob("*.json"))
    if annotations:
        names = " ".join(str(file) for file in annotations[:3])
        return f"its layout is not recognised; if its files are in COCO's format, add --annotations {names}"
    there = split_folders(path)
    named = sorted(name for name in there if SPLIT_LIKE.fullmatch(name))
    if own_splits(there):
        return f"its layout is not recognised ({', '.join(named)} hold no class folders, nor what other layouts have)"
    if named:
        return (
            f"its layout is not recognised (folders {', '.join(named)} must be called {', '.join(SPLITS)} to be splits)"
        )
    return _inner_folder(path) or "its layout is not recognised"


def _inner_folder(path: Path) -> str:
    """What to say about a folder whose data lie one folder deeper, as in many archives, or that holds one class."""
    folders = [path / name for name in sorted(split_folders(path)) if not name.startswith((".", "__"))]
    for folder in folders[:MOST_INNER]:
        if any(layout.recognises(str(folder)) for layout in LAYOUTS):
            return f"its layout is not recognised; did you mean '{folder}'?"
    filled = [folder for folder in folders[:MOST_INNER] if holds_pictures(folder, deeper=False)]
    if len(filled) == len(folders) == 1 and folders[0].name.lower() not in PICTURE_FOLDERS | TARGET_FOLDERS:
        return (
            f"it has one class folder, '{folders[0].name}', and a classifier needs two or more; add folders of others"
        )
    return ""


def reading_data(data: str) -> AbstractContextManager[None]:
    """The guard around everything that looks into a user's data; files have been named before it has to."""
    return reading(f"data '{data}'", remedy="check its files with `vitreous check`, or copy or download them again")


def open_data(
    data: str,
    split: str,
    *,
    size: tuple[int, int],
    count: int | None = None,
    quarantine: Path | None = None,
    strict: bool = True,
    targets: str = "labels",
    ignore: tuple[int, ...] | None = None,
    reduce_zero_label: bool = False,
    val_fraction: float = VAL_FRACTION,
    follow: bool = False,
    wording: Wording = DEFAULT_WORDING,
) -> ImageSet:
    """The pictures and targets of one split.

    Args:
        data: One of the layouts.
        split: train, val or test.
        size: (H, W) at which embedded shapes are drawn.
        count: How many of the embedded shapes.
        quarantine: List of pictures to leave out; default: quarantine.txt in the data's folder, if there is one.
        strict: Refuse what training could not use.
        targets: Kind of targets, one of TARGET_KINDS.
        ignore: Values in masks that stand for no class; default: 255.
        reduce_zero_label: Value 0 in masks stands for no class, value 1 for the first class, and so on.
        val_fraction: Share of data without splits that is held out as val; of 1, all of it is val.
        follow: Open pictures that the data's own files name outside of the data's folder.
        wording: How errors speak of what the data are for.
    """
    layout = recognise(data, targets, wording)
    if count is not None and count < 1:
        raise InputError(f"{count} images of split '{split}' were asked for; it must be at least 1")
    if count is not None and not layout.drawn:
        raise InputError(
            f"{count} images of split '{split}' were asked for, but only the number of embedded shapes can be chosen; "
            f"of '{data}' all images are used. Leave out the count"
        )
    if (ignore is not None or reduce_zero_label) and not layout.ignores:
        raise InputError(f"'{data}' has no masks with values of classes; leave out --ignore and --reduce-zero-label")
    request = Request(data, split, size, count, strict, targets, ignore, reduce_zero_label, follow)
    with reading_data(data):
        images = _opened(layout, request, val_fraction)
        if quarantine is None and not layout.drawn and usual_place(data).is_file():
            quarantine = usual_place(data)
        kept = images if quarantine is None else _without(images, quarantine, data, split)
        if targets != "keypoints" or layout.drawn:  # drawn pictures are about one object already
            return kept
        single = OneObjectEach(kept)
    if not len(single):
        raise InputError(f"no object in '{data}' has keypoints; annotate some, or use {wording.options(('boxes',))}")
    return single


def open_raw(
    data: str,
    targets: str = "labels",
    *,
    ignore: tuple[int, ...] | None = None,
    reduce_zero_label: bool = False,
    val_fraction: float = VAL_FRACTION,
    follow: bool = False,
    wording: Wording = DEFAULT_WORDING,
) -> dict[str, ImageSet]:
    """All splits as they are, with whatever is wrong with them; the arguments are those of `open_data`."""
    layout = recognise(data, targets, wording)
    made = ("val",) if val_fraction == 1 else ("train", "val")
    with reading_data(data):
        return {
            split: _opened(
                layout,
                Request(data, split, (64, 64), None, False, targets, ignore, reduce_zero_label, follow),
                val_fraction,
            )
            for split in layout.splits(data) or made
        }


def _opened(layout: Layout, request: Request, val_fraction: float) -> ImageSet:
    if layout.splits(request.data):
        return layout.open(request)
    by_class = request.targets == "labels"
    return held_out(
        layout.open(request), request.split, val_fraction, by_class=by_class, where=f"data '{request.data}'"
    )


def _without(images: ImageSet, quarantine: Path, data: str, split: str) -> ImageSet:
    kept = Without(images, read_quarantine(quarantine), str(quarantine))
    if not len(kept):
        raise InputError(f"{quarantine} leaves no picture of split '{split}' of '{data}'; correct it, or remove it")
    return kept


def _told_held_out(splits: dict[str, ImageSet], *, by_class: bool) -> Iterator[str]:
    """The share that was asked for, the real one where it differs, and the classes that could not be divided."""
    fraction = next(iter(splits.values())).val_fraction or 1
    line = f"data: has no splits; {fraction:.0%} of it is held out as val, by content (--val-fraction)"
    if splits.keys() != {"train", "val"}:
        yield line
        return
    held, total = len(splits["val"]), len(splits["train"]) + len(splits["val"])
    yield line if f"{held / total:.0%}" == f"{fraction:.0%}" else f"{line}; that is {held} of {total} here"
    if by_class:
        labels = {name: {part.target(index)["labels"] for index in range(len(part))} for name, part in splits.items()}
        lacking = [splits["train"].classes[label] for label in sorted(labels["train"] - labels["val"])]
        if lacking:
            names = ", ".join([*lacking[:5], *(["..."] if len(lacking) > 5 else [])])
            yield f"data: {names}: no picture in val, for there is one alone, or copies of one, and train has it"


def describe(data: str, targets: str = "labels", /, **splits: ImageSet) -> str:
    """What was recognised, how much there is, and how much of it is left out."""
    sizes = ", ".join(f"{len(images)} {name}" for name, images in splits.items())
    what = "objects" if any(isinstance(images, OneObjectEach) for images in splits.values()) else "images"
    classes = len(next(iter(splits.values())).classes)
    layout = recognise(data, targets)
    lines = [f"data: {data} ({layout.name}): {sizes} {what}, {classes} classes"]
    divided = layout.splits(data)
    if not divided:
        lines += _told_held_out(splits, by_class=targets == "labels")
    for place, (name, images) in enumerate(splits.items()):
        if images.passed_over and (divided or place == 0):  # made splits have the same files
            lines.append(f"data: {f'{name}: ' if divided else ''}{told(images.passed_over)}")
        if isinstance(images, OneObjectEach):
            images = images.images
        if isinstance(images, Without):
            lines.append(f"data: {len(images.left_out)} {name} images left out by {images.because}")
    return "\n".join(map(printable, lines))
