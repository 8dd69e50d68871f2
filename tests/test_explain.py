"""`vitreous explain`: what is written, which class is watched, what is refused."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from tests.support.tiny_model import save_tiny_model
from vitreous.clusters.masking import Masking
from vitreous.data.pictures import find_pictures
from vitreous.data.shapes.samples import CATEGORIES, Shapes
from vitreous.data.transforms import to_unit_tensor
from vitreous.errors import InputError
from vitreous.explain import explain, select
from vitreous.layers.tap import record
from vitreous.runs.model_folder import load_model

BLOB = ("centre_blob",)  # the quickest method


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def numbers(out):
    return json.loads((out / "explanation.json").read_text())


def test_writes_report_sheets_and_numbers(model, tmp_path, capsys):
    out = tmp_path / "explanation"
    report = explain(model, ("shapes:val:0-1",), out=out, top_k=2)
    assert report == out / "report.html"
    written = numbers(out)
    assert [item["image"] for item in written["images"]] == ["shapes:val:0", "shapes:val:1"]
    assert written["ranking"] == "ablation"
    for item in written["images"]:
        assert sorted(cluster["number"] for cluster in item["clusters"]) == list(range(6))
        assert (out / item["sheet"]).stat().st_size > 1000
    assert "report:" in capsys.readouterr().out
    assert report.read_text().count("<article") == 2


def test_scores_are_the_papers(model, tmp_path):
    """From the file to the written number, once more by hand."""
    explain(model, ("shapes:val:3",), out=tmp_path / "out", top_k=1, ranking="masking", method=BLOB)
    (item,) = numbers(tmp_path / "out")["images"]
    trained = load_model(model)
    (picture,) = find_pictures(["shapes:val:3"], size=(64, 64))
    x = trained.preprocess.normalise(to_unit_tensor(trained.preprocess.picture(picture.load())))[None]
    with torch.no_grad():
        with record(trained.model, "stages.2.clusters") as maps:
            p = trained.model(x).softmax(1)[0]
        y = trained.classes.index(item["watched"])
        for cluster in item["clusters"]:
            z = maps["stages.2.clusters"][0, cluster["number"]]
            mask = 1 - (z - z.min()) / (z.max() - z.min())
            x_m = x * F.interpolate(mask[None, None], (64, 64), mode="bilinear")
            s_m = (p[y] - trained.model(x_m).softmax(1)[0, y]).item()
            assert math.isclose(cluster["importance"], s_m, abs_tol=1e-5)


def test_watches_the_true_class_where_it_is_known(model, tmp_path):
    label = CATEGORIES[Shapes("val", size=64)[0].label]
    explain(model, ("shapes:val:0",), out=tmp_path / "known", top_k=1, method=BLOB)
    assert numbers(tmp_path / "known")["images"][0]["true"] == label
    assert numbers(tmp_path / "known")["images"][0]["watched"] == label

    Image.new("RGB", (50, 50), "teal").save(tmp_path / "photo.png")
    explain(model, (str(tmp_path / "photo.png"),), out=tmp_path / "unknown", top_k=1, method=BLOB)
    (item,) = numbers(tmp_path / "unknown")["images"]
    assert item["true"] is None
    assert item["watched"] == item["predicted"]

    folder = tmp_path / CATEGORIES[2]
    folder.mkdir()
    (tmp_path / "photo.png").rename(folder / "photo.png")
    explain(model, (str(folder),), out=tmp_path / "folder", top_k=1, method=BLOB)
    assert numbers(tmp_path / "folder")["images"][0]["true"] == CATEGORIES[2]

    explain(model, (str(folder),), out=tmp_path / "label", label=CATEGORIES[4], method=BLOB)
    assert numbers(tmp_path / "label")["images"][0]["watched"] == CATEGORIES[4]


def test_equal_inputs_give_equal_bytes(model, tmp_path):
    reports = [explain(model, ("shapes:val:0-1",), out=tmp_path / name, method=("token_gradient",)) for name in "ab"]
    assert reports[0].read_bytes() == reports[1].read_bytes()


@pytest.mark.parametrize(
    "options",
    [
        {"source": "attention"},
        {"source": "attention", "head": 2},
        {"stage": 1, "ranking": Masking(space="pixels")},
        {"size": 96, "ranking": Masking(interpolation="nearest", fill="blur")},
        {"ranking": "attention_mass"},
    ],
)
def test_options(model, tmp_path, options):
    report = explain(model, ("shapes:val:0",), out=tmp_path / "out", method=BLOB, **options)
    assert report.is_file()


def test_the_settings_of_masking_reach_the_report(model, tmp_path):
    picture = Image.new("RGB", (50, 50), "teal")
    for settings, hole in ((Masking("pixels"), "a black hole"), (Masking(fill="blur"), "a blurred hole")):
        report = explain(model, ("shapes:val:0",), out=tmp_path / "out", method=BLOB, ranking=settings)
        assert numbers(tmp_path / "out")["ranking"] == "masking"
        page = explain(load_model(model), picture, method=BLOB, ranking=settings).html()
        for text in (report.read_text(), page):
            assert hole in " ".join(text.split())


def test_limit_takes_a_spread_selection(capsys):
    pictures = find_pictures(["shapes:val:0-9"], size=(32, 32))
    numbers = [int(picture.name.rpartition(":")[2]) for picture in select(pictures, 3)]
    assert [number * 3 // 10 for number in numbers] == [0, 1, 2]  # one of each third
    assert "3 of 10 images are explained" in capsys.readouterr().out
    assert select(pictures, 10) == pictures
    assert select(pictures, 99) == pictures


def test_unreadable_image_is_skipped(model, tmp_path, capsys):
    (tmp_path / "bad.png").write_text("no picture")
    explain(model, ("shapes:val:0", str(tmp_path / "bad.png")), out=tmp_path / "out", top_k=1)
    assert len(numbers(tmp_path / "out")["images"]) == 1
    assert "1 of 2 images could not be read" in capsys.readouterr().err


def test_earlier_explanation_is_replaced_other_folders_are_refused(model, tmp_path):
    out = tmp_path / "out"
    explain(model, ("shapes:val:0-1",), out=out, top_k=1, method=BLOB)
    explain(model, ("shapes:val:0",), out=out, top_k=1, method=BLOB)
    assert len(list(out.glob("*.png"))) == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.html").write_text("precious")
    with pytest.raises(InputError, match="not empty"):
        explain(model, ("shapes:val:0",), out=tmp_path / "mine")
    assert (tmp_path / "mine" / "report.html").read_text() == "precious"


def test_failure_leaves_an_earlier_explanation_alone(model, tmp_path):
    out = tmp_path / "out"
    before = explain(model, ("shapes:val:0",), out=out, top_k=1, method=BLOB).read_bytes()
    with pytest.raises(InputError):
        explain(model, ("nowhere.png",), out=out)
    assert (out / "report.html").read_bytes() == before


def test_model_without_clusters_is_explained_by_its_own_methods(tmp_path, capsys):
    plain = save_tiny_model(tmp_path / "plain", clusters=(0, 0, 0, 0))
    explain(plain, ("shapes:val:0",), out=tmp_path / "out")
    (item,) = numbers(tmp_path / "out")["images"]
    able = [method for method in item["methods"] if not method["control"]]
    assert item["default"]["method"] == max(able, key=lambda one: one["insertion_minus_deletion"])["method"]
    assert "clusters" not in item
    for asked in ({"stage": 2}, {"ranking": "ablation"}, {"source": "attention"}):
        with pytest.raises(InputError, match=r"has no clusters\. Inside it has patch_to_patch.*methods: grad_cam"):
            explain(plain, ("shapes:val:0",), out=tmp_path / "other", **asked)
    assert not (tmp_path / "other").exists()


def test_two_runs_side_by_side(model, tmp_path):
    other = save_tiny_model(tmp_path / "other", clusters=(0, 0, 0, 0))
    report = explain(model, ("shapes:val:0",), out=tmp_path / "out", compare=other, method=BLOB)
    assert report.read_text().count("<article") == 2
    assert f"{model}: predicted" in report.read_text()
    assert f"{other}: predicted" in report.read_text()
    assert len(numbers(tmp_path / "out")["beside"]) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stage": 4}, "stages with clusters: 1, 2, 3"),
        ({"label": "circel"}, "nearest: circle"),
        ({"top_k": 0}, "--top-k 0"),
        ({"source": "attention", "head": 99}, "heads 1 to"),
        ({"block": 3}, "block 3"),
        ({"head": 1}, "cluster maps have no heads"),
        ({"ranking": "importance"}, "clusters can be ranked by masking, ablation"),
        ({"source": "attention", "ranking": "ablation"}, "'masking' hides what a map shows"),
        ({"method": ("grad_cma",)}, "nearest: grad_cam"),
        ({"method": ("class_attention",)}, "PaCa has no class_attention; it has"),
        ({"score": True}, r"score=True given, which is a verb of its own: vitreous\.score\(model, data\)"),
        ({"atlas": True}, "atlas=True given, which is a verb of its own"),
        ({"compare": "nowhere/at/all"}, "no folder 'nowhere/at/all'"),
    ],
)
def test_bad_options(model, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        explain(model, ("shapes:val:0",), out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
