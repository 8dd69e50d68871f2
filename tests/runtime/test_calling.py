"""Verbs called from Python take what people pass, and every verb's every parameter is looked at."""

import functools
import importlib
import inspect
import io
import json
import math
import re
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vitreous
from tests.support.tiny_model import save_tiny_dense, save_tiny_model
from vitreous.data.transforms import to_bytes
from vitreous.errors import InputError
from vitreous.models.arguments import parse_model_arg
from vitreous.runs.model_folder import load_model
from vitreous.runtime.calling import natural
from vitreous_command import VERBS

# What a parameter of a type may be given, and what its verb must then get.
NATURAL = {
    bool: [(True, True), (np.bool_(False), False), (1, True), (torch.tensor(True), True)],
    int: [(3, 3), (np.int64(3), 3), (3.0, 3), (np.float32(3), 3), (torch.tensor(3), 3), (torch.tensor([3]), 3)],
    float: [(0.5, 0.5), (1, 1.0), (np.float64(0.5), 0.5), (np.int32(2), 2.0), (torch.tensor(0.5), 0.5)],
    str: [("x", "x"), (Path("a/x"), "a/x"), (np.str_("x"), "x"), ((1, 2.5), "1,2.5")],
    Path: [(Path("x"), Path("x")), ("a/x", Path("a/x"))],
}
UNFIT = {bool: "yes", int: 0.5, float: "half", str: 3, Path: 3}


