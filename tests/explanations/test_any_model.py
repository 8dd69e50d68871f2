"""Classifiers of torchvision and transformers, any module, timm's names and files, and timm's backbones below heads."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torchvision import transforms
from torchvision.models import ResNet18_Weights, VisionTransformer, resnet18
from transformers import (
    BitImageProcessor,
    ConvNextImageProcessor,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersForImageClassification,
    SwinConfig,
    SwinForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
)

import vitreous
from tests.support.timm_families import awake_classifier
from tests.support.tiny_model import save_tiny_dense
from vitreous.attribution.catalogue import methods_for
from vitreous.attribution.rollout import Rollout
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.runs.any_model import adapted, read_preprocess
from vitreous_command import main

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 120, 3), dtype=np.uint8))
CAMS = ["grad_cam", "layer_cam"]
SMALL = dict(hidden_size=48, num_hidden_layers=3, num_attention_heads=3, intermediate_size=96, image_size=64)


def explained(model, preprocess, **options):
    torch.manual_seed(0)
    return vitreous.explain(model.eval(), PICTURE, method=CAMS, preprocess=preprocess, **options)


def test_torchvision():
    weights, network = ResNet18_Weights.DEFAULT, resnet18().eval()
    assert adapted(network, weights).classes == tuple(weights.meta["categories"])
    found = explained(network, weights.transforms(crop_size=64, resize_size=72))
    assert found.maps["grad_cam"].shape == (2, 2)
    model = VisionTransformer(64, 16, 3, 3, 48, 96, num_classes=5)
    nn.init.normal_(model.heads.head.weight)  # else all zeros
    steps = transforms.Compose([transforms.Resize((64, 64)), transforms.ToTensor(), transforms.Normalize(0.5, 0.5)])
    found = explained(model, steps, classes=list("abcde"))
    assert found.maps["grad_cam"].shape == (4, 4)
    assert found.picture.size == (64, 64)
    rolled = Rollout()(adapted(model, steps).model, torch.randn(2, 3, 64, 64))
    assert rolled.shape == (2, 4, 4)


@pytest.mark.parametrize(
    ("model", "grid"),
    [
        (lambda: ViTForImageClassification(ViTConfig(**SMALL, patch_size=16, id2label={0: "cat", 1: "dog"})), (4, 4)),
        (
            lambda: Dinov2WithRegistersForImageClassification(
                Dinov2WithRegistersConfig(**SMALL, patch_size=8, id2label={0: "cat", 1: "dog"})
            ),
            (8, 8),
        ),
        (
            lambda: SwinForImageClassification(
                SwinConfig(
                    image_size=64,
                    embed_dim=12,
                    depths=[1, 1],
                    num_heads=[1, 2],
                    window_size=4,
                    id2label={0: "cat", 1: "dog"},
                )
            ),
            (8, 8),
        ),
    ],
    ids=["vit", "registers", "swin"],
)
def test_transformers(model, grid):
    found = explained(model(), ViTImageProcessor(size={"height": 64, "width": 64}))
    assert found.maps["grad_cam"].shape == grid
    assert found.maps["layer_cam"].std() > 0
    assert {name for name, _ in found.probabilities} == {"cat", "dog"}


def test_attention_of_transformers_is_as_it_was():
    model = ViTForImageClassification(ViTConfig(**SMALL, patch_size=16)).eval()
    trained, before = adapted(model, Preprocess((64, 64))), model.config._attn_implementation
    assert {"rollout", "class_attention"} <= {method.name for method in methods_for(trained.model)}
    torch.testing.assert_close(Rollout()(trained.model, torch.randn(2, 3, 64, 64)).sum((1, 2)).lt(1), torch.ones(2) > 0)
    assert model.config._attn_implementation == before


def test_any_module():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    assert explained(model, Preprocess((20, 30))).maps["grad_cam"].shape == (9, 14)
    vectors = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 5)).eval()
    found = vitreous.explain(vectors, PICTURE, preprocess=Preprocess((16, 16)))
    assert "input_gradient" in found.maps
    with pytest.raises(InputError, match="Sequential does not say how it wants its pictures; give preprocess="):
        vitreous.explain(vectors, PICTURE)
    with pytest.raises(InputError, match="'grad_cam' cannot be used here: no module of Sequential gives features"):
        vitreous.explain(vectors, PICTURE, preprocess=Preprocess((16, 16)), method=["grad_cam"])
    with pytest.raises(InputError, match=r"returns a tensor of shape \(1, 3, 16, 16\)"):
        vitreous.explain(nn.Conv2d(3, 3, 1).eval(), PICTURE, preprocess=Preprocess((16, 16)))


def test_what_can_be_read_about_pictures():
    """Each gives the pixels that its own library makes, to the rounding of one grey level."""
    steps = transforms.Compose(
        [transforms.Resize(72), transforms.CenterCrop(64), transforms.ToTensor(), transforms.Normalize(0.5, 0.5)]
    )
    squashed = ViTImageProcessor(size={"height": 64, "width": 48})
    cropped = BitImageProcessor(size={"shortest_edge": 72}, crop_size={"height": 64, "width": 64})
    portion = ConvNextImageProcessor(size={"shortest_edge": 64}, crop_pct=0.875)
    weights = ResNet18_Weights.DEFAULT.transforms(crop_size=64, resize_size=72)
    theirs = [
        (steps, steps(PICTURE)),
        (weights, weights(PICTURE)),
        *((one, one(PICTURE, return_tensors="pt")["pixel_values"][0]) for one in (squashed, cropped, portion)),
    ]
    for given, expected in theirs:
        read = read_preprocess(given)
        assert (read(PICTURE) - expected).abs().mean() < 2 / 255 / min(read.std), given
    config = {"input_size": (3, 64, 64), "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_mode": "squash"}
    assert read_preprocess(config) == Preprocess((64, 64), mean=(0.5,) * 3, std=(0.5,) * 3, squash=True)
    with pytest.raises(InputError, match="step RandomCrop, which cannot be read; accepted steps: Resize"):
        read_preprocess(transforms.Compose([transforms.RandomCrop(8)]))
    with pytest.raises(InputError, match="neither scales nor crops"):
        read_preprocess(transforms.Compose([transforms.ToTensor()]))
    with pytest.raises(InputError, match="type int cannot be read"):
        read_preprocess(3)


def test_a_file_of_weights_of_timm(tmp_path, capsys):
    model = awake_classifier("test_efficientnet")
    save_file(model.state_dict(), tmp_path / "mine.safetensors")
    PICTURE.save(tmp_path / "photo.png")
    words = [str(tmp_path / "mine.safetensors"), str(tmp_path / "photo.png"), "--out", str(tmp_path / "out")]
    more = ["--architecture", "test_efficientnet", "--method", *CAMS, "class_attention", "--device", "cpu"]
    assert main(["explain", *words, *more]) == 2
    assert "EfficientNet has no class_attention; it has features" in capsys.readouterr().err
    assert main(["explain", *words, *more[:-3], "--device", "cpu"]) == 0, capsys.readouterr().err
    numbers = json.loads((tmp_path / "out" / "explanation.json").read_text())
    assert [row["method"] for row in numbers["images"][0]["methods"]] == CAMS


@pytest.mark.parametrize("name", ["test_resnet", "test_mambaout"])
@pytest.mark.parametrize(("task", "classes"), [("detect", ("disc", "box")), ("segment", ("background", "road"))])
def test_heads_on_backbones_of_timm(tmp_path, name, task, classes):
    folder = save_tiny_dense(tmp_path / task, task, classes, name=name, backbone={"in_chans": 3})
    which = {"finding": 1} if task == "detect" else {"label": classes[1]}
    found = vitreous.explain(vitreous.load_model(folder), PICTURE, method=[*CAMS, "features"], **which)
    assert min(found.maps["grad_cam"].shape) > 1
    assert found.maps["features"].std() > 0
