"""What `trained.predict` gives for every task: objects that can be looked at, drawn, written down and handed on."""

import json
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coder

import vitreous
from tests.support.tiny_model import save_tiny_dense, save_tiny_model
from vitreous.data.shapes.samples import CATEGORIES
from vitreous.drawing import display
from vitreous.errors import InputError
from vitreous.predict import predict
from vitreous.tasks.classify import Classification
from vitreous.tasks.detect import Detections
from vitreous.tasks.keypoints import Keypoints
from vitreous.tasks.results import PictureResult
from vitreous.tasks.segment import Segmentation

CLASSES = {"detect": ("cat", "dog"), "segment": ("background", "cat", "dog"), "keypoints": ("figure",)}
KINDS = {"classify": Classification, "detect": Detections, "segment": Segmentation, "keypoints": Keypoints}
MASKS = np.zeros((3, 8, 10), np.bool_)
MASKS[0, 2:5, 1:4] = MASKS[2, :, 5:] = True
PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 90, 3), dtype=np.uint8))
FOUND = Detections(
    Image.new("RGB", (10, 8)),
    ("cat", "dog"),
    (3, 18),
    boxes=np.array([[1.0, 2.0, 4.0, 5.0], [0.0, 0.0, 9.0, 7.0], [5.0, 0.0, 10.0, 8.0]]),
    labels=np.array([1, 0, 1]),
    scores=np.array([0.75, 0.5, 0.25]),
    masks=MASKS,
)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    found = {task: save_tiny_dense(folder / task, task, classes) for task, classes in CLASSES.items()}
    return {"classify": save_tiny_model(folder / "classify")} | found


def same(one: PictureResult, other: PictureResult) -> bool:
    return one.to_dict() == other.to_dict() and one.draw().tobytes() == other.draw().tobytes()


@pytest.mark.parametrize("task", KINDS)
def test_a_picture_in_any_form_gives_the_same_result(models, task, tmp_path):
    trained = vitreous.load_model(models[task])
    PICTURE.save(tmp_path / "photo.png")
    first = trained.predict(PICTURE)
    assert type(first) is KINDS[task]
    array = np.array(PICTURE)
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    for given in (str(tmp_path / "photo.png"), tmp_path / "photo.png", array, tensor, tensor / 255):
        assert same(trained.predict(given), first)
    grey = PICTURE.convert("L")
    assert same(trained.predict(np.array(grey)), trained.predict(grey.convert("RGB")))


@pytest.mark.parametrize("task", KINDS)
def test_several_pictures_give_a_list_however_they_come(models, task):
    trained = vitreous.load_model(models[task])
    pictures = [PICTURE, PICTURE.transpose(Image.Transpose.FLIP_LEFT_RIGHT), PICTURE.rotate(90, expand=True)]
    alone = [trained.predict(one) for one in pictures]
    for given in (pictures, tuple(pictures), (one for one in pictures)):
        assert all(map(same, trained.predict(given, batch_size=1), alone))
    together = trained.predict(pictures, batch_size=2)
    assert [one.picture.size for one in together] == [one.size for one in pictures]
    assert trained.predict([]) == []


@pytest.mark.parametrize("task", KINDS)
def test_the_verb_writes_what_the_object_says(models, task, tmp_path):
    PICTURE.save(tmp_path / "7.png")
    predict(models[task], (str(tmp_path / "7.png"),), out=tmp_path / "out", device="cpu")
    result = vitreous.load_model(models[task]).predict(tmp_path / "7.png")
    (row,) = json.loads((tmp_path / "out" / "predictions.json").read_text())["images"]
    assert row | result.to_dict() == row
    assert result.save(tmp_path / "own.png").read_bytes() == (tmp_path / "out" / row["drawing"]).read_bytes()
    assert json.loads(result.save(tmp_path / "own.json").read_text()) == result.to_dict()
    assert Image.open(result.save(str(tmp_path / "own.jpg"))).size == result.draw().size
    if task != "classify":
        assert json.loads((tmp_path / "out" / "coco_results.json").read_text()) == result.to_coco(7)
    with pytest.raises(InputError, match=r"cannot save a result as 'own.tiff'; its name must end in .png, .jpg or"):
        result.save(tmp_path / "own.tiff")


def test_showing_it_opens_a_viewer_or_fills_a_cell(models, monkeypatch):
    shown = []
    monkeypatch.setattr(Image.Image, "show", lambda picture: shown.append(picture))
    monkeypatch.setitem(sys.modules, "IPython", None)
    FOUND.show()
    assert shown[0].tobytes() == FOUND.draw().tobytes()
    notebook, cell = ModuleType("IPython"), ModuleType("IPython.display")
    notebook.get_ipython, cell.display = lambda: object(), shown.append
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", cell)
    display.show_picture(PICTURE)
    assert shown[1] is PICTURE
    assert FOUND._repr_png_().startswith(b"\x89PNG")


