"""Detection, segmentation and keypoints through all verbs, on models that are trained in seconds."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.openmmlab import PACA, semantic_fpn
from tests.support.tiny_model import save_tiny_model
from tests.support.tiny_runs import DENSE, DENSE_TASKS, TINY_BACKBONE
from vitreous.data.shapes.samples import CATEGORIES, KEYPOINTS
from vitreous.errors import InputError
from vitreous.evaluate import evaluate
from vitreous.explain import explain
from vitreous.metrics.coco import coco_figures
from vitreous.models.arguments import parse_model_arg
from vitreous.predict import predict
from vitreous.runs.model_folder import load_model
from vitreous.runs.run_folder import read_metrics
from vitreous.shapes import shapes
from vitreous.train import Training, train

CHANCE = {"segment": ("mIoU", 0.1), "detect": ("AP50", 0.02), "keypoints": ("PCK@0.1", 0.1)}
HEADS = {"segment": "fpn", "detect": "fcos", "keypoints": "heatmaps"}
KEYS = {"segment": {"segmentation"}, "detect": {"bbox"}, "keypoints": {"keypoints", "bbox"}}


@pytest.fixture(scope="module", params=DENSE_TASKS)
def run(request, tmp_path_factory) -> Path:
    return train(**DENSE | DENSE_TASKS[request.param], out=tmp_path_factory.mktemp("runs") / request.param)


def test_it_learns_what_it_is_shown(run):
    losses = [line["loss"] for line in read_metrics(run) if line["split"] == "train"]
    assert losses[-1] < 0.6 * losses[0]
    name, chance = CHANCE[run.name]
    found = evaluate(str(run / "final"), "shapes", split="train", count=8, workers=0, device="cpu", batch_size=3)
    assert found[name] > 2 * chance


def test_evaluation_is_written_with_its_classes(run, tmp_path):
    evaluate(str(run), "shapes", count=4, workers=0, device="cpu", json=tmp_path / "e.json", markdown=tmp_path / "e.md",
             out=tmp_path / "out", sizes=(96,))  # fmt: skip
    content = json.loads((tmp_path / "e.json").read_text())
    assert {"segment": "mIoU", "detect": "AR100", "keypoints": "keypoint_AP50"}[run.name] in content
    told = content["keypoints" if run.name == "keypoints" else "classes"]
    assert set(KEYPOINTS if run.name == "keypoints" else CATEGORIES) <= set(told)
    assert "| star |" in (tmp_path / "e.md").read_text() or run.name == "keypoints"
    assert content["sizes"][0]["size"] == 96


def test_predictions_are_cocos_and_in_pixels_of_the_picture(run, tmp_path):
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 90, 3), dtype=np.uint8))
    (tmp_path / "in").mkdir()
    for name in ("17.png", "4.png"):
        picture.save(tmp_path / "in" / name)
    results = predict(str(run), (str(tmp_path / "in"),), out=tmp_path / "out", device="cpu")
    rows = json.loads((tmp_path / "out" / "coco_results.json").read_text())
    assert {row["image_id"] for row in rows} <= {4, 17}
    assert all(KEYS[run.name] | {"category_id", "score"} <= set(row) for row in rows)
    assert [(result["width"], result["height"]) for result in results] == [(90, 50)] * 2
    content = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*content["files"], "predictions.json"}
    names = {entry["id"]: entry["name"] for entry in content["categories"]}
    for result in results:
        assert all(row["class"] == names[row["category_id"]] for row in result["predictions"])
        assert Image.open(tmp_path / "out" / result["drawing"]).width >= 320
    if run.name == "segment":
        assert Image.open(tmp_path / "out" / results[0]["labels"]).size == (90, 50)
        covered = sum(np.prod(row["segmentation"]["size"]) for row in rows[:1])
        assert covered == 50 * 90


def detections(truth: dict, score: float = 1.0) -> list[dict]:
    """The annotated boxes as a detector's results."""
    shown = ("image_id", "category_id", "bbox")
    return [{**{key: row[key] for key in shown}, "score": score} for row in truth["annotations"]]


@pytest.fixture(scope="module")
def people(tmp_path_factory) -> Path:
    """Pictures with several objects each, of which some have no keypoints and one is a crowd."""
    root = tmp_path_factory.mktemp("people") / "coco"
    shapes(out=root, format="coco", count=8, val=12, size=64)
    (file,) = root.rglob("*val*.json")
    truth = json.loads(file.read_text())
    for place, row in enumerate(truth["annotations"]):
        if place % 5 == 1:
            row["keypoints"], row["num_keypoints"] = [0] * len(row["keypoints"]), 0
    truth["annotations"][3]["iscrowd"] = 1
    file.write_text(json.dumps(truth))
    return file


