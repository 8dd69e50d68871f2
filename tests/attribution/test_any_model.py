"""Maps of models that are not ours, found without a layer or a function that reshapes."""

import pytest
import timm
import torch
import torch.nn.functional as F
from pytorch_grad_cam import GradCAM, LayerCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import nn

from tests.support.explained_models import counting
from tests.support.timm_families import QUICK, SLOW, awake_classifier, noise
from vitreous.attribution.attention import record_attention
from vitreous.attribution.catalogue import find_method, methods_for
from vitreous.attribution.gradient import GradCam, LayerCam, map_gradient
from vitreous.attribution.method import to_image
from vitreous.attribution.rollout import Rollout
from vitreous.attribution.score_cam import ScoreCam
from vitreous.attribution.spatial import anatomy, find_place, watch
from vitreous.attribution.target import ClassTarget
from vitreous.attribution.views import ViewMethod, view_stacks, views
from vitreous.errors import InputError

LABELS = torch.tensor([1, 3])
TARGET = ClassTarget(labels=LABELS)
VIT = dict(img_size=(32, 48), patch_size=8, embed_dim=48, depth=3, num_heads=3)


def assert_explained(name: str, side: int) -> None:
    """Finite, single equal to batched, and not the same everywhere, unless the features are."""
    model, images = awake_classifier(name), noise(2, side)
    place = find_place(model, images)
    assert min(place.grid) > 1
    with torch.no_grad(), watch(model, place) as seen:
        alone = model(images[1:])
        both = model(images)
    features = place.read(seen[place])
    noise_of_model = (both[1:] - alone).abs().max() / both.abs().max()  # 0.4 % of GCViT's answers depend on the batch
    maps, single = GradCam()(model, images, TARGET), GradCam()(model, images[1:], TARGET.select(torch.tensor([1])))
    assert maps.shape == LayerCam()(model, images, TARGET).shape == (2, *place.grid)
    assert (maps[1:] - single).abs().max() <= max(1e-4, 20 * noise_of_model) * maps.abs().max()
    if features.std((2, 3)).max() > 1e-5 * features.abs().max():  # not so in an untrained LeViT
        features, slope = map_gradient(model, images, TARGET)
        both_signs = (slope.mean((2, 3), keepdim=True) * features).sum(1)  # Grad-CAM before what is below 0 is cut
        assert both_signs.std() > 1e-3 * both_signs.abs().max() > 0
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("family", QUICK)
def test_a_dozen_families(family):
    assert_explained(*QUICK[family])


@pytest.mark.slow
@pytest.mark.parametrize("family", SLOW)
def test_every_family(family):
    assert_explained(*SLOW[family])


def vit(**changes) -> nn.Module:
    return awake_classifier("vit_tiny_patch16_224", **(VIT | changes))


@pytest.mark.parametrize(
    ("changes", "path", "prefix"),
    [
        ({}, "blocks.2.norm1", 1),
        ({"reg_tokens": 4}, "blocks.2.norm1", 5),
        ({"global_pool": "avg"}, "norm", 1),
        ({"class_token": False, "global_pool": "avg"}, "norm", 0),
        ({"class_token": False, "global_pool": "map"}, "norm", 0),
        ({"dynamic_img_size": True, "img_size": 64}, "blocks.2.norm1", 1),
    ],
    ids=["class token", "registers", "mean", "no class token", "attention pooling", "any size"],
)
def test_vision_transformers(changes, path, prefix):
    model, images = vit(**changes), noise(2, 32, 48)
    place = find_place(model, images)
    assert (place.path, place.grid, place.prefix) == (path, (4, 6), prefix)
    assert GradCam()(model, images).shape == (2, 4, 6)
    with watch(model, place) as seen:
        model(images)
    tokens = seen[place]
    assert torch.equal(place.read(tokens)[1, :, 2, 5], tokens[1, prefix + 2 * 6 + 5])


def test_a_distilled_head():
    model, images = awake_classifier("deit_tiny_distilled_patch16_224", **VIT), noise(2, 32, 48)
    assert find_place(model, images)[:4] == ("blocks.2.norm1", "NLC", (4, 6), 2)
    assert anatomy(model, images).reads.tolist() == [1, 1] + [0] * 24


