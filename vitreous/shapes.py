"""`vitreous shapes`: write the embedded data set as files, in several layouts."""

import csv
import io
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from vitreous.data.coco_masks import run_length_counts
from vitreous.data.layouts.shapes import mark_attributes
from vitreous.data.metadata import METADATA_FILE
from vitreous.data.shapes.samples import CATEGORIES, KEYPOINTS, Difficulty, Scene, Shapes
from vitreous.data.shapes.shortcut import parse_shortcut
from vitreous.errors import InputError
from vitreous.files.writing import write_text
from vitreous.runtime.console import track

Format = Literal["folder", "coco", "masks"]


def shapes(
    *,
    out: Path,
    format: Format = "folder",
    count: int = 1000,
    val: int | None = None,
    size: int | tuple[int, int] = 64,
    seed: int = 0,
    difficulty: Difficulty = "easy",
    shortcut: str | None = None,
) -> Path:
    """Write the embedded data set `shapes` as files; returns the folder.

    Layouts (the held-out images lie in val in the same way):
        folder  to classify: train/<class>/000000.png
        coco    to detect: images/train/000000.png, annotations/instances_train.json (boxes, masks, keypoints)
        masks   to segment: images/train/000000.png, masks/train/000000.png (pixel value = class, 0 = background),
                classes.txt (one name a line, background first)

    Image i of a split is the picture that the data set `shapes` draws as sample i, whatever the count. With a shortcut,
    metadata.csv beside the images of a split says whose mark each shows, and whether it agrees with the class.

    Examples:
        vitreous shapes --out toy
        vitreous shapes --out marked --shortcut corner_mark=0.9
        vitreous shapes --out toy_coco --format coco --count 500 --size 128
        vitreous shapes --out toy_masks --format masks --count 200 --val 50 --size 96 160 --difficulty hard

    Args:
        out: Folder to write; it must not exist yet, or be empty.
        format: Layout of the files.
        count: Number of images to train on.
        val: Number of held-out images; one for every five of `count` if not given, 0 for none.
        size: Side of the images in pixels, or height and width.
        seed: Another seed gives another data set.
        difficulty: easy: objects stand out, turned by 20 degrees at most; hard: any rotation, low contrast, clutter.
        shortcut: Mark to plant (corner_mark, stripe, colour_cast or texture) and the share of images to train on whose
            mark tells the class, as in corner_mark=0.9. Held-out images have random marks; corner_mark=0.9,test=absent
            gives them none, test=train the same as in training.
    """
    held_out = max(count // 5, len(CATEGORIES)) if val is None else val
    planted = None if shortcut is None else parse_shortcut(shortcut)
    splits = [
        Shapes(split, count=number, size=size, seed=seed, difficulty=difficulty, shortcut=planted)
        for split, number in (("train", count), ("val", held_out))
    ]
    _check_counts(count, held_out, format)
    writers = {"folder": _write_folder, "coco": _write_coco, "masks": _write_masks}
    if format not in writers:
        raise InputError(f"unknown format {format!r}; accepted: {', '.join(writers)}")
    with _complete_or_absent(Path(out)) as unfinished:
        for data in splits:
            if len(data):
                writers[format](data, unfinished)
    return Path(out)


def _check_counts(count: int, held_out: int, layout: str) -> None:
    # Every run of len(CATEGORIES) samples holds each class once; fewer would leave class folders out.
    least = len(CATEGORIES) if layout == "folder" else 1
    if count < least or (held_out and held_out < least):
        raise InputError(
            f"count={count} and val={held_out} for format {layout!r}; at least {least} images are needed in each split "
            "so that no class is missing, or val 0 for no held-out images"
        )


@contextmanager
def _complete_or_absent(out: Path) -> Iterator[Path]:
    """A folder beside `out` to write to; it becomes `out` at the end, or is removed if anything fails."""
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise InputError(f"output {str(out)!r} is already in use; give a new or an empty folder")
    unfinished = out.absolute().with_name(f".{out.absolute().name}.unfinished-{os.getpid()}")
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        if out.exists():
            out.rmdir()  # empty, see above; elsewhere than on POSIX a rename does not replace it
        unfinished.rename(out)
    except OSError as error:
        raise InputError(
            f"cannot write {str(out)!r}: {error.strerror or error}; check permissions and space, or give another folder"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)  # already renamed when all went well


def _numbered(data: Shapes) -> Iterator[tuple[str, Scene]]:
    """File names and scenes, with progress."""
    scenes = (data[index] for index in range(len(data)))
    for index, scene in enumerate(track(scenes, total=len(data), label=f"drawing {data.split}")):
        yield f"{index:06d}.png", scene


def _write_folder(data: Shapes, root: Path) -> None:
    for name in CATEGORIES:
        (root / data.split / name).mkdir(parents=True)
    files = []
    for file, scene in _numbered(data):
        files.append(f"{CATEGORIES[scene.label]}/{file}")
        Image.fromarray(scene.image).save(root / data.split / files[-1])
    _write_metadata(data, root / data.split, files)


def _write_metadata(data: Shapes, folder: Path, files: Sequence[str]) -> None:
    """Whose mark each picture shows; nothing where no marks are planted."""
    if data.shortcut is None:
        return
    rows = [{"file_name": file, **mark_attributes(data, index)} for index, file in enumerate(files)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / METADATA_FILE, text.getvalue())


def _write_masks(data: Shapes, root: Path) -> None:
    images, masks = root / "images" / data.split, root / "masks" / data.split
    images.mkdir(parents=True)
    masks.mkdir(parents=True)
    write_text(root / "classes.txt", "\n".join(("background", *CATEGORIES)) + "\n")
    for file, scene in _numbered(data):
        Image.fromarray(scene.image).save(images / file)
        mask = Image.fromarray(scene.semantic)
        mask.putpalette(_palette())  # mode P: the pixel values stay the class numbers, viewers show colours
        mask.save(masks / file)
    _write_metadata(data, images, [f"{index:06d}.png" for index in range(len(data))])


def _palette() -> list[int]:
    """Black for the background, then well separated hues."""
    hues = Image.new("HSV", (len(CATEGORIES), 1))
    hues.putdata([(255 * number // len(CATEGORIES), 190, 230) for number in range(len(CATEGORIES))])
    return [0, 0, 0, *hues.convert("RGB").tobytes()]


def _write_coco(data: Shapes, root: Path) -> None:
    folder = root / "images" / data.split
    folder.mkdir(parents=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image, (file, scene) in enumerate(_numbered(data)):
        Image.fromarray(scene.image).save(folder / file)
        # The number in the file's name, as COCO has it: `predict` then numbers its answers alike.
        images.append({"id": image, "file_name": f"{data.split}/{file}", "height": data.height, "width": data.width})
        for number in range(len(scene.labels)):
            annotations.append({"id": len(annotations) + 1, "image_id": image, **_annotation(scene, number)})
    categories = [
        {"id": number, "name": name, "supercategory": "shape", "keypoints": list(KEYPOINTS), "skeleton": []}
        for number, name in enumerate(CATEGORIES, 1)
    ]
    _write_metadata(data, folder, [Path(image["file_name"]).name for image in images])
    target = root / "annotations" / f"instances_{data.split}.json"
    target.parent.mkdir(exist_ok=True)
    content = {"images": images, "annotations": annotations, "categories": categories}
    write_text(target, json.dumps(content))


def _annotation(scene: Scene, number: int) -> dict[str, Any]:
    x0, y0, x1, y1 = scene.boxes[number].tolist()
    points = scene.keypoints[number]
    return {
        "category_id": int(scene.labels[number]) + 1,
        "bbox": [x0, y0, x1 - x0, y1 - y0],
        "area": int(np.count_nonzero(scene.masks[number])),
        "iscrowd": 0,
        "segmentation": {"size": list(scene.masks[number].shape), "counts": run_length_counts(scene.masks[number])},
        "keypoints": [round(value, 2) for value in points.flatten().tolist()],
        "num_keypoints": int(np.count_nonzero(points[:, 2])),
    }
