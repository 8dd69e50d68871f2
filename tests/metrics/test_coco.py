"""COCO's figures: those of pycocotools to 1e-12, whichever way the data came in."""

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from vitreous.data.annotations import objects_of
from vitreous.errors import InputError, to_install_extra
from vitreous.metrics.coco import FIGURE_NAMES, CocoKind, CocoMetric, coco_figures

REFERENCE = Path(__file__).parents[2].parent / "shared" / "data" / "coco_eval"
CASES = ("val2014_100/bbox", "val2014_100/segm", "padilla/bbox", "keypoints4/keypoints")
EXACT = 1e-12  # the same sums in the same order, but for the last bits
needs_reference = pytest.mark.skipif(
    not REFERENCE.is_dir(), reason="the recorded COCO results, ../shared/data/coco_eval, are not here"
)


def reference(case: str) -> tuple[dict[str, Any], list[dict[str, Any]], str, list[float]]:
    row = json.loads((REFERENCE / "reference_pycocotools.json").read_text())[case]
    truth, results = (json.loads((REFERENCE / row[part]).read_text()) for part in ("gt", "dt"))
    rows = results["annotations"] if isinstance(results, dict) else results
    return truth, rows, row["iou_type"], list(row["stats"].values())


@needs_reference
@pytest.mark.parametrize("case", CASES)
def test_files_score_as_recorded(case: str) -> None:
    truth, results, kind, stats = reference(case)
    figures = coco_figures(truth, results, kind)  # type: ignore[arg-type]
    assert tuple(figures) == FIGURE_NAMES[kind]  # type: ignore[index]
    assert list(figures.values()) == pytest.approx(stats, abs=EXACT)


@needs_reference
@pytest.mark.parametrize("case", CASES[:3])
@pytest.mark.parametrize("parts", [1, 3])
def test_batches_score_as_recorded_also_in_parts(case: str, parts: int) -> None:
    truth, results, kind, stats = reference(case)
    figures = scored(truth, results, kind, parts).compute()
    assert list(figures.values()) == pytest.approx(stats, abs=EXACT)


def scored(truth: dict[str, Any], results: list[dict[str, Any]], kind: str, parts: int) -> CocoMetric:
    """The same through `update`, one picture at a time, dealt to several counters and merged."""
    from pycocotools import mask as coder

    numbers = [category["id"] for category in truth["categories"]]
    counters = [CocoMetric(kind, tuple(map(str, numbers)), numbers) for _ in range(parts)]  # type: ignore[arg-type]
    for place, image in enumerate(truth["images"]):
        rows = [row for row in truth["annotations"] if row["image_id"] == image["id"]]
        found = [row for row in results if row["image_id"] == image["id"]]
        objects = objects_of(rows, [numbers.index(row["category_id"]) for row in rows], masks=kind == "segm")
        prediction = {
            "labels": torch.tensor([numbers.index(row["category_id"]) for row in found], dtype=torch.long),
            "scores": torch.tensor([row["score"] for row in found], dtype=torch.float64),
        }
        if kind == "segm":
            size = (image["height"], image["width"])
            masks = [coder.decode(row["segmentation"]) for row in found] or [np.zeros((0, *size))]
            prediction["masks"] = torch.from_numpy(np.stack(masks).reshape(-1, *size)).bool()
        else:
            sides = torch.tensor([row["bbox"] for row in found], dtype=torch.float64).reshape(-1, 4)
            prediction["boxes"] = torch.cat([sides[:, :2], sides[:, :2] + sides[:, 2:]], 1)
        targets = {
            "image_ids": torch.tensor([image["id"]]),
            "original_sizes": torch.tensor([[image["height"], image["width"]]]),
            "objects": [objects],
        }
        counters[place % parts].update([prediction], targets)
    for counter in counters[1:]:
        counters[0].merge(counter)
    return counters[0]


