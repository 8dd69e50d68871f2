"""Pictures with a mask each, whose pixels say which class they belong to.

    DATA/images/train/*.jpg with DATA/masks/train/*.png (or annotations/ or labels/), as ADE20K has it
    DATA/leftImg8bit/train/*/*_leftImg8bit.png with DATA/gtFine/train/*/*_gtFine_labelIds.png, Cityscapes
    DATA/train/*.png with DATA/trainannot/*.png or DATA/train_labels/*_L.png, CamVid
    DATA/images/*.jpg with DATA/masks/*.png, without splits: a share is held out, see `held_out`

A mask is a PNG (or another lossless file) whose values are class numbers, with or without a palette, or one in colours
that a file of the data's folder explains; see `mask_classes`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.image import LOSSLESS, SUFFIXES, ImageError, header, upright_size
from vitreous.data.image_set import SPLITS, PairedFiles, find_split, picture_files, require_split
from vitreous.data.layouts.base import Layout, expanded
from vitreous.data.layouts.mask_classes import (
    CAMVID_FILE,
    IGNORE,
    UNKNOWN_CLASS,
    MaskClasses,
    camvid,
    cityscapes,
    found_classes,
    listed_classes,
    with_ignored,
)
from vitreous.errors import InputError
from vitreous.files.limits import MAX_ANNOTATIONS_BYTES, MAX_PICTURE_PIXELS
from vitreous.files.reading import MACHINE_REMEDIES, reason_of, require_regular

MASK_FOLDERS = (  # folders of pictures and of masks
    ("images/{}", "masks/{}"),
    ("images/{}", "annotations/{}"),
    ("images/{}", "labels/{}"),
    ("img_dir/{}", "ann_dir/{}"),
    ("leftImg8bit/{}", "gtFine/{}"),
    ("{}/images", "{}/masks"),
    ("{}", "{}annot"),
    ("{}", "{}_labels"),
    ("{}", "masks/{}"),
)
MASK_FOLDERS_WITHOUT_SPLITS = (("images", "masks"), ("images", "labels"), ("images", "annotations"), ("image", "mask"))
PICTURE_ENDING = "_leftImg8bit"
MASK_ENDINGS = ("", "_gtFine_labelTrainIds", "_gtFine_labelIds", "_labelTrainIds", "_L", "_P", "_mask", "_gt")
MOST_UNLISTED_VALUES = 100  # values after which masks without a list of classes are no masks of classes


def mask_splits(root: Path) -> dict[str, tuple[Path, Path]]:
    """Name of a split -> folders of pictures and of masks; the name is empty where there are no splits."""
    found = {}
    for split in dict.fromkeys(name for names in SPLITS.values() for name in names):
        folders = _pair_of_folders(root, [(one.format(split), other.format(split)) for one, other in MASK_FOLDERS])
        if folders is not None:
            found[split] = folders
    if found:
        return found
    folders = _pair_of_folders(root, MASK_FOLDERS_WITHOUT_SPLITS)
    return {} if folders is None or not _paired(*folders) else {"": folders}


def _pair_of_folders(root: Path, places: Iterable[tuple[str, str]]) -> tuple[Path, Path] | None:
    for pictures, masks in places:
        folders = root / pictures, root / masks
        if all(folder.is_dir() for folder in folders) and next(_images_below(folders[1], LOSSLESS), None):
            return folders
    return None


def _paired(pictures: Path, masks: Path) -> bool:
    """Whether a picture has a mask; folders of these names belong to other layouts too."""
    there = {path.relative_to(masks).with_suffix("").as_posix() for path in _images_below(masks, LOSSLESS)}
    names = (path.relative_to(pictures).with_suffix("").as_posix() for path in _images_below(pictures))
    return any(name + ending in there for name in names for ending in MASK_ENDINGS)


class MaskSet(PairedFiles):
    """The pictures of one split with their masks.

    A missing or faulty mask counts as an unreadable picture, when the picture is needed.
    """

    def __init__(
        self,
        root: Path,
        split: str,
        *,
        ignore: tuple[int, ...] | None = None,
        reduce_zero_label: bool = False,
    ) -> None:
        splits = mask_splits(root)
        self.split = "" if "" in splits else require_split(split, splits, f"folder '{root}'")
        self.pictures, self.masks = splits[self.split]
        self.files, self.passed_over = picture_files(self.pictures)
        self._masks = {
            path.relative_to(self.masks).with_suffix("").as_posix(): path for path in _images_below(self.masks)
        }
        if not any(self.target_file(index).is_file() for index in range(len(self))):
            raise InputError(f"no picture in '{self.pictures}' has a mask of the same name in '{self.masks}'")
        train = splits[find_split("train", splits) or self.split][1]
        self.mask_classes = _classes(root, train, ignore, reduce_zero_label)
        self.classes = self.mask_classes.names
        if not self.classes:
            raise InputError(f"the masks in '{train}' show no class; all their values are ignored")

    def target_file(self, index: int) -> Path:
        name = Path(self.files[index]).with_suffix("").as_posix().removesuffix(PICTURE_ENDING)
        endings = (ending for ending in MASK_ENDINGS if name + ending in self._masks)
        return self._masks.get(name + next(endings, ""), self.masks / f"{name}.png")

    def target(self, index: int) -> dict[str, Any]:
        """The class of each pixel, or an ImageError that names the mask."""
        file = self.target_file(index)
        raw = read_mask(file, coloured=bool(self.mask_classes.colours))
        require_same_size(file, raw, self.encoded(index))
        numbers = self.mask_classes.numbers(raw)
        if (numbers == UNKNOWN_CLASS).any():
            odd = np.unique(raw[numbers == UNKNOWN_CLASS], axis=0)[:5].tolist()
            raise ImageError(
                f"mask '{file}' holds {', '.join(map(str, odd))}, which none of the {len(self.classes)} classes has; "
                "correct it, complete the list of classes, or give --ignore"
            )
        return {"semantic": numbers.astype(np.uint8)}


def read_mask(file: Path, *, coloured: bool = False) -> NDArray[np.integer]:
    """(H, W) as stored, values of a palette unchanged; or (H, W, 3) if it is stored in colours that are known."""
    try:
        require_regular(file, MAX_ANNOTATIONS_BYTES)
        with file.open("rb") as opened, header(opened) as image:
            if image.width * image.height > MAX_PICTURE_PIXELS:
                raise ImageError(
                    f"mask '{file}' has {image.width} x {image.height} pixels; at most {MAX_PICTURE_PIXELS:,} "
                    "in all are read"
                )
            if image.format == "JPEG":
                raise ImageError(f"mask '{file}' is a JPEG, whose values are not exact; save masks as PNG")
            if image.mode in ("1", "L", "P") or image.mode.startswith("I"):
                return np.asarray(image).astype(np.int32)
            if not coloured:
                raise ImageError(
                    f"mask '{file}' is stored in colours ({image.mode}); masks of one number a pixel are read, or add "
                    "a class_dict.csv that says which class each colour is"
                )
            return np.asarray(image.convert("RGB"))
    except ImageError:
        raise
    except InputError as reason:
        raise ImageError(f"mask {reason}") from reason
    except FileNotFoundError:
        raise ImageError(f"mask '{file}' does not exist; add it, or remove its picture") from None
    except Exception as reason:  # decoders meet damage with almost any exception type
        if isinstance(reason, OSError) and reason.errno in MACHINE_REMEDIES:
            raise
        raise ImageError(f"mask '{file}' cannot be read: {reason_of(reason)}; copy or download it again") from reason


def require_same_size(file: Path, mask: NDArray[np.integer], picture: Path) -> None:
    width, height = upright_size(picture)
    if mask.shape[:2] != (height, width):
        raise ImageError(
            f"mask '{file}' has {mask.shape[1]} x {mask.shape[0]} pixels, its picture {width} x {height}; "
            "they must be of the same size"
        )


def _classes(root: Path, masks: Path, ignore: tuple[int, ...] | None, reduce_zero: bool) -> MaskClasses:
    """The same for all splits; where no file lists them, what the masks to train on hold."""
    listed = listed_classes(root, masks)
    if listed is None and any("_gtFine_label" in path.name for path in _images_below(masks)):
        listed = cityscapes(any(path.stem.endswith("TrainIds") for path in _images_below(masks)))
    if listed is None and all(CAMVID_FILE.fullmatch(path.stem) for path in _images_below(masks)):
        listed = camvid()
    if listed is None:
        listed = found_classes(_values_in(masks) - ({0} if reduce_zero else set()), ignore)
        reduced = {0: IGNORE} if reduce_zero else {}
        return with_ignored(MaskClasses(listed.names, {**listed.values, **reduced}), ignore, reduce_zero=False)
    return with_ignored(listed, ignore, reduce_zero=reduce_zero)


def _values_in(masks: Path) -> set[int]:
    """All values of all masks; unreadable ones are reported when their pictures are needed."""
    found: set[int] = set()
    for file in _images_below(masks):
        try:
            found |= set(np.unique(read_mask(file)).tolist())
        except ImageError:
            continue
        if len(found) > MOST_UNLISTED_VALUES:
            raise InputError(
                f"the masks in '{masks}' hold more than {MOST_UNLISTED_VALUES} values and nothing says which classes "
                "they stand for; add a classes.txt with a name a line, value 0 first"
            )
    return found


def _images_below(folder: Path, suffixes: tuple[str, ...] = SUFFIXES) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix.lower() in suffixes and not path.name.startswith("."))


LAYOUT = Layout(
    name="pictures with masks",
    example="DIR/images/train/*.jpg, DIR/masks/train/*.png (or annotations/, labels/; Cityscapes, CamVid), the same "
    "with val, or without train and val; and DIR/classes.txt",
    splits=lambda data: mask_splits(expanded(data)) or None,
    open_split=lambda request: MaskSet(
        request.path,
        request.split,
        ignore=request.ignore,
        reduce_zero_label=request.reduce_zero_label,
    ),
    targets=("semantic",),
    class_values=True,
    order=120,  # after YOLO, pets and instances, which have folders of pictures and of labels, too
)
