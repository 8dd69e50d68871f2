"""Damaged and forged data are read rightly or refused in a sentence, in bounded time and memory."""

import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.mutations import as_text, hostile, look_through, many, mutated_bytes, mutated_tree
from tests.support.tiny_data import CATEGORIES, annotation, coco, mask, picture, voc_page, write_shard, yolo
from vitreous.data.coco_masks import text_of
from vitreous.errors import InputError

FEW, MANY = 40, 2_000
Damage = Callable[[random.Random], str]


def damage_file(file: Path, good: bytes | None = None) -> Damage:
    content = file.read_bytes() if good is None else good

    def damage(rng: random.Random) -> str:
        file.write_bytes(mutated_bytes(content, rng))
        return file.name

    return damage


def damage_tree(file: Path, tree: Any, write: Callable[[Any], str] = as_text) -> Damage:
    def damage(rng: random.Random) -> str:
        file.write_text(write(mutated_tree(tree, rng)))
        return file.name

    return damage


def one_of(damages: list[Damage], restore: dict[Path, bytes]) -> Damage:
    """One file at a time; the others are good again."""

    def damage(rng: random.Random) -> str:
        for file, content in restore.items():
            file.write_bytes(content)
        return rng.choice(damages)(rng)

    return damage


def files_below(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


# ---- layouts: a good data set, and ways to damage it -----------------------------------------------------------


def coco_data(root: Path, targets: str) -> Damage:
    points = {"keypoints": ["left eye", "right eye"], "skeleton": [[1, 2]]}
    categories = [{**one, **points} for one in CATEGORIES]
    rows = [
        annotation(1, segmentation=[[4, 5, 14, 5, 14, 13]], area=40, iscrowd=0, keypoints=[5, 6, 2, 9, 8, 1]),
        annotation(
            2, image=11, segmentation={"size": [30, 40], "counts": [100, 50, 1050]}, keypoints=[1, 1, 2, 3, 3, 2]
        ),
        annotation(
            3, image=11, category=3, segmentation={"size": [30, 40], "counts": text_of([100, 50, 1050])}, iscrowd=1
        ),
    ]
    for split in ("train", "val"):
        coco(root, rows, split, categories)
    trees = {file: json.loads(file.read_bytes()) for file in (root / "annotations").iterdir()}
    good = files_below(root / "annotations")
    kinds = [damage_tree(file, tree) for file, tree in trees.items()] * 3 + [damage_file(file) for file in trees]
    return one_of(kinds, good)


def yolo_data(root: Path, targets: str) -> Damage:
    described = yolo(root, keypoints=targets == "keypoints")
    good = files_below(root / "labels") | {root / "data.yaml": (root / "data.yaml").read_bytes()}
    kinds = [damage_file(file) for file in good] + [damage_tree(root / "data.yaml", described)] * 4
    return one_of(kinds + [damage_numbers(file) for file in good if file.suffix == ".txt"], good)


def damage_numbers(file: Path) -> Damage:
    lines = [line.split() for line in file.read_text().splitlines()]
    return damage_tree(file, lines, lambda tree: "\n".join(_joined(row, " ") for row in _listed(tree)))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _joined(row: Any, gap: str) -> str:
    return gap.join(str(value) for value in _listed(row)).encode(errors="replace").decode()


def voc_data(root: Path, targets: str) -> Damage:
    boxes = [("cat", (4, 5, 14, 13), False), ("dog", (1, 1, 30, 20), True)]
    for split in ("train", "val"):
        for seed in range(2):
            voc_page(root / "Annotations" / f"{split}{seed}.xml", boxes, f"{split}{seed}.png")
            picture(root / "JPEGImages" / f"{split}{seed}.png", seed=seed)
        listed = root / "ImageSets" / "Main" / f"{split}.txt"
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.write_text(f"{split}0 1\n{split}1 -1\n")
    good = files_below(root / "Annotations") | files_below(root / "ImageSets")
    return one_of([damage_file(file) for file in good] + [_damage_values(file) for file in good], good)


def _damage_values(file: Path) -> Damage:
    """Numbers and names in a text replaced by others."""
    words = file.read_text().replace(">", "> ").replace("<", " <").split()

    def damage(rng: random.Random) -> str:
        changed = list(words)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(len(changed))] = _joined(hostile(rng), " ")
        file.write_text(" ".join(changed) if file.suffix == ".xml" else "\n".join(changed))
        return file.name

    return damage


def array_data(root: Path, targets: str) -> Damage:
    file, rng = root / "toy.npz", np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (4, 6, 5, 3), np.uint8),
        "y_train": np.arange(4) % 2,
        "x_test": rng.integers(0, 256, (2, 6, 5), np.uint8),
        "y_test": np.arange(2, dtype=np.uint64),
        "classes": np.array(["cat", "dog"]),
    }
    root.mkdir(exist_ok=True)
    np.savez(file, **arrays)
    return one_of([damage_file(file), _damage_arrays(file), _damage_heads(file)], files_below(root))


