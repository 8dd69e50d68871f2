"""What a model starts from, which models can be trained at which size, and who may teach."""

from types import SimpleNamespace

import pytest
import timm
import torch
from safetensors.torch import load_file

import vitreous  # noqa: F401  (registers the models)
from tests.support.tiny_model import MODEL_ARGS, save_tiny_model
from vitreous.data.shapes.samples import CATEGORIES
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.runs.model_folder import load_model, save_model
from vitreous.train import train
from vitreous.training.build import build_distillation, build_model, model_arguments, open_splits
from vitreous.training.settings import TrainSettings

TINY = tuple(f"{name}={value}" for name, value in MODEL_ARGS.items())
CLASSES = tuple(CATEGORIES)
CPU = torch.device("cpu")


def build(model: str, classes: int = 10, **changes):
    settings = TrainSettings(model, "shapes", **{"size": 64, **changes})
    return build_model(settings, model_arguments(settings), classes)


def save_foreign(folder, name: str = "test_vit", classes: tuple[str, ...] = CLASSES, **arguments) -> str:
    torch.manual_seed(1)
    model = timm.create_model(name, num_classes=len(classes), **arguments)
    size = Preprocess((model.pretrained_cfg["input_size"][1],) * 2)
    save_model(folder, model, name=name, model_args=arguments, task="classify", classes=classes, preprocess=size)
    return str(folder)


def same(model, other, but: str = "head") -> bool:
    return all(torch.equal(v, other[k]) for k, v in model.state_dict().items() if not k.startswith(but))


# ---- weights ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["folder", "run", "file"])
def test_weights_of_ours_from_folder_run_or_file(tmp_path, form):
    best = save_tiny_model(tmp_path / "run" / "best")
    source = {"folder": best, "run": str(tmp_path / "run"), "file": f"{best}/model.safetensors"}[form]
    model, note = build("paca_tiny", model_args=TINY, weights=source)
    assert note == f"weights: {source}"
    assert same(model, load_model(best).model.state_dict(), but="nothing")


def test_a_folder_of_the_same_model_brings_its_arguments(tmp_path):
    source = save_tiny_model(tmp_path / "best")
    assert build("paca_tiny", weights=source)[0].channels == MODEL_ARGS["dims"]
    settings = TrainSettings("paca_tiny", "shapes", weights=source, model_args=("clusters=(2,2,2,0)",))
    assert model_arguments(settings) == MODEL_ARGS | {"clusters": (2, 2, 2, 0)}
    assert model_arguments(TrainSettings("paca_b0", "shapes", weights=source)) == {}


def test_another_number_of_classes_means_a_new_classifier_and_says_so(tmp_path):
    source = save_tiny_model(tmp_path / "best")
    model, note = build("paca_tiny", 3, model_args=TINY, weights=source)
    assert note == f"weights: {source}; the classifier is new, for 3 classes instead of 10"
    assert model.head.out_features == 3
    again, _ = build("paca_tiny", 3, model_args=TINY, weights=source)
    assert same(model, again.state_dict(), but="nothing")  # the new classifier too follows from the seed


def test_weights_of_a_foreign_model(tmp_path):
    source = save_foreign(tmp_path / "best")
    saved = load_file(f"{source}/model.safetensors")
    model, note = build("test_vit", 10, size=160, weights=source)
    assert note == f"weights: {source}"
    assert same(model, saved, but="nothing")
    model, note = build("test_vit", 4, size=160, weights=source)
    assert "the classifier is new, for 4 classes instead of 10" in note
    assert same(model, saved)
    assert "state_dict" not in model.pretrained_cfg


def test_weights_of_a_foreign_model_at_another_size(tmp_path):
    source = save_foreign(tmp_path / "best")
    model, _ = build("test_vit", 10, size=64, weights=source)
    assert model.pos_embed.shape[1] < 1 + (160 // 16) ** 2  # timm interpolates the positions
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 10)


def test_weights_without_a_classifier(tmp_path):
    torch.save(timm.create_model("test_resnet", num_classes=0).state_dict(), tmp_path / "trunk.pth")
    model, note = build("test_resnet", 4, weights=str(tmp_path / "trunk.pth"))
    assert "the classifier is new, for 4 classes" in note
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 4)


@pytest.mark.parametrize("model", ["test_vit", "paca_b0"])
def test_weights_that_do_not_fit_are_refused(tmp_path, model):
    source = save_foreign(tmp_path / "best", "test_resnet")
    with pytest.raises(InputError, match=rf"the weights .*best do not fit {model}"):
        build(model, weights=source)
    with pytest.raises(InputError, match="no checkpoint at nowhere"):
        build(model, weights="nowhere.pth")


def test_pretrained_folder_says_that_the_classifier_is_new(tmp_path):
    source = save_foreign(tmp_path / "best")
    _, note = build(f"local-dir:{source}", 10, size=160, pretrained=True)
    assert note == f"weights: those of local-dir:{source}"
    model, note = build(f"local-dir:{source}", 4, size=160, pretrained=True)
    assert "the classifier is new, for 4 classes instead of 10" in note
    assert model.num_classes == 4


# ---- sizes and memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet10t", "pvt_v2_b0", "vit_tiny_patch16_224", "test_resnet"])
def test_foreign_models_take_the_size_asked_for(name):
    model, note = build(name)
    assert note == ""
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 10)
    assert model.training


def test_sizes_that_a_model_cannot_take_are_explained():
    with pytest.raises(InputError, match=r"model 'inception_v3' cannot take images of 64x64 .*; give it --size 299"):
        build("inception_v3")
    with pytest.raises(InputError, match=r"cannot take images of 16x16 .*the smallest this model can take is 32x32"):
        build("paca_b0", size=16)


