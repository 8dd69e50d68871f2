"""`score` and `atlas` that were interrupted: the same command does only what is missing, and writes the same files."""

import json
import os
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from tests.support.ranks import Ranks
from tests.support.tiny_data import picture
from tests.support.tiny_model import save_tiny_dense, save_tiny_model
from vitreous.atlas import atlas
from vitreous.data.shapes.samples import CATEGORIES
from vitreous.errors import InputError
from vitreous.evaluations.settings import open_for
from vitreous.explanations import atlas as gathering
from vitreous.explanations import learning, scores
from vitreous.explanations.best_findings import best_findings
from vitreous.explanations.dataset import selection
from vitreous.explanations.scores import ScoreSettings
from vitreous.faithfulness.scoring import DECIDES
from vitreous.runs import result_parts
from vitreous.runs.model_folder import load_model
from vitreous.runtime.distributed import SINGLE_PROCESS
from vitreous.score import score
from vitreous.tasks import detect

IMAGES = {"score": 5, "atlas": 9}  # five portions
THREE = {"score": "3 of 5", "atlas": "6 of 9"}  # images of the first three
VERBS = {"score": score, "atlas": atlas}
OPTIONS = {
    "score": dict(method=("input_gradient",), limit=5, batch_size=1, size=32, device="cpu"),
    "atlas": dict(limit=9, batch_size=2, like="shapes:val:3", size=32, device="cpu"),
}
FILES = {"score": "faithfulness.json", "atlas": "atlas.json"}
WORK = {"score": (scores, "score_methods"), "atlas": (gathering, "measure_clusters")}  # once for each portion


def model_in(folder: Path) -> str:
    return save_tiny_model(folder / "tiny")


def written(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return model_in(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """What an uninterrupted command writes."""
    folder = tmp_path_factory.mktemp("whole")
    for name, verb in VERBS.items():
        verb(model, "shapes", out=folder / name, **OPTIONS[name])
    return {name: written(folder / name) for name in VERBS}


class Interrupted(Exception):
    """No error that a verb knows."""


def counted(monkeypatch, name: str, fails_at: int | None = None) -> list[int]:
    """Portions that are worked on; the one of that number fails."""
    module, function = WORK[name]
    original, done = getattr(module, function), []

    def counting(*given, **options):
        if len(done) == fails_at:
            raise Interrupted
        done.append(len(done))
        return original(*given, **options)

    monkeypatch.setattr(module, function, counting)
    return done


def interrupt(monkeypatch, name: str, portions: int, *given, **options) -> None:
    """A command that fails after so many portions."""
    queries = 1 if "like" in options else 0
    with monkeypatch.context() as patch:
        counted(patch, name, fails_at=queries + portions)
        with pytest.raises(Interrupted):
            VERBS[name](*given, **options)


@pytest.mark.parametrize("name", VERBS)
def test_the_same_command_does_what_is_missing(model, whole, tmp_path, monkeypatch, capsys, name):
    out = tmp_path / "out"
    interrupt(monkeypatch, name, 3, model, "shapes", out=out, **OPTIONS[name])
    assert sorted(path.name for path in out.iterdir()) == [".parts"]
    assert len(list((out / ".parts").glob("*.safetensors"))) == 3
    done = counted(monkeypatch, name)
    VERBS[name](model, "shapes", out=out, **OPTIONS[name])
    assert f"{THREE[name]} images were there before" in capsys.readouterr().out
    assert len(done) == (2 if name == "score" else 3)
    assert written(out) == whole[name]


def test_an_earlier_result_stays_until_the_next_is_complete(model, whole, tmp_path, monkeypatch):
    out, options = tmp_path / "out", OPTIONS["atlas"]
    atlas(model, "shapes", out=out, **options | dict(limit=2))
    earlier = written(out)
    interrupt(monkeypatch, "atlas", 3, model, "shapes", out=out, **options)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == earlier
    atlas(model, "shapes", out=out, **options)
    assert written(out) == whole["atlas"]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("score", dict(limit=4), r"the pictures and the settings differ \(limit\)"),
        ("score", dict(method=("grad_cam",)), r"the settings differ \(methods\)"),
        ("atlas", dict(ranking="logit_gate"), r"the settings differ \(ranking\)"),
        ("atlas", dict(like=None), r"the settings differ \(like\)"),
        ("atlas", dict(cluster=0), r"the settings differ \(cluster\)"),
        ("atlas", dict(batch_size=3), r"the settings differ \(batch_size\)"),
        ("atlas", dict(size=64), "another model, .* the model's weights or preprocessing"),
    ],
)
def test_changed_options_are_refused(model, tmp_path, monkeypatch, name, change, words):
    out = tmp_path / "out"
    interrupt(monkeypatch, name, 3, model, "shapes", out=out, **OPTIONS[name])
    before = written(out / ".parts")
    with pytest.raises(InputError, match=words):
        VERBS[name](model, "shapes", out=out, **OPTIONS[name] | change)
    assert written(out / ".parts") == before
    assert [path.name for path in out.iterdir()] == [".parts"]


