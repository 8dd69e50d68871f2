"""`vitreous evaluate --groups`: figures by group on the console and in files, and two models side by side."""

import json
import shutil
from pathlib import Path

import pytest

from tests.support.tiny_model import save_tiny_model
from vitreous.errors import InputError
from vitreous.evaluate import evaluate
from vitreous.evaluations.settings import EvaluateSettings
from vitreous.runs.model_folder import load_model

OPTIONS = dict(count=20, workers=0, device="cpu", batch_size=16)
MARKED = "shapes:corner_mark=0.5,test=train"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return save_tiny_model(tmp_path_factory.mktemp("model") / "m")


def test_groups_in_console_files_and_result_agree(model, tmp_path, capsys):
    files = dict(json=tmp_path / "r.json", markdown=tmp_path / "r.md")
    found = evaluate(model, MARKED, groups=("agrees",), **files, **OPTIONS)
    shown, written = capsys.readouterr().out, json.loads((tmp_path / "r.json").read_text())
    assert written["groups"]["columns"] == ["agrees"]
    rows = {row["name"]: row for row in written["groups"]["rows"]}
    assert list(rows) == ["agrees=no", "agrees=yes"]
    assert sum(row["images"] for row in rows.values()) == 20
    assert sum(row["right"] for row in rows.values()) == round(found["top1"] * 20)
    assert {name: row["accuracy"] for name, row in rows.items()} == {name: found[name] for name in rows}
    assert found["group_mean"] == pytest.approx(sum(row["accuracy"] for row in rows.values()) / 2)
    assert found["worst_group"] == min(row["accuracy"] for row in rows.values()) == written["worst_group"]
    assert all(row["low"] <= row["accuracy"] <= row["high"] for row in rows.values())
    assert [row["few"] for row in rows.values()] == [row["images"] < 30 for row in rows.values()] != [False, False]
    for text in (shown, (tmp_path / "r.md").read_text().replace("\\", "")):
        assert "groups by agrees" in text
        assert "fewer than 30" in text
        assert f"worst: {written['groups']['worst']}" in text


def test_groups_combine_and_class_is_always_there(model):
    found = evaluate(model, "shapes", groups=("class",), **OPTIONS)
    assert len([name for name in found if name.startswith("class=")]) == 10
    found = evaluate(model, "shapes:stripe=1,test=absent", groups=("mark", "class"), sizes=(32,), **OPTIONS)
    assert "mark=none, class=heart" in found


def test_an_earlier_model_stands_beside_it(model, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(model, run / "best")
    (run / "run.json").write_text("{}")
    evaluate(str(run), MARKED, groups=("agrees",), before=model, worst=0, **OPTIONS)
    assert f"report: {run / 'evaluation' / 'evaluation.html'}" in capsys.readouterr().out
    report = (run / "evaluation" / "report.md").read_text().replace("\\", "")
    assert f"before ({model}) and after ({run})" in report
    written = json.loads((run / "evaluation" / "evaluation.json").read_text())
    assert written["before"]["model"] == model
    assert written["before"]["top1"] == written["top1"], "the same model"
    assert [one["name"] for one in written["before"]["changes"]] == ["all images", "agrees=no", "agrees=yes"]
    assert all(one["before"] == one["after"] for one in written["before"]["changes"])


def test_figures_are_those_of_the_answers(model, tmp_path):
    """Groups of one class each: their accuracies are the recalls."""
    found = evaluate(model, "shapes", groups=("class",), json=tmp_path / "r.json", **OPTIONS)
    recalls = json.loads((tmp_path / "r.json").read_text())["per_class"]
    assert {name: found[f"class={name}"] for name in recalls if recalls[name]["images"]} == {
        name: figures["recall"] for name, figures in recalls.items() if figures["images"]
    }


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        (MARKED, dict(groups=("agres",)), "images have no such column; nearest: agrees; all: class, mark, agrees"),
        ("shapes", dict(groups=("place",)), "all: class; add others in metadata.csv in the data's folder"),
        ("shapes:stripe=1,test=absent", dict(groups=("agrees",)), "all 20 images are of one group (agrees=no)"),
        ("shapes", dict(before="x"), "--before x goes with --groups"),
        (MARKED, dict(groups=("agrees",), before="nowhere/run"), "there is no folder 'nowhere/run'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_writes_nothing(model, tmp_path, data, options, said):
    with pytest.raises(InputError) as refused:
        evaluate(model, data, out=tmp_path / "out", json=tmp_path / "r.json", **options, **OPTIONS)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(Path(tmp_path).iterdir())


def test_groups_are_for_classifiers(model):
    segmenter = load_model(model)._replace(task="segment")
    with pytest.raises(InputError, match=r"--groups is for classifiers, and 'it' was trained for the task segment"):
        EvaluateSettings("it", "shapes", groups=("class",)).load_before(segmenter)
