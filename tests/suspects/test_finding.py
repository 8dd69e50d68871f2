"""Shortcuts are found where they are, and nowhere else: by models that are known to read one thing."""

import json
from dataclasses import replace

import pytest
import torch

from tests.support.marked_pictures import MarkedSquares, reader
from tests.support.tiny_model import save_tiny_model
from vitreous.data.regions import read_regions, region_masks
from vitreous.errors import InputError
from vitreous.explanations.default_method import NOT_MEASURED
from vitreous.reports.shortcuts_page import search_facts
from vitreous.suspects.candidates import Candidate
from vitreous.suspects.changes import Alike, Place
from vitreous.suspects.finding import FoundShortcuts, find_shortcuts, group_in_words
from vitreous.suspects.folder import ways_to_mend, write_shortcuts
from vitreous.suspects.looks import Look, grid_of_looks
from vitreous.suspects.measuring import AnswerFate, Trial, groups_of
from vitreous.suspects.verdict import judge


def found(reads: str, images: MarkedSquares, limit: int | None = None) -> FoundShortcuts:
    options = dict(split="val", limit=limit, masks=True, batch_size=64)
    return find_shortcuts(reads, reader(reads), "squares", images, NOT_MEASURED, **options)


@pytest.fixture(scope="module")
def marked() -> FoundShortcuts:
    return found("corner", MarkedSquares(60))


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("agreeing", [1.0, 0.0])
def test_a_mark_is_the_first_suspect(masks, agreeing):
    """Whether it goes with the class, and accuracy falls without it, or not, and accuracy rises."""
    result = found("corner", MarkedSquares(80, agreeing, masks=masks)).result
    first = result.suspects[0]
    assert (first.kind, first.name, first.verdict) == ("place", "upper left corner", "serious")
    assert first.used is not None
    assert first.used > 0.9
    assert first.control is not None
    assert first.changed.mean > 0.4 > 0.1 > first.control.mean
    assert first.exchanged_alike is not None
    assert first.exchanged_alike.mean < 0.05
    assert first.accuracy is not None
    before, after = first.accuracy
    assert (before == 1.0 and after < 0.6) if agreeing else before < 0.6
    assert result.masks == masks


@pytest.mark.parametrize("masks", [True, False])
def test_an_object_that_moves_is_no_shortcut(masks):
    result = found("object", MarkedSquares(80, 1.0, masks=masks)).result
    assert result.accuracy == 1.0
    assert result.serious() == ()


@pytest.mark.parametrize("masks", [True, False])
def test_the_colour_of_the_whole_picture_is_found(masks):
    first = found("tint", MarkedSquares(80, 1.0, "tint", masks=masks)).result.suspects[0]
    assert (first.kind, first.verdict) == ("colour", "serious")


def test_groups_by_an_attribute_are_measured_with_and_without():
    first = found("corner", MarkedSquares(120, 0.0)).result.suspects[0]
    assert first.worst_group is not None
    name, before, _ = first.worst_group
    assert name.startswith("mark=")
    assert before == 0  # a mark that contradicts the class decides every answer of the group


def test_one_picture_without_a_mask_is_left_out_alone():
    result = found("corner", MarkedSquares(80, masks=40)).result
    assert (result.masks, result.unmasked, result.pictures + result.proposing) == (True, 2, 78)
    assert result.suspects[0].verdict == "serious"
    assert "it lies off the object" in " ".join(result.suspects[0].reasons)
    assert "2 other pictures without a mask were left out" in search_facts(result)["objects"]
    assert result.to_dict()["unmasked"] == 2
    few = MarkedSquares(80, masks=True)
    few.object_mask = lambda index, read=few.object_mask: read(index) if index < 19 else None  # type: ignore
    result = found("corner", few).result
    assert (result.masks, result.unmasked, result.pictures + result.proposing) == (False, 0, 80)