def test_models_that_cannot_recompute_say_so():
    built, _ = build("paca_tiny", model_args=TINY, grad_checkpointing="blocks")
    assert all(stage.grad_checkpointing for stage in built.stages)
    assert not built.stages[0].blocks[0].mlp.recompute
    built, _ = build("paca_tiny", model_args=TINY, grad_checkpointing="mlp")
    assert not any(stage.grad_checkpointing for stage in built.stages)
    assert all(block.mlp.recompute for stage in built.stages for block in stage.blocks)
    assert build("test_vit", grad_checkpointing="blocks")[0].grad_checkpointing
    for model, part in (("inception_v3", "blocks"), ("test_vit", "mlp")):
        with pytest.raises(InputError, match="leave out --grad-checkpointing, or cut the batches"):
            build(model, size=128, grad_checkpointing=part)
    with pytest.raises(InputError, match="grad_checkpointing True cannot be used; it must be off, blocks or mlp"):
        build("paca_tiny", model_args=TINY, grad_checkpointing=True)
    with pytest.raises(InputError, match="part='attention' given; accepted: 'blocks', 'mlp'"):
        built.set_grad_checkpointing(True, part="attention")


# ---- teachers ---------------------------------------------------------------------------------------------------


def taught(source: str, classes: tuple[str, ...] = CLASSES, **changes):
    settings = TrainSettings("paca_tiny", "shapes", size=64, teacher=source, **changes)
    return build_distillation(settings, classes, Preprocess((64, 64)), CPU)


def test_no_teacher_no_distillation():
    assert build_distillation(TrainSettings("paca_tiny", "shapes"), CLASSES, Preprocess((64, 64)), CPU) is None


def test_a_teacher_from_a_run_with_classes_in_another_order(tmp_path):
    save_foreign(tmp_path / "run" / "best", "test_resnet", CLASSES[::-1])
    found = taught(str(tmp_path / "run"), distill="soft", distill_weight=0.2, distill_temperature=2.0)
    assert (found.kind, found.weight, found.temperature) == ("soft", 0.2, 2.0)
    assert found.teacher.columns == tuple(range(9, -1, -1))
    assert not found.teacher.resized
    assert found.teacher(torch.zeros(1, 3, 64, 64)).shape == (1, 10)


def test_a_teacher_of_one_size_is_given_it(tmp_path):
    save_foreign(tmp_path / "best", "vit_tiny_patch16_224")
    found = taught(str(tmp_path / "best"))
    assert found.teacher.resized
    assert found.teacher(torch.zeros(1, 3, 64, 64)).shape == (1, 10)


def test_teachers_of_other_classes_are_refused(tmp_path):
    save_foreign(tmp_path / "best", "test_resnet")
    with pytest.raises(InputError, match="has 10 classes and the data has 3; a teacher must know exactly"):
        taught(str(tmp_path / "best"), CLASSES[:3])
    with pytest.raises(InputError, match="does not know the class 'cat'"):
        taught(str(tmp_path / "best"), ("cat", *CLASSES[1:]))


def test_a_published_teacher_is_matched_by_wordnet_number(monkeypatch):
    from timm.data import ImageNetInfo

    from vitreous.runs.model_folder import _published_classes
    from vitreous.runs.trained_model import TrainedModel
    from vitreous.training import build as module

    model = timm.create_model("test_resnet")
    published = TrainedModel(model, "test_resnet", "classify", _published_classes(model), Preprocess((64, 64)))
    monkeypatch.setattr(module, "load_classifier", lambda *_, **__: published)
    assert taught("test_resnet", tuple(ImageNetInfo().label_names())).teacher.columns == tuple(range(1000))


@pytest.mark.parametrize(
    "arguments",
    [
        ("dims=(99999999999999999999999,8,8,8)", "heads=(1,1,1,1)"),
        ("dims=(9999999999999,8,8,8)", "heads=(1,1,1,1)"),
        ("dims=(0,0,0,0)", "heads=(1,1,1,1)"),
        ("depths=(-1,1,1,1)",),
        ("mlp_ratios=('a','b','c','d')",),
    ],
)
@pytest.mark.parametrize("task", ["classify", "detect"])
def test_arguments_that_no_model_can_have_are_one_line(tmp_path, arguments, task):
    with pytest.raises(InputError, match=r"model 'paca_tiny'.* (does not accept|cannot be a backbone)") as caught:
        train("paca_tiny", "shapes", task=task, size=64, train_count=4, val_count=4, out=tmp_path / "run",
              model_args=arguments)  # fmt: skip
    assert "\n" not in str(caught.value)


@pytest.fixture
def open_classes(monkeypatch):
    def opened(task, classes):
        monkeypatch.setattr("vitreous.training.build.open_data", lambda *_, **__: SimpleNamespace(classes=classes))
        return open_splits(TrainSettings("paca_b0", "data", task=task))

    return opened


@pytest.mark.parametrize(("task", "needs"), [("classify", "a classifier needs two"), ("segment", "a segmenter needs")])
@pytest.mark.parametrize(("classes", "found"), [(("cat",), "'data' has one class, 'cat'"), ((), "there is no class")])
def test_there_must_be_something_to_choose_from(open_classes, task, needs, classes, found):
    with pytest.raises(InputError, match=f"{found}, .*{needs}"):
        open_classes(task, classes)


@pytest.mark.parametrize(
    ("task", "classes"),
    [("classify", ("cat", "dog")), ("segment", ("road", "rest")), ("detect", ("cell",)), ("keypoints", ("person",))],
)
def test_objects_may_be_of_one_class(open_classes, task, classes):
    assert set(open_classes(task, classes)) == {"train", "val"}
