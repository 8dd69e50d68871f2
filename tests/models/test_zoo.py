"""Every registered model: its published size, finite outputs, gradients everywhere, any image size."""

from typing import NamedTuple

import pytest
import timm
import torch

import vitreous
from tests.support.families import FAMILIES, ONE_OF_EACH, assert_trains, awake, small
from vitreous.errors import InputError
from vitreous.figures.counting import read_table
from vitreous.registry import ALIASES, ENTRIES

MODELS = vitreous.list_models()


class Golden(NamedTuple):
    params: float  # millions
    gmacs: float | None  # at the model's own input size
    source: str


GOLDEN = {
    "paca_tiny": Golden(12.201, 3.22, "release"),
    "paca_small": Golden(22.038, 5.50, "release"),
    "paca_small_mlp": Golden(22.637, 5.86, "release"),
    "paca_base": Golden(46.911, 9.54, "release"),
    "paca_tiny_teacher": Golden(12.484, 3.42, "reference code"),
    "paca_small_teacher": Golden(21.075, 5.48, "release"),
    "paca_base_teacher": Golden(47.659, 9.77, "release"),
    "paca_small_c2": Golden(21.978, 4.64, "release"),
    "paca_small_c49": Golden(22.007, 5.05, "release"),
    "paca_small_c49_100": Golden(22.228, 5.27, "release"),
    "paca_small_c100_49": Golden(22.211, 5.34, "release"),
    "paca_small_c100": Golden(22.245, 5.57, "release"),
    "paca_small_blockwise": Golden(24.192, 6.10, "release"),
    "paca_tiny_linear": Golden(12.021, 3.12, "reference code"),
    "paca_tiny_linear_blockwise": Golden(12.224, 3.22, "reference code"),
    "paca_b0": Golden(3.344, 0.62, "arXiv v1"),
    "paca_b1": Golden(12.706, 2.27, "arXiv v1"),
    "paca_b2": Golden(22.659, 4.37, "arXiv v1"),
    "paca_b0_cifar": Golden(2.990, 0.30, "arXiv v1"),
    "paca_b1_cifar": Golden(11.768, 1.12, "arXiv v1"),
    "paca_b2_cifar": Golden(20.781, 1.95, "arXiv v1"),
    "paca_b0_cifar_pure": Golden(2.96, None, "arXiv v1"),
    "paca_b1_cifar_pure": Golden(11.67, None, "arXiv v1"),
    "paca_b2_cifar_pure": Golden(20.59, None, "arXiv v1"),
    "paca_b0_readout": Golden(3.344 + 0.068, 0.62, "paca_b0, C (C + M + 2) + M more"),
    "paca_tiny_readout": Golden(12.201 + 0.1513, 3.23, "paca_tiny, the same"),
    "xcit_nano_12_p16": Golden(3.053, 0.55, "release"),
    "xcit_nano_12_p8": Golden(3.049, 2.13, "release"),
    "xcit_tiny_12_p16": Golden(6.716, 1.23, "release"),
    "xcit_tiny_12_p8": Golden(6.707, 4.77, "release"),
    "xcit_tiny_24_p16": Golden(12.117, 2.32, "release"),
    "xcit_tiny_24_p8": Golden(12.107, 9.14, "release"),
    "xcit_small_12_p16": Golden(26.253, 4.80, "release"),
    "xcit_small_12_p8": Golden(26.213, 18.62, "release"),
    "xcit_small_24_p16": Golden(47.671, 9.06, "release"),
    "xcit_small_24_p8": Golden(47.631, 35.68, "release"),
    "xcit_medium_24_p16": Golden(84.396, 16.08, "release"),
    "xcit_medium_24_p8": Golden(84.324, 63.35, "release"),
    "xcit_large_24_p16": Golden(189.096, 35.79, "release"),
    "xcit_large_24_p8": Golden(188.933, 140.96, "release"),
    "emsnet_xxtiny": Golden(2.577, 0.540, "dissertation, rebuilt"),
    "emsnet_xtiny": Golden(2.978, 0.728, "dissertation, rebuilt"),
    "emsnet_xtiny_128": Golden(2.324, 0.701, "dissertation, rebuilt"),
    "emsnet_tiny": Golden(5.499, 1.901, "dissertation, rebuilt"),
    "partialformer_b0": Golden(5.301, 0.418, "specification"),
    "partialformer_b1": Golden(8.241, 0.721, "specification"),
    "partialformer_b2": Golden(21.084, 1.923, "specification"),
    "partialformer_b3": Golden(36.108, 3.382, "specification"),
    "partialformer_b4": Golden(64.468, 6.842, "specification"),
    "mat_1": Golden(6.712, 0.386, "dissertation, rebuilt"),
    "mat_2": Golden(10.765, 0.662, "dissertation, rebuilt"),
    "mat_3": Golden(17.006, 1.039, "dissertation, rebuilt"),
    "mat_4": Golden(29.053, 1.929, "dissertation, rebuilt"),
    "mat_5": Golden(50.104, 3.155, "dissertation, rebuilt"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_size_and_cost_are_the_published_ones(name: str) -> None:
    golden, figures = GOLDEN[name], read_table()[name]  # tests/figures/test_table.py counts what the table says
    rounding = 0.005 if name.endswith("_pure") else 0.0  # printed with two decimals only
    assert figures["params"] / 1e6 == pytest.approx(golden.params, rel=5e-4, abs=rounding)
    if golden.gmacs is not None:
        assert figures["macs"] / 1e9 == pytest.approx(golden.gmacs, rel=0.01)


def test_no_family_is_left_out() -> None:
    assert {ENTRIES[name].family for name in ONE_OF_EACH} == {entry.family for entry in ENTRIES.values()}


@pytest.mark.parametrize("name", MODELS)
def test_forward_and_a_gradient_for_every_parameter(name: str) -> None:
    assert_trains(small(name), [(33, 47)])


@pytest.mark.parametrize("name", MODELS)
def test_declared_channels_and_strides_are_true(name: str) -> None:
    size = 64
    with torch.device("meta"), torch.no_grad():
        model = small(name).eval()
        maps, pooled = model.features(torch.randn(1, 3, size, size))
    assert [m.shape[1] for m in maps] == list(model.channels)
    assert [size // m.shape[2] for m in maps] == list(model.strides)
    assert pooled.shape == (1, model.num_features)


def random_sizes(count: int, largest: int) -> list[list[int]]:
    return torch.randint(32, largest + 1, (count, 2), generator=torch.Generator().manual_seed(0)).tolist()


def check_sizes(name: str, model: torch.nn.Module, sizes: list) -> None:
    """Maps of the declared strides, and images alone give what they give in a batch.

    Up to the order of float32 sums, which depends on how many rows a product has: here 1e-6 of the largest logit.
    PartialFormer is checked in float64. It ranks positions by score, and where two scores differ by less than rounding
    does, a foreground of other positions is as right as the first: a difference of another kind, and no small one.
    """
    model = model.double() if name.startswith("partialformer") else model
    for height, width in sizes:
        images = torch.randn(2, 3, height, width).to(model.head.weight)
        with torch.no_grad():
            final, maps = model.forward_intermediates(images)
            together = model.forward_head(final)
            alone = torch.cat([model(image[None]) for image in images])
        assert [m.shape[2:] for m in maps] == [(-(-height // s), -(-width // s)) for s in model.strides]
        assert torch.isfinite(together).all()
        error = (together - alone).abs().max() / together.abs().max()
        assert error < 1e-5, f"{height}x{width}: {error:.1e}"


@pytest.mark.parametrize("name", FAMILIES)
def test_any_size_and_single_equals_batched(name: str) -> None:
    check_sizes(name, awake(small(name, 1)).eval(), [(32, 32), (70, 99), (33, 130), *random_sizes(3, 160)])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FAMILIES)
def test_thirty_sizes_in_full_depth(name: str) -> None:
    # Stages of stride 4 attend to all positions in CIFAR's models: at 1024 pixels that is a quarter of an hour.
    largest = 256 if "cifar" in name else 1024
    check_sizes(name, timm.create_model(name, num_classes=5).eval(), random_sizes(30, largest))


def test_second_construction_equals_the_first() -> None:
    for name in ("paca_tiny_teacher", "paca_b0"):
        shapes = [{key: value.shape for key, value in small(name).state_dict().items()} for _ in range(2)]
        assert shapes[0] == shapes[1]


def test_original_names() -> None:
    assert set(ALIASES.values()) <= set(MODELS)
    with torch.device("meta"):
        model = vitreous.create_model("pacavit_small_p2cmlp_100_0")
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(22.637e6, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("paca_tny", {}, "nearest: paca_tiny"),
        ("paca_tiny.imagenet", {}, "it has: ivmcl_in1k"),
        ("paca_tiny", {"clustering": "kmeans"}, "accepted: conv, mlp, linear"),
        ("paca_tiny", {"layerscale": 1e-5}, "nearest: layer_scale"),
        ("paca_tiny", {"heads": (2, 4, 7, 16)}, "7 heads cannot divide 320"),
        ("paca_tiny", {"clusters": (100, 100)}, "2 entries"),
        ("paca_tiny", {"clusters": (10, 10, -1, 0)}, "negative"),
        ("paca_tiny", {"kernel_size": 4}, "odd number"),
        ("paca_tiny", {"teacher": 5}, "give a dict such as"),
        ("paca_tiny", {"norm": "rms"}, "accepted: pre, post, sub"),
        ("paca_tiny", {"generation": 3}, "generations 1 and 2"),
        ("paca_tiny", {"stem_stride": 3}, "accepted: 1, 2, 4"),
        ("paca_tiny", {"heads": 8}, "heads=8 given; give a tuple with an entry for every stage"),
        ("paca_tiny", {"mlp_shortcut": "no"}, "mlp_shortcut='no' given; accepted: True, False"),
        ("paca_tiny", {"last_stride": 0}, "last_stride=0 given"),
        ("paca_tiny", {"teacher": dict(depths=(1, 1))}, r"depths of the teacher=\(1, 1\) has 2 entries"),
        ("paca_tiny", {"teacher": dict(depths=(1, 1, 1, 1), kernel=3)}, "no argument 'kernel'; accepted: dims"),
        ("paca_tiny_linear", {"pretrained": True}, "no public weights"),
    ],
)
def test_bad_arguments_say_what_to_do(name: str, arguments: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        vitreous.create_model(name, **arguments)


@pytest.mark.parametrize(
    ("name", "wrong", "nearest"),
    [
        ("paca_tiny", "stem_strides", "stem_stride"),
        ("xcit_nano_12_p16", "token_norm", "tokens_norm"),
        ("emsnet_xxtiny", "heads", "local_heads"),
        ("mat_1", "embd", "embed"),
        ("partialformer_b0", "mlp_depthwise", "stem_depthwise"),
    ],
)
def test_unknown_arguments_are_refused_with_the_nearest_ones(name: str, wrong: str, nearest: str) -> None:
    with pytest.raises(InputError, match=f"unknown .* argument '{wrong}'; nearest: {nearest},.* all: .*drop_rate$"):
        vitreous.create_model(name, **{wrong: 1})


@pytest.mark.parametrize("name", FAMILIES)
def test_bad_images_say_what_to_do(name: str) -> None:
    model = small(name, 1)
    smallest, argument = model.strides[-1], "patch" if "xcit" in name else "stem_stride"
    for shape in ((1, 4, 64, 64), (3, 64, 64)):
        with pytest.raises(InputError, match=r"takes \(batch, 3"):
            model(torch.randn(shape))
    message = f"{smallest - 1}x64 pixels given; the smallest .* is {smallest}x{smallest}. .* a smaller {argument}"
    with pytest.raises(InputError, match=message):
        model(torch.randn(1, 3, smallest - 1, 64))


@pytest.mark.parametrize("name", FAMILIES)
def test_no_images_give_no_answers(name: str) -> None:
    assert small(name, 1).eval()(torch.empty(0, 3, 64, 70)).shape == (0, 5)


def test_registering_a_name_twice_is_refused() -> None:
    from vitreous.models.paca import PaCa
    from vitreous.registry import register

    with pytest.raises(InputError, match="registered already"):
        register(PaCa, {"paca_tiny": {}}, paper="")
    with pytest.raises(InputError, match="registered already"):
        register(PaCa, {"resnet18": {}}, paper="")
