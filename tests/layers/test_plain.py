"""Layers are read without being called only while nobody changed them, and then still are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate.hooks import ModelHook, add_hook_to_module
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.modules import module as torch_module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize, prune, weight_norm
from torch.utils.flop_counter import FlopCounterMode
from torchao.quantization import Int8WeightOnlyConfig, quantize_

from vitreous.layers import mlp, tiles
from vitreous.layers.channel_attention import ChannelAttention
from vitreous.layers.conv_norm import ConvNorm
from vitreous.layers.mlp import ConvMlp
from vitreous.layers.partial_attention import AttentionSettings, HeadMixer, PartialAttention
from vitreous.layers.plain import PLAIN_LAYERS, is_plain
from vitreous.models.emsnet import MixerSettings, StaticOperator


class Double(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


class Sub(nn.Linear):
    pass


@pytest.mark.parametrize(
    "layer", [nn.Linear(64, 64), nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.SyncBatchNorm(3)], ids=str
)
def test_layers_as_torch_makes_them_are_plain(layer: nn.Module) -> None:
    assert is_plain(layer)
    assert is_plain(layer.double().eval().requires_grad_(False))


CHANGES: dict[str, Callable[[nn.Linear], object]] = {
    "forward hook": lambda layer: layer.register_forward_hook(lambda *_: None),
    "forward pre-hook": lambda layer: layer.register_forward_pre_hook(lambda *_: None),
    "backward hook": lambda layer: layer.register_full_backward_hook(lambda *_: None),
    "backward pre-hook": lambda layer: layer.register_full_backward_pre_hook(lambda *_: None),
    "another forward": lambda layer: setattr(layer, "forward", lambda x: x),
    "accelerate": lambda layer: add_hook_to_module(layer, ModelHook()),
    "parametrisation": lambda layer: parametrize.register_parametrization(layer, "weight", Double()),
    "weight norm": weight_norm,
    "pruning": lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5),
    "torchao": lambda layer: quantize_(layer, Int8WeightOnlyConfig()),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
@pytest.mark.parametrize("name", CHANGES)
def test_changed_layers_are_not(name: str) -> None:
    layer = nn.Linear(64, 64)
    CHANGES[name](layer)
    assert not is_plain(layer)
    assert not is_plain(nn.Linear(64, 64), layer)


WATCHES_ALL = {
    "forward hook": torch_module.register_module_forward_hook,
    "forward pre-hook": torch_module.register_module_forward_pre_hook,
    "backward hook": torch_module.register_module_full_backward_hook,
    "backward pre-hook": torch_module.register_module_full_backward_pre_hook,
}


@pytest.mark.parametrize("name", WATCHES_ALL)
def test_no_layer_is_plain_while_hooks_watch_every_module(name: str) -> None:
    layer = nn.Linear(4, 4)
    with WATCHES_ALL[name](lambda *_: None):
        assert not is_plain(layer)
    assert is_plain(layer)


def test_counting_operations_does_not_change_them() -> None:
    """torch's counter has such hooks, and is asked what a model costs when nobody watches."""
    with FlopCounterMode(display=False):
        assert is_plain(nn.Linear(4, 4))
        with torch_module.register_module_forward_hook(lambda *_: None):
            assert not is_plain(nn.Linear(4, 4))


def test_other_classes_are_not() -> None:
    assert not is_plain(Sub(2, 2))
    assert not is_plain(torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)))[0])


def test_a_hook_that_is_gone_leaves_nothing() -> None:
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda *_: None).remove()
    assert is_plain(layer)


# Our layers that read others ----------------------------------------------------------------------


