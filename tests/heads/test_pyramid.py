import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

import vitreous
from vitreous.errors import InputError
from vitreous.heads.pyramid import Pyramid, group_norm, pyramid

SHORT = dict(depths=(1, 1, 1, 1))
EXTRAS = {
    None: (4, 8, 16, 32),
    "pool": (4, 8, 16, 32, 64),
    "p6p7": (8, 16, 32, 64, 128),
    "p6p7_c5": (8, 16, 32, 64, 128),
}


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("size", [(64, 96), (70, 99)])
def test_levels_have_their_strides_names_and_channels(extra: str | None, size: tuple[int, int]) -> None:
    model = pyramid("paca_b0", channels=12, extra=extra, **SHORT).eval()
    assert model.strides == EXTRAS[extra]
    with torch.no_grad():
        maps = model(torch.randn(2, 3, *size))
    behind = {None: [], "pool": ["pool"], "p6p7": ["p6", "p7"], "p6p7_c5": ["p6", "p7"]}[extra]
    own = len(model.strides) - len(behind)
    assert list(maps) == [*map(str, range(own)), *behind]
    for level, stride in zip(maps.values(), model.strides, strict=True):
        assert level.shape == (2, model.out_channels, -(-size[0] // stride), -(-size[1] // stride))


@pytest.mark.parametrize("levels", [(4, 8, 16, 32), (8, 16, 32), (4, 16), (32, 8)])
def test_levels_are_laterals_plus_what_comes_from_above(levels: tuple[int, ...]) -> None:
    backbone = vitreous.create_model("paca_b0", **SHORT).eval()
    images = torch.randn(1, 3, 70, 99)
    with torch.no_grad():
        by_stride = dict(zip(backbone.strides, backbone.features(images).maps, strict=True))
        model = Pyramid(backbone, channels=12, levels=levels, extra=None).eval()
        maps = model(images)
        above = None
        for i, stride in reversed(list(enumerate(sorted(levels)))):
            lateral = model.fpn.inner_blocks[i](by_stride[stride])
            above = lateral if above is None else lateral + F.interpolate(above, lateral.shape[2:], mode="nearest")
            torch.testing.assert_close(maps[str(i)], model.fpn.layer_blocks[i](above))


@pytest.mark.parametrize(("name", "short"), [("paca_b0", SHORT), ("mat_1", SHORT), ("xcit_nano_12_p16", dict(depth=4))])
@pytest.mark.parametrize("levels", [None, (8, 16), (4, 32)])
def test_every_parameter_learns_whatever_the_levels(name: str, short: dict, levels: tuple[int, ...] | None) -> None:
    model = pyramid(name, channels=12, levels=levels, extra=None, **short)
    sum(level.square().mean() for level in model(torch.randn(2, 3, 64, 64)).values()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_deepest_map_of_a_stride_is_the_one_taken() -> None:
    model = pyramid("paca_b0_cifar", channels=12, levels=(2, 4), **SHORT)
    assert model.strides == (2, 4, 8)
    assert len(model.body.model.stages) == 4


@pytest.mark.parametrize("name", ["test_resnet", "test_mambaout"])  # strides from 2; maps (B, H, W, C)
def test_models_of_timm(name: str) -> None:
    backbone = timm.create_model(name, features_only=True)
    for model in (pyramid(backbone, channels=12), pyramid(name, channels=12)):
        assert model.strides == (4, 8, 16, 32, 64)
        shapes = [tuple(level.shape[1:]) for level in model(torch.randn(1, 3, 64, 96)).values()]
        assert shapes == [(12, 16, 24), (12, 8, 12), (12, 4, 6), (12, 2, 3), (12, 1, 2)]


@pytest.mark.parametrize(("norm", "layer"), [("bn", nn.BatchNorm2d), ("gn", nn.GroupNorm)])
def test_norms_on_request(norm: str, layer: type) -> None:
    def norms(chosen: str | None) -> int:
        fpn = pyramid("paca_b0", channels=12, norm=chosen, **SHORT).fpn
        return sum(isinstance(module, layer) for module in fpn.modules())

    assert (norms(None), norms(norm)) == (0, 8)


@pytest.mark.parametrize(("channels", "groups"), [(256, 32), (64, 8), (34, 2), (12, 1), (4, 1)])
def test_groups_of_norms_are_never_single_channels(channels: int, groups: int) -> None:
    norm = group_norm(channels)
    assert norm.num_groups == groups
    assert norm(torch.randn(1, channels, 1, 1)).abs().sum() > 0


@pytest.mark.parametrize("channels", [12, 256])  # paca_b0's last map has 256 itself
def test_where_the_levels_behind_the_last_come_from(channels: int) -> None:
    images = torch.randn(1, 3, 64, 96)
    for extra in ("p6p7", "p6p7_c5"):
        model = pyramid("paca_b0", channels=channels, extra=extra, **SHORT).eval()
        with torch.no_grad():
            maps = model(images)
            source = maps["2"] if extra == "p6p7" else model.body(images)[-1]
            torch.testing.assert_close(maps["p6"], model.fpn.extra_blocks.p6(source))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (dict(levels=(4, 64)), "levels=(4, 64) given; this model has maps of strides 4, 8, 16, 32"),
        (dict(levels=()), r"levels=() given"),
        (dict(extra="p6"), "extra='p6' given; accepted: None, 'pool', 'p6p7', 'p6p7_c5'"),
        (dict(norm="ln"), "norm='ln' given; accepted: 'bn', 'gn', None"),
        (dict(channels=0), "channels=0 given"),
    ],
)
def test_bad_arguments(arguments: dict, says: str) -> None:
    with pytest.raises(InputError) as reason:
        pyramid("paca_b0", **arguments, **SHORT)
    assert says in str(reason.value)


def test_what_is_no_pyramid() -> None:
    with pytest.raises(InputError, match="have stride 16; a pyramid needs several"):
        pyramid("test_vit")
    with pytest.raises(InputError, match="built with dense=True"):
        pyramid(vitreous.create_model("xcit_nano_12_p16", depth=4))
    with pytest.raises(InputError, match="a Linear given"):
        pyramid(nn.Linear(2, 2))
    with pytest.raises(InputError, match="in_chans given for a model that is already built"):
        pyramid(vitreous.create_model("paca_b0", **SHORT), in_chans=1)