def test_what_is_proposed_for_a_name_works_for_names(marked, tmp_path):
    """`mend` changes the description of a folder, and a name has none."""
    result = replace(marked.result, model="resnet18")
    said = [line for _, line in ways_to_mend(result.suspects[0], result, "resnet18", tmp_path, ["upper left corner"])]
    assert len(said) == 2
    assert all(line.startswith("vitreous train resnet18 squares --pretrained --epochs 2 --attend-") for line in said)
    (tmp_path / "mine.pth").touch()  # nor has a file, whose weights training can start from
    result = replace(marked.result, model=str(tmp_path / "mine.pth"))
    said = [line for _, line in ways_to_mend(result.suspects[0], result, "resnet18", tmp_path, ["upper left corner"])]
    assert len(said) == 2
    assert all(f"--weights {result.model}" in line for line in said)


def test_the_folder_says_it_to_people_and_to_other_verbs(marked, tmp_path_factory, tmp_path):
    folder = save_tiny_model(tmp_path_factory.mktemp("models") / "corner")
    known = marked._replace(result=replace(marked.result, model=folder))
    result = write_shortcuts(tmp_path, known, reader("corner"), MarkedSquares(60), tmp_path)
    assert result.page == tmp_path / "index.html"
    page, index = (tmp_path / "suspect_01.html").read_text(), (tmp_path / "index.html").read_text()
    assert "In 100 % of the pictures called red the model looks at the upper left corner." in page
    assert f"vitreous mend {folder} --data squares --hide {tmp_path}/shortcuts.json" in page
    assert "--attend-away" in page
    assert 'href="suspect_01.html"' in index
    assert 'src="http' not in page + index
    (region,) = read_regions(tmp_path / "shortcuts.json")
    assert region.name == "upper left corner"
    assert region.box[:2] == (0, 0)
    content = json.loads((tmp_path / "shortcuts.json").read_text())
    assert content["suspects"][0]["verdict"] == "serious"
    assert sorted(content["files"]) == sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".html")


def test_a_look_is_found_again_in_pictures_that_have_it(marked, tmp_path):
    """The stored patch and the box of its size belong together."""
    trained, images = reader("corner"), MarkedSquares(60)
    seen, first = torch.stack([trained.preprocess(images.picture(n)) for n in range(60)]), marked.judged[0]
    number = marked.lost[0][0].number
    look = Look(grid_of_looks(seen[[number]], 8)[0, 0, 0], 0.1, 8, torch.ones(6))
    trial = replace(first.trial, candidate=replace(first.trial.candidate, kind="look", change=Alike(look)))
    suspects = (replace(marked.result.suspects[0], kind="look"), *marked.result.suspects[1:])
    judged = [first._replace(trial=trial), *marked.judged[1:]]
    changed = marked._replace(result=replace(marked.result, suspects=suspects), judged=judged)
    write_shortcuts(tmp_path, changed, trained, images, tmp_path)
    (region,) = read_regions(tmp_path / "shortcuts.json")
    assert (region.match, region.box) == ("look", (0, 0, 0.1875, 0.1875))
    corners = region_masks([region], seen)[:, :4, :4].flatten(1).all(1)
    assert corners.nonzero().flatten().tolist() == list(range(number % 3, 60, 3))  # of three colours one


def test_only_what_is_stored_is_said_to_be_hidden(marked, tmp_path):
    result = replace(marked.result, model=save_tiny_model(tmp_path / "model"))
    known, unknown = (
        ways_to_mend(result.suspects[0], result, "a", tmp_path, names) for names in (["upper left corner"], [])
    )
    assert any("--hide" in line for _, line in known)
    assert not any("shortcuts.json" in line for _, line in unknown)


def test_values_of_attributes_may_be_any_text():
    group = groups_of({"place": "a, class b"}, 1)
    assert [group_in_words(one, ("red", "green")) for one in group] == [
        "place=a, class b",
        "place=a, class b, class green",
    ]


@pytest.mark.parametrize(("exchanged", "verdict"), [(2, "look at it"), (12, "serious")])
def test_a_few_exchanges_prove_nothing(exchanged, verdict):
    trial = Trial(Candidate("place", "here", Place((0.0, 0.0, 0.5, 0.5))), 3)
    trial.outcomes[AnswerFate(True, 0.0, None, None, None, True, False)] = 30
    trial.outcomes[AnswerFate(True, 0.0, True, True, False, True, False)] = exchanged
    assert judge([trial], masks=True, labels=True)[0].verdict == verdict


def test_too_few_pictures_are_refused():
    with pytest.raises(InputError, match="12 images are too few"):
        found("corner", MarkedSquares(60), limit=12)
