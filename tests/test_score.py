"""`vitreous score`: what is written, what becomes the default, what is refused."""

import json

import pytest
from PIL import Image

from tests.support.tiny_model import save_tiny_model
from vitreous.attribution.catalogue import methods_for
from vitreous.errors import InputError
from vitreous.explain import explain
from vitreous.explanations.scores import methods_to_score
from vitreous.runs.model_folder import load_model
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
