"""`score` and `atlas` of models that find things: the best finding of each picture, against what the data say."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from tests.support.tiny_model import save_tiny_dense
from vitreous.atlas import atlas as write_atlas
from vitreous.attribution.target import BoxTarget, JointTarget, RegionTarget
from vitreous.clusters.atlas_figures import atlas_summary
from vitreous.clusters.gates import cluster_layer
from vitreous.data.layouts.shapes import ShapesImages
from vitreous.data.shapes.samples import CATEGORIES, KEYPOINTS
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.evaluations.settings import open_for
from vitreous.explain import explain
from vitreous.explanations.atlas import NOT_THERE, classes_of, gather
from vitreous.explanations.best_findings import Tally, best_findings
from vitreous.explanations.dataset import selection
from vitreous.explanations.explaining import ON_THIS_IMAGE
from vitreous.runs.model_folder import load_model
from vitreous.score import score
from vitreous.tasks import detect
from vitreous.tasks.base import load_task
from vitreous.tasks.findings import ABSENT

CLASSES = {"detect": CATEGORIES, "segment": ("background", *CATEGORIES), "keypoints": CATEGORIES}
QUICK = ("token_gradient", "input_gradient")
NUMBER = selection(2000, 1)[0]  # the picture that --limit 1 takes


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, str]:
    more = {"keypoints": {"names": KEYPOINTS}}
    folder = tmp_path_factory.mktemp("dense")
    return {task: save_tiny_dense(folder / task, task, CLASSES[task], **more.get(task, {})) for task in CLASSES}


@pytest.fixture
def easily_sure(monkeypatch):
    """A detector that has learned nothing is never sure."""
    monkeypatch.setattr(detect, "MIN_SCORE", 0.0)


def scored(run, out, **options):
    report = score(run, "shapes", out=out, device="cpu", **{"limit": 1, "method": QUICK} | options)
    return json.loads((report.parent / "faithfulness.json").read_text()), report


def numbers(report):
    return json.loads((report.parent / "explanation.json").read_text())["images"][0]


# ---- scores ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", CLASSES)
def test_the_scores_of_a_finding_are_those_of_its_report_and_name_its_default(
    runs, tmp_path, easily_sure, task, capsys
):
    written, report = scored(runs[task], tmp_path / "scores")
    shown = " ".join(capsys.readouterr().out.split())
    assert (written["images"], written["explained"]) == (1, "the best finding of each image")
    rows = {row["method"]: row for row in written["methods"]}
    assert set(rows) >= {*QUICK, "random_map", "centre_blob", "clusters random top 1", "random_weights grad_cam"}
    assert ("oracle_mask" in rows) == bool(written["with_known_object"]) == ("pointing" in rows[QUICK[0]]["measures"])
    default, reason = written["default"]["method"], written["default"]["reason"]
    assert f"default map: {default}" in shown
    assert "the most faithful on the best findings in 1 images of shapes (val)" in reason
    assert "explained: the best finding of each image" in report.read_text()

    if task == "keypoints":  # asks about the object of the data, where a picture alone is taken for one object
        return
    explain(runs[task], (f"shapes:val:{NUMBER}",), out=tmp_path / "out", top_k=1, device="cpu")
    item = json.loads((tmp_path / "out" / "explanation.json").read_text())["images"][0]
    assert item["default"] == {"method": default, "reason": reason}
    assert item["methods"][0]["method"] == default
    assert item["methods"][0]["beats_controls"] is written["default"]["verdicts"][default]
    assert reason.replace("−", "") in (tmp_path / "out" / "report.html").read_text().replace("−", "")
    alike = [method for method in item["methods"] if method["method"] in rows]
    assert {"token_gradient", "input_gradient", "centre_blob"} <= {method["method"] for method in alike}
    for method in alike:
        measures = rows[method["method"]]["measures"]
        for measure in ("insertion_minus_deletion", "insertion_blur", "deletion_blur", "insertion_mean"):
            # Copies of the picture run in other batches: single precision, and a pixel that changes its place.
            assert measures[measure]["mean"] == pytest.approx(method[measure], abs=1e-4)
    named = explain(runs[task], (f"shapes:val:{NUMBER}",), out=tmp_path / "named", method=("grad_cam",), device="cpu")
    assert numbers(named)["default"] == {"method": "grad_cam", "reason": ON_THIS_IMAGE}


def test_without_a_score_the_reason_tells_how_to_get_one(tmp_path):
    run = save_tiny_dense(tmp_path / "run", "segment", CLASSES["segment"])
    report = explain(run, ("shapes:val:0",), out=tmp_path / "out", method=("grad_cam",), device="cpu")
    advice = f"{ON_THIS_IMAGE} Faithfulness to this model was not measured on a data set; vitreous score RUN"
    assert numbers(report)["default"]["reason"].startswith(advice)


def test_pictures_without_a_finding_are_left_out_and_counted(runs, tmp_path, monkeypatch, capsys):
    trained = load_model(runs["detect"])
    monkeypatch.setattr(detect, "MIN_SCORE", 0.0)
    best = []
    images = open_for(trained, "shapes", "val", follow=False)
    for found in best_findings(trained, images, selection(len(images), 4), Tally()):
        best.append(found.target.on("probability")(trained.model(found_inputs(trained, found))).item())
    least = sorted(best)
    monkeypatch.setattr(detect, "MIN_SCORE", (least[0] + least[1]) / 2)
    written, _ = scored(runs["detect"], tmp_path / "some", limit=4, method=("input_gradient",))
    assert (written["images"], written["nothing_found"]) == (3, 1)
    assert "left out: 1 of 4 images, in which the model found nothing" in capsys.readouterr().out
    monkeypatch.setattr(detect, "MIN_SCORE", 0.99)
    for verb in (score, write_atlas):
        with pytest.raises(InputError, match="found nothing in any of 2 images"):
            verb(runs["detect"], "shapes", limit=2, out=tmp_path / "none", device="cpu")
    assert not (tmp_path / "none").exists()


def found_inputs(trained, found):
    pixels = torch.from_numpy(np.array(found.view.picture)).permute(2, 0, 1)
    return trained.preprocess.normalise_bytes(pixels)[None]


def test_data_of_another_kind_are_refused(runs, tmp_path, easily_sure):
    (tmp_path / "data" / "val" / "cat").mkdir(parents=True)
    Image.new("RGB", (32, 32)).save(tmp_path / "data" / "val" / "cat" / "1.png")
    with pytest.raises(InputError, match=r"cannot use data .* to detect: it looks like class folders"):
        score(runs["detect"], str(tmp_path / "data"), out=tmp_path / "out", device="cpu")
    other = save_tiny_dense(tmp_path / "joints", "keypoints", CATEGORIES, names=("top", "left", "right"))
    with pytest.raises(InputError, match=r"the joints of the data \(.*\) are not those of the model \(top, left, ri"):
        scored(other, tmp_path / "out")


# ---- what the data say -------------------------------------------------------------------------------------------


def viewed(task, number, **arguments):
    """The task, a scene of 64 x 64 pixels as a model of 96 x 96 sees it, and the scene's own target."""
    built = load_task(task)(CLASSES[task], **arguments)
    images = ShapesImages("val", targets=built.targets, size=(64, 64))
    target = images.target(number)
    return built, built.truth_view(Preprocess(size=(96, 96)))(images.picture(number), target)[1], target