@pytest.mark.parametrize("run", ["keypoints"], indirect=True)
def test_annotated_boxes_given_as_detections_score_the_same(run, people, tmp_path):
    options = dict(workers=0, device="cpu", batch_size=3)
    data, truth = str(people.parents[1]), json.loads(people.read_text())
    annotated = evaluate(str(run), data, **options)
    labelled = {**truth, "annotations": [r for r in truth["annotations"] if r["num_keypoints"] and not r["iscrowd"]]}
    (tmp_path / "boxes.json").write_text(json.dumps(detections(labelled)))
    detected = evaluate(str(run), data, boxes=tmp_path / "boxes.json", json=tmp_path / "e.json", **options)
    assert annotated["keypoint_AP50"] > 0
    figures = {name: value for name, value in annotated.items() if name.startswith("keypoint_")}
    assert {name: detected[name] for name in figures} == figures
    assert "PCK@0.1" not in detected, "whose a box of a detector is, nobody knows"
    assert json.loads((tmp_path / "e.json").read_text())["boxes"] == str(tmp_path / "boxes.json")


@pytest.mark.parametrize("run", ["keypoints"], indirect=True)
def test_keypoints_on_boxes_of_a_detector_score_as_coco_scores_the_results_of_predict(run, people, tmp_path):
    """Some boxes are off, some are of nothing, one picture has none; annotations without keypoints are no mistakes."""
    truth, rng = json.loads(people.read_text()), np.random.default_rng(0)
    rows = [row for row in detections(truth) if row["image_id"] != truth["images"][2]["id"]]
    for row in rows:
        row["bbox"] = (np.array(row["bbox"]) + rng.normal(0, 1.5, 4)).clip(1).tolist()
        row["score"] = float(rng.uniform(0.2, 1))
    rows += [{**rows[0], "bbox": [1, 1, 12, 15], "image_id": image["id"]} for image in truth["images"][4:6]]
    boxes = tmp_path / "boxes.json"
    boxes.write_text(json.dumps(rows))
    pictures = {image["id"]: next(people.parents[1].rglob(image["file_name"])) for image in truth["images"]}
    (tmp_path / "in").mkdir()
    for number, picture in pictures.items():  # as COCO's are called
        shutil.copy(picture, tmp_path / "in" / f"{number:012d}.png")
    predict(str(run), (str(tmp_path / "in"),), boxes=boxes, min_score=0.0, out=tmp_path / "out", device="cpu")
    expected = coco_figures(truth, json.loads((tmp_path / "out" / "coco_results.json").read_text()), "keypoints")
    found = evaluate(str(run), str(people.parents[1]), boxes=boxes, workers=0, device="cpu")
    assert {name: found[f"keypoint_{name}"] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert 0 < expected["AP50"] < 1


@pytest.mark.parametrize("run", ["keypoints"], indirect=True)
def test_predictions_of_a_detector_name_the_pictures_of_the_data(run, tmp_path):
    """`predict` on samples of the embedded data, or on files, then `evaluate` on the same."""
    found = {"class": "star", "bbox": [5, 6, 20, 30], "score": 0.9}
    images = [{"image": f"shapes:val:{index}", "predictions": [found, {**found, "class": "dog"}]} for index in (0, 3)]
    (tmp_path / "boxes.json").write_text(json.dumps({"images": images}))
    options = dict(boxes=tmp_path / "boxes.json", count=4, workers=0, device="cpu", out=tmp_path / "out")
    evaluate(str(run), "shapes", **options)
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["images"] == 2
    images[0]["image"], images[1]["image"] = "elsewhere/1.png", "elsewhere/2.png"
    (tmp_path / "boxes.json").write_text(json.dumps({"images": images}))
    with pytest.raises(InputError, match=r"--boxes .*boxes\.json is about other pictures, such as 'elsewhere/1\.png'"):
        evaluate(str(run), "shapes", **options)


@pytest.mark.parametrize("run", ["detect"], indirect=True)
def test_boxes_are_for_keypoints_alone(run, tmp_path):
    with pytest.raises(
        InputError, match="--boxes given, which this model's task cannot use; detect accepts: --min-score"
    ):
        evaluate(str(run), "shapes", boxes=tmp_path / "boxes.json", count=2, workers=0, device="cpu")


@pytest.mark.parametrize("run", ["keypoints"], indirect=True)
def test_a_list_of_cocos_results_needs_pictures_named_by_number(run, tmp_path):
    Image.new("RGB", (60, 50)).save(tmp_path / "a.png")
    rows = [{"image_id": 1, "category_id": 1, "bbox": [5, 6, 20, 30], "score": 0.9}]
    (tmp_path / "boxes.json").write_text(json.dumps(rows))
    with pytest.raises(InputError, match=r"know pictures by number, and these are not named by their numbers"):
        predict(str(run), (str(tmp_path / "a.png"),), boxes=tmp_path / "boxes.json", device="cpu")


@pytest.mark.parametrize("run", ["keypoints"], indirect=True)
def test_keypoints_are_looked_for_where_a_detector_found_something(run, tmp_path):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (60, 50)).save(tmp_path / name)
    sure, unsure = ({"class": "star", "bbox": [5, 6, 20, 30], "score": score} for score in (0.9, 0.1))
    flat, other = {**sure, "bbox": [5, 6, 0, 30]}, {**sure, "class": "dog"}
    content = {"a": [sure, unsure, flat, other], "b": [unsure]}
    images = [{"image": str(tmp_path / f"{name}.png"), "predictions": rows} for name, rows in content.items()]
    (tmp_path / "boxes.json").write_text(json.dumps({"images": images}))
    options = dict(boxes=tmp_path / "boxes.json", device="cpu")
    first, second = predict(str(run), tuple(image["image"] for image in images), out=tmp_path / "out", **options)
    assert [row["bbox"] for row in first["predictions"]] == [[5, 6, 20, 30]]
    assert second["predictions"] == [], "where nothing was found, the whole picture is no object either"
    assert (tmp_path / "out" / second["drawing"]).is_file()
    Image.new("RGB", (60, 50)).save(tmp_path / "c.png")
    with pytest.raises(InputError, match=r"--boxes says nothing about .*c\.png.* such as .*a\.png"):
        predict(str(run), (str(tmp_path / "c.png"),), **options)


