"""A box, a region or a joint is explained as a class is; what is asked is the number behind the model's own answer."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import vitreous
from tests.support.tiny_model import MODEL_ARGS, TASK_ARGS, save_tiny_dense, save_tiny_model
from vitreous.attribution.target import BoxTarget, RegionTarget
from vitreous.errors import InputError
from vitreous.explain import explain
from vitreous.heads.boxes import Detector
from vitreous.heads.detect import DETECTORS, build_detector
from vitreous.predict import predict
from vitreous.registry import create_model
from vitreous.runs.model_folder import load_model
from vitreous.tasks.segment import largest_part

CLASSES = {"detect": ("disc", "box"), "segment": ("background", "disc", "box"), "keypoints": ("figure",)}
XCIT = dict(dim=32, depth=4, heads=4, patch=8)
QUICK = ("token_gradient", "centre_blob")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, str]:
    return {task: save_tiny_dense(tmp_path_factory.mktemp("dense") / task, task, CLASSES[task]) for task in CLASSES}


@pytest.fixture(scope="module")
def picture(tmp_path_factory) -> str:
    """Of a shape that no model sees as it is: it is scaled, and filled up to a multiple of 32."""
    path = tmp_path_factory.mktemp("pictures") / "photo.png"
    noise = np.random.default_rng(0).integers(0, 255, (7, 13, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((91, 50), Image.Resampling.BICUBIC).save(path)
    return str(path)


def numbers(report: Path) -> dict:
    return json.loads((report.parent / "explanation.json").read_text())["images"][0]


CHOICE = {"detect": dict(finding=1), "segment": dict(), "keypoints": dict()}
NAMES = {"detect": "box 1: ", "segment": "region 1: ", "keypoints": "joint 1: "}


@pytest.mark.parametrize("task", CLASSES)
def test_a_finding_gets_the_report_of_a_class(runs, picture, tmp_path, task, capsys):
    report = explain(runs[task], (picture,), out=tmp_path / "out", method=QUICK, top_k=2, device="cpu", **CHOICE[task])
    item = numbers(report)
    assert item["watched"] == item["finding"]["name"] == item["findings"][0]["name"]
    assert item["watched"].startswith(NAMES[task])
    assert item["watched"] in capsys.readouterr().out
    assert [method["method"] for method in item["methods"]] == list(QUICK)
    assert [load["stage"] for load in item["load"]] == [1, 2, 3]
    assert len(item["clusters"]) == 6
    assert item["groups"]
    page = report.read_text()
    assert f"explained: <b>{item['watched']}</b>" in page
    assert "the finding outlined" in page
    assert "occlusion in 5 x 5 cells" in page
    assert (report.parent / item["sheet"]).stat().st_size > 1000


def test_a_box_is_explained_at_the_score_that_predict_gives(runs, picture, tmp_path):
    (answer,) = predict(runs["detect"], (picture,), min_score=0.0, device="cpu")
    item = numbers(explain(runs["detect"], (picture,), finding=3, out=tmp_path, method=("centre_blob",), device="cpu"))
    third = answer["predictions"][2]
    x, y, width, height = third["bbox"]
    assert item["finding"]["score"] == pytest.approx(third["score"], abs=1e-6)
    assert item["finding"]["box"] == pytest.approx([x, y, x + width, y + height], abs=1e-3)
    # Boxes scaled to the picture and back are the same to a thousandth of a pixel.
    odds = np.log(third["score"] / (1 - third["score"]))
    assert item["removal"]["log_odds"] == pytest.approx(odds, abs=1e-2)


def test_a_region_is_the_mean_of_its_class_and_a_joint_its_peak(runs, picture):
    for task in ("segment", "keypoints"):
        trained = load_model(runs[task])
        item = vitreous.explain(trained, picture, methods=("centre_blob",))
        pixels = torch.from_numpy(np.array(item.picture)).permute(2, 0, 1)
        pixels = F.pad(pixels, (0, -pixels.shape[2] % 32, 0, -pixels.shape[1] % 32))  # as a batch fills it up
        image = trained.preprocess.normalise_bytes(pixels)[None]
        with torch.no_grad():
            output = trained.model(image)
        if task == "keypoints":
            p = output[0, TASK_ARGS[task]["names"].index(item.answer.finding["joint"])].max()
            near = p.clamp(0.05, 0.95)
            odds = near.logit() + (p - near) / (near * (1 - near))
            assert item.clusters.before == pytest.approx(odds.item(), abs=1e-4)
            continue
        label = CLASSES[task].index(item.answer.finding["class"])
        padding = torch.arange(output.shape[3]) >= round(91 * 64 / 50)
        inside = largest_part((output[0].argmax(0) == label) & ~padding)
        others = output[0].clone()
        others[label] = -torch.inf
        odds = (output[0, label] - others.logsumexp(0))[inside].mean()
        # The class is read at the picture's own size and brought back, which moves pixels of the region's edge.
        assert item.clusters.before == pytest.approx(odds.item(), abs=0.1 * abs(odds.item()) + 0.05)


@pytest.mark.parametrize("task", ["detect", "segment"])
def test_what_fills_a_picture_up_is_no_part_of_its_explanation(runs, picture, task, monkeypatch):
    """Not of the picture, of a map or of insertion and deletion, however much a network makes of it."""
    trained, seen = load_model(runs[task]), []
    trained.model.register_forward_pre_hook(lambda _model, inputs: seen.append(inputs[0].detach()))
    monkeypatch.setattr(type(trained.model), "all_of", hooked(seen), raising=False)
    methods = ("grad_cam", "token_gradient", "occlusion", "input_gradient", "centre_blob")
    item = vitreous.explain(trained, picture, methods=methods, **CHOICE[task])
    height, width = 64, round(91 * 64 / 50)
    assert item.picture.size == (width, height)
    assert item.shown.width / item.shown.height == pytest.approx(width / height)
    black = trained.preprocess.normalise(torch.zeros(3, 1, 1))
    assert len(seen) > 50
    for images in seen:
        assert images.shape[2:] == (64, 128)
        torch.testing.assert_close(images[..., width:], black.expand_as(images[..., width:]))
    assert item.maps["grad_cam"].shape == (2, 4)  # of 2 x 4 cells over 128 pixels, 116 pixels' worth
    assert (
        item.maps["token_gradient"].shape == item.clusters.maps.shape[1:] == item.clusters.attention.shape[1:] == (4, 7)
    )
    assert item.clusters.maps.sum((1, 2)).tolist() == pytest.approx([1.0] * 6)


def hooked(seen: list):
    """A detector is asked for all of its boxes, which is no forward pass that a hook would notice."""
    whole = Detector.all_of

    def all_of(self, images, classes, *, sizes=None):
        seen.append(images.detach())
        return whole(self, images, classes, sizes=sizes)

    return all_of


@pytest.mark.parametrize("head", DETECTORS)
def test_every_detector_has_a_smooth_score_for_a_box(head):
    two_stages, sparse = dict(hidden=32, proposals=50), dict(proposals=10, rounds=2, inner=8, hidden=32)
    small = dict(size=64)
    sizes = dict(maskrcnn=two_stages, fasterrcnn=two_stages, sparsercnn=sparse, ssd=small, ssdlite=small)
    torch.manual_seed(0)
    known = dict(channels=16, score_threshold=0.0) | sizes.get(head, dict(convs=1))
    model = build_detector(create_model("paca_tiny", features_only=True, **MODEL_ARGS), head, 3, **known).eval()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        (found,) = model(images)
    label = int(found["labels"][0])
    target = BoxTarget(labels=found["labels"][:1], boxes=found["boxes"][:1])
    images.requires_grad_()
    score = target(model.all_of(images, [label]))
    assert score.sigmoid().item() == pytest.approx(found["scores"][0].item(), abs=1e-5)
    (slope,) = torch.autograd.grad(score.sum(), images)
    assert slope.isfinite().all()
    assert slope.abs().sum() > 0


def test_the_gradient_of_a_box_is_that_of_finite_differences():
    torch.manual_seed(0)
    backbone = create_model("paca_tiny", features_only=True, **MODEL_ARGS)
    model = build_detector(backbone, "atss", 3, channels=16, convs=1, score_threshold=0.0).eval()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        (found,) = model(images)
    # Beside the found box, where the overlap has a slope.
    target = BoxTarget(labels=found["labels"][:1], boxes=found["boxes"][:1] + torch.tensor([1.0, 2.0, -2.0, 1.0]))

    def score(x):
        return target(model.all_of(x, [int(found["labels"][0])]))

    images.requires_grad_()
    (slope,) = torch.autograd.grad(score(images).sum(), images)
    step = 0.05 * slope / slope.norm()
    with torch.no_grad():
        difference = (score(images + step) - score(images - step)) / 0.1
    assert difference.item() == pytest.approx(slope.norm().item(), rel=0.03)  # single precision, and a curve


def test_nothing_found_is_told_and_clusters_are_shown(runs, picture, tmp_path):
    report = explain(runs["detect"], (picture,), out=tmp_path / "out", device="cpu")
    item = numbers(report)
    assert item["finding"] is None
    assert item["nothing"].startswith("the model found no object with a score from 0.3; the best is box 1: ")
    assert "nothing to explain: the model found no object" in report.read_text()
    assert item["methods"] == item["load"] == []
    assert (len(item["clusters"]), item["ranking"]) == (6, "attention_mass")
    item = numbers(explain(runs["detect"], (picture,), label="disc", out=tmp_path / "label", device="cpu"))
    assert item["nothing"].startswith("the model found no disc")


def test_a_region_that_is_drawn(runs, picture, tmp_path):
    options = dict(method=("centre_blob",), device="cpu")
    report = explain(runs["segment"], (picture,), region="60,-5,95,20", label="box", out=tmp_path / "out", **options)
    finding = numbers(report)["finding"]
    assert (finding["class"], finding["region"]) == ("box", [60, -5, 95, 20])
    assert finding["name"] == "box in the region 60,-5,95,20"
    for region, message in (("91,0,99,9", "within 91 x 50 pixels"), ("1,2,3", "write left,top,right,bottom"),
                            ("9,9,nan,20", "are numbers of pixels")):  # fmt: skip
        with pytest.raises(InputError, match=message):
            explain(runs["segment"], (picture,), region=region, out=tmp_path / "outside", **options)
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    ("task", "wrong", "message"),
    [
        ("classify", dict(joint="top"), "--joint top given, but this model is for the task 'classify'; accepted: --l"),
        ("classify", dict(finding=2), "--finding 2 given"),
        ("classify", dict(region="1,2,3,4"), "--region .* given"),
        ("detect", dict(region="1,2,3,4"), "for the task 'detect'; accepted: --finding, --label"),
        ("detect", dict(label="disk"), "unknown class 'disk'; nearest: disc"),
        ("detect", dict(finding=0), "counted from 1"),
        ("detect", dict(finding=101), "finding 101 was asked for, but there are 100: box 1: "),
        ("detect", dict(finding=1, label="disc"), "--finding and --label given"),
        ("detect", dict(method=("grad_kam",)), "unknown method 'grad_kam'; nearest: grad_cam"),
        ("keypoints", dict(joint="tip"), "unknown joint 'tip'; accepted: top, left, right"),
        ("keypoints", dict(label="figure"), "accepted: --finding, --joint"),
    ],
)
def test_what_cannot_be_explained_is_refused(runs, picture, tmp_path, task, wrong, message):
    model = save_tiny_model(tmp_path / "classifier") if task == "classify" else runs[task]
    with pytest.raises(InputError, match=message):
        explain(model, (picture,), out=tmp_path / "out", device="cpu", **wrong)
    assert not (tmp_path / "out").exists()


def test_a_backbone_without_clusters_gets_the_maps_of_methods(picture, tmp_path):
    options = dict(name="xcit_small_12_p16", backbone=XCIT)
    model = load_model(save_tiny_dense(tmp_path / "xcit", "segment", CLASSES["segment"], **options))
    item = vitreous.explain(model, Image.open(picture), label="background")
    assert list(item.maps) == ["grad_cam", "input_gradient", "occlusion", "centre_blob"]
    assert item.clusters is None
    assert item.default in ("grad_cam", "input_gradient", "occlusion")
    assert item.maps["occlusion"].shape == (5, 5)


def test_a_target_of_ones_own_in_python(runs, picture):
    trained = load_model(runs["segment"])
    target = RegionTarget(labels=torch.tensor([2]), region=torch.ones(1, 8, 8))
    item = vitreous.explain(trained, picture, target=target, methods=("input_gradient",), ranking="masking")
    assert item.watched == "the given target"
    assert item.importance["masking"].isfinite().all()
    assert "the given target" in item.html()
    joint = vitreous.explain(load_model(runs["keypoints"]), picture, joint="right", methods="centre_blob")
    assert joint.answer.finding["joint"] == "right"
    with pytest.raises(InputError, match="a class alone is no finding"):
        vitreous.explain(trained, picture, target=1)


def test_the_largest_part_of_a_mask_follows_every_bend():
    mask = torch.zeros(12, 12, dtype=torch.bool)
    mask[0:11, 0] = mask[10, 0:11] = mask[2:10, 10] = mask[2, 2:10] = True  # a bent line of 35
    mask[5:9, 4:8] = True  # and a block of 16
    part = largest_part(mask)
    assert part.sum() == mask.sum() - 16
    assert not part[5:9, 4:8].any()
