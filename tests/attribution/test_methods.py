"""Every method: one interface, single = batched, deterministic, and its own formula in plain torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.explained_models import FAMILIES, QUICK_METHODS, entering, family, pictures
from vitreous.attribution.catalogue import all_methods, controls_for, find_method, methods_for
from vitreous.attribution.controls import CentreBlob, OracleMask, RandomMap, RandomWeights, shuffled
from vitreous.attribution.fill import baseline, blurred
from vitreous.attribution.gradient import GradCam, InputGradient, IntegratedGradients
from vitreous.attribution.occlusion import Occlusion, Rise
from vitreous.attribution.rollout import Rollout
from vitreous.attribution.target import ClassTarget, RegionTarget
from vitreous.clusters.cluster_map import ClusterMap, TopGroup
from vitreous.clusters.gates import cluster_layer, maps_of
from vitreous.clusters.importance import by_logit_gate
from vitreous.clusters.token_gradient import TokenGradient
from vitreous.errors import InputError
from vitreous.layers.tap import record

IMAGES = pictures(2)
LABELS = torch.tensor([1, 3])
TARGET = ClassTarget(labels=LABELS)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_method_gives_one_finite_map_per_image(name):
    model = family(name, scale=2)
    found = [QUICK_METHODS.get(method.name, method) for method in (*methods_for(model), *controls_for(model))]
    assert len({method.name for method in found}) == len(found) >= 8
    for method in found:
        both, alone = method(model, IMAGES, TARGET), method(model, IMAGES[1:], LABELS[1:])
        assert both.shape[0] == 2, method.name
        assert both.isfinite().all(), method.name
        if not isinstance(method, ClusterMap) or method.top is None:  # near ties may fall either way
            scale = both.abs().max().item()
            assert (both[1:] - alone).abs().max() <= 1e-4 * scale, method.name
        assert torch.equal(both, method(model, IMAGES, TARGET)), method.name
        assert method.summary
        assert method.needs.passes >= 0


def test_methods_leave_the_model_as_it_was():
    model = family()
    with torch.no_grad():
        before = model(IMAGES)
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    for method in methods_for(model):
        QUICK_METHODS.get(method.name, method)(model, IMAGES, TARGET)
    assert hooks == sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    with torch.no_grad():
        assert torch.equal(model(IMAGES), before)


def test_grad_cam():
    model = family()
    with record(model, "stages.2.output") as seen:
        logits = model(IMAGES)
    act = seen["stages.2.output"]
    slope = torch.autograd.grad(logits[[0, 1], LABELS].sum(), act)[0]
    expected = F.relu(torch.einsum("bc,bchw->bhw", slope.mean((2, 3)), act)).detach()
    heat = GradCam(stage=3)(model, IMAGES, TARGET.on("logit"))
    torch.testing.assert_close(heat, expected, atol=1e-5, rtol=1e-4)
    with pytest.raises(InputError, match="stages 1 to 4"):
        GradCam(stage=5)(model, IMAGES, TARGET)


def test_token_gradient_is_the_formula():
    """For the last block of the stage, whose tokens are followed to the output by hand."""
    model = family(depths=(1, 1, 1, 1))
    path = "stages.2.blocks.0.attention"
    (x, z) = entering(model, path, IMAGES)
    block = model.stages[2].blocks[0]
    (trunk_in, *_rest) = entering(model, "stages.2.blocks.0", IMAGES)
    tokens = (z.flatten(2) @ x.flatten(1, 2)).detach().requires_grad_()
    layer = block.attention
    q, k, v = (
        part.unflatten(-1, (3, -1)).transpose(1, 2)
        for part in (layer.q(x.flatten(1, 2)), layer.k(layer.cluster_norm(tokens)), layer.v(layer.cluster_norm(tokens)))
    )
    out = (q @ k.transpose(-2, -1) / 8**0.5).softmax(-1) @ v
    y = trunk_in + layer.proj(out.transpose(1, 2).flatten(2)).view_as(x)
    y = model.stages[2].norm(y + block.mlp(block.norm2(y)))
    score = TARGET(model.head(model.stages[3](y).permute(0, 3, 1, 2).mean((2, 3))))
    slope = torch.autograd.grad(score.sum(), tokens)[0]  # (B, M, C)
    expected = torch.zeros(2, 4, 4)
    for m in range(6):
        expected += F.relu(z[:, m] * (x * slope[:, m, None, None]).sum(-1)).detach()
    assert expected.max() > 1e-4
    torch.testing.assert_close(TokenGradient()(model, IMAGES, TARGET), expected, atol=1e-6, rtol=1e-3)


def test_input_gradient_is_blurred_and_absolute():
    model, images = family(), IMAGES.clone().requires_grad_()
    slope = torch.autograd.grad(TARGET(model(images)).sum(), images)[0]
    expected = blurred(slope.abs().sum(1, keepdim=True), 64 / 28)[:, 0]
    torch.testing.assert_close(InputGradient()(model, IMAGES, TARGET), expected, atol=1e-5, rtol=1e-4)


def test_integrated_gradients_add_up_to_the_difference():
    """On a smooth model: at an empty image the first norm of a fresh backbone jumps, and no sum can follow it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8), nn.Tanh(), nn.Linear(8, 5)).eval()
    images = pictures(2, 16, 16)
    for fill in ("mean", "blur"):
        difference = TARGET(model(images)) - TARGET(model(baseline(images, fill)))
        added = IntegratedGradients(steps=64, fill=fill).attribution(model, images, TARGET).sum((1, 2, 3))
        assert difference.abs().max() > 0.05
        torch.testing.assert_close(added, difference, atol=1e-3, rtol=1e-3)  # the rule's own error at 64 steps


