"""The maps of any backbone as heads take them, and a feature pyramid: what torchvision's detectors call `backbone`.

    FasterRCNN(pyramid("paca_tiny"), num_classes=3)                  # also MaskRCNN, KeypointRCNN
    RetinaNet(pyramid("paca_tiny", extra="p6p7"), num_classes=3)     # also FCOS

`heads/detect.py` builds whole detectors on it, for batches as this package makes them.

Feature Pyramid Networks, Lin et al., arXiv 1612.03144. Levels are called "0", "1", … from fine to coarse, and those
added after them "pool", or "p6" and "p7": the names that these detectors expect.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from timm.models._features import FeatureGetterNet
from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import ExtraFPNBlock, LastLevelMaxPool, LastLevelP6P7

from vitreous.errors import InputError
from vitreous.models.base import Backbone
from vitreous.registry import create_model


class Levels(nn.Module):
    """Images (B, C, H, W) -> one map for each entry of `channels` and `strides`.

    Args:
        backbone: One of our models, or one that timm made with `features_only=True`. It becomes a part of this module
            and loses what no level needs, such as its classifier.
        strides: Strides of the maps; by default all from `finest` up, or all where those are fewer than `fewest`.
    """

    def __init__(
        self, backbone: nn.Module, strides: Sequence[int] | None = None, *, finest: int = 4, fewest: int = 2
    ) -> None:
        super().__init__()
        network = feature_network(backbone)
        # The deepest map of each stride, as in the pyramid's paper.
        index = {stride: i for i, stride in enumerate(network.feature_info.reduction())}
        self.strides = choose_levels(index, strides, finest=finest, fewest=fewest)
        widths = network.feature_info.channels()
        self.channels = tuple(widths[index[stride]] for stride in self.strides)
        self.body, self.taken = keep_maps(network, [index[stride] for stride in self.strides])
        self.transposed = getattr(network, "output_fmt", None) == "NHWC"

    def maps(self, images: Tensor) -> list[Tensor]:
        maps = self.body(images)
        return [maps[i].permute(0, 3, 1, 2) if self.transposed else maps[i] for i in self.taken]

    def forward(self, images: Tensor) -> Any:
        return self.maps(images)

    @property
    def backbone(self) -> Any:
        """The model itself, below the module that takes the maps out of it."""
        return getattr(self.body, "model", self.body)


class OnLevels(nn.Module):
    """Base of models with a head on a backbone's maps; forwards what training asks for to the backbone."""

    levels: Levels

    def no_weight_decay(self) -> set[str]:
        path = "levels.body.model." if hasattr(self.levels.body, "model") else "levels.body."
        exempt: set[str] = getattr(self.levels.backbone, "no_weight_decay", set)()
        return {path + name for name in exempt}

    def set_grad_checkpointing(self, enable: bool = True, **part: str) -> None:
        self.levels.backbone.set_grad_checkpointing(enable, **part)


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


def choose_levels(
    known: Mapping[int, int], levels: Sequence[int] | None, *, finest: int, fewest: int
) -> tuple[int, ...]:
    shown = ", ".join(map(str, known))
    if len(known) < 2:
        raise InputError(
            f"all maps of this model have stride {shown}; a pyramid needs several. XCiT has them when it is given by "
            "name, or built with dense=True"
        )
    if levels is None:
        coarse = tuple(stride for stride in known if stride >= finest)
        return coarse if len(coarse) >= fewest else tuple(sorted(known))
    if not levels or not set(levels) <= set(known):
        raise InputError(f"levels={tuple(levels)} given; this model has maps of strides {shown}")
    return tuple(sorted(set(levels)))


def keep_maps(network: Any, indices: list[int]) -> tuple[nn.Module, Sequence[int]]:
    """The network, and which of its maps to take. Our models lose what only the other maps need.

    Parameters that never get a gradient would stop distributed training.
    """
    model = getattr(network, "model", None)
    if not isinstance(model, Backbone):
        return network, indices
    return FeatureGetterNet(model, tuple(network.out_indices[i] for i in indices)), range(len(indices))