def test_the_map_is_found_by_one_pass_and_costs_one_more():
    model, images = awake_classifier("test_resnet"), noise(2, 64)
    calls, stop = counting(model)
    GradCam()(model, images, LABELS)
    assert calls == [1, 2, 2]  # looking once, the classes' check, the map
    calls.clear()
    GradCam()(model, images, ClassTarget(labels=LABELS))
    assert calls == [2]
    stop()


def test_a_coarser_map_than_one_position_is_passed_over():
    model = awake_classifier("test_resnet")
    found = anatomy(model, noise(1, 32))
    assert [place.path for place in found.places][1:] == ["layer1", "layer2", "layer3"]
    assert found.readable["layer4"].grid == (1, 1)
    assert find_place(model, noise(1, 32)).path == "layer3"
    with pytest.raises(InputError, match="stage 9 does not exist"):
        GradCam(stage=9)(model, noise(1, 32))


def theirs(kind, model, layer, images, reshape):
    """On the grid of the layer, as OpenCV's enlarging keeps only eleven bits."""
    with kind(model, [model.get_submodule(layer)], reshape_transform=reshape) as cam:
        cam.get_target_width_height = lambda _images: find_place(model, images, layer=layer).grid[::-1]
        return torch.from_numpy(cam(images, [ClassifierOutputTarget(int(label)) for label in LABELS]))


def scaled(heat):
    """As pytorch-grad-cam scales its maps."""
    low = heat - heat.amin((1, 2), keepdim=True)
    return low / (1e-7 + low.amax((1, 2), keepdim=True))


CAM_MODELS = {
    "resnet": ("test_resnet", 96, "layer4.0", None),
    "vit": ("test_vit", 160, "blocks.5.norm1", lambda x: x[:, 1:].transpose(1, 2).unflatten(2, (10, 10))),
    "swin": (
        "swin_tiny_patch4_window7_224",
        64,
        "layers.3.blocks.0.norm1",
        lambda x: x.permute(0, 3, 1, 2),
    ),
}


@pytest.mark.parametrize("kind", CAM_MODELS)
@pytest.mark.parametrize(("own", "their"), [(GradCam, GradCAM), (LayerCam, LayerCAM)], ids=["grad_cam", "layer_cam"])
def test_equal_to_pytorch_grad_cam_with_its_usual_layers(kind, own, their):
    name, side, layer, reshape = CAM_MODELS[kind]
    settings = dict(img_size=64, window_size=2, embed_dim=12, depths=(1, 1, 1, 1), num_heads=(1, 2, 3, 4))
    model, images = awake_classifier(name, **(settings if kind == "swin" else {})), noise(2, side)
    expected = theirs(their, model, layer, images, reshape)
    ours = own(layer=layer)(model, images, ClassTarget(labels=LABELS, scale="logit"))
    torch.testing.assert_close(scaled(scaled(ours)), expected, atol=1e-4, rtol=0)
    if kind != "swin":  # whose map by default is behind the last norm, where the classifier reads it
        default = own()(model, images, ClassTarget(labels=LABELS, scale="logit"))
        torch.testing.assert_close(scaled(scaled(default)), expected, atol=1e-4, rtol=0)


def test_layer_cam_weighs_each_position():
    model, images = awake_classifier("test_resnet"), noise(2, 96)
    with watch(model, place := find_place(model, images)) as seen:
        score = model(images)[[0, 1], LABELS].sum()
    slope = torch.autograd.grad(score, seen[place])[0]
    expected = F.relu((F.relu(slope) * seen[place]).sum(1)).detach()
    torch.testing.assert_close(LayerCam()(model, images, ClassTarget(labels=LABELS, scale="logit")), expected)


def test_score_cam_weighs_channels_by_what_is_seen_behind_them():
    model, images = awake_classifier("test_resnet"), noise(1, 64)
    target = ClassTarget(labels=torch.tensor([2]), scale="logit")
    with torch.no_grad(), watch(model, place := find_place(model, images)) as seen:
        model(images)
    features = seen[place][0]
    chosen = features.flatten(1).std(1).argsort(descending=True)[:3]
    scores = []
    for channel in chosen:
        low, high = features[channel].min(), features[channel].max()
        with torch.no_grad():
            scores.append(model(images * to_image(((features[channel] - low) / (high - low))[None], (64, 64)))[0, 2])
    expected = F.relu((torch.stack(scores).softmax(0)[:, None, None] * features[chosen]).sum(0))
    torch.testing.assert_close(ScoreCam(channels=3)(model, images, target)[0], expected, rtol=1e-4, atol=1e-6)


