import json
from dataclasses import replace

import pytest
import timm
import torch

from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.files.storage import publish_folder
from vitreous.registry import create_model
from vitreous.runs.model_folder import data_of, load_model, save_model

PREPROCESS = Preprocess((64, 64), 0.9, "bilinear", (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
CLASSES = ("ant", "bee", "cat")


def write(folder, name="paca_b0", **model_args):
    model = create_model(name, num_classes=3, **model_args).eval()
    save_model(folder, model, name=name, model_args=model_args, task="classify", classes=CLASSES, preprocess=PREPROCESS)
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "best"
    return folder, write(folder)


@torch.inference_mode()
def test_round_trip_and_timm(saved):
    folder, model = saved
    images = torch.randn(2, 3, 64, 64)
    loaded = load_model(folder)
    assert torch.equal(loaded.model(images), model(images))
    assert not loaded.model.training
    assert loaded[1:] == ("paca_b0", "classify", CLASSES, PREPROCESS, {}, 1.0)
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert torch.equal(theirs(images), model(images))
    config = timm.data.resolve_model_data_config(theirs)
    assert tuple(config["mean"]) == PREPROCESS.mean
    assert config["crop_pct"] == 0.9


@torch.inference_mode()
def test_timm_keeps_a_trained_classifier_whatever_the_variant_was_published_with(tmp_path):
    model = write(tmp_path / "best", "paca_b0_cifar", depths=(1, 1, 1, 1))
    images = torch.randn(2, 3, 32, 32)
    theirs = timm.create_model(f"local-dir:{tmp_path / 'best'}", pretrained=True).eval()
    assert torch.equal(theirs(images), model(images))


@pytest.mark.parametrize("name", ["paca_b0", "test_vit"])
@pytest.mark.parametrize("size", [None, 32])
def test_the_module_itself_tells_its_pictures_and_classes(tmp_path, name, size):
    write(tmp_path / "m", name, **({"dynamic_img_size": True} if name == "test_vit" else {}))
    loaded = load_model(tmp_path / "m", size=size)
    alone = data_of(loaded.model, loaded.name)
    assert alone.preprocess == loaded.preprocess == replace(PREPROCESS, size=(size or 64,) * 2)
    assert alone.classes == CLASSES
    assert loaded.model.default_cfg == loaded.model.pretrained_cfg
    data = timm.data.resolve_model_data_config(loaded.model)
    assert data == dict(
        input_size=(3, *loaded.preprocess.size), mean=PREPROCESS.mean, std=PREPROCESS.std, crop_pct=0.9,
        crop_mode="center", interpolation="bilinear",
    )  # fmt: skip
    fresh = create_model(name, num_classes=3)
    assert fresh.pretrained_cfg["input_size"] != data["input_size"]  # that of no other model has changed


def test_saving_what_was_loaded_gives_the_same_bytes(tmp_path):
    write(tmp_path / "first", "paca_b0")
    loaded = load_model(tmp_path / "first")
    save_model(tmp_path / "again", loaded.model, name="paca_b0", model_args={}, task="classify", classes=CLASSES,
               preprocess=PREPROCESS)  # fmt: skip
    for name in ("config.json", "model.safetensors", "manifest.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()


def test_tuples_among_the_arguments_and_foreign_models(tmp_path):
    write(tmp_path / "a", "test_vit", img_size=(64, 64))
    assert load_model(tmp_path / "a").name == "test_vit"


def test_run_folder_prefers_best(tmp_path):
    for name, value in [("final", 1.0), ("best", 2.0)]:
        model = write(tmp_path / name, "test_convnext")
        with torch.no_grad():
            model.head.fc.bias.fill_(value)
        save_model(
            tmp_path / name,
            model,
            name="test_convnext",
            model_args={},
            task="classify",
            classes=CLASSES,
            preprocess=PREPROCESS,
        )
        assert load_model(tmp_path).model.head.fc.bias[0] == value
    (tmp_path / "best").rename(tmp_path / ".best.old")  # the instant in which it is being replaced
    assert load_model(tmp_path).model.head.fc.bias[0] == 2.0


def test_damage_names_the_file(tmp_path):
    write(tmp_path / "m", "test_convnext")
    weights = tmp_path / "m" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 4
    weights.write_bytes(content)
    with pytest.raises(InputError, match=r"model\.safetensors is damaged"):
        load_model(tmp_path / "m")
    with pytest.raises(InputError, match=r"model\.safetensors is damaged"):
        load_model(tmp_path / "m")
    (tmp_path / "m" / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"manifest\.json is missing"):
        load_model(tmp_path / "m")


def test_what_is_not_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="neither a run folder"):
        load_model(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({}))
    with pytest.raises(InputError, match="holds no model yet"):
        load_model(str(tmp_path))
    with pytest.raises(InputError, match="is a file"):
        load_model("run.json")
    with pytest.raises(InputError, match="there is no folder 'runs/absent'"):
        load_model("runs/absent")
    with pytest.raises(InputError, match="unknown model"):
        load_model("paca_tny")


def test_published_model_by_name(monkeypatch):
    """Without a network: the weights are made up, everything else is as for real ones."""
    monkeypatch.setattr(
        "vitreous.runs.model_folder.create_model", lambda name, pretrained: timm.create_model("test_vit.r160_in1k")
    )
    loaded = load_model("test_vit")
    assert loaded.classes[0].startswith("tench")
    assert len(loaded.classes) == 1000
    assert loaded.preprocess.size == (160, 160)


def change(folder, changes):
    """Another config under a manifest that is right."""
    config = json.loads((folder / "config.json").read_text())
    changes(config)
    content = json.dumps(config)

    def rewrite(staging):
        (staging / "config.json").write_text(content)
        (staging / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
        return "config.json", "model.safetensors"

    publish_folder(folder, rewrite)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (lambda c: c.pop("num_classes"), "'num_classes' is missing"),
        (lambda c: c.update(num_classes="x"), "'num_classes' is 'x'"),
        (lambda c: c.update(num_classes=2), "'num_classes' is 2; it must be 3"),
        (lambda c: c.update(model_args=[1, 2]), "'model_args' is"),
        (lambda c: c.update(model_args={"wings": 2}), "'model_args' does not fit"),
        (lambda c: c.update(model_args={"pretrained": True}), "'model_args.pretrained'"),
        (lambda c: c.update(architecture="hf-hub:x/y"), "'architecture' is 'hf-hub:x/y'"),
        (lambda c: c.update(architecture=7), "'architecture' is 7"),
        (lambda c: c.update(architecture="no_such"), "unknown model 'no_such'"),
        (lambda c: c.pop("vitreous"), "'vitreous' is missing"),
        (lambda c: c["vitreous"].update(classes="abc"), "'classes' is 'abc'"),
        (lambda c: c["vitreous"].update(classes=[1, 2, 3]), "'classes' is"),
        (lambda c: c["vitreous"].update(task=None), "'task' is None"),
        (lambda c: c["vitreous"].update(preprocess={"size": ["a", 3]}), "'preprocess' is"),
        (lambda c: c["vitreous"].update(preprocess={"size": [9, 9], "mean": ["a", 1, 2]}), "'preprocess' is"),
        (lambda c: c["vitreous"].update(preprocess={}), "'preprocess' is"),
    ],
)
def test_odd_config_names_file_and_field(tmp_path, changes, message):
    write(tmp_path / "m", "test_convnext")
    change(tmp_path / "m", changes)
    with pytest.raises(InputError, match=message) as reason:
        load_model(tmp_path / "m")
    assert "config.json" in str(reason.value)


@pytest.mark.parametrize(("name", "args"), [("test_convnext", {"dims": [8] * 4}), ("paca_b0", {"depths": [1] * 4})])
def test_weights_that_do_not_fit_are_told_briefly(tmp_path, name, args):
    write(tmp_path / "m", name)
    change(tmp_path / "m", lambda config: config.update(model_args=args))
    with pytest.raises(InputError, match="do not fit the model in its config") as reason:
        load_model(tmp_path / "m")
    assert len(str(reason.value).splitlines()) < 10


def test_another_size_is_tried_on_models_that_may_not_take_it(tmp_path):
    write(tmp_path / "m", "test_convnext")
    assert load_model(tmp_path / "m", size=96).preprocess.size == (96, 96)
    write(tmp_path / "v", "vit_tiny_patch16_224", img_size=64, depth=1)
    with pytest.raises(InputError, match="cannot take images of 96x96 pixels"):
        load_model(tmp_path / "v", size=96)