Extra = Literal["pool", "p6p7", "p6p7_c5"]
Norm = Literal["bn", "gn"]
EXTRA_STRIDES: dict[Extra | None, tuple[int, ...]] = {  # strides in units of the last
    None: (),
    "pool": (2,),
    "p6p7": (2, 4),
    "p6p7_c5": (2, 4),
}


class Pyramid(Levels):
    """Images (B, C, H, W) -> maps of all levels by name, fine to coarse, each with `out_channels` channels.

    `strides` has one entry for each. Images may have any size: with our models a level's sides are the image's divided
    by the level's stride, rounded up.
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
        layer = norm_layer(norm)
        if channels < 1:
            raise InputError(f"channels={channels} given; a level needs at least 1")
        if extra not in EXTRA_STRIDES:
            raise InputError(f"extra={extra!r} given; accepted: {', '.join(map(repr, EXTRA_STRIDES))}")
        super().__init__(backbone, levels, finest=8 if len(EXTRA_STRIDES[extra]) == 2 else 4, fewest=1)
        last = extra_levels(extra, self.channels[-1], channels)
        self.fpn = FeaturePyramidNetwork(list(self.channels), channels, last, layer)
        self.out_channels = channels
        self.own_levels = len(self.strides)  # those that are not `extra`
        self.strides = (*self.strides, *(self.strides[-1] * times for times in EXTRA_STRIDES[extra]))

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        return self.fpn(OrderedDict((str(level), features) for level, features in enumerate(self.maps(images))))


def pyramid(
    backbone: str | nn.Module,
    *,
    channels: int = 256,
    levels: Sequence[int] | None = None,
    extra: Extra | None = "pool",
    norm: Norm | None = None,
    **model_arguments: Any,
) -> Pyramid:
    """A pyramid on a backbone; a backbone given by name is built too.

    Args:
        backbone: Name for `create_model`; or a model: one of ours, or one made with timm's `features_only=True`. A
            model becomes part of the pyramid; one of ours loses what no level needs, such as its classifier.
        channels: Channels of every level.
        levels: Strides of the backbone's maps to build on; default: all from 4, or from 8 with "p6p7". These, up to
            stride 32, are what the default anchors of torchvision's detectors are made for.
        extra: Levels after the coarsest: "pool" for one without weights, from which R-CNN detectors propose large
            boxes; "p6p7" for two convolutions on the coarsest level, as in FCOS; "p6p7_c5" for two on the backbone's
            last map, as in RetinaNet; None.
        norm: "bn" adds a BatchNorm after the convolutions of the levels, "gn" a GroupNorm, which small batches need.
        model_arguments: For `create_model`, e.g. pretrained=True.
    """
    if isinstance(backbone, str):
        backbone = create_model(backbone, features_only=True, **model_arguments)
    elif model_arguments:
        given = ", ".join(model_arguments)
        raise InputError(f"{given} given for a model that is already built; build it with them, or give its name")
    return Pyramid(backbone, channels=channels, levels=levels, extra=extra, norm=norm)


def norm_layer(norm: str | None) -> Callable[[int], nn.Module] | None:
    """A function from channels to the norm after a convolution; None for no norm."""
    layers: dict[str | None, Callable[[int], nn.Module] | None] = {"bn": nn.BatchNorm2d, "gn": group_norm, None: None}
    if norm not in layers:
        raise InputError(f"norm={norm!r} given; accepted: 'bn', 'gn', None")
    return layers[norm]


def group_norm(channels: int) -> nn.GroupNorm:
    """Groups of 8 channels, as 32 groups of 256 in the paper (Wu and He, arXiv 1803.08494), or of more.

    With one channel per group, as 32 groups give in narrow heads, a map with a single position would become 0.
    """
    return nn.GroupNorm(math.gcd(32, channels, max(channels // 8, 1)), channels)


def extra_levels(extra: Extra | None, last_width: int, channels: int) -> ExtraFPNBlock | None:
    if extra in ("p6p7", "p6p7_c5"):
        block = LastLevelP6P7(last_width if extra == "p6p7_c5" else channels, channels)
        block.use_P5 = extra == "p6p7"  # torchvision would decide by the widths, which may happen to be equal
        return block
    return LastLevelMaxPool() if extra == "pool" else None
