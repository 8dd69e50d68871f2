"""Files of weights as models: which one a file belongs to, its classes, every verb, and what does not fit."""

import argparse
import json
import logging
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import vitreous
from tests.support.families import ONE_OF_EACH, small
from tests.support.original_weights import paca_original
from tests.support.tiny_model import MODEL_ARGS, save_tiny_dense, save_tiny_model
from vitreous.data.shapes.samples import CATEGORIES
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.explanations.default_method import read_default_method
from vitreous.models.weights import describe_layout
from vitreous.registry import ENTRIES, create_model
from vitreous.runs import weights_file
from vitreous.runs.model_folder import is_weights_file, load_model, save_model
from vitreous.runs.weights_file import name_in_file_name, published_names
from vitreous.serve import open_explorer
from vitreous.training.build import (
    build_backbone,
    build_model,
    load_dense_weights,
    model_arguments,
    teacher_fingerprint,
)
from vitreous.training.settings import TrainSettings
from vitreous_command import main

NAME, IMAGES = "paca_b0", torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return create_model(NAME, num_classes=10).eval()


@pytest.fixture(scope="module")
def file(model, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("files") / "weights.pth"
    torch.save({"state_dict": model.state_dict(), "epoch": 3}, path)
    return str(path)


@pytest.fixture(autouse=True)
def few_models(monkeypatch):
    """All of them take seconds to build."""
    some = ("paca_b0", "paca_b0_pure", "paca_tiny", "xcit_nano_12_p16", "xcit_nano_12_p8")
    monkeypatch.setattr(weights_file, "ENTRIES", {name: ENTRIES[name] for name in some})


# ---- every verb -------------------------------------------------------------------------------------------------


def test_predict(file, model, tmp_path, capsys):
    Image.new("RGB", (80, 70), "red").save(tmp_path / "red.png")
    assert main(["predict", file, str(tmp_path / "red.png"), "--model", NAME, "--size", "64", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    (result,) = vitreous.predict(file, (str(tmp_path / "red.png"),), architecture=NAME, size=64, device="cpu", top_k=10)
    inputs = load_model(file, architecture=NAME, size=64).preprocess(Image.open(tmp_path / "red.png"))[None]
    expected = model(inputs)[0].softmax(0)
    for row in result["predictions"]:
        assert row["probability"] == pytest.approx(expected[int(row["class"])].item(), abs=1e-5)
    assert f"{result['predictions'][0]['class']} {result['predictions'][0]['probability']:.1%}" in said


def test_explain(file, tmp_path):
    Image.new("RGB", (80, 70), "red").save(tmp_path / "red.png")
    arguments = ["--method", "token_gradient", "--ranking", "logit_gate", "--size", "64", "--device", "cpu"]
    out = ["--out", str(tmp_path / "out")]
    assert main(["explain", file, str(tmp_path / "red.png"), "--model", NAME, *arguments, *out]) == 0
    assert (tmp_path / "out" / "report.html").is_file()
    (shown,) = json.loads((tmp_path / "out" / "explanation.json").read_text())["images"]
    assert shown["default"]["reason"].endswith("was not measured on a data set.")  # there is no folder to keep it in


def test_evaluate(file, capsys):
    arguments = ["--count", "12", "--size", "64", "--workers", "0", "--device", "cpu"]
    assert main(["evaluate", file, "shapes", "--model", NAME, *arguments]) == 0
    assert f"have no names; taken for those of the data in order: 0 = {CATEGORIES[0]}" in capsys.readouterr().out


def test_serve(file):
    explorer = open_explorer(file, architecture=NAME, size=64, device="cpu")
    assert explorer.trained.name == NAME
    assert explorer.trained.classes == tuple(map(str, range(10)))
    assert explorer.card()["chosen"]["reason"].endswith("was not measured on a data set.")


def test_an_architecture_goes_with_a_file_only(tmp_path):
    folder = save_tiny_model(tmp_path / "tiny")
    with pytest.raises(InputError, match="--model paca_b0 goes with a file of weights"):
        load_model(folder, architecture="paca_b0")
    assert main(["predict", folder, "shapes:val:0", "--model", "paca_b0"]) == 2


@pytest.fixture
def other_depths(tmp_path) -> str:
    torch.manual_seed(0)
    torch.save(create_model(NAME, num_classes=10, depths=(1, 1, 1, 1)).state_dict(), tmp_path / "other.pth")
    return str(tmp_path / "other.pth")


def test_the_advice_about_a_misfit_can_be_followed_by_every_verb(other_depths, tmp_path, capsys):
    verbs = {
        "predict": ["shapes:val:0"],
        "explain": ["shapes:val:0", "--method", "token_gradient", "--out", str(tmp_path / "out")],
        "evaluate": ["shapes", "--count", "10", "--workers", "0"],
    }
    for verb, rest in verbs.items():
        command = [verb, other_depths, *rest, "--model", NAME, "--size", "64", "--device", "cpu"]
        assert main(command) == 2
        assert "and its --model-args, or the run folder" in capsys.readouterr().err
        assert main([*command, "--model-args", "depths=(1,1,1,1)"]) == 0
    explorer = open_explorer(other_depths, architecture=NAME, model_args=("depths=(1,1,1,1)",), size=64, device="cpu")
    assert [len(stage.blocks) for stage in explorer.model.stages] == [1, 1, 1, 1]
    trained = load_model(other_depths, architecture=NAME, model_args=("depths=(1,1,1,1)",))
    stored = torch.load(other_depths)
    assert all(torch.equal(value, stored[key]) for key, value in trained.model.state_dict().items())


@pytest.mark.parametrize("name", [NAME, "test_vit"])
@pytest.mark.parametrize("argument", ["wings=2", "num_classes=10", "pretrained=True", "depths"])
def test_arguments_that_fit_no_model_are_one_line(file, name, argument, capsys):
    assert main(["predict", file, "shapes:val:0", "--model", name, "--model-args", argument]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert argument.partition("=")[0] in line


def test_what_is_said_about_files_is_refused_where_there_is_none(other_depths, tmp_path, capsys):
    folder = save_tiny_model(tmp_path / "tiny")
    for verb, *rest in (["predict", "shapes:val:0"], ["explain", "shapes:val:0"], ["evaluate", "shapes"], ["serve"]):
        for option in (["--model", "paca_b0"], ["--model-args", "depths=(1,1,1,1)"]):
            assert main([verb, folder, *rest, *option]) == 2
            assert f"{' '.join(option)} goes with a file of weights; '{folder}' is none" in capsys.readouterr().err
    named = ["--model", NAME, "--model-args", "depths=(1,1,1,1)"]
    arguments = ["shapes:val:0", "--method", "token_gradient", "--size", "64", "--device", "cpu"]
    compared = ["--compare", other_depths, "--out", str(tmp_path / "out")]
    assert main(["explain", folder, *arguments, *compared, *named]) == 0


@pytest.mark.parametrize("more", [[], ["--model", NAME]], ids=["alone", "with a model"])
@pytest.mark.parametrize("given", ["nofile.pth", "paca_b0.pth", "./paca_b0.PTH", "file:///nowhere/x.safetensors"])
def test_a_file_that_is_not_there_is_told(given, more, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for verb in (["predict", given, "shapes:val:0"], ["explain", given, "shapes:val:0"], ["evaluate", given, "shapes"]):
        assert main([*verb, *more]) == 2
        assert f"there is no file '{given}'; give a file of weights, a run folder" in capsys.readouterr().err
    assert main(["info", given]) == 2
    assert f"there is no file '{given}'" in capsys.readouterr().err
    with pytest.raises(InputError, match=f"there is no file '{given}'"):
        teacher_fingerprint(given)


def test_names_and_folders_may_end_as_files_do(tmp_path):
    assert not is_weights_file("beit3_base_patch16_224.pt")  # which timm publishes
    assert load_model(save_tiny_model(tmp_path / "run.pth")).name == "paca_tiny"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nothing", "unknown model 'nothing'"),
        ("runs/nothing", "there is no folder 'runs/nothing'"),
        ("weights.model", r"'weights.model' is a file; .* a file of them \(.pth"),
        ("paca_tiny", "--model paca_b0 goes with a file of weights; 'paca_tiny' is none, and brings its own"),
    ],
)
def test_only_a_model_is_said_to_bring_its_own(given, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("weights.model").write_bytes(b"x")
    with pytest.raises(InputError, match=message):
        load_model(given, architecture=NAME)


def test_addresses_of_this_machine(file, tmp_path, capsys):
    """file:// is a file or a folder like any other, with what its address escapes."""
    spaced = tmp_path / "my weights.pth"
    spaced.write_bytes(Path(file).read_bytes())
    assert "%20" in spaced.as_uri()
    arguments = ["shapes:val:0", "--size", "64", "--device", "cpu"]
    assert main(["predict", spaced.as_uri(), *arguments, "--model", NAME]) == 0
    run = tmp_path / "run"
    save_tiny_model(run / "best")
    assert main(["predict", run.as_uri(), *arguments]) == 0
    assert read_default_method(run.as_uri()).method is None
    assert model_arguments(TrainSettings("paca_tiny", "shapes", weights=run.as_uri())) == MODEL_ARGS
    assert main(["predict", "s3://bucket/weights.pth", *arguments]) == 2
    assert "weights at s3://bucket/weights.pth cannot be fetched" in capsys.readouterr().err
    assert main(["info", "https://example.org/weights.pth"]) == 2
    assert "'https://example.org/weights.pth' is a file; give a run folder" in capsys.readouterr().err


# ---- which model it is ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrap", "reason"),
    [
        (lambda state: {"state_dict": state, "arch": NAME}, "its entry arch says"),
        (lambda state: {"model": state, "args": argparse.Namespace(model=NAME, lr=1)}, "its entry args.model says"),
        (lambda state: {"model": state, "config": {"architecture": NAME}}, "its entry config.architecture says"),
        (lambda state: state, "the only model here with tensors of these shapes"),
        (lambda state: {"state_dict": state, "arch": "nobody_knows"}, "the only model here with tensors of these"),
    ],
    ids=["arch", "args", "config", "shapes", "unknown name"],
)
def test_the_name_is_told_by_the_file(model, tmp_path, caplog, wrap, reason):
    caplog.set_level("INFO", "vitreous")
    torch.save(wrap(model.state_dict()), tmp_path / "x.pth")
    trained = load_model(tmp_path / "x.pth")
    assert trained.name == NAME
    assert f"x.pth: {NAME} with 10 classes" in caplog.text
    assert reason in caplog.text
    torch.testing.assert_close(trained.model(IMAGES), model(IMAGES))


def test_safetensors_tell_it_in_their_metadata_or_in_the_config_beside_them(model, tmp_path, caplog):
    caplog.set_level("INFO", "vitreous")
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    save_file(state, tmp_path / "x.safetensors", metadata={"architecture": NAME})
    torch.testing.assert_close(load_model(tmp_path / "x.safetensors").model(IMAGES), model(IMAGES))
    assert "its entry metadata.architecture says" in caplog.text
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": NAME, "num_classes": 10}))
    assert load_model(tmp_path / "model.safetensors").name == NAME
    assert "its entry config.json: architecture says" in caplog.text


def test_the_file_of_a_model_folder_is_the_folder(tmp_path):
    folder = save_tiny_model(tmp_path / "tiny")
    trained = load_model(f"{folder}/model.safetensors")
    assert trained.classes == tuple(CATEGORIES)
    torch.testing.assert_close(trained.model(IMAGES), load_model(folder).model(IMAGES))


def test_original_layouts_are_recognised_by_their_shapes(tmp_path):
    torch.manual_seed(1)
    made = create_model("paca_tiny", num_classes=7).eval()
    torch.save({"state_dict": paca_original(made.state_dict())}, tmp_path / "x.pth")
    trained = load_model(tmp_path / "x.pth")
    assert (trained.name, len(trained.classes)) == ("paca_tiny", 7)
    torch.testing.assert_close(trained.model(IMAGES), made(IMAGES))


@pytest.mark.slow
def test_every_model_of_ours_has_shapes_of_its_own():
    """So that they can be told apart at all."""
    seen: dict[tuple, str] = {}
    with torch.device("meta"):
        for name in ENTRIES:
            shapes = weights_file.trunk_shapes(create_model(name).state_dict())
            assert seen.setdefault(tuple(sorted(shapes.items())), name) == name


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("IMNET_224_pacavit_tiny_p2cconv_100_0", "pacavit_tiny_p2cconv_100_0"),
        ("xcit_nano_12_p16_224_dist", "xcit_nano_12_p16"),
        ("my-paca-b0-pure-run3", "paca_b0_pure"),
        ("resnet18-5c106cde", "resnet18"),
        ("checkpoint-12", None),
    ],
)
def test_names_within_file_names(stem, name):
    assert name_in_file_name(stem) == name


def test_published_files_are_known_by_name_and_bring_their_size():
    (found,) = published_names(Path("somewhere/xcit_nano_12_p16_384_dist.pth"))
    assert found.name == "xcit_nano_12_p16.fb_dist_in1k_384"


def test_thousand_classes_are_those_of_imagenet(tmp_path):
    torch.save(create_model(NAME).state_dict(), tmp_path / "x.pth")
    assert load_model(tmp_path / "x.pth").classes[0].startswith("tench")


def test_models_of_timm(tmp_path):
    made = timm.create_model("test_resnet", num_classes=5).eval()
    torch.save(made.state_dict(), tmp_path / "x.pth")
    trained = load_model(tmp_path / "x.pth", architecture="test_resnet")
    images = torch.randn(1, 3, 160, 160)
    torch.testing.assert_close(trained.model(images), made(images))
    with pytest.raises(InputError, match=r"does not say which model.*ResNet, as timm.* Give it: --model NAME"):
        load_model(tmp_path / "x.pth")


# ---- what does not fit ------------------------------------------------------------------------------------------


def test_other_clusters_are_no_model_to_predict_with(tmp_path):
    """They may start afresh before a training, but not before an answer."""
    torch.save(create_model(NAME, clusters=(9, 9, 9, 9), num_classes=10).state_dict(), tmp_path / "x.pth")
    with pytest.raises(InputError, match=r"do not fit paca_b0: \d+ of its \d+ tensors are in the file"):
        load_model(tmp_path / "x.pth", architecture=NAME)


def test_without_a_classifier_there_is_nothing_to_predict(tmp_path):
    torch.save(create_model(NAME, num_classes=0).state_dict(), tmp_path / "x.pth")
    with pytest.raises(InputError, match=r"no classifier for paca_b0.*vitreous train paca_b0 DATA --weights"):
        load_model(tmp_path / "x.pth")


def test_detectors_are_refused(tmp_path):
    torch.save({"state_dict": {"backbone.x": torch.ones(1), "decode_head.y": torch.ones(1)}}, tmp_path / "x.pth")
    with pytest.raises(InputError, match="OpenMMLab's toolboxes; start a run from it"):
        load_model(tmp_path / "x.pth", architecture=NAME)
    folder = save_tiny_dense(tmp_path / "dense", "segment", ("a", "b"))
    save_file(load_file(f"{folder}/model.safetensors"), tmp_path / "alone.safetensors")
    with pytest.raises(InputError, match="detector, segmenter or keypoint model of vitreous"):
        load_model(tmp_path / "alone.safetensors")


@pytest.mark.parametrize("name", [NAME, "test_vit"])
def test_a_damaged_file_is_named(name, tmp_path, capsys):
    model = create_model(name, num_classes=10)
    next(model.parameters()).data.view(-1)[0] = float("nan")
    torch.save(model.state_dict(), tmp_path / "x.pth")
    save_model(tmp_path / "best", model, name=name, model_args={}, task="classify", classes=tuple(CATEGORIES),
               preprocess=Preprocess((160, 160)))  # fmt: skip
    assert main(["predict", str(tmp_path / "x.pth"), "shapes:val:0", "--model", name, "--device", "cpu"]) == 2
    assert f"{tmp_path / 'x.pth'} holds NaN or infinite values in 1 of" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"best.model\.safetensors holds NaN or infinite values in 1 of"):
        load_model(tmp_path)
    for weights in ("x.pth", "best"):
        settings = TrainSettings(name, "shapes", size=160, weights=str(tmp_path / weights))
        with pytest.raises(InputError, match=f"{weights} holds NaN or infinite values in 1 of"):
            build_model(settings, {}, 10)


