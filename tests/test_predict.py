"""`vitreous predict`: probabilities, files that cannot be read, and what is written."""

import json
import math
import sys
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image

from tests.support.tiny_model import MODEL_ARGS, save_tiny_model
from vitreous.data.image import load_image
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.predict import predict
from vitreous.runs.model_folder import load_model, save_model
from vitreous.runs.results import file_name


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    Image.effect_noise((90, 70), 80).convert("RGB").save(path)
    return path


@pytest.fixture
def broken(tmp_path):
    path = tmp_path / "broken.jpg"
    path.write_bytes(b"\xff\xd8\xff not a picture")
    return path


def test_probabilities_are_the_models(model, photo, capsys):
    (result,) = predict(model, (str(photo),), top_k=3)
    trained = load_model(model)
    with torch.no_grad():
        expected = trained.model(trained.preprocess(load_image(photo))[None]).softmax(1)[0]
    for entry in result["predictions"]:
        index = trained.classes.index(entry["class"])
        assert math.isclose(entry["probability"], expected[index].item(), abs_tol=1e-6)
    values = [entry["probability"] for entry in result["predictions"]]
    assert values == sorted(values, reverse=True)
    assert len(values) == 3
    assert "photo.png" in capsys.readouterr().out


def test_batch_size_does_not_matter(model):
    one = predict(model, ("shapes:val:0-4",), batch_size=1, top_k=100)
    all_at_once = predict(model, ("shapes:val:0-4",), batch_size=8, top_k=100)
    assert [r["image"] for r in one] == [r["image"] for r in all_at_once]
    for a, b in zip(one, all_at_once, strict=True):
        for left, right in zip(a["predictions"], b["predictions"], strict=True):
            assert math.isclose(left["probability"], right["probability"], abs_tol=1e-5)


def test_unreadable_images_are_named_and_skipped(model, photo, broken, caplog):
    results = predict(model, (str(photo), str(broken)))
    assert [result["image"] for result in results] == [photo.as_posix()]
    assert "broken.jpg" in caplog.text
    assert "1 of 2 images could not be read" in caplog.text


def test_nothing_readable_is_an_error(model, broken):
    with pytest.raises(InputError, match="none of the 1 images"):
        predict(model, (str(broken),))


def test_writes_numbers_and_drawings(model, photo, tmp_path):
    out = tmp_path / "out"
    results = predict(model, (str(photo), "shapes:val:1"), out=out)
    written = json.loads((out / "predictions.json").read_text())
    assert written["images"] == results
    assert sorted(file.name for file in out.glob("*.png")) == ["001_photo.png", "002_shapes_val_1.png"]
    assert Image.open(out / "001_photo.png").width >= 320


def test_earlier_predictions_are_replaced_and_other_files_kept(model, photo, tmp_path, caplog):
    caplog.set_level("INFO", "vitreous")
    out = tmp_path / "out"
    predict(model, (str(photo), "shapes:val:1"), out=out)
    (out / "mine.txt").write_text("keep")
    (out / "003_mine.png").write_text("keep")
    predict(model, (str(photo),), out=out)
    assert {file.name for file in out.iterdir()} == {"001_photo.png", "003_mine.png", "mine.txt", "predictions.json"}
    assert "replacing the earlier result" in caplog.text


def test_foreign_folder_is_refused_and_untouched(model, photo, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="not empty"):
        predict(model, (str(photo),), out=tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"thesis.txt", "photo.png"}
    with pytest.raises(InputError, match="is a file"):
        predict(model, (str(photo),), out=tmp_path / "thesis.txt")


def test_another_size(model):
    (result,) = predict(model, ("shapes:val:0",), size=96)
    assert result["image"] == "shapes:val:0"


@pytest.mark.parametrize(
    "wrong", [{"top_k": 0}, {"batch_size": 0}, {"size": 0}, {"size": -3}, {"size": 8193}, {"device": "abacus"}]
)
def test_bad_numbers(model, wrong):
    with pytest.raises(InputError):
        predict(model, ("shapes:val:0",), **wrong)


def test_file_names_are_tame():
    assert file_name(3, "../../etc/pass wd?.jpg") == "003_pass_wd_.png"
    assert file_name(12, "shapes:val:3") == "012_shapes_val_3.png"


def test_failure_and_interrupt_leave_an_earlier_result_alone(model, photo, broken, tmp_path, monkeypatch):
    out = tmp_path / "out"
    predict(model, (str(photo), "shapes:val:1"), out=out)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    with pytest.raises(InputError, match="none of the 1 images"):
        predict(model, (str(broken),), out=out)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["vitreous.predict"], "write_json", interrupt)
    for folder in (out, tmp_path / "deep" / "new"):
        with pytest.raises(KeyboardInterrupt):
            predict(model, ("shapes:val:2",), out=folder)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert not (tmp_path / "deep").exists()


def test_out_that_cannot_be_made_is_refused_before_the_work(photo):
    with pytest.raises(InputError, match="cannot write to folder /proc/nope"):
        predict("no_such_model", (str(photo),), out=Path("/proc/nope"))


def test_model_for_one_size_only(tmp_path):
    args = dict(img_size=160, depth=1)
    save_model(
        tmp_path / "vit",
        timm.create_model("vit_tiny_patch16_224", num_classes=2, **args),
        name="vit_tiny_patch16_224",
        model_args=args,
        task="classify",
        classes=("a", "b"),
        preprocess=Preprocess((160, 160)),
    )
    with pytest.raises(InputError, match=r"cannot take images of 64x64 pixels .* 160x160"):
        predict(str(tmp_path / "vit"), ("shapes:val:0",), size=64)


def test_model_that_answers_with_nan(tmp_path):
    folder = save_tiny_model(tmp_path / "m")
    trained = load_model(folder)
    torch.nn.init.constant_(trained.model.head.weight, 3e38)  # finite, but sums of it are not
    save_model(
        folder,
        trained.model,
        name="paca_tiny",
        model_args=MODEL_ARGS,
        task="classify",
        classes=trained.classes,
        preprocess=trained.preprocess,
    )
    with pytest.raises(InputError, match="predicts NaN"):
        predict(folder, ("shapes:val:0",), out=tmp_path / "out")
