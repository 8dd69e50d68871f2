"""Small data sets on disk for the tests of readers."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitreous.data.source import open_data


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


def coco_file(file: Path, names, boxes=True, categories=CATEGORIES) -> Path:
    """Annotations of pictures of 40 x 30, one object in each."""
    file.parent.mkdir(parents=True, exist_ok=True)
    images = [{"id": n, "file_name": name, "width": 40, "height": 30} for n, name in enumerate(names)]
    objects = [annotation(n + 1, image=n) for n in range(len(names))] if boxes else []
    file.write_text(json.dumps({"images": images, "annotations": objects, "categories": categories}))
    return file


PENN_FUDAN_MASK = np.zeros((30, 40), np.uint8)
PENN_FUDAN_MASK[2:10, 3:9], PENN_FUDAN_MASK[5:8, 20:40] = 1, 2


def penn_fudan(root, count: int = 12):
    for number in range(count):
        picture(root / "PNGImages" / f"FudanPed{number:05d}.png", seed=number)
        mask(root / "PedMasks" / f"FudanPed{number:05d}_mask.png", PENN_FUDAN_MASK, palette=number % 2 == 0)
        (root / "Annotation").mkdir(exist_ok=True)
        (root / "Annotation" / f"FudanPed{number:05d}.txt").write_text("# PASCAL Annotation Version 1.00\n")
    return root


PETS_TRIMAP = np.full((30, 40), 2, np.uint8)
PETS_TRIMAP[5:20, 5:20], PETS_TRIMAP[8:15, 8:15] = 3, 1
PETS_TRAIN = ("Abyssinian_1", "Abyssinian_100", "great_pyrenees_7", "great_pyrenees_8")
PETS_TEST = ("Abyssinian_2", "great_pyrenees_9")


def pets(root, *, lists: bool = True):
    for place, stem in enumerate((*PETS_TRAIN, *PETS_TEST)):
        picture(root / "images" / f"{stem}.jpg", seed=place)
        mask(root / "annotations" / "trimaps" / f"{stem}.png", PETS_TRIMAP)
    (root / "annotations" / "trimaps" / "._Abyssinian_1.png").write_bytes(b"left by another system")
    (root / "images" / "Abyssinian_1.mat").write_bytes(b"no picture")
    if lists:
        listed = {"trainval.txt": PETS_TRAIN, "test.txt": PETS_TEST, "list.txt": PETS_TRAIN + PETS_TEST}
        for name, stems in listed.items():
            (root / "annotations" / name).write_text("#Image CLASS-ID\n" + "".join(f"{s} 1 1 1\n" for s in stems))
    return root


DRAWN_COUNTS = {"train": 40, "val": 20}


def drawn_pictures(split: str) -> list[tuple[np.ndarray, int]]:
    drawn = open_data("shapes", split, size=(32, 32), count=DRAWN_COUNTS[split])
    return [(np.asarray(drawn.picture(index)), drawn.target(index)["labels"]) for index in range(len(drawn))]


def as_png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def as_folders(root: Path) -> Path:
    for split in DRAWN_COUNTS:
        for number, (pixels, label) in enumerate(drawn_pictures(split)):
            file = root / split / str(label) / f"{number:02d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(as_png(pixels))
    return root


def write_shard(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as shard:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
    return path


def yolo(root: Path, *, keypoints: bool = False) -> dict[str, Any]:
    """Two pictures a split with their labels; returns what data.yaml says."""
    points = " 0.5 0.5 2 0.4 0.4 1" if keypoints else ""
    for split in ("train", "val"):
        (root / "labels" / split).mkdir(parents=True)
        for seed, name in enumerate(("a", "b")):
            picture(root / "images" / split / f"{name}.png", seed=seed)
            lines = [f"1 0.5 0.5 0.25 0.2{points}", f"0 0.1 0.1 0.2 0.2{points}"]
            lines += [] if points else ["0 0.1 0.1 0.4 0.1 0.2 0.4"]
            (root / "labels" / split / f"{name}.txt").write_text("\n".join(lines))
    described = {"names": ["cat", "dog"], "nc": 2} | ({"kpt_shape": [2, 3], "flip_idx": [1, 0]} if points else {})
    (root / "data.yaml").write_text(json.dumps(described))
    return described
