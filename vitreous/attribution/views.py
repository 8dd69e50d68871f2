"""What a model computes on its way and can show, as stacks of pictures.

    for view in views(model):                      # in the order of the network
        print(view.tap, view.kind.name, view.kind.items)
    stacks = view_stacks(model, images, views(model))     # {tap: (B, K, H, W)} of one forward pass

Our families have many kinds; models that are not ours show their features, and vision transformers their attention.
These maps say what a network looked at, not what mattered: they do not know what is to be explained. `ViewMethod` makes
a method of a kind, so that it can be measured beside the others.

Shapes: B images, h heads, M clusters or keys, C channels, H W grid, K pictures.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitreous.attribution.attention import record_attention
from vitreous.attribution.method import Method, Needs, find_trunk
from vitreous.attribution.spatial import (
    Anatomy,
    MapPlace,
    anatomy,
    is_differentiable,
    lacks_map,
    unwrapped,
    watch,
)
from vitreous.attribution.target import Target
from vitreous.errors import InputError
from vitreous.layers.tap import record, tap_names

Reduce = Callable[[Tensor], Tensor]


def same(x: Tensor) -> Tensor:
    return x


def one(x: Tensor) -> Tensor:
    return x[:, None].float()  # (B, H, W) -> (B, 1, H, W)


def mean(x: Tensor) -> Tensor:
    return x.mean(1)


def mean_heads(x: Tensor) -> Tensor:
    return x.mean(1)  # (B, h, M, H, W) -> (B, M, H, W)


def total(x: Tensor) -> Tensor:
    return x.sum(1)


def length(x: Tensor) -> Tensor:
    return x.norm(dim=1)


def lifted(x: Tensor) -> Tensor:
    """Numbers of any sign, with the lowest of each image at zero."""
    return x[:, 0] - x[:, 0].amin((1, 2), keepdim=True)


def first_is_high(x: Tensor) -> Tensor:
    return 1 - x[:, 0] / x[0, 0].numel()


def received(x: Tensor) -> Tensor:
    """Attention (B, N keys, H, W queries) on the same grid: how much each position is looked at, N being H W."""
    return x.mean((2, 3)).unflatten(1, x.shape[2:])


def decided(x: Tensor) -> Tensor:
    """1 where a position looks at one key only, 0 where it looks at all M alike."""
    keys = x.shape[1]
    share = x / x.sum(1, keepdim=True).clamp_min(1e-12)
    return 1 - torch.special.entr(share).sum(1) / max(torch.tensor(float(keys)).log().item(), 1e-12)


class MapKind(NamedTuple):
    """One sort of map. `stack` gives (B, K, H, W) from the tap, `summary` (B, H, W) from the stack."""

    name: str
    items: str  # what the K pictures are
    pattern: str
    says: str
    stack: Reduce = same
    summary: Reduce | None = mean
    pictures: bool = True  # False: the last two axes are no places of the image


_BLOCK = r"stages\.\d+\.blocks\.\d+\."
_KINDS = (
    MapKind("clusters", "cluster", r"stages\.\d+\.clusters(\.\d+)?", "where each cluster gathers its content"),
    MapKind("readout_clusters", "cluster", r"readout\.\d+\.clusters", "where each cluster of the readout gathers"),
    MapKind(
        "readout",
        "cluster",
        r"readout\.\d+\.attention\.map",
        "how much of what the classifier reads comes from each position through each cluster",
        mean_heads,
        total,
    ),
    MapKind(
        "patch_to_cluster",
        "cluster",
        _BLOCK + r"attention\.map",
        "how much every position looks at each cluster; as one map, how decided it is",
        mean_heads,
        decided,
    ),
    MapKind(
        "patch_to_patch",
        "position",
        _BLOCK + r"attention\.map",
        "how much every position looks at each other; as one map, how much each is looked at",
        mean_heads,
        received,
    ),
    MapKind("class_attention", "head", r"class_blocks\.\d+\.attention\.map", "what the class token reads"),
    MapKind(
        "channel_attention",
        "head",
        _BLOCK + r"attention\.channel_attention",
        "how much each channel takes from the others",
        summary=None,
        pictures=False,
    ),
    MapKind(
        "abstract_attention", "head", _BLOCK + r"attention\.abstract_attn", "what each window's abstract token reads"
    ),
    MapKind(
        "abstract_mixing",
        "window",
        _BLOCK + r"attention\.mix_attn",
        "how much the windows read each other; as one map, how much each is read",
        mean_heads,
        received,
    ),
    MapKind(
        "abstract_fusion",
        "window",
        _BLOCK + r"attention\.fusion_attn",
        "how much every position reads each window; as one map, how decided it is",
        mean_heads,
        decided,
    ),
    MapKind("fusion_gain", "map", _BLOCK + r"attention\.fusion_gain", "what other windows add, over what was there"),
    MapKind("before_fusion", "channel", _BLOCK + r"attention\.before_fusion", "features before fusion", summary=length),
    MapKind("after_fusion", "channel", _BLOCK + r"attention\.after_fusion", "features after fusion", summary=length),
    MapKind(
        "sampling_offset",
        "axis",
        r"stages\.\d+\.downsample\.offsets",
        "how far sampling moves, in pixels",
        summary=length,
    ),
    MapKind(
        "context_score", "map", _BLOCK + r"attention\.score", "the mean that decides who is foreground", one, lifted
    ),
    MapKind("context_rank", "map", _BLOCK + r"attention\.rank", "place in that order", one, first_is_high),
    MapKind("foreground", "map", _BLOCK + r"attention\.foreground", "the positions with full attention", one),
    MapKind(
        "foreground_query", "head", _BLOCK + r"attention\.abstract", "what the abstract token reads of the foreground"
    ),
    MapKind("background_query", "head", _BLOCK + r"attention\.background", "what it then reads of the background"),
    MapKind(
        "head_mixing",
        "head",
        _BLOCK + r"attention\.(mixed|unmixed)",
        "attention among the foreground, before and after its heads are mixed",
        summary=None,
        pictures=False,
    ),
    MapKind(
        "local_attention",
        "neighbour",
        _BLOCK + r"mixer\.dynamic\.local_attention\.centre",
        "how much the middle of each 3x3 window takes from its neighbours; as one map, how decided it is",
        mean_heads,
        decided,
    ),
    MapKind(
        "global_attention",
        "cell",
        _BLOCK + r"mixer\.dynamic\.global_attention\.map",
        "how much the cells look at each other; as one map, how much each is looked at",
        mean_heads,
        received,
    ),
    MapKind("gate", "channel", _BLOCK + r"mixer\.static\.gate", "how far the static operator lets each position pass"),
    MapKind(
        "features", "channel", r"stages\.\d+\.output", "a stage's features; as one map, their length", summary=length
    ),
)
MAP_KINDS = {kind.name: kind for kind in _KINDS}


class TapView(NamedTuple):
    """One map of one model: where it comes from and what sort it is."""

    tap: str  # path within the backbone
    kind: MapKind


def views(model: nn.Module, kind: str | None = None) -> list[TapView]:
    """Everything a model can show, or all of one kind, in the order of its modules."""
    if kind is not None and kind not in MAP_KINDS:
        raise InputError(f"unknown kind of map {kind!r}; known: {', '.join(MAP_KINDS)}")
    backbone = with_taps(model)
    if backbone is None:
        found = foreign_views(model)
    else:
        taps = tap_names(backbone)
        found = [TapView(tap, sort) for tap in taps for sort in MAP_KINDS.values() if fits_kind(backbone, tap, sort)]
    return [view for view in found if kind in (None, view.kind.name)]


def with_taps(model: nn.Module) -> nn.Module | None:
    """What has taps as our backbones have them: one of these, or an exported model that kept their maps."""
    return model if not is_differentiable(model) else find_trunk(model)


def kinds_inside(model: nn.Module) -> list[str]:
    """Names of the kinds that a model can show, if any."""
    return [] if lacks_map(model) else list(dict.fromkeys(view.kind.name for view in views(model)))


def foreign_views(model: nn.Module) -> list[TapView]:
    """The attention of a vision transformer, then the last features of each grid; taps are paths of modules."""
    known = anatomy(model)
    looks = [TapView(place.path, MAP_KINDS["patch_to_patch"]) for place in known.attention if place.by_all]
    read_first = known.reads is None or bool(known.reads[0])  # else the first token is a register, or idle
    reads = [
        TapView(place.path, MAP_KINDS["class_attention"])
        for place in known.attention
        if place.prefix and (read_first or not place.by_all)
    ]
    return looks + reads + [TapView(place.path, MAP_KINDS["features"]) for place in feature_places(known)]


def feature_places(known: Anatomy) -> tuple[MapPlace, ...]:
    """The last of each grid, before its norm."""
    return known.places[:-1] + (() if known.unnormed is None else (known.unnormed,))


def fits_kind(backbone: Any, tap: str, kind: MapKind) -> bool:
    if not re.fullmatch(kind.pattern, tap):
        return False
    if kind.name not in ("patch_to_cluster", "patch_to_patch"):
        return True
    if not is_differentiable(backbone):  # by what the stage has, as its layers are not there
        clustered = hasattr(backbone.get_submodule(".".join(tap.split(".")[:2])), "clusters")
        return clustered == (kind.name == "patch_to_cluster")
    attention = backbone.get_submodule(tap.removesuffix(".map"))
    return (attention.cluster_norm is not None) == (kind.name == "patch_to_cluster")


def view_stacks(model: nn.Module, images: Tensor, wanted: Sequence[TapView]) -> dict[str, Tensor]:
    """The stacks (B, K, H, W) of the wanted views by tap, from one forward pass."""
    if not wanted:
        return {}
    backbone = with_taps(model)
    if backbone is None:
        recorded = foreign_maps(model, images, wanted)
    else:
        with torch.no_grad(), record(backbone, *(view.tap for view in wanted)) as recorded:
            model(images)
    return {view.tap: view.kind.stack(recorded[view.tap]).float() for view in wanted}


def foreign_maps(model: nn.Module, images: Tensor, wanted: Sequence[TapView]) -> dict[str, Tensor]:
    """What our own taps would give, by the path of the module."""
    known = anatomy(model, images)
    attention = {place.path: place for place in known.attention}
    features = {place.path: place for place in feature_places(known)}
    with torch.no_grad(), record_attention(model) as weights, watch(model, *features.values()) as seen:
        model(images)
    found = {}
    for tap, kind in wanted:
        if kind.name == "features":
            found[tap] = features[tap].read(seen[features[tap]])
            continue
        place = attention[tap]
        if kind.name == "class_attention":
            found[tap] = weights[tap][:, :, 0, place.prefix :].unflatten(-1, place.grid)  # (B, h, H, W)
        else:
            keys = weights[tap][:, :, place.prefix :, place.prefix :].transpose(-2, -1)  # (B, h, keys, queries)
            found[tap] = keys.unflatten(-1, place.grid)
    return found


@dataclass(frozen=True)
class ViewMethod(Method):
    """The map of a kind as the network computed it, from its last block that has one, or from one given by its tap."""

    kind: str = "clusters"
    tap: str | None = None

    order = 60

    @property
    def name(self) -> str:
        return self.kind if self.tap is None else f"{self.kind} {self.tap}"

    @property
    def summary(self) -> str:
        return MAP_KINDS[self.kind].says

    @property
    def needs(self) -> Needs:
        return Needs(passes=1, target=False, spatial=True)

    def missing(self, model: nn.Module) -> str | None:
        if MAP_KINDS[self.kind].summary is None:
            return f"{self.kind} is no picture of the image"
        reason = super().missing(model) if is_differentiable(model) else None
        if reason is not None or self.find(model):
            return reason
        if not is_differentiable(model):
            return f"this model was exported without {self.name}; vitreous export --maps keeps what there is"
        whose = type(find_trunk(model) or unwrapped(model)).__name__
        return f"{whose} has no {self.name}; it has {', '.join(kinds_inside(model))}"

    def find(self, model: nn.Module) -> list[TapView]:
        return [view for view in views(model, self.kind) if self.tap in (None, view.tap)]

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        view = self.find(model)[-1]
        assert view.kind.summary is not None
        return view.kind.summary(view_stacks(model, images, [view])[view.tap])


METHODS = tuple(
    ViewMethod(kind)
    for kind in (
        "class_attention",
        "abstract_attention",
        "abstract_mixing",
        "abstract_fusion",
        "fusion_gain",
        "context_score",
        "foreground",
        "foreground_query",
        "background_query",
        "local_attention",
        "global_attention",
        "gate",
        "features",
    )
)