def oracle(metric: CocoMetric, results: Path) -> list[float]:
    """pycocotools on the written results."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = metric.dataset()
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(str(results)), metric.kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats.tolist()


def pictures(seed: int, count: int = 6) -> tuple[list[dict[str, torch.Tensor]], dict[str, Any]]:
    """Random objects and answers near them, with a crowd, a picture without objects and one without answers."""
    rng = np.random.default_rng(seed)
    predictions, objects = [], []
    for place in range(count):
        corner, side = rng.uniform(0, 40, (5, 2)), rng.uniform(4, 60, (5, 2))
        number = 0 if place == 1 else 5
        rows = [
            {
                "bbox": [*corner[i], *side[i]],
                "id": i,  # 0 is a trap: COCO's evaluation takes it for "not found"
                "iscrowd": int(i == 4),
                "segmentation": [box_outline(corner[i], side[i])],
            }
            for i in range(number)
        ]
        objects.append(objects_of(rows, rng.integers(0, 2, number).tolist(), masks=True))
        near = np.concatenate([corner, corner + side], 1) + rng.normal(0, 3, (5, 4))
        kept = 0 if place == 2 else 5
        boxes = torch.from_numpy(near)[:kept]
        grid = torch.arange(100)
        inside = (grid > boxes[:, :1]) & (grid < boxes[:, 2:3])
        down = (grid > boxes[:, 1:2]) & (grid < boxes[:, 3:])
        predictions.append(
            {
                "boxes": boxes,
                "labels": torch.from_numpy(rng.integers(0, 2, 5))[:kept],
                "scores": torch.from_numpy(rng.uniform(0, 1, 5))[:kept],
                "masks": down[:, :, None] & inside[:, None],
            }
        )
    ids = torch.arange(count) + 10 * seed
    return predictions, {"objects": objects, "image_ids": ids, "original_sizes": torch.full((count, 2), 100)}


def box_outline(corner: np.ndarray, side: np.ndarray) -> list[float]:
    (x, y), (w, h) = corner, side
    return [x, y, x + w, y, x + w, y + h, x, y + h]


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_written_results_are_read_and_scored_alike_by_pycocotools(kind: str, tmp_path: Path) -> None:
    metric = CocoMetric(kind, ("cat", "dog"), (3, 7))  # type: ignore[arg-type]
    metric.update(*pictures(1))
    (tmp_path / "results.json").write_text(json.dumps(metric.results()))
    assert {row["category_id"] for row in json.loads((tmp_path / "results.json").read_text())} == {3, 7}
    figures = list(metric.compute().values())
    assert figures[0] > 0
    assert figures == pytest.approx(oracle(metric, tmp_path / "results.json"), abs=EXACT)
    by_class = metric.per_class()
    assert np.mean(list(by_class.values())) == pytest.approx(figures[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_poor_annotations_score_as_with_pycocotools(kind: CocoKind, tmp_path: Path) -> None:
    """Boxes without area, outside, inverted; a picture with crowds alone, one without annotations; an id twice."""
    predictions, targets = pictures(5)
    boxes = [[10, 10, 0, 8], [300, 300, 20, 20], [60, 60, -20, -10], [-15, -15, 30, 30]]
    rows = [
        {"bbox": box, "id": 1, "segmentation": [box_outline(np.array(box[:2]), np.array(box[2:]))]} for box in boxes
    ]
    crowds = [row | {"iscrowd": 1} for row in rows]
    poor = [objects_of(rows, [0, 1, 0, 1], masks=True), objects_of([], [], masks=True)]
    targets["objects"][-3:] = [*poor, objects_of(crowds, [0, 0, 1, 1], masks=True)]
    for prediction in predictions[-3:]:  # what they miss by is to be seen, so some answers are exact
        prediction["boxes"][:4] = torch.tensor(
            [[10, 10, 10, 18], [300, 300, 320, 320], [60, 60, 40, 50], [0, 0, 15, 15]]
        )
    metric = CocoMetric(kind, ("cat", "dog"))
    metric.update(predictions, targets)
    (tmp_path / "results.json").write_text(json.dumps(metric.results()))
    figures = list(metric.compute().values())
    assert figures[0] > 0
    assert figures == pytest.approx(oracle(metric, tmp_path / "results.json"), abs=EXACT)


def test_parts_in_any_order_and_twice_score_as_the_whole() -> None:
    whole = CocoMetric("bbox", ("cat", "dog"))
    one, two = CocoMetric("bbox", ("cat", "dog")), CocoMetric("bbox", ("cat", "dog"))
    for seed in (1, 2):
        whole.update(*pictures(seed))
    two.update(*pictures(1))
    one.update(*pictures(2))
    one.update(*pictures(2))  # ranks repeat samples to have equally many
    one.merge(two)
    assert one.compute() == whole.compute()
    assert one.results() == whole.results()


def test_perfect_answers_and_none() -> None:
    predictions, targets = pictures(3)
    singles = [objects[~objects.crowd] for objects in targets["objects"]]
    perfect = [
        {
            "boxes": torch.from_numpy(objects.boxes),
            "labels": torch.from_numpy(objects.labels),
            "scores": torch.ones(len(objects)),
        }
        for objects in singles
    ]
    metric = CocoMetric("bbox", ("cat", "dog"))
    metric.update(perfect, targets)
    assert metric.compute()["AP"] == pytest.approx(1)
    nothing = CocoMetric("bbox", ("cat", "dog"))
    empty = [{key: value[:0] for key, value in prediction.items()} for prediction in predictions]
    nothing.update(empty, targets)
    assert nothing.compute()["AP"] == 0
    assert nothing.results() == []
    bare = CocoMetric("bbox", ("cat", "dog"))
    bare.update(predictions, targets | {"objects": [objects[:0] for objects in targets["objects"]]})
    assert bare.compute()["AP"] == -1  # as pycocotools says where there is nothing to find
    assert set(bare.per_class().values()) == {None}


@pytest.mark.parametrize("joints", [17, 4])
def test_keypoints_object_by_object(joints: int, tmp_path: Path) -> None:
    metric = CocoMetric("keypoints", ("person",))
    points = torch.rand(8, joints, 3, generator=torch.Generator().manual_seed(0)) * 60
    points[..., 2] = 2
    targets = {
        "image_ids": torch.tensor([1, 1, 2, 2, 3, 3, 4, 4]),
        "ids": torch.arange(8),
        "labels": torch.zeros(8, dtype=torch.long),
        "area": torch.full((8,), 3000.0),
        "boxes": torch.tensor([[0.0, 0.0, 60.0, 60.0]]).repeat(8, 1),
        "keypoints": points,
    }
    near = points + torch.randn(points.shape, generator=torch.Generator().manual_seed(1)) * 3
    metric.update([{"keypoints": one, "scores": one[:, 2].mean()} for one in near], targets)
    figures = metric.compute()
    assert tuple(figures) == FIGURE_NAMES["keypoints"]
    assert 0 < figures["AP"] < 1
    if joints == 17:  # pycocotools knows no other number
        (tmp_path / "results.json").write_text(json.dumps(metric.results()))
        assert list(figures.values()) == pytest.approx(oracle(metric, tmp_path / "results.json"), abs=EXACT)
    exact = CocoMetric("keypoints", ("person",))
    exact.update([{"keypoints": one, "scores": torch.tensor(0.5)} for one in points], targets)
    assert exact.compute()["AP"] == pytest.approx(1)


@pytest.mark.parametrize("kind", ["bbox", "keypoints"])
def test_classes_have_their_own_figures_whatever_their_numbers(kind: CocoKind) -> None:
    """Found, missed, and not there: in an order that is not that of the categories' numbers."""
    metric = CocoMetric(kind, ("missed", "absent", "found"), (7, 9, 3))
    boxes = torch.tensor([[0.0, 0.0, 60.0, 60.0], [0.0, 0.0, 60.0, 60.0]])
    labels = torch.tensor([0, 2])
    shift = torch.tensor([500.0, 0.0])  # of the answers: far away, and none
    if kind == "bbox":
        rows = [{"id": n, "bbox": [0, 0, 60, 60]} for n in (1, 2)]
        objects = [objects_of([row], [label]) for row, label in zip(rows, labels.tolist(), strict=True)]
        targets: dict[str, Any] = {"objects": objects, "original_sizes": torch.tensor([[600, 600]] * 2)}
        found = [
            {"boxes": box[None] + step, "labels": label[None], "scores": torch.ones(1)}
            for box, label, step in zip(boxes, labels, shift, strict=True)
        ]
    else:
        points = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(0)) * 60
        points[..., 2] = 2
        targets = {"ids": torch.arange(2), "labels": labels, "area": torch.full((2,), 3000.0), "boxes": boxes}
        targets["keypoints"] = points
        found = [
            {"keypoints": one + step, "scores": torch.tensor(1.0)} for one, step in zip(points, shift, strict=True)
        ]
    metric.update(found, targets | {"image_ids": torch.tensor([1, 2])})
    assert metric.per_class() == {"missed": 0.0, "absent": None, "found": pytest.approx(1.0)}


def test_what_cannot_be_scored() -> None:
    with pytest.raises(InputError, match="accepted: bbox, segm, keypoints"):
        CocoMetric("boxes", ("cat",))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="2 category ids given for 1 classes"):
        CocoMetric("bbox", ("cat",), (1, 2))
    with pytest.raises(InputError, match="no image was scored"):
        CocoMetric("bbox", ("cat",)).compute()
    predictions, targets = pictures(1)
    unmasked = [objects_of([], []) for _ in predictions]
    with pytest.raises(InputError, match="image 10 has no annotated masks"):
        CocoMetric("segm", ("cat", "dog")).update(predictions, targets | {"objects": unmasked})


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "faster_coco_eval", None)
    with pytest.raises(InputError, match=re.escape(to_install_extra("det"))):
        CocoMetric("bbox", ("cat",))
