"""Every head of every dense task through train, evaluate, predict and explain, on data with all that may be wrong.

A run takes two steps, so that its figures are no better than chance; that every verb takes the head, and that no loss
is lost to poor targets, is what counts.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_data import annotation, mask, picture
from tests.support.tiny_runs import DENSE
from vitreous.check import check
from vitreous.data.shapes.samples import KEYPOINTS
from vitreous.errors import InputError
from vitreous.evaluate import evaluate
from vitreous.explain import explain
from vitreous.heads.detect import DETECTORS
from vitreous.heads.segment import SEGMENTERS
from vitreous.predict import predict
from vitreous.runs.model_folder import load_model
from vitreous.shapes import shapes
from vitreous.train import train

SETTINGS = {key: value for key, value in DENSE.items() if key not in ("train_count", "val_count")} | dict(
    epochs=1, batch_size=3, warmup_epochs=0.0
)
BY_TASK: dict[str, dict[str, Any]] = {
    "detect": dict(short=(64,), longest=96),
    "segment": dict(short=(64,), crop=(64, 64)),
    "keypoints": dict(crop=(64, 64)),
}
REGIONS = ("channels=16", "hidden=32", "convs=1", "samples=32", "proposals=50", "anchor_sizes=(8,16,32,64,128)")
SMALL: dict[str, tuple[str, ...]] = {
    "maskrcnn": REGIONS,
    "fasterrcnn": REGIONS,
    "retinanet": ("channels=16", "convs=1"),
    "fcos": ("channels=16", "convs=1"),
    "atss": ("channels=16", "convs=1"),
    "ssd": ("channels=32", "size=64"),
    "ssdlite": ("channels=32", "size=64"),
    "sparsercnn": ("channels=16", "proposals=12", "rounds=2", "inner=8", "hidden=32"),
    "fpn": ("pyramid=16", "width=16"),
    "upernet": ("width=16", "auxiliary_width=8"),
    "paca": ("width=16",),
    "heatmaps": ("width=16",),
}
TASKS = dict.fromkeys(DETECTORS, "detect") | dict.fromkeys(SEGMENTERS, "segment") | {"heatmaps": "keypoints"}
FIGURES = {"detect": "AP", "segment": "mIoU", "keypoints": "PCK@0.1"}
WIDE, TALL = (80, 48), (48, 80)  # pictures beside the square ones


def poor_objects(root: Path) -> Path:
    """Boxes that cannot be learnt, a crowd alone, a picture without objects, keypoints all outside of their box."""
    shapes(out=root, format="coco", count=4, val=1, size=64)
    for split in ("train", "val"):
        (file,) = (root / "annotations").glob(f"*_{split}.json")
        content = json.loads(file.read_text())
        category = content["categories"][0]["id"]
        for number, size in ((1001, WIDE), (1002, TALL)):
            picture(root / "images" / split / f"{number}.png", size)
            width, height = size
            content["images"].append(
                {"id": number, "file_name": f"{split}/{number}.png", "width": width, "height": height}
            )
        bad = [(3, 3, 0, 4), (9, 9, -4, 3), (200, 9, 5, 5), (-8, -8, 20, 20), (30, 20, 0.5, 0.5)]
        away = [0, 0, 0] * (len(KEYPOINTS) - 1) + [79, 47, 2]
        rows = [annotation(9000 + n, 1001, category, box) for n, box in enumerate(bad)]
        rows += [annotation(9100, 1001, category, (2, 2, 5, 5), keypoints=away, num_keypoints=1)]
        rows += [annotation(9101, 1001, category, (10, 10, 60, 30), iscrowd=1)]
        content["annotations"] += rows
        file.write_text(json.dumps(content))
    return root


def poor_masks(root: Path) -> Path:
    """A picture and another one on its side without a single pixel that counts."""
    shapes(out=root, format="masks", count=4, val=1, size=64)
    for split in ("train", "val"):
        for number, size in ((1001, WIDE), (1002, TALL)):
            picture(root / "images" / split / f"{number}.png", size)
            mask(root / "masks" / split / f"{number}.png", np.full(size[::-1], 255))
    return root


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> dict[str, str]:
    objects = str(poor_objects(tmp_path_factory.mktemp("objects") / "data"))
    masks = str(poor_masks(tmp_path_factory.mktemp("masks") / "data"))
    return {"detect": objects, "keypoints": objects, "segment": masks}


@pytest.mark.parametrize("head", TASKS)
def test_every_head_takes_every_verb(head, data, tmp_path):
    task = TASKS[head]
    settings = SETTINGS | BY_TASK[task] | dict(task=task, data=data[task], head=head, head_args=SMALL[head])
    run = str(train(**settings, out=tmp_path / "run"))
    figures = evaluate(run, data[task], workers=0, device="cpu", batch_size=3)
    assert 0 <= figures[FIGURES[task]] <= 1
    assert ("mask_AP" in figures) == (head == "maskrcnn")
    predict(run, (f"{data[task]}/images/val",), out=tmp_path / "found", device="cpu", batch_size=3)
    content = json.loads((tmp_path / "found" / "predictions.json").read_text())
    assert [(image["width"], image["height"]) for image in content["images"]] == [(64, 64), WIDE, TALL]
    rows = [row for image in content["images"] for row in image["predictions"]]
    assert all(("segmentation" in row) == (head == "maskrcnn" or task == "segment") for row in rows)
    # Nothing here is sure enough to be taken by itself.
    chosen: dict[str, Any] = {"detect": {"finding": 1}, "segment": {"label": "background"}}.get(task, {})
    picture = (f"{data[task]}/images/val/1002.png",)
    explain(run, picture, out=tmp_path / "why", method=("input_gradient",), top_k=1, device="cpu", **chosen)
    (item,) = json.loads((tmp_path / "why" / "explanation.json").read_text())["images"]
    assert item["clusters"]
    assert item["finding"] or "no object" in item["nothing"]


def test_what_is_wrong_with_the_data_is_told(data):
    told = {task: check(data[task], task=task, workers=0, write=False) for task in ("detect", "segment")}
    boxes = {finding.kind: finding.images for finding in told["detect"].problems}["boxes"]
    assert [text.partition(": ")[2].partition(":")[0] for text in boxes if text.startswith("train/1001.png")] == [
        "annotation 9000 is without area",
        "annotation 9001 is inverted",
        "annotation 9002 is outside",
    ]
    empty = {finding.kind: finding.images for finding in told["segment"].findings}["empty"]
    assert set(empty) == {f"{split}/{number}.png" for split in ("train", "val") for number in (1001, 1002)}


# ---- how label pictures are read ----------------------------------------------------------------------------------


def test_evaluation_reads_label_pictures_as_training_did(tmp_path):
    """Values 0 and 7 stand for no class; read as they are, 7 would be one that the list does not have."""
    values = np.arange(64 * 64).reshape(64, 64) // 1024  # 0 to 3, a quarter of the picture each
    values[:8] = 7
    for split in ("train", "val"):
        for number in range(3):
            picture(tmp_path / "data" / "images" / split / f"{number}.png", (64, 64), seed=number)
            mask(tmp_path / "data" / "masks" / split / f"{number}.png", values)
    (tmp_path / "data" / "classes.txt").write_text("sky\nsea\nland\n")
    known = dict(ignore=(7,), reduce_zero_label=True)
    settings = SETTINGS | BY_TASK["segment"] | dict(task="segment", head_args=SMALL["fpn"], data=str(tmp_path / "data"))
    run = train(**settings, **known, out=tmp_path / "run")
    measure = dict(model=str(run), data=str(tmp_path / "data"), workers=0, device="cpu", split="train")
    assert load_model(run).build_task().reading() == known
    same = evaluate(**measure, json=tmp_path / "same.json")
    assert evaluate(**measure, **known)["mIoU"] == same["mIoU"]
    classes = json.loads((tmp_path / "same.json").read_text())["classes"]
    assert [classes[name]["pixels"] for name in ("sky", "sea", "land")] == [3 * 1024] * 3
    evaluate(**measure, ignore=(0, 3, 7), json=tmp_path / "other.json")
    classes = json.loads((tmp_path / "other.json").read_text())["classes"]
    assert [classes[name]["pixels"] for name in ("sky", "sea", "land")] == [0, 3 * 1024, 3 * 1024]
    with pytest.raises(InputError, match=r"0\.png' holds 7, which none of the 3 classes has"):
        evaluate(**measure, reduce_zero_label=True)
    with pytest.raises(InputError, match="does not know the class 'background'"):  # not that there are no files
        evaluate(**measure | dict(data="shapes"), count=1)
