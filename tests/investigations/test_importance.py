"""What is lost without a cluster is what a model with that cluster closed for good has less."""

import json

import pytest
import torch

from tests.support.families import awake, short, small
from tests.support.tiny_model import save_tiny_dense
from vitreous import analyze, mend
from vitreous.data.source import open_data
from vitreous.data.transforms import Preprocess
from vitreous.explanations.dataset import selection
from vitreous.runs.model_folder import load_model, save_model

SHAPES = tuple(open_data("shapes", "val", size=(64, 64), count=1).classes)
SMALL = dict(
    dims=(16, 32), depths=(1, 1), heads=(1, 2), clusters=4, mlp_ratios=(2, 2), readout="clusters", readout_clusters=4
)


def rows_of(model, out, data="shapes", **options):
    analyze("importance", str(model), data, out=out, **options)
    return json.loads((out / "analysis.json").read_text())["rows"]


def test_it_is_the_figure_of_a_model_whose_cluster_is_closed(tmp_path):
    model = awake(small("paca_b0", 1, num_classes=len(SHAPES), **SMALL)).eval()
    with torch.no_grad():  # so that answers differ, and hang on single clusters
        model.head.weight.normal_(generator=torch.Generator().manual_seed(1))
        images = open_data("shapes", "val", size=(64, 64), count=60)
        inputs = torch.stack([Preprocess((64, 64))(images.picture(number)) for number in range(60)])
        model.head.bias.sub_(model(inputs).mean(0))
    about = dict(name="paca_b0", model_args={**short("paca_b0"), **SMALL}, task="classify", classes=SHAPES)
    save_model(tmp_path / "small", model, **about, preprocess=Preprocess((64, 64)))
    rows = rows_of(tmp_path / "small", tmp_path / "out", limit=60)
    found = {row["without"]: row for row in rows}
    lost = [row["lost"] for row in rows[1:]]
    assert lost == sorted(lost, reverse=True)
    assert any(lost)
    assert set(found) == {"none", "0", "1", "2", "3"}
    trained, images = load_model(tmp_path / "small"), open_data("shapes", "val", size=(64, 64), targets="labels")
    right = [
        trained.model(trained.preprocess(images.picture(number))[None]).argmax().item()
        == images.target(number)["labels"]
        for number in selection(len(images), 60)
    ]
    assert found["none"]["value"] == pytest.approx(sum(right) / 60, abs=1e-4)
    mend(str(tmp_path / "small"), without_clusters=("2",), out=tmp_path / "closed")
    closed = rows_of(tmp_path / "closed", tmp_path / "again", limit=60)[0]
    assert found["2"]["value"] == closed["value"]
    assert found["2"]["lost"] == pytest.approx(found["none"]["value"] - closed["value"], abs=1e-4)


@pytest.mark.parametrize(("task", "figure"), [("detect", "AP"), ("segment", "mIoU")])
def test_of_other_tasks_it_is_their_own_figure(tmp_path, task, figure):
    classes = SHAPES if task == "detect" else ("background", *SHAPES)
    model = save_tiny_dense(tmp_path / task, task, classes)
    rows = rows_of(model, tmp_path / "out", limit=2)
    assert {row["figure"] for row in rows} == {figure}
    assert {row["pictures"] for row in rows} == {2}
