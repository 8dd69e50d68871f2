"""Objects as COCO writes them down: one JSON file a split, pictures in a folder beside it.

    DATA/annotations/instances_train2017.json, DATA/train2017/*.jpg
    DATA/annotations/instances_train.json, DATA/images/train/*.png
    DATA/train/_annotations.coco.json, DATA/train/*.jpg

Classes are ordered by the numbers of their categories, which need not follow each other.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from vitreous.data.annotations import Faults, Keypoints, ObjectSet, Record, mirrored_pairs, objects_of, require_objects
from vitreous.data.image_set import SPLITS, find_split, require_split
from vitreous.errors import InputError

PREFIXES = {  # of files that may belong to a split, best first
    "detect": ("instances_", "", "annotations_", "person_keypoints_"),
    "keypoints": ("person_keypoints_", "keypoints_", "instances_", "", "annotations_"),
}
IN_SPLIT_FOLDER = "_annotations.coco.json"
CORRECT = "correct the file, or see all of it with `vitreous check`"
SAMPLED = 50  # pictures by which the folder that holds them is recognised


def coco_files(root: Path, task: str = "detect") -> dict[str, Path]:
    """Name of a split, as in the file's name -> annotations."""
    if not root.is_dir():
        return {}
    there = sorted(path for folder in (root / "annotations", root) for path in folder.glob("*.json"))
    found: dict[str, Path] = {}
    for split in dict.fromkeys(name for names in SPLITS.values() for name in names):
        if (root / split / IN_SPLIT_FOLDER).is_file():
            found[split] = root / split / IN_SPLIT_FOLDER
        for prefix in reversed(PREFIXES.get(task, PREFIXES["detect"])):
            matching = [path for path in there if re.fullmatch(rf"{prefix}{split}_?(\d{{4}})?", path.stem)]
            if len(matching) > 1:
                names = " and ".join(str(path) for path in matching)
                raise InputError(f"split '{split}' could be {names}; leave only one of them there")
            if matching:
                found[split] = matching[0]
    return found


def open_coco(root: Path, split: str, *, task: str = "detect", strict: bool = True) -> ObjectSet:
    """The pictures of one split with their objects, or an InputError that names file and id of what is wrong.

    Args:
        strict: Refuse wrong annotations; otherwise those are left out and listed as `faults`. Boxes without area or
            outside the picture are no reason to refuse: nothing is learnt from them, and metrics count them.
    """
    files = coco_files(root, task)
    name = require_split(split, files, f"folder '{root}'")
    file, train = files[name], find_split("train", files)

    def finder(names: Sequence[str]) -> Callable[[str], Path]:
        folder = _image_folder(file, name, root, names)
        return lambda picture: folder / picture

    return read_coco(file, name, train=files.get(train or ""), finder=finder, task=task, strict=strict)


def read_coco(
    file: Path,
    split: str,
    *,
    train: Path | None,
    finder: Callable[[Sequence[str]], Callable[[str], Path]],
    task: str,
    strict: bool,
) -> ObjectSet:
    """The pictures of one file with their objects.

    Args:
        file: Annotations.
        split: What it is called, as the first part of the pictures' names; may be empty.
        train: The file to train on, whose categories must be the same.
        finder: From the names of all pictures to a function from one of them to its file.
        task: detect or keypoints.
        strict: As of `open_coco`.
    """
    content, faults = _content(file), Faults(strict=strict)
    categories = _categories(content["categories"], str(file))
    if strict and train is not None and file != train:
        _check_same(categories, train, file)
    found = finder([image["file_name"] for image in content["images"]])
    images = ObjectSet(
        _records(file, content, categories, found, split, faults),
        tuple(category["name"] for category in categories),
        faults=faults.found,
        category_ids=tuple(category["id"] for category in categories),
        keypoints=_keypoints(categories, file) if task == "keypoints" or _with_keypoints(categories) else None,
    )
    if strict and file == train:
        require_objects(images, str(file))
    return images


