"""LoRA by peft and int8 by torch and torchao: every family runs with other layers in place of its linear ones."""

import copy

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from torch.ao.quantization import quantize_dynamic
from torchao.quantization import Int8WeightOnlyConfig, quantize_

from tests.support.families import FAMILIES, awake, small
from vitreous.heads.detect import build_detector

CASES = [
    *((name, {}) for name in FAMILIES if "cifar" not in name),  # which differs in strides only
    ("paca_tiny_mlp", {}),
    ("partialformer_b0", dict(project="needed")),
    ("emsnet_xxtiny", dict(whitening="pixel")),
]
EVERY_FAMILY = pytest.mark.parametrize(("name", "options"), CASES, ids=str)
# The larger ones have more positions than twice the channels of XCiT, and hidden maps that are computed in tiles.
IMAGES = [torch.randn(s, generator=torch.Generator().manual_seed(1)) for s in ((2, 3, 96, 64), (1, 3, 256, 272))]


def adapted(model: nn.Module) -> PeftModel:
    """With adapters that do something, as after training."""
    return get_peft_model(model, LoraConfig(target_modules="all-linear", r=4, init_lora_weights=False))


def difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


@EVERY_FAMILY
@torch.no_grad()
def test_merged_adapters_are_the_adapters(name: str, options: dict) -> None:
    torch.manual_seed(0)
    plain = awake(small(name, 1, **options)).eval()
    apart = adapted(copy.deepcopy(plain)).eval()
    merged = copy.deepcopy(apart).merge_and_unload()
    for images in IMAGES:
        output = apart(images)
        assert difference(output, plain(images)) > 0.02, "adapters without effect show nothing"
        assert difference(merged(images), output) < 1e-4


@EVERY_FAMILY
def test_every_adapter_learns(name: str, options: dict) -> None:
    torch.manual_seed(0)
    model = adapted(awake(small(name, 1, drop_path_rate=0.0, **options))).train()  # a dropped branch has no slope
    model(IMAGES[0]).square().sum().backward()
    adapters = {path: p for path, p in model.named_parameters() if "lora_" in path}
    assert len(adapters) >= 2 * sum(isinstance(layer, nn.Linear) for layer in small(name, 1, **options).modules()) - 2
    idle = [path for path, p in adapters.items() if p.grad is None or not p.grad.any()]
    assert not idle


def test_adapters_of_a_detector() -> None:
    """Among them those of the output layer of torch's own attention, whose weights torch reads."""
    torch.manual_seed(0)
    detector = build_detector(small("paca_b0", 1, features_only=True), "sparsercnn", 3, channels=32, proposals=5)
    model = adapted(awake(detector))
    found = model.base_model.model.all_of(IMAGES[0], [0])[0]
    (found["boxes"].sum() + found["scores"].sum()).backward()
    adapters = {path: p for path, p in model.named_parameters() if "out_proj.lora_" in path}
    assert adapters
    assert not [path for path, p in adapters.items() if p.grad is None or not p.grad.any()]


@EVERY_FAMILY
@torch.no_grad()
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*quantize_per_tensor.*")
def test_dynamic_int8(name: str, options: dict) -> None:
    torch.manual_seed(0)
    model = awake(small(name, 1, **options)).eval()
    quantised = quantize_dynamic(copy.deepcopy(model), {nn.Linear})
    assert not any(type(layer) is nn.Linear for layer in quantised.modules())
    for images in IMAGES:
        # Seen: 0.4 % to 6 %; weights and activations have 256 steps each.
        assert difference(quantised(images), model(images)) < 0.15


@EVERY_FAMILY
@torch.no_grad()
def test_weight_only_int8(name: str, options: dict) -> None:
    torch.manual_seed(0)
    model = awake(small(name, 1, **options)).eval()
    quantised = copy.deepcopy(model)
    quantize_(quantised, Int8WeightOnlyConfig())
    assert type(quantised.head.weight) is not nn.Parameter
    for images in IMAGES:
        # Seen: 0.2 % to 2.5 %.
        assert difference(quantised(images), model(images)) < 0.06
