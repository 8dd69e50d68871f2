"""An explanation holds what its parts compute, and can be had for every family, target and form of image."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image

import vitreous
from tests.support.explained_models import FAMILIES, family, trained
from vitreous.attribution.catalogue import find_method
from vitreous.attribution.target import ClassTarget, RegionTarget
from vitreous.clusters.gates import PartialForward, cluster_layer, gated, without
from vitreous.clusters.importance import RANKINGS
from vitreous.clusters.load import causal_load
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.explanations.explaining import IMAGE_PORTIONS, ON_THIS_IMAGE, Plan, explain_image
from vitreous.explanations.folder import print_summary
from vitreous.faithfulness.curves import curves
from vitreous.reports import explanation_page

CLASSES = [f"class {k}" for k in range(10)]
PREPROCESS = Preprocess(size=(32, 32), mean=(0.45, 0.45, 0.45), std=(0.25, 0.25, 0.25))
QUICK = Plan(methods=("centre_blob",))


def picture(number: int = 0) -> Image.Image:
    _, images, _, _ = trained()
    pixels = (PREPROCESS.denormalise(images[number]) * 255).round().to(torch.uint8)
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def explained(**options):
    settings = dict(preprocess=PREPROCESS, classes=CLASSES, plan=QUICK) | options
    return explain_image(trained()[0], picture(), **settings)


def test_parts_are_what_they_say():
    model, images, labels, _ = trained()
    item = explained(true=CLASSES[labels[0]], plan=Plan(methods=("grad_cam stage 3",)))
    x, target = images[:1], ClassTarget(labels=labels[:1])
    assert item.watched == CLASSES[labels[0]]
    assert sum(p for _, p in item.probabilities) <= 1 + 1e-6

    heat = find_method("grad_cam stage 3", model)(model, x, target)
    torch.testing.assert_close(item.maps["grad_cam stage 3"], heat[0], atol=1e-4, rtol=1e-3)
    blur = curves(model, x, heat, target, fill="blur", portions=IMAGE_PORTIONS)
    assert item.scores["grad_cam stage 3"]["insertion_blur"] == pytest.approx(blur.insertion_area.item(), abs=1e-3)

    layer = cluster_layer(model)
    exact = RANKINGS["ablation"](model, x, target, layer)[0]
    torch.testing.assert_close(item.importance["ablation"], exact, atol=1e-4, rtol=1e-3)
    assert [*item.clusters.order] == sorted(range(12), key=lambda m: -item.importance["ablation"][m].item())

    for load, again in zip(item.load, causal_load(model, x, target), strict=True):
        assert load.drop["uniform"] == pytest.approx(again.drop("uniform").item(), abs=1e-3)


def test_groups_cover_all_clusters_and_their_drop_is_that_of_their_removal():
    model, images, labels, _ = trained()
    item = explained(target=int(labels[0]))
    clusters = item.clusters
    assert sorted(m for group in clusters.groups for m in group) == list(range(12))
    assert list(clusters.group_drop) == sorted(clusters.group_drop, reverse=True)
    target = ClassTarget(labels=labels[:1])
    with torch.no_grad(), gated(model, logit_gate=without(clusters.groups[0], 12)):
        after = target(model(images[:1])).item()
    assert clusters.group_drop[0] == pytest.approx(clusters.before - after, abs=1e-3)
    rest = PartialForward(model, images[:1], clusters.layer)
    first = clusters.order[:1]
    assert clusters.left["ablation"][0] == pytest.approx(rest.scores(target, without(first, 12)[None]).item(), abs=1e-3)


def best_of(item) -> str:
    able = [method for method in item.methods if not method.control]
    return max(able, key=lambda method: method.difference).name


@pytest.mark.parametrize("number", range(4))
def test_without_a_measurement_the_most_faithful_on_the_picture_leads_everywhere(number, monkeypatch, capsys):
    """In the numbers, the report, the contact sheet and the summary alike; never the one that came first."""
    plan = Plan(methods=("token_gradient", "input_gradient", "grad_cam stage 3", "features", "centre_blob"))
    item = explain_image(trained()[0], picture(number), preprocess=PREPROCESS, classes=CLASSES, plan=plan)
    best = best_of(item)
    assert item.default == best
    assert item.reason == ON_THIS_IMAGE
    assert item.to_dict()["default"] == {"method": best, "reason": ON_THIS_IMAGE}
    page = item.html()
    assert f'Look first at <span class="name">{best}</span>' in page
    names = [part.partition("<")[0] for part in page.split('<b class="name">')[1:]]
    assert next(name for name in names if name != "centre_blob") == best  # the list of the same report
    panels = []
    monkeypatch.setattr(
        explanation_page, "contact_sheet", lambda drawn, **_: panels.extend(drawn) or Image.new("RGB", (1, 1))
    )
    explanation_page.draw_sheet(item, 2)
    assert panels[1].title == best
    bare = replace(item, clusters=None, load=())
    print_summary([bare], Path("report.html"))
    shown = capsys.readouterr().out
    assert f"{best}: insertion" in shown
    assert "default map: on each image the most faithful." in shown


def test_a_measured_method_leads_where_it_is_compared():
    plan = Plan(methods=("token_gradient", "grad_cam"), default="token_gradient", reason="Measured.")
    item = explained(plan=plan)
    assert (item.default, item.reason) == ("token_gradient", "Measured.")
    item = explained(plan=replace(plan, methods=("grad_cam", "input_gradient")))
    assert (item.default, item.reason) == (best_of(item), ON_THIS_IMAGE)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_maps_of_its_own(name):
    model = family(name)
    item = explain_image(
        model, Image.new("RGB", (64, 64), "teal"), preprocess=Preprocess(size=(64, 64)), classes=CLASSES[:5]
    )
    assert item.default == best_of(item)
    assert (item.clusters is not None) == (name == "paca_tiny")
    own = {"xcit_small_12_p16": "class_attention", "mat_1": "abstract_attention", "partialformer_b0": "context_score"}
    assert own.get(name, item.default) in item.maps
    assert "<article" in item.html()


def test_python_takes_files_pictures_and_tensors(tmp_path):
    model = trained()[0]
    settings = dict(preprocess=PREPROCESS, classes=CLASSES, methods="centre_blob")
    picture().save(tmp_path / "a.png")
    by_file = vitreous.explain(model, str(tmp_path / "a.png"), **settings)
    by_picture = vitreous.explain(model, picture(), **settings)
    by_tensor = vitreous.explain(model, PREPROCESS(picture()), preprocessed=True, **settings)
    assert by_file.probabilities == by_picture.probabilities == by_tensor.probabilities
    torch.testing.assert_close(by_file.importance["ablation"], by_tensor.importance["ablation"])
    for preprocessed in (False, True):
        with pytest.raises(InputError, match=r"shape \(2, 3, 32, 32\)"):
            vitreous.explain(model, torch.zeros(2, 3, 32, 32), preprocessed=preprocessed, **settings)


def test_saves_page_sheet_and_numbers(tmp_path):
    item = explained()
    assert item.save(tmp_path / "a.html").read_text() == item.html()
    assert Image.open(item.save(tmp_path / "a.png")).width > 500
    written = json.loads(item.save(tmp_path / "a.json").read_text())
    assert written["clusters"][0]["number"] == item.clusters.order[0]
    assert item._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert "<script" not in item._repr_html_()  # the page is inside an attribute
    with pytest.raises(InputError, match=r"\.html, \.png or \.json"):
        item.save(tmp_path / "a.gif")


def test_shows_in_the_browser_outside_a_notebook(monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    explained().show()
    assert opened[0].startswith("file://")


def test_a_target_that_is_no_class():
    class Dense(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = trained()[0]

        def forward(self, x):
            return self.backbone(x)[:, :, None, None].expand(-1, -1, 4, 4)

    region = RegionTarget(labels=torch.tensor([2]), region=torch.ones(1, 32, 32, dtype=torch.bool))
    item = explain_image(Dense().eval(), picture(), preprocess=PREPROCESS, classes=CLASSES, target=region, plan=QUICK)
    assert item.probabilities == ()
    assert "explained: <b>the given target</b>" in item.html()
    assert item.clusters.counts


def test_one_cluster_cannot_be_removed():
    model = family(clusters=(1, 1, 1, 0))
    settings = dict(preprocess=Preprocess(size=(64, 64)), classes=CLASSES[:5])
    image = Image.new("RGB", (64, 64), "teal")
    with pytest.raises(InputError, match="one cluster"):
        explain_image(model, image, plan=QUICK, **settings)
    item = explain_image(model, image, plan=replace(QUICK, ranking="attention_mass"), **settings)
    assert item.clusters.groups == ()
    assert "Map of cluster 0" in item.html()


def test_refusals():
    with pytest.raises(InputError, match="classes 0 to 9"):
        explained(target=10)
    with pytest.raises(InputError, match=r"model\.eval\(\)"):
        vitreous.explain(timm.create_model("paca_tiny", **FAMILIES["paca_tiny"]).train(), picture())
    with pytest.raises(InputError, match="how it wants its pictures"):
        vitreous.explain(torch.nn.Conv2d(3, 3, 1).eval(), picture())
    broken = family()
    broken.head.bias.data.fill_(torch.nan)
    with pytest.raises(InputError, match="no numbers"):
        explain_image(
            broken, Image.new("RGB", (64, 64)), preprocess=Preprocess(size=(64, 64)), classes=CLASSES[:5], plan=QUICK
        )
