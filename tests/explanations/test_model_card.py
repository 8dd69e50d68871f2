"""The card of a model says what its folder and its run know, in plain text, and is nobody else's."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.support.tiny_model import save_tiny_model
from tests.support.tiny_runs import PLAIN
from vitreous.explain import explain
from vitreous.explanations.model_card import known_about, refresh_card, shortcuts_known, write_model_card
from vitreous.faithfulness.intervals import Interval
from vitreous.files.storage import verify_folder
from vitreous.mend import mend
from vitreous.reports.model_card import NOT_LOOKED, ModelCard, card_markdown
from vitreous.reports.shortcuts import Shortcuts, Suspect
from vitreous.runs.model_folder import load_model
from vitreous.runs.run_folder import read_metrics
from vitreous.train import train

CHANGED = Interval(0.61, 0.5, 0.7)
SUSPECT = Suspect(
    kind="place",
    name="upper left corner",
    verdict="serious",
    reasons=(),
    box=(0, 0, 0.25, 0.25),
    classes=(),
    proposed_by="maps",
    used=0.9,
    changed=CHANGED,
    control=None,
    hangs=None,
    exchanged=None,
    followed=None,
    exchanged_alike=None,
    tells=None,
    accuracy=None,
    gain=None,
    worst_group=None,
    by_class=(),
)
FOUND = Shortcuts("m", "/home/me/photos", "val", 40, 40, 0.9, True, "grad_cam", "it is quick", (SUSPECT,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(save_tiny_model(tmp_path / "model", readout="clusters"))


def head_of(card: str) -> dict:
    return yaml.safe_load(card.split("---")[1])


def test_a_finished_run_has_cards_with_its_figures(tmp_path: Path) -> None:
    run = train(**dict(PLAIN, epochs=2, attend_away="upper left"), out=tmp_path / "run")
    validated = [line for line in read_metrics(run) if line["split"] == "val"]
    for name, line in (("best", max(validated, key=lambda line: line["top1"])), ("final", validated[-1])):
        card = (run / name / "README.md").read_text()
        assert head_of(card)["pipeline_tag"] == "image-classification"
        assert f"| top1 | {line['top1']:.2%} |" in card
        assert "- data: shapes" in card
        assert "- Trained to look away from regions (--attend-away upper left)." in card
        assert str(tmp_path) not in card  # it may be shown to anybody
        verify_folder(run / name, ("model.safetensors", "config.json"))


def test_what_is_found_later_is_added(folder: Path) -> None:
    write_model_card(folder)
    assert NOT_LOOKED in (folder / "README.md").read_text()
    refresh_card(str(folder), FOUND)
    (folder / "explain.json").write_text(json.dumps({"reason": "Of 3 methods it is the most faithful."}))
    refresh_card(str(folder))
    card = (folder / "README.md").read_text()
    assert "Shortcuts were looked for in 40 images of photos (val): one serious suspect." in card
    assert "- Upper left corner (serious): " in card
    assert "61 % of the answers change" in card
    assert "Of 3 methods it is the most faithful." in card
    assert "The classifier reads clusters and nothing else" in card
    assert "/home" not in card
    load_model(folder)


def test_a_mended_model_says_so_and_what_it_was(folder: Path, tmp_path: Path) -> None:
    refresh_card(str(folder), FOUND)
    data = dict(data="shapes:corner_mark=0.5,test=train", groups=("agrees",), count=20, workers=0, device="cpu")
    mended = mend(str(folder), out=tmp_path / "mended", hide="upper left", without_clusters=("1",), **data)
    notes = shortcuts_known(str(mended))
    assert notes[0].startswith("Before it was mended: Shortcuts were looked for in 40 images")
    assert "Mended: closed in readout.3.attention: clusters 1." in notes
    assert "Mended: painted over: upper left." in notes
    figures = json.loads((mended / "mended.json").read_text())
    assert f"right {figures['before']['top1']:.2%} before, {figures['after']['top1']:.2%} after" in notes[-1]
    assert "right in the worst group" in notes[-1]
    card = (mended / "README.md").read_text()
    assert "It does not hide the regions" in card
    assert f"| worst_group | {figures['after']['worst_group']:.2%} |" in card.replace("\\", "")
    mend(str(folder), out=mended, hide="border")  # all files of the earlier one go, the card too
    assert "border" in (mended / "README.md").read_text()


def test_groups_of_the_run_are_in_the_card_of_the_model_that_was_measured(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name in ("best", "final"):
        shutil.copytree(folder, run / name)
    (run / "run.json").write_text(json.dumps({"arguments": {"data": "/a/b/birds", "epochs": 3}}))
    (run / "evaluation").mkdir()
    rows = [
        {"name": "place=water", "images": 40, "accuracy": 0.5},
        {"name": "place=land", "images": 0, "accuracy": None},
    ]
    content = {"data": "/a/b/birds", "split": "val", "groups": {"rows": rows}}
    (run / "evaluation" / "evaluation.json").write_text(json.dumps(content))
    assert known_about(run / "best").groups == [("place=water", 40, 0.5)]
    assert known_about(run / "final").groups == []
    write_model_card(run / "best")
    assert "| place=water | 40 | 50.00% |" in (run / "best" / "README.md").read_text()


def test_somebody_elses_card_is_left_alone(folder: Path) -> None:
    (folder / "README.md").write_text("mine")
    refresh_card(str(folder), FOUND)
    assert (folder / "README.md").read_text() == "mine"
    assert shortcuts_known(str(folder))  # what was found is still known
    assert shortcuts_known("resnet18") == []


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"suspects": []}',
        '{"before": {"top1": 1' + 400 * "0" + "}}",
        '{"suspects": 3, "before": [], "reason": {}, "pictures": {"a": 1}}',
        "\x00",
    ],
)
def test_damaged_files_say_nothing_and_stop_nothing(folder: Path, content: str) -> None:
    for name in ("suspects.json", "mended.json", "explain.json"):
        (folder / name).write_text(content)
    write_model_card(folder)
    assert head_of((folder / "README.md").read_text())["library_name"] == "timm"


def test_text_from_files_is_shown_as_it_is() -> None:
    known = dict(figures={"top1": 0.5}, measured_on="# x", training={"# y": "z"})
    card = ModelCard("a", "classify", ("<b>", "c|d", "---\nx: y"), (8, 8), **known)
    shown = card_markdown(card)
    assert r"- \# y: z" in shown
    assert r"\<b\>, c\|d, --- x: y" in shown
    assert r"On \# x:" in shown
    assert set(head_of(shown)) == {"library_name", "pipeline_tag", "tags"}


def test_reports_repeat_what_is_known_of_shortcuts(folder: Path, tmp_path: Path) -> None:
    for known in (False, True):
        if known:
            refresh_card(str(folder), FOUND)
        page = explain(
            str(folder), "shapes:val:0", method="input_gradient", device="cpu", out=tmp_path / f"report-{known}"
        )
        assert ("Upper left corner (serious)" in page.read_text()) == known
        assert ("shortcuts" in json.loads((page.parent / "explanation.json").read_text())) == known
