"""Objects in COCO's format: one JSON file per split, pictures in a folder beside it.

    DATA/annotations/instances_train2017.json, DATA/train2017/*.jpg
    DATA/annotations/instances_train.json, DATA/images/train/*.png
    DATA/train/_annotations.coco.json, DATA/train/*.jpg

Classes are ordered by the numbers of their categories, which may have gaps.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from vitreous.data.annotations import (
    Faults,
    KeypointScheme,
    ObjectSet,
    Record,
    mirrored_pairs,
    objects_of,
    require_objects,
)
from vitreous.data.image_set import SPLITS, find_split, require_split
from vitreous.data.layouts.base import Layout, expanded
from vitreous.errors import InputError
from vitreous.files.limits import (
    MAX_ANNOTATIONS_BYTES,
    MAX_CLASS_NAME_CHARS,
    MAX_COORDINATE_PIXELS,
    MAX_DATA_CLASSES,
    MAX_KEYPOINTS,
)
from vitreous.files.reading import excerpt, is_text, problem_of_path, read_json, reason_of

_FILE_PREFIXES = {  # kind of targets -> how files that may belong to a split begin, best first
    "boxes": ("instances_", "", "annotations_", "person_keypoints_"),
    "keypoints": ("person_keypoints_", "keypoints_", "instances_", "", "annotations_"),
}
_IN_SPLIT_FOLDER = "_annotations.coco.json"
_REMEDY = "correct the file, or see all of it with `vitreous check`"
_SAMPLED_PICTURES = 50  # by which their folder is recognised


def coco_files(root: Path, targets: str = "boxes") -> dict[str, Path]:
    """Name of a split, as in the file's name -> annotations."""
    if not root.is_dir():
        return {}
    there = sorted(path for folder in (root / "annotations", root) for path in folder.glob("*.json"))
    found: dict[str, Path] = {}
    for split in dict.fromkeys(name for names in SPLITS.values() for name in names):
        if (root / split / _IN_SPLIT_FOLDER).is_file():
            found[split] = root / split / _IN_SPLIT_FOLDER
        for prefix in reversed(_FILE_PREFIXES[targets]):
            matching = [path for path in there if re.fullmatch(rf"{prefix}{split}_?(\d{{4}})?", path.stem)]
            if len(matching) > 1:
                names = " and ".join(str(path) for path in matching)
                raise InputError(f"split '{split}' could be {names}; leave only one of them there")
            if matching:
                found[split] = matching[0]
    return found


def open_coco(
    root: Path, split: str, *, targets: str = "boxes", strict: bool = True, follow: bool = False
) -> ObjectSet:
    """The pictures of one split with their objects, or an InputError that names file and id of what is wrong.

    Args:
        strict: Refuse wrong annotations; otherwise those are left out and listed as `faults`. Boxes without area or
            outside the picture are no reason to refuse: nothing is learnt from them, and metrics count them.
        follow: Open pictures whose names lead out of the folder, too.
    """
    files = coco_files(root, targets)
    name = require_split(split, files, f"folder '{root}'")
    file, train = files[name], find_split("train", files)

    def finder(names: Sequence[str]) -> Callable[[str], Path]:
        folder = _image_folder(file, name, root, names)
        return lambda picture: folder / picture

    return read_coco(
        file, name, train=files.get(train or ""), finder=finder, targets=targets, strict=strict, follow=follow
    )