class Eye(nn.Module):
    """Class 1 is the sum of a patch of pixels: the truth about where to look is known."""

    def forward(self, x):
        return torch.stack([torch.zeros(len(x)), x[:, :, 16:32, 40:56].mean((1, 2, 3))], 1)


@pytest.mark.parametrize(
    "method",
    [
        Occlusion(fill="mean"),
        Rise(masks=400, fill="mean"),
        InputGradient(),
        IntegratedGradients(steps=2, fill="mean"),
    ],
)
def test_methods_of_any_model_find_what_the_model_looks_at(method):
    heat = method(Eye().eval(), torch.ones(1, 3, 64, 64), 1)
    heat = F.interpolate(heat[:, None], (64, 64), mode="bilinear")[0, 0]
    row, column = divmod(int(heat.argmax()), 64)
    assert 16 <= row < 32
    assert 40 <= column < 56


def test_occlusion_is_the_mean_loss_of_the_windows_over_a_cell():
    model, image = Eye().eval(), torch.rand(1, 3, 64, 64)
    target = TARGET.select(torch.tensor([0]))
    heat = Occlusion(cells=4, fill="mean")(model, image, target)
    lost = []
    for top in (16, 32):  # windows that cover the cell in row 2, column 1
        for left in (0, 16):
            hidden = image.clone()
            hidden[:, :, top : top + 32, left : left + 32] = 0
            lost.append(target(model(image)) - target(model(hidden)))
    assert abs(heat[0, 2, 1] - torch.stack(lost).mean()) < 1e-6


