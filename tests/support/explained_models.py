"""The smallest models of every family that still have everything to show, and what enters their modules."""

import functools
from collections.abc import Callable

import timm
import torch
from torch import Tensor, nn

import vitreous  # noqa: F401  (registers the models)
from vitreous.attribution.gradient import IntegratedGradients
from vitreous.attribution.occlusion import Occlusion, Rise
from vitreous.attribution.refined_mask import RefinedMask
from vitreous.attribution.segment_shapley import SegmentShapley
from vitreous.data.shapes.samples import Shapes

FAMILIES: dict[str, dict] = {
    "paca_tiny": dict(dims=(8, 16, 24, 32), depths=(1, 1, 2, 1), heads=(1, 2, 3, 4), clusters=(6, 6, 6, 0)),
    "xcit_small_12_p16": dict(dim=32, depth=4, heads=4, patch=8),
    "mat_1": dict(dims=(8, 16, 24, 32), depths=(1, 1, 1, 1), heads=(1, 2, 3, 4), window=2, head_width=0),
    "partialformer_b0": dict(dims=(8, 16, 24, 32), depths=(1, 1, 1, 1), heads=(1, 2, 3, 4), head_width=0),
    "emsnet_xxtiny": dict(dims=(32, 32, 32, 64), depths=(1, 1, 1, 1), stem_stride=2),
}


def family(name: str = "paca_tiny", *, scale: float = 4, **changes: object) -> nn.Module:
    """Weights four times as large as fresh ones, or every map would be nearly flat."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **(FAMILIES.get(name, FAMILIES["paca_tiny"]) | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)
    return model


def pictures(count: int = 2, height: int = 64, width: int = 64) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


def entering(model: nn.Module, path: str, images: Tensor) -> tuple:
    """What the module at `path` is given."""
    seen: list[tuple] = []
    handle = model.get_submodule(path).register_forward_pre_hook(lambda _module, inputs: seen.append(inputs))
    with torch.no_grad():
        model(images)
    handle.remove()
    return seen[-1]


def counting(module: nn.Module) -> tuple[list[int], Callable[[], None]]:
    """A list that grows by the batch size of every call of the module, and what ends that."""
    calls: list[int] = []
    handle = module.register_forward_pre_hook(lambda _module, inputs: calls.append(len(inputs[0])))
    return calls, handle.remove


@functools.cache
def trained() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A PaCa that has learned 400 pictures of shapes a little, and 8 of them: images, labels, masks of the object."""
    torch.manual_seed(0)
    settings = FAMILIES["paca_tiny"] | dict(dims=(8, 16, 24, 32), clusters=(6, 6, 12, 0), stem_stride=2)
    model = timm.create_model("paca_tiny", num_classes=10, **settings)
    scenes = Shapes("train", size=32)
    images = torch.stack([as_input(scenes[i].image) for i in range(400)])
    labels = torch.tensor([scenes.label(i) for i in range(400)])
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(12):
        for rows in torch.randperm(len(images)).split(50):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimiser.step()
    seen = [scenes[i] for i in range(8)]
    masks = torch.stack([torch.from_numpy(scene.semantic == scene.label + 1) for scene in seen])
    return model.eval(), images[:8], labels[:8], masks


def as_input(image) -> Tensor:
    return (torch.from_numpy(image).permute(2, 0, 1).float() / 255 - 0.45) / 0.25


QUICK_METHODS = {
    "integrated_gradients": IntegratedGradients(steps=2),
    "occlusion": Occlusion(cells=3),
    "rise": Rise(masks=8),
    "refined_mask": RefinedMask(steps=1),
    "refined_mask_34": RefinedMask(steps=2),
    "refined_mask_100": RefinedMask(steps=3),
    "segment_shapley": SegmentShapley(pairs=4),
    "segment_shapley_49": SegmentShapley(pairs=5),
}
