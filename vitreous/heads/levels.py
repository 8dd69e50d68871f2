"""The maps of any backbone, as the heads for dense tasks take them: fine to coarse, (B, C, H, W)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from vitreous.heads.pyramid import choose_levels, feature_network, keep_maps


class Levels(nn.Module):
    """Images (B, C, H, W) -> one map for each entry of `channels` and `strides`.

    Args:
        backbone: One of our models, or one that timm made with `features_only=True`. It becomes a part of this module
            and loses what no level needs, such as its classifier.
        strides: Strides of the maps; by default all from 4, or all there are if fewer than two are that coarse.
    """

    def __init__(self, backbone: nn.Module, strides: Sequence[int] | None = None) -> None:
        super().__init__()
        network = feature_network(backbone)
        index = {stride: i for i, stride in enumerate(network.feature_info.reduction())}  # the deepest of each stride
        self.strides = choose_levels(index, strides, finest=4)
        if strides is None and len(self.strides) < 2:
            self.strides = tuple(sorted(index))
        widths = network.feature_info.channels()
        self.channels = tuple(widths[index[stride]] for stride in self.strides)
        self.body, self.taken = keep_maps(network, [index[stride] for stride in self.strides])
        self.transposed = getattr(network, "output_fmt", None) == "NHWC"

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = self.body(images)
        return [maps[i].permute(0, 3, 1, 2) if self.transposed else maps[i] for i in self.taken]

    @property
    def backbone(self) -> Any:
        """The model itself, below the module that takes the maps out of it."""
        return getattr(self.body, "model", self.body)


class OnLevels(nn.Module):
    """Base of models that are a backbone's maps and a head: what a trainer asks of a model, the backbone answers."""

    levels: Levels

    def no_weight_decay(self) -> set[str]:
        path = "levels.body.model." if hasattr(self.levels.body, "model") else "levels.body."
        exempt: set[str] = getattr(self.levels.backbone, "no_weight_decay", set)()
        return {path + name for name in exempt}

    def set_grad_checkpointing(self, enable: bool = True, **part: str) -> None:
        self.levels.backbone.set_grad_checkpointing(enable, **part)
