"""The program beside a graph sees pictures as the model does, is short, and holds no more than its model needs."""

import io
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from vitreous.data.image import load_image
from vitreous.data.regions import named_regions, region_of_picture
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.exports.script import run_script
from vitreous.files.storage import write_json

MOST_LINES = 45  # of a classifier's program
TARGETS = ("onnx", "openvino", "torch")
KINDS = ("classify", "features", "segment", "keypoints", "detect", "propose", "refine")
VIEWS = {
    "whole": Preprocess((64, 64)),
    "cropped": Preprocess((64, 48), 0.875, "bilinear"),
    "odd": Preprocess((57, 91), 0.9),
    "squashed": Preprocess((48, 64), squash=True),
    "squashed middle": Preprocess((48, 64), 0.9, "lanczos", squash=True),
    "hidden": Preprocess((57, 64), 0.9, hidden=named_regions("border, upper left")),
}


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The program for these views, without a graph."""

    def made(preprocess: Preprocess) -> ModuleType:
        write_json(tmp_path / "config.json", {"vitreous": {"classes": ["a"], "preprocess": preprocess.to_dict()}})
        module = ModuleType("exported_program")
        module.__file__ = str(tmp_path / "run.py")
        exec(run_script("tiny", "onnx", "classify", preprocess), vars(module))
        return module

    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=lambda *_, **__: None))
    return made


@pytest.mark.parametrize("to", TARGETS)
def test_the_program_of_a_classifier_is_short(to: str) -> None:
    lines = run_script(
        "a_model_with_a_name_that_is_quite_long_" * 3, to, "classify", Preprocess((224, 224))
    ).splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("view", VIEWS)
def test_every_program_is_python(to: str, kind: str, view: str) -> None:
    for masks in (False, True):
        text = run_script("tiny", to, kind, VIEWS[view], levels=kind in ("detect", "propose"), masks=masks)
        compile(text, "run.py", "exec")
        assert "\n\n\n\n" not in text


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_model_does_not_need_is_not_there(kind: str) -> None:
    plain = run_script("tiny", "onnx", kind, VIEWS["cropped"])
    assert "hidden" not in plain
    assert "later" not in plain or kind in ("propose", "refine")
    assert ("def resized" in plain) == (kind == "segment")
    assert ("GRAPH" in plain) == (kind not in ("classify", "segment", "keypoints"))
    if kind in ("classify", "features"):
        assert "def painted_over" in run_script("tiny", "onnx", kind, VIEWS["hidden"])


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("size", [(90, 70), (70, 91), (64, 64), (300, 20), (1, 1), (2000, 1333)], ids=str)
def test_it_sees_what_the_model_sees(view: str, size: tuple[int, int], program) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (7, 9, 3), np.uint8)
    picture = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
    seen, wanted = (np.asarray(one, int) for one in (program(VIEWS[view]).view(picture), VIEWS[view].picture(picture)))
    assert seen.shape == wanted.shape
    assert np.abs(seen - wanted).max() <= (view == "hidden")  # what is filled in is rounded


def drawn(kind: str) -> Image.Image:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (5, 7, 4), np.uint8)
    if kind == "I;16":
        return Image.fromarray(random.integers(0, 65536, (5, 7), np.uint16))
    return Image.fromarray(pixels).convert(kind)


@pytest.mark.parametrize("kind", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_it_opens_pictures_as_we_do(kind: str, orientation: int, program) -> None:
    stored, exif = io.BytesIO(), Image.Exif()
    exif[274] = orientation
    drawn(kind).save(stored, "PNG", exif=exif)
    found = program(VIEWS["whole"]).open_picture(io.BytesIO(stored.getvalue()))
    wanted = load_image(stored.getvalue())
    assert (found.mode, found.size) == ("RGB", wanted.size)
    assert np.abs(np.asarray(found, int) - np.asarray(wanted, int)).max() <= 1


@pytest.mark.parametrize("given", ["missing.png", "text.png", "cut.png", "."])
def test_a_picture_that_cannot_be_read_is_one_line(given: str, program, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which the program sets
    (tmp_path / "text.png").write_text("no picture")
    drawn("RGB").resize((90, 70)).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:-40])
    text = run_script("tiny", "onnx", "classify", VIEWS["whole"])
    program(VIEWS["whole"])  # writes what it needs
    monkeypatch.setattr(sys, "argv", ["run.py", given])
    with pytest.raises(Exception) as failed:  # noqa: PT011  (each file fails in its own way)
        exec(text, {"__name__": "__main__", "__file__": str(tmp_path / "run.py")})
    sys.excepthook(failed.type, failed.value, failed.tb)
    said = capsys.readouterr().err
    assert said.startswith(f"{given}: ")
    assert said.count("\n") == 1


def test_no_picture_is_told_in_one_line(program, tmp_path, monkeypatch) -> None:
    program(VIEWS["whole"])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "argv", ["run.py"])
    with pytest.raises(SystemExit, match=r"Usage: python run\.py photo\.jpg"):
        exec(
            run_script("tiny", "onnx", "classify", VIEWS["whole"]),
            {"__name__": "__main__", "__file__": str(tmp_path / "run.py")},
        )


def test_regions_that_are_found_by_their_look_stay_with_us() -> None:
    mark = region_of_picture("mark", drawn("RGB"), (0, 0, 0.5, 0.5))
    with pytest.raises(InputError, match="found by their look"):
        run_script("tiny", "onnx", "classify", replace(VIEWS["whole"], hidden=(mark,)))
