"""Opening data: the name of the embedded data or a path, recognised by its layout.

A new layout is one file in `data/layouts/`.

Pictures that `quarantine.txt` in the data's folder lists are left out. `vitreous check` writes it: a picture a line,
its name within the data, a tab, the reason.

    train/cat/7.jpg	cannot be decoded: image file is truncated
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import vitreous.data.layouts
from vitreous.data.annotations import OneObjectEach
from vitreous.data.groups import Balanced
from vitreous.data.image_set import SPLITS, ImageSet, Without, describe_passed_over, holds_pictures, own_splits
from vitreous.data.layouts.base import PICTURES, TARGET_KINDS, Layout, Request, Wording, expanded
from vitreous.data.layouts.coco_anywhere import find_coco_files
from vitreous.data.layouts.flat_folder import SPLIT_LIKE
from vitreous.data.layouts.folder import PICTURE_FOLDERS, TARGET_FOLDERS, split_folders
from vitreous.data.layouts.held_out import VAL_FRACTION, held_out
from vitreous.data.metadata import with_metadata
from vitreous.errors import InputError, printable
from vitreous.files.limits import MAX_LIST_BYTES
from vitreous.files.reading import read_bytes, reading

DEFAULT_WORDING = Wording()
MOST_INNER = 20  # folders that are searched for a suggestion
QUARANTINE_FILE = "quarantine.txt"
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}  # names of files may hold any of these
_UNESCAPED = {written: character for character, written in _ESCAPES.items()}


def load_layouts() -> list[Layout]:
    """Every layout: the LAYOUT of each file in `data/layouts/`, and in folders added to that package's `__path__`."""
    folder = vitreous.data.layouts
    modules = [import_module(f"{folder.__name__}.{module.name}") for module in iter_modules(folder.__path__)]
    return sorted((module.LAYOUT for module in modules if hasattr(module, "LAYOUT")), key=lambda layout: layout.order)


def recognise(data: str, targets: str = "labels", wording: Wording = DEFAULT_WORDING) -> Layout:
    """The layout of a `--data` argument that offers this kind of targets."""
    if targets not in TARGET_KINDS:
        raise InputError(f"unknown kind of targets '{targets}'; accepted: {', '.join(TARGET_KINDS)}")
    layouts = load_layouts()
    fitting = [layout for layout in layouts if targets in layout.targets or targets == PICTURES]
    with reading_data(data):
        for layout in fitting:
            if layout.recognises(data):
                return layout
        other = next((layout for layout in _telling(layouts) if layout.recognises(data)), None)
        use = "" if other is None else f"it looks like {other.name}; use {wording.options(other.targets)}"
        problem = use or _unrecognised(data)
    examples = "".join(f"\n  {layout.example}" for layout in fitting)
    purpose = wording.purpose or f"get {targets}"
    raise InputError(f"cannot use data '{data}' to {purpose}: {problem}; accepted:{examples}")


def usable_as(data: str, wording: Wording = DEFAULT_WORDING) -> dict[str, Layout]:
    """Every kind of targets that a layout of the data offers."""
    layouts = _telling(load_layouts())
    with reading_data(data):
        found = {kind: layout for layout in reversed(layouts) if layout.recognises(data) for kind in layout.targets}
    if not found:
        examples = "".join(f"\n  {layout.example} ({wording.options(layout.targets)})" for layout in layouts)
        raise InputError(f"cannot use data '{data}': {_unrecognised(data)}; accepted:{examples}")
    return {kind: found[kind] for kind in TARGET_KINDS if kind in found}


def _telling(layouts: list[Layout]) -> list[Layout]:
    """Those that say something about pictures: any folder of pictures would be of the others."""
    return [layout for layout in layouts if layout.targets != (PICTURES,)]


def _unrecognised(data: str) -> str:
    path = expanded(data)
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
    """Advice for a folder whose data are one folder deeper, as in many archives, or that holds one class."""
    folders = [path / name for name in sorted(split_folders(path)) if not name.startswith((".", "__"))]
    for folder in folders[:MOST_INNER]:
        if any(layout.recognises(str(folder)) for layout in _telling(load_layouts())):
            return f"its layout is not recognised; did you mean '{folder}'?"
    filled = [folder for folder in folders[:MOST_INNER] if holds_pictures(folder, deeper=False)]
    if len(filled) == len(folders) == 1 and folders[0].name.lower() not in PICTURE_FOLDERS | TARGET_FOLDERS:
        return (
            f"it has one class folder, '{folders[0].name}', and a classifier needs two or more; add folders of others"
        )
    return ""


