"""Small data sets on disk for the tests of readers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def picture(file: Path, size=(40, 30), seed: int = 0) -> None:
    """A PNG or JPEG of (width, height) with some structure."""
    file.parent.mkdir(parents=True, exist_ok=True)
    coarse = Image.fromarray(np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8))
    coarse.resize(size, Image.Resampling.BICUBIC).save(file)


def annotation(id: int, image: int = 10, category: int = 7, box=(4, 5, 10, 8), **more: Any) -> dict[str, Any]:
    return {"id": id, "image_id": image, "category_id": category, "bbox": list(box), **more}


CATEGORIES = [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}, {"id": 90, "name": "cow"}]


def coco(root: Path, annotations, split: str = "train", categories=CATEGORIES, **changes: Any) -> Path:
    """Two pictures of 40 x 30 with the ids 10 and 11; returns the file of annotations."""
    listed = [{"id": 10 + n, "file_name": f"{n}.png", "width": 40, "height": 30} for n in range(2)]
    for place, image in enumerate(listed):
        picture(root / "images" / split / image["file_name"], seed=place + 100 * len(split))
    file = root / "annotations" / f"instances_{split}2017.json"
    file.parent.mkdir(exist_ok=True)
    content = {"images": listed, "annotations": annotations, "categories": categories, **changes}
    file.write_text(json.dumps(content))
    return file


def voc_page(file: Path, objects, name: str = "", size=(40, 30)) -> None:
    """`objects` are (class, (x0, y0, x1, y1), difficult)."""
    file.parent.mkdir(parents=True, exist_ok=True)
    edges = ("xmin", "ymin", "xmax", "ymax")
    boxes = [
        f"<object><name>{kind}</name><difficult>{int(difficult)}</difficult><bndbox>"
        + "".join(f"<{edge}>{value}</{edge}>" for edge, value in zip(edges, box, strict=True))
        + "</bndbox></object>"
        for kind, box, difficult in objects
    ]
    width, height = size
    told = f"<filename>{name}</filename><size><width>{width}</width><height>{height}</height></size>"
    file.write_text(f"<annotation>{told}{''.join(boxes)}</annotation>")


def mask(file: Path, values, palette: bool = False) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.asarray(values, np.uint8))
    if palette:
        image.putpalette([0, 0, 0, 200, 10, 10, 10, 200, 10])
    image.save(file)