def test_rollout_multiplies_attention_and_assignment():
    model = family(clusters=(6, 6, 6, 0))
    with torch.no_grad(), record(model) as seen:
        model(IMAGES)
    flow = torch.full((2, 1, 4), 1 / 4)
    last = seen["stages.3.blocks.0.attention.map"].mean(1).flatten(2).transpose(1, 2)  # (B, N, N)
    flow = flow @ (0.5 * torch.eye(4) + 0.5 * last)
    flow = flow.view(2, 2, 2).repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1)[:, None] / 4
    z = seen["stages.2.clusters"].flatten(2)  # (B, M, N)
    for j in (1, 0):
        a = seen[f"stages.2.blocks.{j}.attention.map"].mean(1).flatten(2).transpose(1, 2)  # (B, N, M)
        flow = flow @ (0.5 * torch.eye(16) + 0.5 * a @ z)
    heat = Rollout()(model, IMAGES)
    torch.testing.assert_close(heat.flatten(1), flow[:, 0], atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(heat.sum((1, 2)), torch.ones(2))
    with pytest.raises(InputError, match="does not mix positions by attention alone"):
        Rollout()(family("mat_1"), IMAGES)


@pytest.mark.parametrize("single_query", [True, False])
def test_rollout_follows_the_foreground_and_what_one_query_reads_for_the_rest(single_query):
    """Once more as matrices over all positions, one image after the other."""
    model = family("partialformer_b0", single_query=single_query)
    with torch.no_grad(), record(model) as seen:
        model(IMAGES)
    heat = Rollout(stage=3)(model, IMAGES)
    for b in range(len(IMAGES)):
        flow = None
        for i in (3, 2):
            grid = seen[f"stages.{i}.blocks.0.attention.foreground"].shape[1:]
            N = grid.numel()
            if flow is None:
                flow = torch.full((N,), 1 / N)
            else:
                flow = flow.view(2, 2).repeat_interleave(2, 0).repeat_interleave(2, 1).flatten() / 4
            for j in reversed(range(len(model.stages[i].blocks))):
                own = f"stages.{i}.blocks.{j}.attention"
                mixing = torch.eye(N)  # of a background without a query: itself
                if single_query:
                    mixing = seen[f"{own}.background"][b].mean(0).flatten().expand(N, N).clone()
                places = seen[f"{own}.positions"][b].tolist()
                for row, place in enumerate(places, 1):
                    weights = seen[f"{own}.mixed"][b].mean(0)[row, 1:].clamp_min(0)
                    mixing[place] = torch.zeros(N).index_add(0, torch.tensor(places), weights / weights.sum())
                flow = flow @ (0.5 * torch.eye(N) + 0.5 * mixing)
        torch.testing.assert_close(heat[b].flatten(), flow, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(heat.sum((1, 2)), torch.ones(2))


def test_cluster_map_weighs_maps_by_importance():
    model = family()
    weights = F.relu(by_logit_gate(model, IMAGES, TARGET, cluster_layer(model)))
    with torch.no_grad():
        maps = maps_of(model, IMAGES, cluster_layer(model))[1]
    expected = torch.stack([sum(w * z for w, z in zip(weights[b], maps[b], strict=True)) for b in range(2)])
    torch.testing.assert_close(ClusterMap("logit_gate")(model, IMAGES, TARGET), expected, atol=1e-6, rtol=1e-4)
    top = ClusterMap("attention_mass", top=1)(model, IMAGES, TARGET)
    assert any(torch.allclose(top[0] / top[0].sum(), z, atol=1e-5) for z in maps[0])
    for wrong in (dict(by="magic"), dict(top=0)):
        with pytest.raises(InputError, match="given"):
            ClusterMap(**wrong)


def test_controls():
    model, masks = family(), torch.zeros(2, 64, 64, dtype=torch.bool)
    masks[:, :32] = True
    oracle = OracleMask(masks)(model, IMAGES)
    assert torch.equal(oracle > 0, masks)
    assert (oracle[:, :16].amin() > oracle[:, 31].amax()).all()  # deep inside comes before the border
    with pytest.raises(InputError, match="2 masks for 1 images"):
        OracleMask(masks)(model, IMAGES[:1])
    noise = RandomMap()(model, IMAGES)
    assert not torch.equal(noise[0], noise[1])
    blob = CentreBlob()(model, IMAGES)[0]
    assert torch.equal(blob, blob.flip(0).flip(1))
    other = shuffled(model)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.flatten().sort()[0], b.flatten().sort()[0])
    assert not torch.equal(RandomWeights(GradCam())(model, IMAGES, TARGET), GradCam()(model, IMAGES, TARGET))


class Dense(nn.Module):
    """A backbone inside another model, with an output for every pixel."""

    def __init__(self):
        super().__init__()
        self.backbone = family(scale=2)
        self.to_classes = nn.Conv2d(24, 3, 1)

    def forward(self, x):
        return self.to_classes(self.backbone.maps(x)[2])


def test_regions_of_a_segmentation_are_explained_too():
    torch.manual_seed(0)
    model = Dense().eval()
    region = torch.zeros(2, 64, 64, dtype=torch.bool)
    region[:, :32, :32] = True
    target = RegionTarget(labels=torch.tensor([0, 2]), region=region)
    for method in (GradCam(stage=3), TokenGradient(), ClusterMap("ablation"), TopGroup(), QUICK_METHODS["occlusion"]):
        assert method(model, IMAGES, target).abs().sum() > 0, method.name
    with pytest.raises(InputError, match="give a RegionTarget"):
        GradCam(stage=3)(model, IMAGES)


def test_what_cannot_be_explained_is_said():
    model = family()
    with pytest.raises(InputError, match="MAT has no clusters"):
        TokenGradient()(family("mat_1"), IMAGES)
    with pytest.raises(InputError, match="Linear cannot be run on an image of 64 x 64 pixels"):
        GradCam()(nn.Linear(2, 2).eval(), IMAGES)
    with pytest.raises(InputError, match=r"model\.eval\(\)"):
        GradCam()(family().train(), IMAGES)
    with pytest.raises(InputError, match="not finite"):
        GradCam()(model, IMAGES * torch.nan, TARGET)
    with pytest.raises(InputError, match="nearest: grad_cam"):
        find_method("gradcam", model)
    with pytest.raises(InputError, match="cannot be used here: PaCa has no class_attention"):
        find_method("class_attention", model)
    with pytest.raises(InputError, match="'mean', 'blur'"):
        baseline(IMAGES, "green")
    assert find_method("occlusion", model) == Occlusion()
    assert len({method.name for method in all_methods()}) == len(all_methods())


def test_blur_keeps_the_mean_light_and_removes_detail():
    flat = torch.full((1, 3, 20, 30), 0.7)
    torch.testing.assert_close(blurred(flat, 3.0), flat)
    assert baseline(IMAGES, "blur").std() < 0.2 * IMAGES.std()
    assert torch.equal(blurred(IMAGES, 0), IMAGES)