def test_options_of_a_task(models):
    classifier, detector = vitreous.load_model(models["classify"]), vitreous.load_model(models["detect"])
    segmenter, poser = vitreous.load_model(models["segment"]), vitreous.load_model(models["keypoints"])
    ranked = classifier.predict(PICTURE, top_k=len(CATEGORIES))
    assert sorted(ranked.names) == sorted(CATEGORIES)
    assert ranked.probabilities.sum() == pytest.approx(1)
    everything = detector.predict(PICTURE)
    score = float(np.median(everything.scores))
    assert len(detector.predict(PICTURE, min_score=score)) == (everything.scores >= score).sum() < len(everything)
    assert not same(segmenter.predict(PICTURE, flip=True, scales=(0.5, 1.0)), segmenter.predict(PICTURE))
    assert not same(poser.predict(PICTURE, flip=True), poser.predict(PICTURE))
    for trained, wrong in ((classifier, dict(flip=True)), (detector, dict(slide=True)), (segmenter, dict(top_k=3)),
                           (segmenter, dict(min_score=0.0)), (detector, dict(boxes=[[0, 0, 9, 9]]))):  # fmt: skip
        option = next(iter(wrong)).replace("_", "-")
        with pytest.raises(InputError, match=f"--{option} given, which this model's task cannot use; {trained.task}"):
            trained.predict(PICTURE, **wrong)
    with pytest.raises(InputError, match="--batch-size 0 cannot be used"):
        classifier.predict(PICTURE, batch_size=0)
    with pytest.raises(InputError, match="a value of the type int was given as a picture"):
        classifier.predict(3)
    classifier.model.train()
    with pytest.raises(InputError, match="training mode"):
        classifier.predict(PICTURE)


def test_keypoints_in_boxes(models):
    poser = vitreous.load_model(models["keypoints"])
    boxes = np.array([[0.0, 0.0, 45.0, 50.0], [45.0, 0.0, 90.0, 50.0]])
    found = poser.predict(PICTURE, boxes=boxes)
    assert found.boxes.tolist() == boxes.tolist()
    assert (len(found), found.points.shape, found.names) == (2, (2, 3, 3), ["figure"] * 2)
    alone = poser.predict([PICTURE, PICTURE], boxes=[boxes[:1], boxes[1:]], batch_size=3)
    np.testing.assert_allclose(np.concatenate([one.points for one in alone]), found.points, rtol=1e-4)
    none = poser.predict(PICTURE, boxes=[])
    assert (len(none), none.summary()) == (0, "nothing with a score from 0.3")
    assert none.draw().size == found.draw().size
    told = Detections(PICTURE, ("dog", "figure"), (1, 2), boxes=boxes, labels=np.array([0, 1]), scores=np.ones(2) / 2)
    (only,) = poser.predict([PICTURE], boxes=[told])
    np.testing.assert_allclose(only.points, found.points[1:], rtol=1e-4)
    np.testing.assert_allclose(only.scores, found.scores[1:] / 2, rtol=1e-4)
    with pytest.raises(InputError, match=r"shape \(2, 3\) given for a picture"):
        poser.predict(PICTURE, boxes=boxes[:, :3])
    with pytest.raises(InputError, match="1 boxes given for 2 pictures"):
        poser.predict([PICTURE, PICTURE], boxes=[boxes])


# ---- detections --------------------------------------------------------------------------------------------------


def test_some_of_them() -> None:
    sure = FOUND[FOUND.scores > 0.3]
    assert (len(FOUND), len(sure), sure.names) == (3, 2, ["dog", "cat"])
    assert sure.masks is not None
    assert sure.masks.shape == (2, 8, 10)
    assert (len(FOUND[:0]), FOUND[1].names, FOUND.kept().names) == (0, ["cat"], ["dog", "cat"])
    assert FOUND.summary() == "1 dog, 1 cat"


def test_coco_rows_hold_the_same_boxes_and_masks() -> None:
    rows = FOUND.to_coco(7)
    assert rows[0] | {"segmentation": None} == {
        "image_id": 7,
        "category_id": 18,
        "bbox": [1.0, 2.0, 3.0, 3.0],
        "score": 0.75,
        "segmentation": None,
    }
    for row, mask in zip(rows, MASKS, strict=True):
        assert np.array_equal(coder.decode(row["segmentation"]), mask)
    assert [row["class"] for row in FOUND.to_dict()["predictions"]] == ["dog", "cat", "dog"]


def test_supervision_is_handed_the_same(monkeypatch: pytest.MonkeyPatch, models) -> None:
    """A stand-in with supervision's argument names: the package itself is not among our requirements."""

    @dataclass
    class Handed:
        xyxy: np.ndarray
        mask: np.ndarray | None
        confidence: np.ndarray
        class_id: np.ndarray
        data: dict[str, Any]

    @dataclass
    class HandedPoints:
        xy: np.ndarray
        keypoint_confidence: np.ndarray
        detection_confidence: np.ndarray
        class_id: np.ndarray
        data: dict[str, Any]

    library = ModuleType("supervision")
    library.Detections, library.KeyPoints = Handed, HandedPoints  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "supervision", library)
    handed = FOUND.to_supervision()
    assert np.array_equal(handed.xyxy, FOUND.boxes)
    assert np.array_equal(handed.mask, MASKS)
    assert handed.confidence.tolist() == [0.75, 0.5, 0.25]
    assert handed.class_id.tolist() == [1, 0, 1]
    assert handed.data["class_name"].tolist() == ["dog", "cat", "dog"]
    points = vitreous.load_model(models["keypoints"]).predict(PICTURE)
    assert points.to_supervision().xy.shape == (1, 3, 2)


def test_without_supervision_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(InputError, match="pip install supervision"):
        FOUND.to_supervision()


def test_results_are_found_at_the_top_of_the_package() -> None:
    for kind in KINDS.values():
        assert getattr(vitreous, kind.__name__) is kind