def _records(
    file: Path,
    content: dict[str, Any],
    categories: list[dict[str, Any]],
    found: Callable[[str], Path],
    split: str,
    faults: Faults,
) -> Iterator[Record]:
    labels = {category["id"]: place for place, category in enumerate(categories)}
    points = _keypoints(categories, file) if _with_keypoints(categories) else None
    rows: dict[int, list[dict[str, Any]]] = {image["id"]: [] for image in content["images"]}
    masks, known = False, set[int]()
    sizes = {image["id"]: _size(image) for image in content["images"]}
    for place, row in enumerate(content["annotations"]):
        problem = _problem(row, sizes, labels, known, 0 if points is None else len(points.names))
        if problem:
            called = row.get("id", f"number {place + 1}") if isinstance(row, dict) else f"number {place + 1}"
            faults.note(f"annotation {called} of {file} {problem}", CORRECT)
        else:
            known.add(row["id"])
            masks = masks or bool(row.get("segmentation"))
            rows[row["image_id"]].append(row)
    for image in content["images"]:
        own = rows[image["id"]]
        objects = objects_of(own, [labels[row["category_id"]] for row in own], masks=masks, keypoints=points)
        name = image["file_name"]
        within = name if not split or name.startswith(f"{split}/") else f"{split}/{name}"
        yield Record(within, found(name), sizes[image["id"]], image["id"], objects)


def _problem(row: Any, sizes: dict[int, Any], labels: dict[int, int], known: set[int], keypoints: int) -> str:
    """What makes an annotation useless; nothing if it is in order."""
    if not isinstance(row, dict):
        return "is not a dictionary"
    if not _whole(row.get("id")):
        return f"has the id {row.get('id')!r}; a whole number is needed"
    if row["id"] in known:
        return "has the same id as another one"
    if not _one_of(row.get("image_id"), sizes):
        return f"is for image {row.get('image_id')!r}, which the file does not list"
    if not _one_of(row.get("category_id"), labels):
        return f"has the category {row.get('category_id')!r}, which the file does not list"
    if not _numbers(row.get("bbox"), 4):
        return f"has the box {row.get('bbox')!r}; x, y, width and height are needed"
    if not (row.get("area") is None or _numbers([row["area"]], 1)):
        return f"has the area {row['area']!r}; a number is needed"
    if row.get("iscrowd", 0) not in (0, 1, None):
        return f"has the iscrowd {row['iscrowd']!r}; 0 or 1 is needed"
    if keypoints and row.get("keypoints") and not _numbers(row["keypoints"], 3 * keypoints):
        return f"has keypoints that are not the {3 * keypoints} numbers of the {keypoints} that its categories list"
    return _mask_problem(row.get("segmentation"), sizes[row["image_id"]])