def cases(hint) -> list[tuple]:
    """Pairs of what is given and what must arrive, for a type hint; a kind of hint that is not known here fails."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return cases(inner[0])
    if origin is Literal:
        return [(value, value) for value in inner] + [(np.str_(inner[0]), inner[0])]
    if origin in (Union, UnionType):
        return [pair for one in inner for pair in cases(one)]
    if origin is tuple and inner[-1] is Ellipsis:
        single = [pair for pair in cases(inner[0]) if not isinstance(pair[0], tuple)]
        several = [as_type([given for given, _ in single]) for as_type in (list, tuple, iter)]
        arrays = [(np.array([1, 2]), tuple(map(inner[0], (1, 2))))] if inner[0] in (int, float) else []
        alone = [(given, (got,)) for given, got in single]
        return [*alone, *arrays, ((), ()), *((many, tuple(got for _, got in single)) for many in several)]
    if origin is tuple:
        firsts = [cases(one)[0] for one in inner]
        given, got = zip(*firsts, strict=True)
        return [(list(given), got), (given, got)]
    if hint is NoneType:
        return [(None, None)]
    if is_dataclass(hint):  # settings, which are taken as they are
        return [(hint(), hint())]
    assert hint in NATURAL, f"no rule for {hint}: give one to vitreous.runtime.calling and to this table"
    return NATURAL[hint]


def unfit(hint):
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return unfit(inner[0])
    if origin in (Union, UnionType):
        return object()
    return "nonsense" if origin is Literal else object() if origin is tuple else UNFIT[hint]


def verb_function(verb: str):
    return getattr(importlib.import_module(f"vitreous.{verb}"), verb)


PARAMETERS = [
    (verb, name, hint)
    for verb in VERBS
    for name, hint in get_type_hints(verb_function(verb), include_extras=True).items()
    if name != "return"
]


def received(verb: str, *, without: str = "", **given):
    """What a verb gets when its function in `vitreous` is called so; the verb itself does not run."""
    function, got = verb_function(verb), {}

    @functools.wraps(function)
    def spy(*args, **kwargs):
        got.update(inspect.signature(function).bind(*args, **kwargs).arguments)

    required = {
        name: {"images": ("x",), "runs": ("x",)}.get(name, "x")
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty and name != without
    }
    pictures = "images" if verb in ("predict", "explain") else None
    natural(spy, pictures=pictures)(**required | given)
    return got


def test_every_parameter_of_every_verb_is_in_the_table():
    assert {verb for verb, _, _ in PARAMETERS} == set(VERBS)
    assert len(PARAMETERS) > 150
    for verb in VERBS:
        function, exposed = verb_function(verb), getattr(vitreous, verb)
        assert inspect.unwrap(exposed).__code__ is inspect.unwrap(function).__code__
        if verb != "explain":  # which passes its arguments through the same place itself, for two kinds of models
            assert exposed is not function, f"vitreous.{verb} is not exposed through vitreous.runtime.calling"
        assert {name for given, name, _ in PARAMETERS if given == verb} == set(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("verb", "name", "hint"), PARAMETERS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_parameter_takes_what_people_pass(verb, name, hint):
    for given, expected in cases(hint):
        got = received(verb, **{name: given})[name]
        assert got == expected, (given, got)
        assert type(got) is type(expected), (given, got)
        if isinstance(expected, tuple):
            assert [type(one) for one in got] == [type(one) for one in expected]
    with pytest.raises(InputError, match=rf"^{name}=.* given; .* is needed$"):
        received(verb, **{name: unfit(hint)})


def test_what_is_left_out_stays_left_out():
    """A verb can tell a default from the same value given, as recipes do."""
    assert received("train", data="x", epochs=3).keys() == {"data", "epochs"}


@pytest.mark.parametrize(
    ("verb", "given", "name"),
    [
        ("explain", "methods", "method"),
        ("explain", "image", "images"),
        ("predict", "image", "images"),
        ("plot", "metric", "metrics"),
        ("plot", "run", "runs"),
    ],
)
def test_one_and_many_are_the_same_word(verb, given, name):
    assert received(verb, without=name, **{given: "x"})[name] == ("x",)
    with pytest.raises(InputError, match="the same; give one"):
        received(verb, **{given: "x", name: "y"})


@pytest.mark.parametrize("verb", [verb for verb, name, _ in PARAMETERS if name == "device"])
def test_a_device_is_taken_as_torch_has_it(verb):
    assert received(verb, device=torch.device("cuda", 1))["device"] == "cuda:1"


@pytest.mark.parametrize(("verb", "name"), [pair[:2] for pair in PARAMETERS if pair[1] in ("model_args", "head_args")])
def test_arguments_of_models_are_taken_as_a_dictionary(verb, name):
    given = {"depths": (1, 1, 1, 1), "norm": "layer", "rate": np.float64(0.5), "bias": True, "token": None}
    texts = received(verb, **{name: given})[name]
    assert texts[0] == "depths=(1, 1, 1, 1)"
    assert dict(map(parse_model_arg, texts)) == given


@pytest.mark.parametrize("value", [np.ones(2), nn.GELU, math.nan], ids=["array", "class", "nan"])
def test_a_dictionary_that_text_cannot_hold_is_refused(value):
    with pytest.raises(InputError, match="a dictionary of names to numbers, texts and tuples of them is needed"):
        received("train", model_args={"depths": value})


def test_a_model_is_named_in_one_line(place):
    trained = load_model(place / "classify")
    for given in (trained, trained.model):
        with pytest.raises(InputError, match=rf"^model=<{type(given).__name__}> given; text or a path is needed$"):
            vitreous.evaluate(given, "shapes")
    with pytest.raises(InputError, match=r"given; text or a path, or what vitreous\.load_model gives, is needed$"):
        vitreous.predict(trained.model, "shapes:val:0")


def test_unknown_words_stay_unknown():
    with pytest.raises(TypeError, match="colour"):
        vitreous.plot("x", colour="red")


# ---- real calls --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A classifier, a segmenter and a picture of another size and shape than they see."""
    folder = tmp_path_factory.mktemp("natural")
    save_tiny_model(folder / "classify")
    save_tiny_dense(folder / "segment", "segment", ("background", "disc", "box"))
    save_tiny_dense(folder / "detect", "detect", ("disc", "box"))
    noise = np.random.default_rng(0).integers(0, 255, (7, 13, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((91, 50), Image.Resampling.BICUBIC).save(folder / "photo.png")
    return folder


def forms(path: Path) -> dict:
    """One picture in the forms in which it is handed over; `tests/data/test_pictures.py` has more."""
    array = np.array(Image.open(path))
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    return {
        "path": path,
        "PIL": Image.open(path),
        "array": array,
        "tensor": tensor,
        "floats": tensor.float() / 255,
    }


@pytest.fixture(scope="module")
def answers(place) -> dict:
    """By file name: what every entry point says."""
    return {task: said(place / task, str(place / "photo.png")) for task in ("classify", "segment", "detect")}


def said(folder: Path, picture, **options) -> dict:
    trained = load_model(folder)
    wanted = {"finding": 1} if trained.task == "detect" else {}
    item = vitreous.explain(trained, picture, method="centre_blob", ranking="logit_gate", **wanted, **options)
    answer = item.answer.findings if item.answer is not None else item.probabilities
    return {"answer": answer, "pixels": item.picture.tobytes(), "scores": item.scores, "watched": item.watched}


@pytest.mark.parametrize("form", ["path", "PIL", "array", "tensor", "floats"])
@pytest.mark.parametrize("task", ["classify", "segment"])
def test_a_picture_is_the_same_in_every_form(place, answers, task, form):
    given = forms(place / "photo.png")[form]
    assert said(place / task, given) == answers[task]
    results = [vitreous.predict(place / task, one, device="cpu") for one in (given, str(place / "photo.png"))]
    assert results[0][0]["predictions"] == results[1][0]["predictions"]
    assert results[0][0]["image"] == (str(place / "photo.png") if form == "path" else "image 1")


@pytest.mark.parametrize("task", ["classify", "segment", "detect"])
def test_a_network_input_is_one_only_when_it_is_said(place, answers, task):
    trained = load_model(place / task)
    picture = Image.open(place / "photo.png")
    if task == "classify":
        inputs = trained.preprocess(picture)
    else:
        built = trained.build_task()
        pixels, _ = built.evaluation_view(trained.preprocess)(picture, built.blank_targets(picture, [])[0])
        inputs = trained.preprocess.normalise_bytes(pixels)
    again = said(place / task, inputs, preprocessed=True)
    assert again["pixels"] == answers[task]["pixels"]
    height, width = inputs.shape[1:]  # findings lie in the picture that was given, which now is as large as this
    assert again == said(place / task, Image.frombytes("RGB", (width, height), answers[task]["pixels"]))
    if task == "classify":
        assert again == answers[task]
    assert said(place / task, inputs[None].numpy(), preprocessed=True) == again
    with pytest.raises(InputError, match=r"with values from -.* looks like a normalised network input: give the pict"):
        said(place / task, inputs)
    with pytest.raises(InputError, match="looks like a normalised network input"):
        vitreous.predict(place / task, inputs, device="cpu")


@pytest.mark.parametrize("verb", ["predict", "explain"])
def test_the_advice_about_network_inputs_works_when_it_is_followed(place, tmp_path, verb):
    folder = place / "classify"
    inputs = load_model(folder).preprocess(Image.open(place / "photo.png"))
    options = {"method": "centre_blob", "out": tmp_path / "out"} if verb == "explain" else {}
    with pytest.raises(InputError) as refused:
        getattr(vitreous, verb)(folder, inputs, device="cpu", **options)
    advice = re.search(r"vitreous\.explain\(vitreous\.load_model\(\.\.\.\), .*?\)", str(refused.value))[0]
    followed = eval(advice.replace("...", repr(str(folder))), {"vitreous": vitreous, "inputs": inputs})
    assert followed.probabilities == said(folder, place / "photo.png")["answer"]


def test_keywords_of_the_other_kind_of_model_are_refused_in_words(place, tmp_path):
    folder, photo = place / "classify", place / "photo.png"
    with pytest.raises(InputError, match=r"^preprocessed given, which goes with a model in memory.*load_model"):
        vitreous.explain(folder, photo, preprocessed=True, out=tmp_path / "out")
    with pytest.raises(InputError, match=r"^out given, which goes with a folder, file or name of a model"):
        vitreous.explain(load_model(folder), photo, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(TypeError, match="colour"):
        vitreous.explain(load_model(folder), photo, colour="red")


def test_a_module_by_itself_follows_the_same_rule(place):
    trained, picture = load_model(place / "classify"), Image.open(place / "photo.png")
    known = dict(preprocess=trained.preprocess, classes=list(trained.classes), methods="centre_blob")
    first = vitreous.explain(trained.model, picture, **known).probabilities
    assert first == vitreous.explain(model=trained.model, image=to_bytes(picture), **known).probabilities
    assert first == said(place / "classify", picture)["answer"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.rand(3, 8, 8) * 255, r"with values from .* which look like bytes: convert it to uint8"),
        (torch.rand(3, 8, 8) * 999, "no picture that can be understood"),
        (torch.full((3, 8, 8), torch.nan), "values from nan to nan"),
        (torch.zeros(3, 8, 8, dtype=torch.int64), r"a tensor of int64 and shape \(3, 8, 8\) .* convert it to uint8"),
        (np.zeros((8, 8), bool), "convert it to uint8"),
        (np.zeros((5, 8, 8), np.uint8), r"an array of uint8 and shape \(5, 8, 8\)"),
        (np.zeros((2, 8, 8, 3), np.uint8), "give several pictures as a list"),
        (np.zeros((0, 8, 3), np.uint8), r"shape \(0, 8, 3\)"),
        (42, "a value of the type int was given as a picture"),
        (b"bytes", r"the content of a file was given .*: PIL\.Image\.open\(io\.BytesIO"),
        (io.BytesIO(b"bytes"), "an open file was given as a picture; give its path, or PIL"),
    ],
)
def test_what_is_no_picture_is_refused_in_words(place, given, message):
    with pytest.raises(InputError, match=message):
        said(place / "classify", given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("photo.png", "preprocessed=True with a str given"),
        (torch.zeros(3, 64, 64, dtype=torch.uint8), "a network input is a float tensor"),
        (torch.zeros(2, 3, 64, 64), r"shape \(2, 3, 64, 64\)"),
        (torch.full((3, 64, 64), 5.0), r"are colours from .* and not from 0 to 1"),
        (torch.full((3, 64, 64), torch.nan), "are colours from nan"),
    ],
)
def test_what_is_no_network_input_is_refused_in_words(place, given, message):
    with pytest.raises(InputError, match=message):
        said(place / "classify", given, preprocessed=True)