def test_a_box_stands_for_the_object_it_overlaps_best():
    task, seen, target = viewed("detect", 0, short=96, longest=96)
    objects = target["objects"]
    place = int(objects.area.argmax())
    box = torch.from_numpy(objects.boxes[place] * 1.5).float()
    whole_mask = objects.decoded_masks(64, 64)[place]
    wrong_class = BoxTarget(labels=torch.tensor([99]), boxes=box[None] + 2)
    truth = task.finding_truth(wrong_class, seen, (96, 96))
    assert truth.label == objects.labels[place]
    assert truth.mask.float().mean() == pytest.approx(whole_mask.mean(), rel=0.05)  # its edge moves with the scale
    rows, columns = truth.mask.nonzero().float().mean(0).tolist()
    assert (rows, columns) == pytest.approx([1.5 * axis.mean() for axis in whole_mask.nonzero()], abs=1.5)

    elsewhere = BoxTarget(labels=torch.tensor([0]), boxes=torch.tensor([[0.0, 0.0, 5.0, 5.0]]))
    assert task.finding_truth(elsewhere, seen, (96, 96)) == (None, ABSENT, True)
    crowd = seen | {"crowd": torch.ones_like(seen["crowd"])}
    assert task.finding_truth(wrong_class, crowd, (96, 96)) == (None, ABSENT, True)

    without = {key: value for key, value in seen.items() if key != "masks"}
    mask = task.finding_truth(wrong_class, without, (96, 96)).mask
    top, left = mask.nonzero().min(0).values.tolist()
    bottom, right = (mask.nonzero().max(0).values + 1).tolist()
    assert mask.sum() == (bottom - top) * (right - left)
    assert (left, top, right, bottom) == pytest.approx(box.tolist(), abs=1)