def reading_data(data: str) -> AbstractContextManager[None]:
    """Guard around everything that reads a user's data, for errors that do not name a file themselves."""
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
    if (ignore is not None or reduce_zero_label) and not layout.class_values:
        raise InputError(f"'{data}' has no masks with values of classes; leave out --ignore and --reduce-zero-label")
    kind, labelled = layout.kind(targets), targets != PICTURES
    request = Request(data, split, size, count, strict, kind, ignore, reduce_zero_label, labelled, follow)
    with reading_data(data):
        images = _opened(layout, request, val_fraction)
        if quarantine is None and not layout.drawn and quarantine_file(data).is_file():
            quarantine = quarantine_file(data)
        kept = images if quarantine is None else _without(images, quarantine, data, split)
        if kind != "keypoints" or layout.drawn:  # drawn pictures are about one object already
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
    """All splits, with their faults; the arguments are those of `open_data`."""
    layout = recognise(data, targets, wording)
    made = ("val",) if val_fraction == 1 else ("train", "val")
    kind, labelled = layout.kind(targets), targets != PICTURES
    with reading_data(data):
        return {
            split: _opened(
                layout,
                Request(data, split, (64, 64), None, False, kind, ignore, reduce_zero_label, labelled, follow),
                val_fraction,
            )
            for split in own_splits(layout.splits(data) or ()) or made
        }


def _opened(layout: Layout, request: Request, val_fraction: float) -> ImageSet:
    images = layout.open_split(request)
    if not own_splits(layout.splits(request.data) or ()):
        by_class, where = request.targets == "labels", f"data '{request.data}'"
        images = held_out(images, request.split, val_fraction, by_class=by_class, where=where)
    return images if layout.drawn else with_metadata(images, data_folder(request.data))


def _without(images: ImageSet, quarantine: Path, data: str, split: str) -> ImageSet:
    kept = Without(images, read_quarantine(quarantine), str(quarantine))
    if not len(kept):
        raise InputError(f"{quarantine} leaves no picture of split '{split}' of '{data}'; correct it, or remove it")
    return kept


def _describe_held_out(splits: dict[str, ImageSet], *, by_class: bool) -> Iterator[str]:
    """The requested share, the real one where it differs, and the classes that could not be divided."""
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
    """The recognised layout, the number of pictures, and how many are left out."""
    sizes = ", ".join(f"{len(images)} {name}" for name, images in splits.items())
    what = "objects" if any(isinstance(images, OneObjectEach) for images in splits.values()) else "images"
    classes = len(next(iter(splits.values())).classes)
    layout = recognise(data, targets)
    known = f", {classes} classes" if classes and targets != "values" else ""
    lines = [f"data: {data} ({layout.name}): {sizes} {what}{known}"]
    divided = own_splits(layout.splits(data) or ())
    if not divided:
        lines += _describe_held_out(splits, by_class=targets == "labels")
    for place, (name, images) in enumerate(splits.items()):
        if images.passed_over and (divided or place == 0):  # made splits have the same files
            lines.append(f"data: {f'{name}: ' if divided else ''}{describe_passed_over(images.passed_over)}")
        if isinstance(images, Balanced):
            lines.append(f"data: {name}: {images.describe()}")
        if isinstance(images, OneObjectEach | Balanced):
            images = images.images
        if isinstance(images, Without):
            lines.append(f"data: {len(images.left_out)} {name} images left out by {images.because}")
    return "\n".join(map(printable, lines))


# ---- pictures to leave out -------------------------------------------------------------------------------------


def data_folder(data: str) -> Path:
    """The folder that is the data, or that holds it."""
    coco = find_coco_files(data)
    path = Path(data).expanduser() if coco is None else coco.pictures[0]
    return path if path.is_dir() else path.parent


def quarantine_file(data: str) -> Path:
    return data_folder(data) / QUARANTINE_FILE


def read_quarantine(file: Path) -> dict[str, str]:
    """Name -> reason; empty lines and those that begin with # are skipped."""
    try:
        text = read_bytes(file, MAX_LIST_BYTES).decode(errors="surrogateescape")
    except InputError as reason:
        raise InputError(f"cannot read --quarantine: {reason}") from reason
    found: dict[str, str] = {}
    for line in text.split("\n"):
        if line.strip() and not line.startswith("#"):
            name, _, reason_given = line.rstrip("\r").partition("\t")
            found[re.sub(r"\\[\\tnr]", lambda match: _UNESCAPED[match[0]], name)] = reason_given
    return found


def quarantine_text(entries: Mapping[str, str]) -> str:
    """What `read_quarantine` reads."""
    lines = ["# Pictures that are left out: name within the data, tab, reason. Written by vitreous check."]
    for name, reason in entries.items():
        escaped = re.sub(r"[\\\t\n\r]", lambda match: _ESCAPES[match[0]], name)
        lines.append(f"{escaped}\t{' '.join(reason.split())}")
    return "\n".join(lines) + "\n"