def _damage_heads(file: Path) -> Damage:
    """A whole archive of arrays of which one says wrong things about itself, or is damaged."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}

    def damage(rng: random.Random) -> str:
        name = rng.choice(list(members))
        content = members[name]
        if rng.random() < 0.6:
            dtype = rng.choice(["|u1", "<i8", "<u8", "<f8", "|O", "<U2", "|S0", "<M8[s]", "x", "|V9999999999"])
            sizes = rng.choice(
                ["4,", "10000000000000,", "4, 6, 5, 3", "99999999, 6, 5, 3", "-4,", "0,", "2**70,", "'a',"]
            )
            head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({sizes}), }}".ljust(117) + "\n"
            content = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + content[128:]
        else:
            content = mutated_bytes(content, rng)
        with zipfile.ZipFile(file, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
            for other in members:
                archive.writestr(other, content if other == name else members[other])
        return name

    return damage


def _damage_arrays(file: Path) -> Damage:
    """Honest arrays of the wrong kind."""
    good = dict(np.load(file))

    def damage(rng: random.Random) -> str:
        name = rng.choice(list(good))
        value = rng.choice(
            [
                np.array([2**64 - 1, 0, 0, 0], np.uint64),
                np.array([10**12, 0, 0, 0]),
                np.array([-1, 0, 0, 0]),
                np.array([np.nan, 0, 0, 0]),
                np.zeros((4, 0)),
                np.zeros((2, 6, 5, 3), np.uint8),
                np.zeros(()),
                np.array("\ud800"),
                np.array(["a" * 5_000]),
                np.zeros(4, np.dtype([("a", "i4")])),
                np.zeros(4, bool),
            ]
        )
        np.savez(file, **{**good, name: value} if rng.random() < 0.9 else {name: value})
        return name

    return damage


def shard_data(root: Path, targets: str) -> Damage:
    pixels = io.BytesIO()
    Image.new("RGB", (6, 5)).save(pixels, "PNG")
    samples = {"0.png": pixels.getvalue(), "0.cls": b"0", "1.png": pixels.getvalue(), "1.json": b'{"label": 1}'}
    for split in ("train", "val"):
        write_shard(root / f"{split}-000000.tar", samples)
    good = files_below(root)

    def damage_samples(rng: random.Random) -> str:
        changed = dict(samples)
        name = rng.choice(list(samples))
        value = hostile(rng)
        if name.endswith(".json"):
            changed[name] = as_text(mutated_tree({"label": 1}, rng)).encode()
        elif name.endswith(".cls") and rng.random() < 0.8:
            changed[name] = str(value).encode(errors="replace") if rng.random() < 0.7 else rng.randbytes(8)
        else:
            changed.pop(name)
            changed[_joined(value, "")[:3_000] or "x"] = samples[name]
        write_shard(root / "train-000000.tar", changed)
        return name

    def damage_index(rng: random.Random) -> str:
        for file in root.glob(".vitreous-*.npz"):
            file.write_bytes(mutated_bytes(file.read_bytes(), rng))
        return "index"

    return one_of([*(damage_file(file) for file in good), damage_samples, damage_samples, damage_index], good)


def mask_data(root: Path, targets: str) -> Damage:
    for split in ("train", "val"):
        for seed in range(2):
            picture(root / "images" / split / f"{seed}.png", seed=seed)
            mask(root / "masks" / split / f"{seed}.png", np.arange(1200).reshape(30, 40) % 3, palette=seed == 1)
    (root / "classes.txt").write_text("sky\nroad\ncar 1 2 3\n")
    (root / "quarantine.txt").write_text("train/9.png\tbroken\n")
    good = files_below(root / "masks") | {file: file.read_bytes() for file in root.glob("*.txt")}
    return one_of([damage_file(file) for file in good], good)


def tree_data(root: Path, targets: str) -> Damage:
    """Masks whose classes a JSON or YAML file lists."""
    mask_data(root, targets)
    (root / "classes.txt").unlink()
    tree = {"classes": [{"name": "sky", "id": 0}, {"name": "road", "id": 1}, {"name": "car", "id": 2}]}
    kinds = []
    for name in ("classes.json", "masks/classes.yaml"):
        (root / name).write_text(as_text(tree))
        kinds += [damage_tree(root / name, tree), damage_file(root / name)]
    good = {root / name: as_text(tree).encode() for name in ("classes.json", "masks/classes.yaml")}

    def alone(rng: random.Random) -> str:
        (root / "classes.json").unlink()  # it goes before the other
        return rng.choice(kinds[2:])(rng)

    return one_of([*kinds[:2], alone], good)


def pet_data(root: Path, targets: str) -> Damage:
    names = [f"{kind}_{number}" for kind in ("cat", "dog") for number in range(3)]
    for seed, name in enumerate(names):
        picture(root / "images" / f"{name}.jpg", seed=seed)
        mask(root / "annotations" / "trimaps" / f"{name}.png", np.arange(1200).reshape(30, 40) % 3 + 1)
    for split, chosen in (("trainval", names[::2]), ("test", names[1::2])):
        (root / "annotations" / f"{split}.txt").write_text("".join(f"{name} 1 1 1\n" for name in chosen))
    good = files_below(root / "annotations")
    return one_of(
        [damage_file(file) for file in good] + [_damage_values(file) for file in good if file.suffix == ".txt"], good
    )


def instance_data(root: Path, targets: str) -> Damage:
    for seed in range(4):
        picture(root / "PNGImages" / f"{seed}.png", seed=seed)
        mask(root / "PedMasks" / f"{seed}_mask.png", np.arange(1200).reshape(30, 40) // 400)
    (root / "classes.txt").write_text("walker\n")
    good = files_below(root / "PedMasks") | {root / "classes.txt": b"walker\n"}
    return one_of([damage_file(file) for file in good], good)


def metadata_data(root: Path, targets: str) -> Damage:
    """Class folders with a table in train and objects a line in val."""
    rows = [{"file_name": f"{kind}/{n}.png", "place": "garden", "camera": n} for kind in ("cat", "dog") for n in (0, 1)]
    for split in ("train", "val"):
        for row in rows:
            picture(root / split / row["file_name"], seed=row["camera"])
    table = "file_name,place,camera\n" + "".join(f"{','.join(map(str, row.values()))}\n" for row in rows)
    (root / "train" / "metadata.csv").write_text(table)
    (root / "val" / "metadata.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    good = {file: file.read_bytes() for file in root.glob("*/metadata.*")}
    lines = damage_tree(root / "val" / "metadata.jsonl", rows[0])
    return one_of([*(damage_file(file) for file in good), lines, _damage_values(root / "train" / "metadata.csv")], good)


def table_data(root: Path, targets: str) -> Damage:
    """A table in each of whose cells something may stand."""
    boxes = {"labels": ("", ""), "boxes": ("x1,y1,x2,y2,", "1,2,9,8,")}[targets]
    rows = [
        f"{number}.png,{boxes[1]}{('cat', 'dog')[number % 2]},{('train', 'val')[number // 2]}" for number in range(4)
    ]
    for number in range(4):
        picture(root / f"{number}.png", seed=number)
    file = root / "photos.csv"
    file.write_text("\n".join([f"path,{boxes[0]}label,split", *rows]))
    return one_of([damage_file(file), _damage_values(file)], {file: file.read_bytes()})


LAYOUTS = {
    "table of labels": (table_data, "labels"),
    "table of boxes": (table_data, "boxes"),
    "metadata": (metadata_data, "labels"),
    "coco": (coco_data, "boxes"),
    "coco keypoints": (coco_data, "keypoints"),
    "yolo": (yolo_data, "boxes"),
    "yolo keypoints": (yolo_data, "keypoints"),
    "voc": (voc_data, "boxes"),
    "arrays": (array_data, "labels"),
    "shards": (shard_data, "labels"),
    "masks": (mask_data, "semantic"),
    "trees of classes": (tree_data, "semantic"),
    "coco files": (coco_data, "boxes"),
    "pets": (pet_data, "semantic"),
    "instances": (instance_data, "boxes"),
}


def damaged_layouts(tmp_path: Path, layout: str, count: int) -> None:
    make, targets = LAYOUTS[layout]
    root = tmp_path / "data"
    damage = make(root, targets)
    files = "+".join(str(file) for file in sorted((root / "annotations").glob("*.json")))
    tables = {f"table of {kind}": f"{root}/photos.csv" for kind in ("labels", "boxes")}
    data = {"arrays": f"{root}/toy.npz", "coco files": f"{root}/images+{files}", **tables}.get(layout, str(root))
    look_through(data, targets)  # in order, to begin with
    good = many(damage, lambda: look_through(data, targets), count, seed=1)
    assert good < count, "some of the damage shows"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_damaged_data_are_read_or_refused(tmp_path, monkeypatch, layout):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    damaged_layouts(tmp_path, layout, FEW)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_thousands_of_damaged_data(tmp_path, monkeypatch, layout):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    damaged_layouts(tmp_path, layout, MANY)


def test_the_harness_notices_other_errors(tmp_path):
    def careless() -> None:
        raise KeyError("x")

    with pytest.raises(AssertionError, match="gave KeyError"):
        many(lambda rng: "x", careless, 1, seed=0)
    with pytest.raises(AssertionError, match="does not name"):
        many(lambda rng: "x", lambda: (_ for _ in ()).throw(InputError("no")), 1, seed=0, named="some file")