def test_a_region_stands_for_the_true_parts_of_its_class_that_it_meets():
    task, semantic = load_task("segment")(CLASSES["segment"]), torch.zeros(20, 30, dtype=torch.long)
    semantic[2:8, 2:8] = semantic[2:8, 20:28] = 3
    semantic[12:18, 2:8] = 255
    region = torch.zeros(1, 32, 32)
    region[0, 4:10, 4:7] = 1
    truth = task.finding_truth(RegionTarget(labels=torch.tensor([3]), region=region), {"semantic": semantic}, (20, 30))
    assert truth.label == 3
    assert truth.mask.nonzero().min(0).values.tolist() == [2, 2]
    assert truth.mask.nonzero().max(0).values.tolist() == [7, 7]
    assert truth.mask.sum() == 36
    wrong = task.finding_truth(RegionTarget(labels=torch.tensor([1]), region=region), {"semantic": semantic}, (20, 30))
    assert wrong == (None, 3, True)
    region = torch.zeros(1, 32, 32)
    region[0, 13:16, 3:6] = 1
    unlabelled = task.finding_truth(
        RegionTarget(labels=torch.tensor([3]), region=region), {"semantic": semantic}, (20, 30)
    )
    assert unlabelled == (None, None, True)


def test_a_joint_stands_for_a_disc_within_which_it_counts_as_found():
    task, seen, target = viewed("keypoints", 0, crop=(96, 96), names=KEYPOINTS)
    joint = int((target["objects"].keypoints[0, :, 2] > 0).argmax())
    peak = torch.stack(torch.unravel_index(seen["heatmaps"][joint].argmax(), seen["heatmaps"].shape[1:]))
    aim = JointTarget(joints=torch.tensor([joint]), places=peak[None])
    truth = task.finding_truth(aim, seen, (96, 96))
    assert truth.label == joint
    # The heat map to be learnt has its peak at the joint, in cells of four pixels.
    assert truth.mask.nonzero().float().mean(0).tolist() == pytest.approx((4 * peak + 1.5).tolist(), abs=2.5)
    # The larger side of the box is 1 / 1.25 of the crop: a disc with a radius of 7.68 pixels.
    assert truth.mask.sum().item() == pytest.approx(torch.pi * 7.68**2, rel=0.05)
    away = JointTarget(joints=torch.tensor([joint]), places=(peak[None] + 12) % 24)
    assert task.finding_truth(away, seen, (96, 96)).label == ABSENT
    unlabelled = seen | {"keypoints": torch.zeros_like(seen["keypoints"])}
    assert task.finding_truth(aim, unlabelled, (96, 96)) == (None, None, False)


# ---- atlas -------------------------------------------------------------------------------------------------------


