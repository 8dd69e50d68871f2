"""`vitreous shapes`: each layout read back gives the scenes that were drawn; refusals touch nothing."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.data.image import load_image
from vitreous.data.shapes.samples import CATEGORIES, KEYPOINTS, Shapes
from vitreous.data.source import open_data
from vitreous.errors import InputError
from vitreous.runtime import console
from vitreous.shapes import run_length_counts, shapes


def picture(path) -> np.ndarray:
    return np.asarray(load_image(path))


def test_class_folders(tmp_path):
    out = shapes(out=tmp_path / "toy", count=20, size=32, seed=3)
    assert out == tmp_path / "toy"
    assert sorted(entry.name for entry in out.iterdir()) == ["train", "val"]
    for split, count in (("train", 20), ("val", 10)):
        data = Shapes(split, count=count, size=32, seed=3)
        assert sorted(folder.name for folder in (out / split).iterdir()) == sorted(CATEGORIES)
        assert len(list((out / split).glob("*/*.png"))) == count
        for index, scene in enumerate(data):
            path = out / split / CATEGORIES[scene.label] / f"{index:06d}.png"
            assert np.array_equal(picture(path), scene.image)


def test_object_masks_of_class_folders(tmp_path):
    out = shapes(out=tmp_path / "toy", count=10, size=32, object_masks=True, shortcut="corner_mark=1")
    there, drawn = (open_data(str(data), "val", size=(32, 32)) for data in (out, "shapes"))
    for index in range(10):
        number = int(Path(there.name(index)).stem)
        assert np.array_equal(there.object_mask(index), drawn.object_mask(number))
    with pytest.raises(InputError, match="--object-masks goes with the format folder"):
        shapes(out=tmp_path / "other", format="coco", object_masks=True)


def decoded(segmentation: dict) -> np.ndarray:
    """COCO's uncompressed run lengths as a mask."""
    values = np.arange(len(segmentation["counts"])) % 2
    return np.repeat(values, segmentation["counts"]).reshape(segmentation["size"], order="F").astype(bool)


def test_coco(tmp_path):
    out = shapes(out=tmp_path / "toy", format="coco", count=6, val=3, size=(40, 56), difficulty="medium")
    for split, count in (("train", 6), ("val", 3)):
        content = json.loads((out / "annotations" / f"instances_{split}.json").read_text())
        assert [c["name"] for c in content["categories"]] == list(CATEGORIES)
        assert all(c["keypoints"] == list(KEYPOINTS) for c in content["categories"])
        ids = [a["id"] for a in content["annotations"]]
        assert ids == list(range(1, len(ids) + 1))
        scenes = Shapes(split, count=count, size=(40, 56), difficulty="medium")
        for image, scene in zip(content["images"], scenes, strict=True):
            assert (image["height"], image["width"]) == (40, 56)
            assert image["id"] == int(Path(image["file_name"]).stem), "as `predict` numbers its answers"
            assert np.array_equal(picture(out / "images" / image["file_name"]), scene.image)
            found = [a for a in content["annotations"] if a["image_id"] == image["id"]]
            assert [a["category_id"] - 1 for a in found] == scene.labels.tolist()
            for annotation, mask, box, points in zip(found, scene.masks, scene.boxes, scene.keypoints, strict=True):
                x, y, width, height = annotation["bbox"]
                assert [x, y, x + width, y + height] == box.tolist()
                assert annotation["area"] == mask.sum()
                assert annotation["iscrowd"] == 0
                assert np.array_equal(decoded(annotation["segmentation"]), mask)
                assert np.allclose(np.reshape(annotation["keypoints"], (-1, 3)), points, atol=0.006)
                assert annotation["num_keypoints"] == (points[:, 2] > 0).sum()


def test_pycocotools_reads_the_coco_layout(tmp_path):
    coco = pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed")
    out = shapes(out=tmp_path / "toy", format="coco", count=3, val=0)
    index = coco.COCO(str(out / "annotations" / "instances_train.json"))
    scene = Shapes("train")[0]
    masks = [index.annToMask(annotation) for annotation in index.loadAnns(index.getAnnIds(imgIds=[0]))]
    assert np.array_equal(np.array(masks, bool), scene.masks)


def test_label_masks(tmp_path):
    out = shapes(out=tmp_path / "toy", format="masks", count=4, val=2, size=48)
    assert (out / "classes.txt").read_text().split() == ["background", *CATEGORIES]
    for split, count in (("train", 4), ("val", 2)):
        for index, scene in enumerate(Shapes(split, count=count, size=48)):
            with Image.open(out / "masks" / split / f"{index:06d}.png") as mask:
                assert mask.mode == "P"
                assert np.array_equal(np.asarray(mask), scene.semantic)
            assert np.array_equal(picture(out / "images" / split / f"{index:06d}.png"), scene.image)


@pytest.mark.parametrize("mask", [np.zeros((3, 4), bool), np.ones((3, 4), bool), np.eye(3, 4, dtype=bool)])
def test_run_lengths_return_to_the_mask(mask):
    assert np.array_equal(decoded({"size": mask.shape, "counts": run_length_counts(mask)}), mask)


def test_without_held_out_images(tmp_path):
    out = shapes(out=tmp_path / "deep" / "toy", count=10, val=0, size=32)
    assert [entry.name for entry in out.iterdir()] == ["train"]


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "toy").mkdir()
    assert (shapes(out=tmp_path / "toy", count=10, size=32) / "train").is_dir()


def test_a_used_folder_is_refused_and_untouched(tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("toy", "file"):
        with pytest.raises(InputError, match=r"in use.*new or an empty folder"):
            shapes(out=tmp_path / name, count=10)
    assert (tmp_path / "toy" / "mine.txt").read_text() == "mine"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "toy"]
    with pytest.raises(InputError, match="cannot write"):
        shapes(out=tmp_path / "file" / "toy", count=10)


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_run_leaves_nothing(tmp_path, monkeypatch, fault):
    def fail(*_):
        raise fault

    monkeypatch.setattr(sys.modules[shapes.__module__], "_write_masks", fail)
    with pytest.raises(InputError if isinstance(fault, OSError) else KeyboardInterrupt):
        shapes(out=tmp_path / "toy", format="masks", count=10)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"format": "voc"}, "unknown format 'voc'.*folder, coco, masks"),
        ({"difficulty": "brutal"}, "unknown difficulty 'brutal'"),
        ({"count": 5}, "at least 10"),
        ({"count": 0, "format": "coco"}, "at least 1"),
        ({"count": -3}, "count=-3"),
        ({"val": -1}, "count=-1"),
        ({"size": 8}, "size=8"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_written(tmp_path, wrong, message):
    with pytest.raises(InputError, match=message):
        shapes(out=tmp_path / "toy", **wrong)
    assert list(tmp_path.iterdir()) == []


# ---- progress -----------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_in_plain_lines(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(console, "LINE_INTERVAL_SECONDS", 0.0)
    assert list(console.track(iter("abc"), total=3, label="reading", unit="letters")) == ["a", "b", "c"]
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("reading: 1/3 letters, ")
    assert lines[0].endswith("s left")
    assert lines[-1].startswith("reading: 3/3 letters, ")
    assert len(lines) == 3


def test_plain_lines_are_rare(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    assert sum(console.track(range(1000), total=None, label="adding")) == 499500
    assert len(stream.getvalue().splitlines()) == 1


def test_progress_bar_in_a_terminal(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(console.track("abc", total=3, label="reading")) == ["a", "b", "c"]
    assert "reading" in stream.getvalue()
    assert "3/3" in stream.getvalue()