@pytest.mark.parametrize("name", VERBS)
def test_a_damaged_part_is_done_again(model, whole, tmp_path, monkeypatch, capsys, name):
    out = tmp_path / "out"
    interrupt(monkeypatch, name, 3, model, "shapes", out=out, **OPTIONS[name])
    part = sorted((out / ".parts").glob("*.safetensors"))[1]
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(bytes(content))
    VERBS[name](model, "shapes", out=out, **OPTIONS[name])
    assert f"{part.name} cannot be read" in capsys.readouterr().out
    assert written(out) == whole[name]


def forged(path, forge):
    """A part that somebody made up, with a right checksum."""
    with safe_open(path, "pt") as file:
        belongs = file.metadata()["of"]
    part = result_parts._unpacked(path, belongs)
    forge(part)
    path.write_bytes(result_parts._packed(part, belongs))


FORGERIES = {
    "a picture that is not there": lambda part: part.numbers["atlas/top/image"].fill_(3000),
    "a class that is not there": lambda part: part.numbers["like/answer"].fill_(-7),
    "another number of clusters": lambda part: part.numbers.update({"atlas/strength": torch.zeros(5)}),
    "regions without maps": lambda part: part.numbers.pop("atlas/top/map"),
    "no sums": lambda part: part.numbers.clear(),
    "counts that are none": lambda part: part.told.update({"images": "many"}),
    "what nobody counts": lambda part: part.told.update({"__class__": 1}),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_a_part_that_somebody_made_up_is_refused_in_one_line_or_done_again(
    model, whole, tmp_path, monkeypatch, capsys, forge
):
    out = tmp_path / "out"
    interrupt(monkeypatch, "atlas", 3, model, "shapes", out=out, **OPTIONS["atlas"])
    forged(out / ".parts" / "atlas-00001.safetensors", forge)
    atlas(model, "shapes", out=out, **OPTIONS["atlas"])
    assert "atlas-00001.safetensors cannot be read: " in capsys.readouterr().out
    assert written(out) == whole["atlas"]


def test_a_made_up_score_is_done_again(model, whole, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    interrupt(monkeypatch, "score", 3, model, "shapes", out=out, **OPTIONS["score"])

    def rename(part):
        told = part.told["scores"]
        name = next(iter(told["measures"]))
        escape = f"{name}\x1b[31m"
        for kept in (told["measures"], told["summaries"], told["passes"], told["constant"]):
            kept[escape] = kept.pop(name)
        for key in [key for key in part.numbers if key.startswith(f"{name}/")]:
            part.numbers[key.replace(name, escape)] = part.numbers.pop(key)

    forged(out / ".parts" / "scores-00001.safetensors", rename)
    score(model, "shapes", out=out, **OPTIONS["score"])
    assert "scores-00001.safetensors cannot be read: " in capsys.readouterr().out
    assert written(out) == whole["score"]


@pytest.mark.parametrize("name", VERBS)
def test_a_part_in_the_place_of_another_is_done_again(model, whole, tmp_path, monkeypatch, capsys, name):
    out = tmp_path / "out"
    interrupt(monkeypatch, name, 3, model, "shapes", out=out, **OPTIONS[name])
    first, second = sorted((out / ".parts").glob("*.safetensors"))[:2]
    second.write_bytes(first.read_bytes())
    VERBS[name](model, "shapes", out=out, **OPTIONS[name])
    assert "it is part of another result" in capsys.readouterr().out
    assert written(out) == whole[name]


def test_pictures_that_cannot_be_read_count_once(model, tmp_path, monkeypatch, caplog):
    """Also where a whole portion holds none that can be."""
    for number in range(6):
        picture(tmp_path / "data" / "val" / "star" / f"{number}.png", seed=number)
    for number in (2, 3, 5):
        (tmp_path / "data" / "val" / "star" / f"{number}.png").write_bytes(b"no picture")
    data, found = str(tmp_path / "data"), []
    asked = OPTIONS["score"] | dict(limit=6)
    for out in (tmp_path / "whole", tmp_path / "continued"):
        if out.name == "continued":
            interrupt(monkeypatch, "score", 2, model, data, out=out, **asked)
            caplog.clear()
        score(model, data, out=out, **asked)
        assert "3 of 6 images could not be read" in caplog.text
        found.append((out / "faithfulness.json").read_bytes())
    assert found[0] == found[1]
    assert json.loads(found[0])["images"] == 3


def test_the_first_findings_have_sanity_whatever_the_portions(tmp_path, monkeypatch):
    """A detector finds nothing in the first picture; each picture is a portion of its own."""
    run = save_tiny_dense(tmp_path / "run", "detect", CATEGORIES)
    trained = load_model(run)
    images = open_for(trained, "shapes", "val", follow=False)
    nothing_in = selection(len(images), 4)[0]
    monkeypatch.setattr(detect, "MIN_SCORE", 0.0)
    monkeypatch.setattr(scores, "SANITY_IMAGES", 2)

    def found_in_others(trained, images, numbers, tally, **how):
        for found in best_findings(trained, images, numbers, tally, **how):
            if found.number == nothing_in:
                tally.nothing_found += 1
            else:
                yield found

    monkeypatch.setattr(scores, "best_findings", found_in_others)
    asked = ScoreSettings("val", 4, ("input_gradient",), batch_size=1)
    methods = scores.methods_to_score(trained.model, asked.methods)
    with monkeypatch.context() as patch:
        counted(patch, "score", fails_at=2)
        with pytest.raises(Interrupted):
            scores.score_in_parts(trained, images, asked, methods, tmp_path, SINGLE_PROCESS)
    found = scores.score_in_parts(trained, images, asked, methods, tmp_path, SINGLE_PROCESS)
    assert (found.tally.images, found.tally.nothing_found) == (4, 1)
    measured = found.scores.values["input_gradient"]
    assert [len(measured[name]) for name in (DECIDES, "randomisation", "stability")] == [3, 2, 2]


def test_an_atlas_of_pictures_that_differ_in_shape_is_put_together(tmp_path, monkeypatch):
    """Maps of a portion have the grid of its first picture."""
    random = np.random.default_rng(0)
    data, classes = tmp_path / "streets", ("background", *CATEGORIES)
    for number, (width, height) in enumerate([(50, 91), (91, 50), (50, 91), (91, 50)]):
        picture(data / "images" / "val" / f"{number}.png", (width, height), seed=number)
        (data / "masks" / "val").mkdir(parents=True, exist_ok=True)
        values = Image.fromarray(random.integers(0, 11, (3, 3), dtype=np.uint8))
        values.resize((width, height), Image.Resampling.NEAREST).save(data / "masks" / "val" / f"{number}.png")
    (data / "classes.txt").write_text("\n".join(classes))
    run = save_tiny_dense(tmp_path / "run", "segment", classes)
    asked = dict(batch_size=1, like="shapes:val:1", device="cpu")
    atlas(run, str(data), out=tmp_path / "whole", **asked)
    interrupt(monkeypatch, "atlas", 2, run, str(data), out=tmp_path / "out", **asked)
    atlas(run, str(data), out=tmp_path / "out", **asked)
    assert written(tmp_path / "out") == written(tmp_path / "whole")


# ---- an explainer that is learned first --------------------------------------------------------------------------

LEARN = dict(
    learn=True, learn_steps=2, learn_limit=64, limit=3, batch_size=1, size=32, method=("learned",), device="cpu"
)


def test_an_explainer_is_taught_once_for_an_interrupted_score(tmp_path, monkeypatch, capsys):
    taught, teach = [], learning.teach
    monkeypatch.setattr(learning, "teach", lambda *given, **how: (taught.append(1), teach(*given, **how))[1])
    score(model_in(tmp_path / "whole"), "shapes", out=tmp_path / "whole" / "out", **LEARN)
    own = model_in(tmp_path / "own")
    interrupt(monkeypatch, "score", 1, own, "shapes", out=tmp_path / "out", **LEARN)
    explainer = written(tmp_path / "own" / "tiny" / "explainer")
    assert len(taught) == 2
    with pytest.raises(InputError, match=r"the settings differ \(lessons\)"):
        score(own, "shapes", out=tmp_path / "out", **LEARN | dict(learn_seed=1))
    score(own, "shapes", out=tmp_path / "out", **LEARN)
    assert len(taught) == 2
    assert "learned before this score was interrupted" in capsys.readouterr().out
    assert written(tmp_path / "own" / "tiny" / "explainer") == explainer
    assert written(tmp_path / "out") == written(tmp_path / "whole" / "out")
    score(own, "shapes", out=tmp_path / "out", **LEARN)
    assert len(taught) == 3, "a new command teaches again"


# ---- processes that are killed -----------------------------------------------------------------------------------


def note_portions(name: str, log: Path, seconds: float) -> None:
    """In a process of its own: slow enough to be killed in the middle, and every portion is written down."""
    module, function = WORK[name]
    original = getattr(module, function)

    def noted(*given, **options):
        time.sleep(seconds)
        with log.open("a") as file:
            file.write("x")
        return original(*given, **options)

    setattr(module, function, noted)


@pytest.mark.system
@pytest.mark.parametrize(("first", "then"), [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("name", VERBS)
def test_killed_and_continued(model, whole, tmp_path, name, first, then):
    out, log = tmp_path / "out", tmp_path / "portions"
    words = [name, model, "shapes", "--out", str(out)]
    for option, value in OPTIONS[name].items():
        values = value if isinstance(value, tuple) else (value,)
        words += [f"--{option.replace('_', '-')}", *map(str, values)]
    ranks = Ranks(first, words, tmp_path / "logs", before=partial(note_portions, name, log, 0.3))
    deadline = time.monotonic() + 120
    while not list(out.glob(".parts/*.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.002)
    for rank in range(first):
        ranks.send(rank, signal.SIGKILL)
    assert set(ranks.wait()) <= {-signal.SIGKILL}, ranks.said_by_all()
    there = len(list(out.glob(".parts/*.safetensors")))
    assert 0 < there < 5
    log.unlink()
    ranks = Ranks(then, words, tmp_path / "again", before=partial(note_portions, name, log, 0))
    assert ranks.wait() == [0] * then, ranks.said_by_all()
    assert f"of {IMAGES[name]} images were there before" in ranks.said(0)
    queries = then if name == "atlas" else 0
    assert len(log.read_text()) == 5 - there + queries, "finished work is not done twice"
    assert written(out) == whole[name]
    assert sorted(os.listdir(out)) == sorted(whole[name])