def test_a_finding_is_explained(run, tmp_path):
    options = dict(finding=1, method=("grad_cam",), device="cpu")
    report = explain(str(run), ("shapes:train:0",), out=tmp_path / "out", **options)
    content = json.loads((report.parent / "explanation.json").read_text())
    (item,) = content["images"]
    assert item["finding"] == item["findings"][0]
    assert len(item["clusters"]) == 6
    assert all((tmp_path / "out" / name).is_file() for name in content["files"])


def test_the_folder_says_all_it_takes_to_build_it_again(run):
    trained = load_model(run)
    assert trained.task == run.name
    given = dict(parse_model_arg(text) for text in DENSE_TASKS[run.name]["head_args"])
    assert (trained.task_args["head"], trained.task_args["head_args"]) == (HEADS[run.name], given)
    assert trained.build_task().arguments() == trained.task_args
    again = load_model(run / "best")
    images = torch.rand(1, 3, 64, 64)
    sizes = {} if run.name == "keypoints" else {"sizes": torch.tensor([[64, 64]])}
    one, two = trained.model(images, **sizes), again.model(images, **sizes)
    one, two = (value[0]["scores"] if isinstance(value, list) else value for value in (one, two))
    assert torch.equal(one, two)


# ---- where a model starts from ----------------------------------------------------------------------------------

QUICK = DENSE | DENSE_TASKS["segment"] | dict(model_args=TINY_BACKBONE, epochs=1, warmup_epochs=0.0)


def test_a_classifier_gives_its_backbone_and_says_so(tmp_path, capsys):
    source = save_tiny_model(tmp_path / "classifier")
    out = train(**QUICK | dict(weights=source, model_args=(), lr=1e-12, min_lr=0.0), out=tmp_path / "run")
    assert f"the backbone's are those of {source}; the head is new" in capsys.readouterr().out
    theirs, ours = load_model(source).model.state_dict(), load_model(out).model.state_dict()
    shared = {key: f"levels.body.model.{key}" for key in theirs if f"levels.body.model.{key}" in ours}
    assert len(shared) == len([key for key in theirs if not key.startswith("head.")])
    for key, name in shared.items():
        if "running" not in key and "tracked" not in key:
            assert torch.allclose(theirs[key], ours[name], atol=1e-6), key  # one step at a rate of 1e-12