def _mask_problem(segmentation: Any, size: tuple[int, int] | None) -> str:
    if not segmentation:
        return ""
    if isinstance(segmentation, dict):
        if not isinstance(segmentation.get("counts"), str | list):
            return "has run lengths without counts"
        if size is not None and segmentation.get("size") != list(size):
            return f"has a mask of {segmentation.get('size')} (height, width), but its picture is {list(size)}"
        return ""
    polygons = segmentation if isinstance(segmentation, list) else [segmentation]
    if not all(isinstance(one, list) and len(one) >= 6 and _numbers(one, len(one) // 2 * 2) for one in polygons):
        return "has a polygon that is not a list of x and y of three corners or more"
    return ""


# ---- the file --------------------------------------------------------------------------------------------------


def _content(file: Path) -> dict[str, Any]:
    """Images and categories are in order; annotations are looked at later."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as reason:
        raise InputError(f"cannot read annotations {file}: {reason}; copy or download the file again") from reason
    for part in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(part), list):
            raise InputError(f"annotations {file} have no list of {part}; COCO's format is needed")
    known: set[int] = set()
    for image in content["images"]:
        if not isinstance(image, dict) or not _whole(image.get("id")) or not isinstance(image.get("file_name"), str):
            raise InputError(f"an image of {file} is {image!r}; it needs a whole number as id and a file_name")
        if image["id"] in known:
            raise InputError(f"two images of {file} have the id {image['id']}; give each its own")
        known.add(image["id"])
    if not content["images"]:
        raise InputError(f"annotations {file} list no images")
    return content


def _categories(listed: list[Any], file: str) -> list[dict[str, Any]]:
    for category in listed:
        if not isinstance(category, dict) or not _whole(category.get("id")) or "name" not in category:
            raise InputError(f"a category of {file} is {category!r}; it needs a whole number as id and a name")
        if not isinstance(category.get("keypoints") or [], list):
            raise InputError(f"category {category['name']!r} of {file} has keypoints that are not a list of names")
    for key in ("id", "name"):
        values = [category[key] for category in listed]
        twice = [value for value in values if values.count(value) > 1]
        if twice:
            raise InputError(f"two categories of {file} have the {key} {twice[0]!r}; give each its own")
    if not listed:
        raise InputError(f"annotations {file} list no categories")
    return sorted(({**category, "name": str(category["name"])} for category in listed), key=lambda one: one["id"])


@lru_cache(maxsize=4)
def _listed(file: Path, changed: int) -> tuple[tuple[int, str], ...]:
    """Categories of another split; `changed` is the file's time, so that a new version is read anew."""
    return tuple((one["id"], one["name"]) for one in _categories(_content(file)["categories"], str(file)))


def _check_same(categories: list[dict[str, Any]], train: Path, file: Path) -> None:
    """Labels are places in the list of categories: one that a split lacks would shift the others."""
    trained, here = _listed(train, train.stat().st_mtime_ns), tuple((one["id"], one["name"]) for one in categories)
    if trained != here:
        only = sorted(set(trained) ^ set(here))
        raise InputError(
            f"the categories of {train} and {file} differ, first in {only[0][1]!r} (id {only[0][0]}); "
            "both splits need the same ones"
        )


def _keypoints(categories: list[dict[str, Any]], file: Path) -> Keypoints:
    lists = {tuple(category["keypoints"]) for category in categories if category.get("keypoints")}
    if len(lists) != 1:
        found = "no category lists keypoints" if not lists else "its categories list different keypoints"
        raise InputError(f"{file} cannot be used for keypoints: {found}; all that have some must list the same")
    names = next(iter(lists))
    lines = next(category.get("skeleton") or [] for category in categories if category.get("keypoints"))
    # Drawings alone need it, so a line between keypoints that are not there is no reason to refuse the file.
    ends = range(1, len(names) + 1)
    joined = tuple((line[0] - 1, line[1] - 1) for line in lines if len(line) == 2 and set(line) <= set(ends))
    return Keypoints(names, mirrored_pairs(names), joined)


def _with_keypoints(categories: list[dict[str, Any]]) -> bool:
    return len({tuple(category["keypoints"]) for category in categories if category.get("keypoints")}) == 1


def _image_folder(file: Path, split: str, root: Path, names: Sequence[str]) -> Path:
    """Where the pictures lie: the likely folder with the most of the first ones."""
    tail = file.stem.rpartition("_")[2]  # train2017 of instances_train2017
    places = [base / name for base in (root / "images", root) for name in dict.fromkeys((tail, split, ""))]
    places += [root / "JPEGImages", root.parent / "JPEGImages", root.parent / "images", file.parent]
    wanted = names[:SAMPLED]
    counts = {place: sum((place / name).is_file() for name in wanted) for place in dict.fromkeys(places)}
    best = max(counts, key=lambda place: counts[place])
    if not counts[best]:
        looked = ", ".join(str(place) for place in counts)
        raise InputError(f"no picture of {file} is there, such as {wanted[0]!r}; looked in {looked}")
    return best


def _size(image: dict[str, Any]) -> tuple[int, int] | None:
    sides = image.get("height"), image.get("width")
    return sides if all(_whole(side) and side > 0 for side in sides) else None  # type: ignore[operator,return-value]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def _one_of(value: Any, known: dict[int, Any]) -> bool:
    return isinstance(value, int | float) and value in known


def _numbers(values: Any, count: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) == count
        and all(isinstance(value, int | float) and math.isfinite(value) for value in values)
    )