class NeededOnly(nn.Module):
    """Partial attention of which only the needed keys and values are made."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = PartialAttention(16, 2, Fraction(1, 8), AttentionSettings(project="needed"))

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x.mean(-1))


TOKENS = (2, 20, 20, 16)
READERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[str]]] = {  # what is read without being called
    "depth-wise": (lambda: ConvMlp(16, 32), TOKENS, ["depthwise"]),
    "depth-wise without shortcut": (lambda: ConvMlp(16, 32, shortcut=False), TOKENS, ["depthwise"]),
    "conv and norm": (lambda: ConvNorm(16, 24), TOKENS, ["conv", "norm"]),
    "conv with bias and norm": (lambda: ConvNorm(16, 24, bias=True), TOKENS, ["conv", "norm"]),
    "pointwise and norm": (lambda: ConvNorm(16, 24, 1), TOKENS, ["conv", "norm"]),
    "heads": (lambda: HeadMixer(4, 2), (2, 4, 9, 9), ["expand", "reduce"]),
    "needed only": (NeededOnly, TOKENS, ["attention.mixer.expand", "attention.mixer.reduce"]),
    "channels": (lambda: ChannelAttention(16, 4), TOKENS, ["qkv", "proj"]),
    "whitening": (lambda: StaticOperator(16, MixerSettings()), TOKENS, ["whiten"]),
}


@contextmanager
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[nn.Module]]:
    """Layers whose `forward` runs; patched in their classes, which leaves each of them plain."""
    seen: list[nn.Module] = []

    def watched(forward: Callable) -> Callable:
        return lambda layer, *inputs: (seen.append(layer), forward(layer, *inputs))[1]

    with monkeypatch.context() as patch:
        for kind in PLAIN_LAYERS:
            patch.setattr(kind, "forward", watched(kind.forward))
        yield seen


def made(name: str) -> tuple[nn.Module, Tensor]:
    make, shape, _ = READERS[name]
    torch.manual_seed(0)
    layer = make().eval()
    for norm in layer.modules():
        if isinstance(norm, nn.BatchNorm2d):
            (
                nn.init.uniform_(norm.running_mean),
                nn.init.uniform_(norm.running_var, 0.5, 2.0),
                nn.init.uniform_(norm.bias),
            )
    return layer, torch.randn(shape)


@pytest.mark.parametrize("name", READERS)
def test_plain_layers_are_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = made(name)
    with torch.no_grad(), calls(monkeypatch) as seen:
        layer(x)
    for path in READERS[name][2]:
        assert layer.get_submodule(path) not in seen, path


@pytest.mark.parametrize("name", READERS)
def test_watched_layers_are_called_once_and_give_the_same(name: str) -> None:
    layer, x = made(name)
    with torch.no_grad():
        expected = layer(x)
    seen: list[str] = []
    for path, inner in layer.named_modules():
        if isinstance(inner, PLAIN_LAYERS):
            inner.register_forward_hook(lambda *_, path=path: seen.append(path))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
    assert sorted(seen) == sorted(path for path, inner in layer.named_modules() if isinstance(inner, PLAIN_LAYERS))


@pytest.mark.parametrize("name", READERS)
def test_hooks_for_every_module_see_every_layer_once(name: str) -> None:
    layer, x = made(name)
    seen: list[nn.Module] = []
    with torch.no_grad():
        expected = layer(x)
        with torch_module.register_module_forward_hook(lambda inner, *_: seen.append(inner)):
            torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
    for path, inner in layer.named_modules():
        if isinstance(inner, PLAIN_LAYERS):
            assert seen.count(inner) == 1, path


@pytest.mark.parametrize("name", READERS)
def test_a_changed_layer_has_its_say(name: str) -> None:
    """Each by itself: what it does to its output shows in the result."""
    for path in READERS[name][2]:
        layer, x = made(name)
        with torch.no_grad():
            before = layer(x)
            # Alike for all positions it might cancel, as in a softmax.
            layer.get_submodule(path).register_forward_hook(lambda _layer, _inputs, y: y * (1 + torch.rand_like(y)))
            assert not torch.allclose(layer(x), before, rtol=1e-3, atol=1e-3), path


@pytest.mark.parametrize("depthwise", [True, False])
def test_watched_layers_see_all_positions_at_once(depthwise: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = ConvMlp(8, 16, depthwise=depthwise), torch.randn(2, 9, 5, 8)
    monkeypatch.setattr(mlp, "WORTH_TILES_BYTES", 300)
    monkeypatch.setattr(tiles, "TILE_BYTES", 300)
    monkeypatch.setattr(tiles, "MIN_POSITIONS", 1)
    shapes: list[tuple[int, ...]] = []
    with torch.no_grad():
        with calls(monkeypatch) as seen:
            expected = layer(x)
        assert seen.count(layer.fc1) > 1, "tiles were meant to be taken"
        layer.fc2.register_forward_pre_hook(lambda _layer, inputs: shapes.append(tuple(inputs[0].shape)))
        torch.testing.assert_close(layer(x), expected)
    assert shapes == [(2, 9, 5, 16)]


def test_norms_without_statistics_are_called() -> None:
    layer = ConvNorm(3, 4).eval()
    layer.norm.running_mean = layer.norm.running_var = None
    x = torch.randn(2, 5, 5, 3)
    expected = F.batch_norm(layer.conv(x.permute(0, 3, 1, 2)), None, None, training=True, eps=layer.norm.eps)
    torch.testing.assert_close(layer(x), expected.permute(0, 2, 3, 1))


# Where others hold the layers ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("wrap", [DistributedDataParallel, lambda layer: fully_shard(layer)], ids=["DDP", "FSDP"])
@pytest.mark.parametrize("name", READERS)
@pytest.mark.usefixtures("one_process")
def test_layers_of_wrapped_models_are_plain(name: str, wrap: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = made(name)
    with torch.no_grad():
        expected = layer(x)
        wrapped = wrap(layer)
        with calls(monkeypatch) as seen:
            assert torch.equal(wrapped(x), expected)
    assert not {layer.get_submodule(path) for path in READERS[name][2]} & set(seen)


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("name", READERS)
def test_layers_that_are_split_by_themselves_are_called(name: str) -> None:
    layer, x = made(name)
    with torch.no_grad():
        expected = layer(x)
        for path in READERS[name][2]:
            fully_shard(layer.get_submodule(path))
        torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strict", [True, False])
def test_layers_of_exported_models_are_plain(strict: bool) -> None:
    """Also where a module stands in two places, which makes torch.export look at all of them through stand-ins."""
    model = nn.Sequential(ConvNorm(3, 8), tap := nn.Identity(), ConvNorm(8, 8, 1), tap).eval()
    graph = torch.export.export(model, (torch.randn(2, 6, 6, 3),), strict=strict).graph
    assert not [node for node in graph.nodes if "batch_norm" in str(node.target)]
