"""A feature pyramid on any backbone: what torchvision's detectors take as their `backbone`.

    FasterRCNN(pyramid("paca_tiny"), num_classes=3)                  # also MaskRCNN, KeypointRCNN
    RetinaNet(pyramid("paca_tiny", extra="p6p7"), num_classes=3)     # also FCOS

Feature Pyramid Networks, Lin et al., arXiv 1612.03144. Levels are called "0", "1", … from fine to coarse, and those
added behind them "pool", or "p6" and "p7": the names which these detectors look for.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from timm.models._features import FeatureGetterNet
from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import ExtraFPNBlock, LastLevelMaxPool, LastLevelP6P7

from vitreous.errors import InputError
from vitreous.models.base import Backbone
from vitreous.registry import create_model

Extra = Literal["pool", "p6p7"]
Norm = Literal["bn"]
ADDED: dict[Extra | None, tuple[int, ...]] = {None: (), "pool": (2,), "p6p7": (2, 4)}  # strides in units of the last


class Pyramid(nn.Module):
    """Images (B, C, H, W) -> maps of all levels by name, fine to coarse, each with `out_channels` channels.

    `strides` has one entry for each. Images need no particular size: with our models a level's sides are the image's
    divided by the level's stride, rounded up.
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        channels: int = 256,
        levels: Sequence[int] | None = None,
        extra: Extra | None = "pool",
        norm: Norm | None = None,
    ) -> None:
        super().__init__()
        check_arguments(channels, extra, norm)
        network = feature_network(backbone)
        # The deepest map of each stride, as in the paper.
        index = {stride: i for i, stride in enumerate(network.feature_info.reduction())}
        strides = choose_levels(index, levels, finest=8 if extra == "p6p7" else 4)
        widths = network.feature_info.channels()
        self.body, self.taken = narrowed(network, [index[stride] for stride in strides])
        self.transposed = getattr(network, "output_fmt", None) == "NHWC"
        self.fpn = FeaturePyramidNetwork(
            [widths[index[stride]] for stride in strides],
            channels,
            extra_blocks=extra_levels(extra, channels),
            norm_layer=nn.BatchNorm2d if norm == "bn" else None,
        )
        self.out_channels = channels
        self.strides = (*strides, *(strides[-1] * times for times in ADDED[extra]))

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        maps = self.body(images)
        taken = (maps[i].permute(0, 3, 1, 2) if self.transposed else maps[i] for i in self.taken)  # (B, C, H, W)
        return self.fpn(OrderedDict((str(level), features) for level, features in enumerate(taken)))


def pyramid(
    backbone: str | nn.Module,
    *,
    channels: int = 256,
    levels: Sequence[int] | None = None,
    extra: Extra | None = "pool",
    norm: Norm | None = None,
    **model_arguments: Any,
) -> Pyramid:
    """A pyramid on a backbone, which is built too if it is given by name.

    Args:
        backbone: Name for `create_model`; or a model: one of ours, or one made with timm's `features_only=True`. A
            model becomes part of the pyramid; one of ours loses what no level needs, such as its classifier.
        channels: Channels of every level.
        levels: Strides of the backbone's maps to build on; default: all from 4, or from 8 with "p6p7". These, up to
            stride 32, are what the default anchors of torchvision's detectors are made for.
        extra: Levels behind the coarsest: "pool" for one without weights, from which R-CNN detectors propose large
            boxes; "p6p7" for two convolutions, as in RetinaNet and FCOS; None.
        norm: "bn" puts a BatchNorm behind the convolutions of the levels.
        model_arguments: For `create_model`, e.g. pretrained=True.
    """
    if isinstance(backbone, str):
        backbone = create_model(backbone, features_only=True, **model_arguments)
    elif model_arguments:
        given = ", ".join(model_arguments)
        raise InputError(f"{given} given for a model that is built already; build it with them, or give its name")
    return Pyramid(backbone, channels=channels, levels=levels, extra=extra, norm=norm)


def check_arguments(channels: int, extra: str | None, norm: str | None) -> None:
    if channels < 1:
        raise InputError(f"channels={channels} given; a level needs at least 1")
    if extra not in ADDED:
        raise InputError(f"extra={extra!r} given; accepted: 'pool', 'p6p7', None")
    if norm not in ("bn", None):
        raise InputError(f"norm={norm!r} given; accepted: 'bn', None")


def feature_network(model: nn.Module) -> Any:
    """A module that gives a list of maps and says in `feature_info` what they are."""
    if isinstance(model, Backbone):
        return FeatureGetterNet(model, tuple(range(len(model.stages))), prune=False)
    if not hasattr(getattr(model, "feature_info", None), "reduction"):
        raise InputError(
            f"a {type(model).__name__} given; a pyramid needs the name of a model, a model of vitreous, or one that "
            "timm.create_model made with features_only=True"
        )
    return model


def choose_levels(known: Mapping[int, int], levels: Sequence[int] | None, *, finest: int) -> tuple[int, ...]:
    shown = ", ".join(map(str, known))
    if len(known) < 2:
        raise InputError(
            f"all maps of this model have stride {shown}; a pyramid needs several. XCiT has them when it is given by "
            "name, or built with dense=True"
        )
    if levels is None:
        return tuple(stride for stride in known if stride >= finest) or tuple(known)
    if not levels or not set(levels) <= set(known):
        raise InputError(f"levels={tuple(levels)} given; this model has maps of strides {shown}")
    return tuple(sorted(set(levels)))


def narrowed(network: Any, indices: list[int]) -> tuple[nn.Module, Sequence[int]]:
    """The network, and which of its maps to take. One of ours is rid of what the others alone need.

    Parameters that never get a gradient would stop distributed training.
    """
    model = getattr(network, "model", None)
    if not isinstance(model, Backbone):
        return network, indices
    return FeatureGetterNet(model, tuple(network.out_indices[i] for i in indices)), range(len(indices))


def extra_levels(extra: Extra | None, channels: int) -> ExtraFPNBlock | None:
    if extra == "p6p7":
        return LastLevelP6P7(channels, channels)
    return LastLevelMaxPool() if extra == "pool" else None