def test_an_input_that_a_view_would_change_is_refused(tmp_path):
    folder = tmp_path / "joints"
    save_tiny_dense(folder, "keypoints", ("figure",))
    with pytest.raises(InputError, match="view would change an input of 48 x 80 pixels"):
        said(folder, torch.rand(3, 80, 48) - 0.5, preprocessed=True)


def test_pictures_of_pil_are_turned_upright_and_grey_ones_coloured(tmp_path, place):
    wide = Image.new("RGB", (40, 20), "teal")
    exif = wide.getexif()
    exif[274] = 6
    wide.save(tmp_path / "turned.jpg", exif=exif)
    turned = tmp_path / "turned.jpg"
    assert said(place / "classify", Image.open(turned)) == said(place / "classify", turned)
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    coloured = said(place / "classify", np.stack([grey] * 3, -1))
    assert said(place / "classify", grey) == said(place / "classify", torch.from_numpy(grey)[None]) == coloured


def test_a_file_that_pil_has_opened_may_be_damaged(tmp_path, place):
    Image.effect_noise((64, 64), 50).save(tmp_path / "whole.png")
    (tmp_path / "torn.png").write_bytes((tmp_path / "whole.png").read_bytes()[:800])
    with pytest.raises(InputError, match=r"torn\.png' cannot be decoded"):
        vitreous.predict(place / "classify", Image.open(tmp_path / "torn.png"), device="cpu")