def test_attention_is_recorded_and_fused_again_afterwards():
    model, images = vit(), noise(2, 32, 48)
    with torch.no_grad():
        before = model(images)
        with record_attention(model) as seen:
            inside = model(images)
    assert list(seen) == [f"blocks.{i}.attn" for i in range(3)]
    for weights in seen.values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 25))
    torch.testing.assert_close(inside, before, atol=1e-5, rtol=1e-4)
    assert all(block.attn.fused_attn for block in model.blocks)
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_rollout_follows_attention_from_what_the_classifier_reads(pool):
    model, images = vit(global_pool=pool), noise(2, 32, 48)
    with torch.no_grad(), record_attention(model) as seen:
        model(images)
    whole = torch.eye(25)
    for weights in seen.values():
        whole = (0.5 * torch.eye(25) + 0.5 * weights.mean(1)) @ whole
    expected = whole[:, 0, 1:] if pool == "token" else whole[:, 1:, 1:].mean(1)
    torch.testing.assert_close(Rollout()(model, images).flatten(1), expected, atol=1e-6, rtol=1e-4)
    with pytest.raises(InputError, match="does not mix positions by attention alone"):
        Rollout()(awake_classifier("test_resnet"), noise(1, 64))


def test_views_of_a_vision_transformer():
    model, images = vit(), noise(2, 32, 48)
    anatomy(model, images)
    kinds = [view.kind.name for view in views(model)]
    assert kinds == ["patch_to_patch"] * 3 + ["class_attention"] * 3 + ["features"]
    with torch.no_grad(), record_attention(model) as seen:
        model(images)
    stacks = view_stacks(model, images, views(model, "class_attention"))
    torch.testing.assert_close(stacks["blocks.1.attn"][1, 2, 3, 4], seen["blocks.1.attn"][1, 2, 0, 1 + 3 * 6 + 4])
    looked_at = ViewMethod("patch_to_patch")(model, images)
    expected = seen["blocks.2.attn"][:, :, 1:, 1:].mean((1, 2)).unflatten(1, (4, 6))
    torch.testing.assert_close(looked_at, expected, atol=1e-6, rtol=1e-4)
    with pytest.raises(InputError, match="ResNet has no class_attention; it has features"):
        ViewMethod("class_attention")(awake_classifier("test_resnet"), noise(1, 64))


def test_any_module_with_a_convolution():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    ).eval()
    images = noise(2, 20, 30)
    assert find_place(model, images).path == "1"
    assert GradCam()(model, images).shape == (2, 9, 14)
    assert {"grad_cam", "layer_cam", "score_cam", "occlusion"} <= {method.name for method in methods_for(model)}


def test_frozen_models_and_those_in_training_are_left_as_they_were():
    model = awake_classifier("test_resnet").requires_grad_(False)
    assert GradCam()(model, noise(1, 64)).isfinite().all()
    model.train()
    statistics = model.bn1.running_mean.clone()
    methods_for(model)
    assert model.training
    assert model.layer1[0].training
    assert torch.equal(model.bn1.running_mean, statistics)


def test_what_has_no_map_is_said():
    vectors = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 5)).eval()
    with pytest.raises(InputError, match="no module of Sequential gives features on a grid"):
        GradCam()(vectors, noise(1, 16))
    assert "grad_cam" not in [method.name for method in methods_for(vectors)]
    with pytest.raises(InputError, match="cannot be run on an image of 224 x 224 pixels"):
        find_method("grad_cam", nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 5)).eval())
    model = awake_classifier("test_resnet")
    with pytest.raises(InputError, match="'layer5' cannot be used: there is no such module; nearest: layer"):
        GradCam(layer="layer5")(model, noise(1, 64))
    with pytest.raises(InputError, match="'fc' cannot be used: it gives no map on a grid"):
        find_method("grad_cam fc", model)
    assert find_method("layer_cam layer2.0", model) == LayerCam(layer="layer2.0")
    assert find_method("grad_cam stage 2", model)(model, noise(1, 64)).shape == (1, 16, 16)


def test_feature_extractors_below_heads():
    from vitreous.tasks.base import load_task

    task = load_task("segment")(("background", "road"))
    model = task.model(timm.create_model("test_resnet", features_only=True)).eval()
    assert find_place(model).path.endswith("body")
    assert "grad_cam" in [method.name for method in methods_for(model)]