@pytest.fixture
def streets(tmp_path):
    """Pictures of two shapes, which a segmenter sees in two shapes too."""
    random = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (tmp_path / "streets" / kind / "val").mkdir(parents=True)
    for number, size in enumerate([(50, 91), (91, 50), (50, 91)]):
        noise = Image.fromarray(random.integers(0, 255, (7, 9, 3), dtype=np.uint8))
        noise.resize(size, Image.Resampling.BICUBIC).save(tmp_path / "streets" / "images" / "val" / f"{number}.png")
        values = Image.fromarray(random.integers(0, 11, (3, 3), dtype=np.uint8))
        values.resize(size, Image.Resampling.NEAREST).save(tmp_path / "streets" / "masks" / "val" / f"{number}.png")
    (tmp_path / "streets" / "classes.txt").write_text("\n".join(CLASSES["segment"]))
    return str(tmp_path / "streets")


def test_what_fills_a_picture_up_is_no_background_of_an_atlas(runs, tmp_path):
    """An object that is the whole picture leaves no background, and an atlas no importance on it."""
    for kind in ("images", "masks"):
        (tmp_path / "whole" / kind / "val").mkdir(parents=True)
    trained = load_model(runs["segment"])
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (7, 9, 3), dtype=np.uint8))
    noise.resize((91, 50), Image.Resampling.BICUBIC).save(tmp_path / "whole" / "images" / "val" / "1.png")
    item = vitreous.explain(trained, str(tmp_path / "whole" / "images" / "val" / "1.png"), methods="centre_blob")
    label = trained.classes.index(item.answer.finding["class"])
    Image.new("L", (91, 50), label).save(tmp_path / "whole" / "masks" / "val" / "1.png")
    (tmp_path / "whole" / "classes.txt").write_text("\n".join(CLASSES["segment"]))
    write_atlas(runs["segment"], str(tmp_path / "whole"), out=tmp_path / "atlas", device="cpu")
    summary = json.loads((tmp_path / "atlas" / "atlas.json").read_text())["summary"]
    assert summary["area"] == pytest.approx(0.0, abs=1e-6)
    assert summary["background"] == pytest.approx(0.0, abs=1e-6)


def test_an_atlas_of_pictures_that_differ_in_shape(runs, streets, tmp_path, capsys):
    out = tmp_path / "atlas"
    page = write_atlas(runs["segment"], streets, like="shapes:val:1", out=out, device="cpu")
    written = json.loads((out / "atlas.json").read_text())
    assert written["summary"]["images"] == 3
    assert [one["name"] for one in written["classes"]] == [*CLASSES["segment"], NOT_THERE]
    assert len(written["clusters"]) == 6
    regions = [region for cluster in written["clusters"] for region in cluster["regions"]]
    assert {region["image"] for region in regions} == {f"val/{number}.png" for number in range(3)}
    assert "maps of 7 × 4 to 4 × 7" in page.read_text()
    assert "the best finding of each image" in page.read_text()
    assert written["like"][0]["label"] is None
    assert "3 images" in capsys.readouterr().out


@pytest.mark.parametrize("task", ["detect", "keypoints"])
def test_an_atlas_counts_findings_by_what_is_really_there(runs, easily_sure, task, tmp_path):
    trained = load_model(runs[task])
    images = open_for(trained, "shapes", "val", follow=False)
    layer = cluster_layer(trained.model)
    gathered = gather(trained, images, layer, ranking="logit_gate", limit=6, batch_size=4, out=tmp_path)
    atlas, tally = gathered.atlas, gathered.tally
    names = classes_of(trained)
    assert names == (*(KEYPOINTS if task == "keypoints" else CATEGORIES), NOT_THERE)
    answered, labelled, right = torch.zeros(len(names)), torch.zeros(len(names)), 0
    for found in best_findings(trained, images, selection(len(images), 6), Tally()):
        if found.truth.label is None:
            continue
        answer = int((found.target.joints if task == "keypoints" else found.target.labels)[0])
        label = len(names) - 1 if found.truth.label == ABSENT else found.truth.label
        answered[answer] += 1
        labelled[label] += 1
        right += answer == label
    assert atlas.answered.tolist() == answered.tolist()
    assert atlas.labelled.tolist() == labelled.tolist()
    assert atlas_summary(atlas).right == right
    assert atlas_summary(atlas).images == 6 - tally.unknown - tally.nothing_found
    assert atlas.strength.isfinite().all()
    assert task == "detect" or atlas_summary(atlas).background is None  # what surrounds a joint is no background
