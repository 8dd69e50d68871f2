"""`vitreous score`: what is written, what becomes the default, what is refused."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.support.tiny_model import save_tiny_dense, save_tiny_model
from vitreous.attribution.catalogue import methods_for
from vitreous.errors import InputError
from vitreous.explain import explain
from vitreous.explanations.scores import methods_to_score
from vitreous.runs.model_folder import explainer_folder_of, load_model
from vitreous.score import score


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def test_score_names_the_default_which_explanations_take(tmp_path, capsys):
    model = save_tiny_model(tmp_path / "model")
    chosen = ("token_gradient", "cluster_group")
    report = score(model, "shapes", limit=3, method=chosen, batch_size=2, out=tmp_path / "scores")
    shown = " ".join(capsys.readouterr().out.split())
    written = json.loads((tmp_path / "scores" / "faithfulness.json").read_text())
    assert written["images"] == 3
    assert {row["method"] for row in written["methods"]} >= {*chosen, "centre_blob", "random_map", "oracle_mask"}
    row = next(row for row in written["methods"] if row["method"] == "token_gradient")
    low, mean, high = (row["measures"]["insertion_minus_deletion"][key] for key in ("low", "mean", "high"))
    assert low <= mean <= high
    assert f"{mean:.2f} ({low:.2f} to {high:.2f})" in report.read_text()
    assert "faithfulness.png" in report.read_text()
    assert Image.open(tmp_path / "scores" / "faithfulness.png").width > 600
    assert f"default map: {written['default']['method']}" in shown

    explain(model, ("shapes:val:0",), out=tmp_path / "out", top_k=1)
    (item,) = json.loads((tmp_path / "out" / "explanation.json").read_text())["images"]
    assert item["default"] == {"method": written["default"]["method"], "reason": written["default"]["reason"]}
    assert "3 images of shapes (val)" in item["default"]["reason"]
    assert item["default"]["reason"].endswith("So few images prove little: score more.")
    first = item["methods"][0]
    assert first["method"] == written["default"]["method"]
    assert first["beats_controls"] is written["default"]["verdicts"][first["method"]]

    capsys.readouterr()
    score(model, "shapes", limit=1, method=("grad_cam",), out=tmp_path / "trial")
    assert f"replaces {written['default']['method']}, which was measured on 3 images" in capsys.readouterr().out

    (tmp_path / "model" / "explain.json").write_text("{}")
    with pytest.raises(InputError, match="remove it, or score again"):
        explain(model, ("shapes:val:0",), out=tmp_path / "out")


def test_other_methods_than_the_default_can_be_asked_for(tmp_path, capsys):
    model = save_tiny_model(tmp_path / "model", clusters=(0, 0, 0, 0))
    score(model, "shapes", limit=2, method=("grad_cam",), out=tmp_path / "scores")
    explain(model, ("shapes:val:0",), out=tmp_path / "out", method=("centre_blob",))
    assert "centre_blob: insertion − deletion" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": ("centre_blob", "random_map")}, "--method centre_blob random_map names controls only"),
        ({"method": ("grad_cma",)}, "nearest: grad_cam"),
    ],
)
def test_bad_options(model, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        score(model, "shapes", limit=1, out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_all_methods_can_be_asked_for_when_scoring(model):
    network = load_model(model).model
    assert methods_to_score(network, ("all",)) == methods_to_score(network, ()) == methods_for(network)


# ---- --learn -----------------------------------------------------------------------------------------------------

QUICK = dict(learn=True, learn_steps=2, learn_limit=64, limit=3, method=("learned",))


def test_a_learned_explainer_is_scored_kept_and_offered(tmp_path, capsys):
    model = save_tiny_model(tmp_path / "model")
    report = score(model, "shapes", out=tmp_path / "scores", **QUICK)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"explainer: {tmp_path / 'model' / 'explainer'}, learned in" in shown
    assert "does it flatter itself? 3 images" in shown
    rows = {
        row["method"]: row for row in json.loads((tmp_path / "scores" / "faithfulness.json").read_text())["methods"]
    }
    doubts = {"difference_noise", "difference_colour", "runner_up", "class_likeness", "randomisation"}
    assert doubts <= rows["learned"]["measures"].keys()
    assert rows["random_weights learned"]["control"]
    assert rows["centre_blob"]["measures"]["class_likeness"]["mean"] == pytest.approx(1)  # it knows no class
    assert "likeness to second class" in report.read_text()
    about = json.loads((tmp_path / "model" / "explainer" / "explainer.json").read_text())["learned"]
    assert (about["data"], about["pictures"], about["steps"], about["seed"]) == ("shapes (train)", 64, 2, 0)

    explain(model, ("shapes:val:0",), method=("learned",), out=tmp_path / "out", top_k=1)
    (item,) = json.loads((tmp_path / "out" / "explanation.json").read_text())["images"]
    assert [method["method"] for method in item["methods"]] == ["learned"]
    picture = Image.new("RGB", (64, 64), "red")
    trained = load_model(model)
    explanation = explain(trained, picture, method=("learned",))
    assert explanation.maps["learned"].shape == (8, 8)
    assert "learned" in explain(trained, picture).maps  # it is one of the usual ones now

    score(model, "shapes", limit=1, method=("learned",), out=tmp_path / "again")
    assert "flatter" not in capsys.readouterr().out  # nothing was learned this time


def test_what_is_scored_is_never_learned_from(model, tmp_path):
    """Of 70 pictures 20 are to be scored, whatever the split is called: 50 are too few to learn from."""
    more = {"limit": 20, "learn_limit": 100}
    with pytest.raises(InputError, match=r"50 pictures to learn from .*\(20 more are among the scored ones\)"):
        score(model, few_pictures(tmp_path / "data", 70), split="train", out=tmp_path / "out", **QUICK | more)
    assert not (tmp_path / "out").exists()


def few_pictures(folder, count):
    """As many different pictures to learn from, and two to score."""
    for split, number in (("train", count), ("val", 2)):
        for place in range(number):
            path = folder / split / ("star", "heart")[place % 2] / f"{place:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (64, 64), (place, 255 - place, len(split))).save(path)
    return str(folder)


def test_too_few_pictures_and_models_that_have_no_place_are_told(model, tmp_path):
    with pytest.raises(InputError, match=r"there are 63 pictures to learn from .* at least 64 are needed"):
        score(model, few_pictures(tmp_path / "data", 63), out=tmp_path / "out", **QUICK)
    detector = save_tiny_dense(tmp_path / "detector", "detect", ("a", "b"))
    with pytest.raises(InputError, match=r"for the task 'detect'; .* leave --learn out"):
        score(detector, "shapes", out=tmp_path / "out", **QUICK)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.rglob("explainer"))


def test_the_explainer_of_a_file_is_kept_beside_it(model, tmp_path):
    file = tmp_path / "weights.safetensors"
    shutil.copy(Path(model) / "model.safetensors", file)
    assert explainer_folder_of(str(file)) == tmp_path / "weights.explainer"
    assert explainer_folder_of(model) == Path(model) / "explainer"
    assert explainer_folder_of("resnet18") is None


def test_a_damaged_explainer_is_replaced_and_stops_explanations_only(tmp_path):
    model = save_tiny_model(tmp_path / "model")
    (tmp_path / "model" / "explainer").mkdir()
    (tmp_path / "model" / "explainer" / "explainer.json").write_text("{}")
    trained = load_model(model)
    trained.predict(Image.new("RGB", (64, 64)))
    with pytest.raises(InputError, match="learn again"):
        explain(model, ("shapes:val:0",), out=tmp_path / "out")
    score(model, "shapes", out=tmp_path / "scores", **QUICK | {"limit": 1})
    assert "learned" in [method.name for method in methods_for(load_model(model).model)]
