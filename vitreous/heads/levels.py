"""The maps of any backbone, as the heads for dense tasks take them: fine to coarse, (B, C, H, W)."""

from collections.abc import Mapping, Sequence
from typing import Any

from timm.models._features import FeatureGetterNet
from torch import Tensor, nn

from vitreous.errors import InputError
from vitreous.models.base import Backbone


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