@pytest.mark.parametrize("given", [b"bytes", bytearray(b"bytes"), io.BytesIO(b"bytes")], ids=["bytes", "array", "file"])
def test_content_of_files_is_refused_in_words_by_verbs_too(place, given):
    for images in (given, [given]):
        with pytest.raises(InputError, match=r"(content of a|open) file was given as a picture.* PIL\.Image\.open"):
            vitreous.predict(place / "classify", images, device="cpu")


def test_a_class_is_given_by_number_tensor_or_name(place):
    trained, photo = load_model(place / "classify"), place / "photo.png"
    name = trained.classes[2]
    items = [
        vitreous.explain(trained, photo, target=target, method="centre_blob")
        for target in (2, torch.tensor(2), torch.tensor([2]), name)
    ]
    assert len({str((item.watched, item.scores)) for item in items}) == 1
    other = vitreous.explain(trained, photo, target=trained.classes[0], method="centre_blob")
    assert other.scores != items[0].scores
    with pytest.raises(InputError, match=rf"target='{name}x' given; unknown class; nearest: {name}"):
        vitreous.explain(trained, photo, target=f"{name}x")
    with pytest.raises(InputError, match=r"target='disc' given; a class alone is no finding: give label"):
        vitreous.explain(load_model(place / "segment"), photo, target="disc")