def read_coco(
    file: Path,
    split: str,
    *,
    train: Path | None,
    finder: Callable[[Sequence[str]], Callable[[str], Path]],
    targets: str,
    strict: bool,
    follow: bool = False,
) -> ObjectSet:
    """The pictures of one file with their objects.

    Args:
        file: Annotations.
        split: What it is called, as the first part of the pictures' names; may be empty.
        train: The file to train on, whose categories must be the same.
        finder: From the names of all pictures to a function from one of them to its file.
        targets: boxes or keypoints.
        strict, follow: As of `open_coco`.
    """
    content, faults = _content(file, follow), Faults(strict=strict)
    categories = _categories(content["categories"], str(file))
    if strict and train is not None and file != train:
        _check_same(categories, train, file, follow)
    found = finder([image["file_name"] for image in content["images"]])
    images = ObjectSet(
        _records(file, content, categories, found, split, faults),
        tuple(category["name"] for category in categories),
        faults=faults.found,
        category_ids=tuple(category["id"] for category in categories),
        keypoints=_keypoints(categories, file) if targets == "keypoints" or _with_keypoints(categories) else None,
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
        try:
            problem = _problem(row, sizes, labels, known, 0 if points is None else len(points.names))
        except Exception as error:  # whatever a value of the file makes of our questions
            problem = f"cannot be understood: {reason_of(error)}"
        if problem:
            called = excerpt(row["id"]) if isinstance(row, dict) and "id" in row else f"number {place + 1}"
            faults.note(f"annotation {called} of {file} {problem}", _REMEDY)
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
        return f"has the id {excerpt(row.get('id'))}; a whole number is needed"
    if row["id"] in known:
        return "has the same id as another one"
    if not _one_of(row.get("image_id"), sizes):
        return f"is for image {excerpt(row.get('image_id'))}, which the file does not list"
    if not _one_of(row.get("category_id"), labels):
        return f"has the category {excerpt(row.get('category_id'))}, which the file does not list"
    if not _numbers(row.get("bbox"), 4):
        return f"has the box {excerpt(row.get('bbox'))}; x, y, width and height are needed"
    if not (row.get("area") is None or _numbers([row["area"]], 1, MAX_COORDINATE_PIXELS**2)):
        return f"has the area {excerpt(row['area'])}; a number is needed"
    if row.get("iscrowd", 0) not in (0, 1, None):
        return f"has the iscrowd {excerpt(row['iscrowd'])}; 0 or 1 is needed"
    if keypoints and row.get("keypoints") and not _numbers(row["keypoints"], 3 * keypoints):
        return f"has keypoints that are not the {3 * keypoints} numbers of the {keypoints} that its categories list"
    return _mask_problem(row.get("segmentation"), sizes[row["image_id"]])


def _mask_problem(segmentation: Any, size: tuple[int, int] | None) -> str:
    if not segmentation:
        return ""
    if isinstance(segmentation, dict):
        counts = segmentation.get("counts")
        if not isinstance(counts, str | list):
            return "has run lengths without counts"
        if isinstance(counts, list) and not all(_whole(count) and count >= 0 for count in counts):
            return "has run lengths that are not numbers of pixels"
        if size is not None and segmentation.get("size") != list(size):
            return f"has a mask of {excerpt(segmentation.get('size'))} (height, width), but its picture is {list(size)}"
        return ""
    polygons = segmentation if isinstance(segmentation, list) else [segmentation]
    if not all(isinstance(one, list) and len(one) >= 6 and _numbers(one, len(one) // 2 * 2) for one in polygons):
        return "has a polygon that is not a list of x and y of three corners or more"
    return ""


# ---- the file --------------------------------------------------------------------------------------------------


def _content(file: Path, follow: bool = False) -> dict[str, Any]:
    """Images are in order; categories and annotations are checked later."""
    content = read_json(file, MAX_ANNOTATIONS_BYTES)
    for part in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(part), list):
            raise InputError(f"annotations {file} have no list of {part}; COCO's format is needed")
    known: set[int] = set()
    for image in content["images"]:
        if not isinstance(image, dict) or not _whole(image.get("id")) or not isinstance(image.get("file_name"), str):
            raise InputError(f"an image of {file} is {excerpt(image)}; it needs a whole number as id and a file_name")
        if problem := problem_of_path(image["file_name"], follow=follow):
            raise InputError(f"the file_name {excerpt(image['file_name'])} of image {image['id']} in {file} {problem}")
        if image["id"] in known:
            raise InputError(f"two images of {file} have the id {image['id']}; give each its own")
        known.add(image["id"])
    if not content["images"]:
        raise InputError(f"annotations {file} list no images")
    return content


def _categories(listed: list[Any], file: str) -> list[dict[str, Any]]:
    if not listed:
        raise InputError(f"annotations {file} list no categories")
    if len(listed) > MAX_DATA_CLASSES:
        raise InputError(f"annotations {file} list {len(listed):,} categories; at most {MAX_DATA_CLASSES:,} are read")
    for category in listed:
        if not isinstance(category, dict) or not _whole(category.get("id")) or not _is_name(category.get("name")):
            raise InputError(f"a category of {file} is {excerpt(category)}; it needs a whole number as id and a name")
        points = category.get("keypoints") or []
        if not isinstance(points, list) or len(points) > MAX_KEYPOINTS or not all(map(is_text, points)):
            raise InputError(
                f"category {category['name']!r} of {file} has keypoints that are not a list of at most "
                f"{MAX_KEYPOINTS} names"
            )
    for key in ("id", "name"):
        seen: set[str] = set()
        for category in listed:
            if str(category[key]) in seen:
                raise InputError(f"two categories of {file} have the {key} {category[key]!r}; give each its own")
            seen.add(str(category[key]))
    return sorted(({**category, "name": str(category["name"])} for category in listed), key=lambda one: one["id"])


def _is_name(value: Any) -> bool:
    return (is_text(value) and len(value) <= MAX_CLASS_NAME_CHARS) or _whole(value)


@lru_cache(maxsize=4)
def _listed(file: Path, changed: int, follow: bool) -> tuple[tuple[int, str], ...]:
    """Categories of another split; `changed` is the file's time, so that a new version is read anew."""
    return tuple((one["id"], one["name"]) for one in _categories(_content(file, follow)["categories"], str(file)))


def _check_same(categories: list[dict[str, Any]], train: Path, file: Path, follow: bool) -> None:
    """Labels are places in the list of categories: one that a split lacks would shift the others."""
    trained = _listed(train, train.stat().st_mtime_ns, follow)
    here = tuple((one["id"], one["name"]) for one in categories)
    if trained != here:
        only = sorted(set(trained) ^ set(here))
        raise InputError(
            f"the categories of {train} and {file} differ, first in {only[0][1]!r} (id {only[0][0]}); "
            "both splits need the same ones"
        )


def _keypoints(categories: list[dict[str, Any]], file: Path) -> KeypointScheme:
    lists = {tuple(category["keypoints"]) for category in categories if category.get("keypoints")}
    if len(lists) != 1:
        found = "no category lists keypoints" if not lists else "its categories list different keypoints"
        raise InputError(f"{file} cannot be used for keypoints: {found}; all that have some must list the same")
    names = next(iter(lists))
    lines = next(category.get("skeleton") or [] for category in categories if category.get("keypoints"))
    # Drawings alone need it, so a line between keypoints that are not there is no reason to refuse the file.
    if not isinstance(lines, list):
        raise InputError(f"{file} has the skeleton {excerpt(lines)}; a list of pairs of keypoints is needed")
    joined = tuple((line[0] - 1, line[1] - 1) for line in lines if _joins(line, len(names)))
    return KeypointScheme(names, mirrored_pairs(names), joined)


def _joins(line: Any, keypoints: int) -> bool:
    return isinstance(line, list) and len(line) == 2 and all(_whole(end) and 1 <= end <= keypoints for end in line)


def _with_keypoints(categories: list[dict[str, Any]]) -> bool:
    return len({tuple(category["keypoints"]) for category in categories if category.get("keypoints")}) == 1


def _image_folder(file: Path, split: str, root: Path, names: Sequence[str]) -> Path:
    """Where the pictures lie: the likely folder with the most of the first ones."""
    tail = file.stem.rpartition("_")[2]  # train2017 of instances_train2017
    places = [base / name for base in (root / "images", root) for name in dict.fromkeys((tail, split, ""))]
    places += [root / "JPEGImages", root.parent / "JPEGImages", root.parent / "images", file.parent]
    wanted = names[:_SAMPLED_PICTURES]
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


def _numbers(values: Any, count: int, limit: float = MAX_COORDINATE_PIXELS) -> bool:
    """Neither NaN, which is not below the limit, nor a whole number that no float holds."""
    return (
        isinstance(values, list)
        and len(values) == count
        and all(isinstance(value, int | float) and abs(value) <= limit for value in values)
    )


LAYOUT = Layout(
    name="COCO",
    example="DIR/annotations/instances_train*.json, instances_val*.json (or person_keypoints_...) and their pictures",
    splits=lambda data: coco_files(expanded(data)) or None,
    open_split=lambda request: open_coco(
        request.path, request.split, targets=request.targets, strict=request.strict, follow=request.follow
    ),
    targets=("boxes", "keypoints"),
    order=60,  # before VOC and YOLO: files of annotations are surer than folders
)