def test_a_run_with_the_same_head_gives_all_and_with_another_its_backbone(tmp_path, capsys):
    first = train(**QUICK, out=tmp_path / "first")
    train(**QUICK | dict(weights=str(first)), out=tmp_path / "same")
    assert f"weights: {first}, backbone and head" in capsys.readouterr().out
    changes = dict(weights=str(first), task="detect", head_args=("channels=16", "convs=1"), crop=(), rescale=())
    train(**QUICK | changes, out=tmp_path / "other")
    shown = capsys.readouterr().out
    assert f"weights: {first}; " in shown
    assert "of the head's" in shown
    with pytest.raises(InputError, match=r"of the backbone's .* tensors are there"):
        train(**QUICK | dict(weights=str(first), model="paca_b0", model_args=()), out=tmp_path / "wrong")


def test_resuming_and_averages_work_as_for_classifiers(tmp_path, monkeypatch):
    settings = QUICK | dict(epochs=2, ema=0.9, accumulate=2, head_lr=2.0, layer_decay=0.9)
    whole = train(**settings, out=tmp_path / "whole")
    original = Training.finish_epoch

    def stop(self, epoch, scores, seconds):
        original(self, epoch, scores, seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr(Training, "finish_epoch", stop)
    with pytest.raises(KeyboardInterrupt):
        train(**settings, out=tmp_path / "cut")
    monkeypatch.undo()
    cut = train(**settings, out=tmp_path / "cut")
    one, two = load_model(whole / "final").model.state_dict(), load_model(cut / "final").model.state_dict()
    assert all(torch.equal(one[key], two[key]) for key in one)


# ---- mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(head="upernett"), "unknown head 'upernett'; accepted for this task: fpn, upernet, paca"),
        (dict(head_args=("widht=3",)), "unknown argument 'widht' of the head 'fpn'; nearest: width"),
        (dict(head_args=("width",)), "head_args 'width' cannot be read; write name=value"),
        (
            dict(mixup=0.5),
            r"mixup 0.5 cannot be used; it must be left out: it is for --task classify, and this is se",
        ),
        (dict(task="classify", head_args=(), crop=(), rescale=()), r"short \(64,\) cannot be used"),
        (dict(crop=(64,)), "--crop .* needs a height and a width"),
        (dict(model="vit_tiny_patch16_224", model_args=()), "all maps of this model have stride 16"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing_behind(tmp_path, wrong, message):
    with pytest.raises(InputError, match=message):
        train(**QUICK | wrong, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_way_of_inference_the_task_has_not_is_refused(run):
    if run.name == "segment":
        found = [evaluate(str(run), "shapes", count=2, workers=0, device="cpu", **way)["mIoU"]
                 for way in (dict(), dict(flip=True, scales=(0.5, 1.0)), dict(slide=True))]  # fmt: skip
        assert found[0] == found[2]  # a picture no larger than the window is the window
        return
    with pytest.raises(InputError, match="--slide given, which this model's task cannot use"):
        evaluate(str(run), "shapes", count=2, workers=0, device="cpu", slide=True)


# ---- other data ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_toolbox_starts_a_run(tmp_path, capsys):
    state, _ = semantic_fpn()
    torch.save({"state_dict": state}, tmp_path / "sem_fpn.pth")
    paca = tuple(f"{name}={value}" for name, value in PACA.items())
    changes = dict(model_args=paca, head_args=("pyramid=12", "width=10"), weights=str(tmp_path / "sem_fpn.pth"))
    train(**QUICK | changes, out=tmp_path / "run")
    assert "in the names of OpenMMLab's toolboxes: " in capsys.readouterr().out


def test_classes_in_another_order_are_matched_by_name(run, tmp_path):
    """The same pictures with categories numbered backwards give the same figures."""
    if run.name != "detect":
        return
    data = shapes(out=tmp_path / "data", format="coco", count=2, val=8, size=64)
    first = evaluate(str(run), str(data), workers=0, device="cpu")
    for file in (data / "annotations").iterdir():
        content = json.loads(file.read_text())
        for row in content["categories"]:
            row["id"] = 100 - row["id"]
        for row in content["annotations"]:
            row["category_id"] = 100 - row["category_id"]
        file.write_text(json.dumps(content))
    again = evaluate(str(run), str(data), workers=0, device="cpu")
    assert again["AP"] == first["AP"]