def test_a_model_in_memory_explains_several_pictures(place):
    trained, photo = load_model(place / "classify"), place / "photo.png"
    one = vitreous.explain(trained, photo, method="centre_blob")
    for word, several in (("images", [photo, Image.open(photo)]), ("image", (str(photo), photo))):
        items = vitreous.explain(trained, method="centre_blob", **{word: several})
        assert [item.probabilities for item in items] == [one.probabilities] * 2
    assert len(vitreous.explain(trained, [photo], method="centre_blob")) == 1


@pytest.mark.parametrize("task", ["classify", "segment"])
def test_a_model_in_memory_predicts_as_its_folder_does(place, tmp_path, task):
    trained, photo = load_model(place / task), place / "photo.png"
    expected = vitreous.predict(place / task, photo, device="cpu", out=tmp_path / "folder")
    assert vitreous.predict(trained, photo, out=tmp_path / "memory") == expected
    assert json.loads((tmp_path / "memory" / "predictions.json").read_text())["model"] == trained.name
    for given in ({"device": torch.device("cpu")}, {"size": 96}, {"architecture": "paca_b0"}):
        with pytest.raises(InputError, match=rf"^{next(iter(given))}=.* with a model in memory; give it to .*load_mod"):
            vitreous.predict(trained, photo, **given)
    trained.model.train()
    with pytest.raises(InputError, match=r"training mode.*call model\.eval\(\)"):
        vitreous.predict(trained, photo)


def test_explain_with_plain_types(place, tmp_path, capsys):
    photo = place / "photo.png"
    one = vitreous.explain(str(place / "classify"), str(photo), method="centre_blob", out=str(tmp_path / "one"))
    assert one == tmp_path / "one" / "report.html"
    both = [photo, Image.open(photo)]
    many = vitreous.explain(place / "classify", both, methods=["centre_blob"], out=tmp_path / "many", top_k=np.int64(2))
    images = json.loads((many.parent / "explanation.json").read_text())["images"]
    assert [image["image"] for image in images] == [str(photo), "image 2"]
    assert images[0]["probabilities"] == images[1]["probabilities"]
    boxed = vitreous.explain(place / "segment", photo, region=(0, 0, 40, 40), method="centre_blob", out=tmp_path / "r")
    item = vitreous.explain(load_model(place / "segment"), photo, region="0,0,40,40", method="centre_blob")
    assert json.loads((boxed.parent / "explanation.json").read_text())["images"][0]["watched"] == item.watched


def test_predict_with_plain_types(place, tmp_path):
    photo = Image.open(place / "photo.png")
    results = vitreous.predict(
        str(place / "segment"), [photo, np.array(photo)], out=str(tmp_path / "out"), device="cpu"
    )
    assert [result["image"] for result in results] == ["image 1", "image 2"]
    assert [result["id"] for result in results] == [1, 2]
    assert results[0]["predictions"] == results[1]["predictions"]
    assert (tmp_path / "out" / "001_image_1.png").is_file()
    stack = vitreous.predict(place / "classify", np.stack([np.array(photo)] * 3), top_k=2.0, device="cpu")
    assert [len(result["predictions"]) for result in stack] == [2, 2, 2]


def test_the_other_verbs_with_plain_types(place, tmp_path):
    run = vitreous.train(
        "test_efficientnet", "shapes", out=str(tmp_path / "run"), size=np.int64(32), epochs=1.0, batch_size=8,
        train_count=np.int32(16), val_count=8, workers=0, device="cpu", warmup_epochs=0, lr=np.float64(1e-3),
    )  # fmt: skip
    figures = vitreous.evaluate(
        run, "shapes", count=8, workers=0, device="cpu", sizes=64, json=str(tmp_path / "e.json")
    )
    assert "top1" in figures
    assert (tmp_path / "e.json").is_file()
    assert vitreous.plot(run, out=str(tmp_path / "plot"), metric="loss") == tmp_path / "plot" / "curves.html"
    vitreous.plot([str(run), run], out=tmp_path / "plot", smooth=0)
    data = vitreous.shapes(out=str(tmp_path / "data"), count=10, val=10.0, size=[32, 48])
    assert vitreous.check(data, out=str(tmp_path / "check"), workers=0, leave_out="unreadable").exit_code == 0
    assert list(vitreous.info(filter="paca_b0")) == ["paca_b0"]