def test_a_damaged_detector_is_named(tmp_path):
    folder = Path(save_tiny_dense(tmp_path / "d", "segment", ("a", "b")))
    trained = load_model(folder)
    state = {key: value.float() / 0 for key, value in trained.model.state_dict().items()}
    with pytest.raises(InputError, match="runs/d holds NaN or infinite"):
        load_dense_weights(trained.model, trained.model, state, "runs/d")


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", NAME, "xcit_nano_12_p16"])
def test_a_misfit_is_one_screen(name, model, tmp_path, caplog, capfd):
    """How many match, whose names they are, five differences; and nothing of timm's."""
    other = "test_resnet" if name != "test_resnet" else "test_vit"
    torch.save(timm.create_model(other, num_classes=10).state_dict(), tmp_path / "x.pth")
    assert main(["predict", str(tmp_path / "x.pth"), "shapes:val:0", "--model", name]) == 2
    printed = capfd.readouterr().err.splitlines()
    assert len(printed) <= 10
    assert all(len(line) < 200 for line in printed[1:])
    assert f"do not fit {name}: " in printed[0]
    assert "tensors are in the file, by name and shape" in printed[0]
    assert "ResNet" in printed[1] or "ViT" in printed[1]
    assert (
        sum(line.strip().startswith(("missing: ", "unexpected: ")) or "checkpoint (" in line for line in printed) == 5
    )
    assert not [record for record in caplog.records if record.name.startswith("timm")]


def test_a_backbone_of_timm_with_foreign_weights_is_refused(model, tmp_path, caplog):
    """timm itself only warns of it, and goes on with random ones."""
    torch.save(model.state_dict(), tmp_path / "x.pth")
    settings = TrainSettings("test_vit", "shapes", task="segment", size=160, weights=str(tmp_path / "x.pth"))
    with pytest.raises(InputError, match="do not fit test_vit"):
        build_backbone(settings, model_arguments(settings))
    torch.save(timm.create_model("test_vit", num_classes=3).state_dict(), tmp_path / "x.pth")
    with caplog.at_level(logging.WARNING):
        build_backbone(settings, model_arguments(settings))
    assert not caplog.records


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_our_own_layout_is_known(name):
    assert describe_layout(small(name, 1).state_dict()) == "in the layout of vitreous"


def test_arguments_of_the_tiny_model_are_not_in_the_registry():
    assert not weights_file.fits_model("paca_tiny", create_model("paca_tiny", **MODEL_ARGS).state_dict())
