"""EMSNet: every block mixes tokens at several scales at once.

Chapter 3 of "Efficient Vision Transformers with Multi-Scale and Partial Attentions for Object Recognition",
dissertation, University of Ulsan, https://oak.ulsan.ac.kr/handle/2021.oak/13173. No code or weights are public.

Three quarters of a block's channels pass a static operator, a gate computed by depth-wise convolutions at strides 1, 2
and 4. The rest pass a dynamic one: attention in 3x3 windows at stride 4 (C-MHSA) and among all positions at stride 6
(G-MHSA).

Where the text contradicts itself, the reading that gives its figures was taken. Whitening subtracts the mean over
channels; the appendix says over pixels (`whitening="pixel"`). `emsnet_xtiny` has 192 channels in its last stage: the
printed 128 (`emsnet_xtiny_128`) make 2.3 million parameters instead of the printed 3.0.
Every stage's map leaves through a norm of its own, beside the trunk; only the last, before the classifier, is learned.

Taps of a block, all of them maps (B, channels, H, W) except three:
    mixer.static:   whitened, branch2.output, kept, branch4.output, gate, output
    mixer.dynamic:  local_attention.output, global_attention.output, output
                    local_attention.map     (B, h, 9 queries, 9 keys, H', W') for H' W' windows
                    local_attention.centre  (B, h, 9 keys, H', W'): the rows of the windows' middle cells
                    global_attention.map    (B, h, N keys, H', W') for H' W' = N cells
    output

Shapes: B batch, H W grid, C channels, h heads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Doc

from vitreous.errors import InputError
from vitreous.layers.conv_norm import ConvNorm
from vitreous.layers.inference import linear
from vitreous.layers.mlp import ConvMlp, drop_path, drop_path_rates
from vitreous.layers.patch import HALVINGS, apply_nchw
from vitreous.layers.plain import is_plain
from vitreous.layers.pooled import Coordinates, GlobalAttention, LocalAttention, PooledBranch, pool_cells
from vitreous.layers.tap import Tap
from vitreous.models.arguments import check_flags, check_rows, check_stem_stride, split_options
from vitreous.models.base import Backbone, Stage
from vitreous.registry import Published, register

WHITENINGS = ("channel", "pixel")
BRANCHES = ("static", "local", "global")
CHANNELS_PER_HEAD = {"local": 8, "global": 16}  # of the block, if it has only one kind of attention


@dataclass(frozen=True)
class MixerSettings:
    """Settings that the mixers of a model share."""

    branches: Annotated[Sequence[str], Doc("The operators of a block; () leaves its two linear layers.")] = BRANCHES
    share: Annotated[Sequence[int], Doc("Shares of the channels, static : dynamic.")] = (3, 1)
    split: Annotated[Sequence[int], Doc("Shares of the static channels, at stride 2 : 1 : 4.")] = (1, 2, 1)
    whitening: Annotated[str, Doc("Mean that is subtracted before the static operator: channel or pixel.")] = "channel"
    kernel_size: Annotated[int, Doc("Kernel of the static operator's depth-wise convolutions.")] = 3
    gate: Annotated[bool, Doc("What they compute gates the static operator's tokens; False: it is added to them.")] = (
        True
    )


class StaticOperator(nn.Module):
    """Tokens times a gate that depth-wise convolutions compute from them at strides 1, 2 and 4."""

    def __init__(self, dim: int, settings: MixerSettings) -> None:
        super().__init__()
        part = dim // sum(settings.split)
        self.at2, self.at1, self.at4 = (part * share for share in settings.split)
        self.over_channels, self.gated = settings.whitening == "channel", settings.gate
        k = settings.kernel_size
        self.whiten = nn.Linear(dim, dim)
        self.whitened = Tap()
        self.depthwise = nn.Conv2d(dim, dim, k, padding=k // 2, groups=dim)
        self.branch2 = Coordinates(self.at2, 2, k)
        self.kept = Tap()
        self.branch4 = Coordinates(self.at4, 4, k)
        self.fuse = nn.Linear(2 * self.at2 + self.at1 + 2 * self.at4, dim)
        self.gate = Tap()
        self.value = nn.Linear(dim, dim)
        self.output = Tap()

    def forward(self, x: Tensor) -> Tensor:
        grid = x.shape[1], x.shape[2]
        y = apply_nchw(self.depthwise, apply_nchw(self.whitened, self.whitening(x)))  # (B, H, W, C)
        # Pooling all channels in one layout is faster than rearranging the few that need it; twice by 2 is by 4.
        by2 = pool_cells(y, 2, largest=True)
        by4 = pool_cells(by2[..., self.at2 + self.at1 :], 2, largest=True)
        kept = apply_nchw(self.kept, y[..., self.at2 : self.at2 + self.at1])
        y = torch.cat((self.branch2(by2[..., : self.at2], grid), kept, self.branch4(by4, grid)), -1)
        if not self.gated:
            return apply_nchw(self.output, linear(self.value, x) + linear(self.fuse, y))
        gate = apply_nchw(self.gate, linear(self.fuse, y).sigmoid())
        return apply_nchw(self.output, linear(self.value, x) * gate)

    def whitening(self, x: Tensor) -> Tensor:
        """A linear layer minus its mean. Over channels that is again a linear layer, at no cost per token."""
        if self.over_channels and is_plain(self.whiten):
            weight, bias = self.whiten.weight, self.whiten.bias
            return F.linear(x, weight - weight.mean(0), bias - bias.mean())
        y = self.whiten(x)
        return y - y.mean(-1 if self.over_channels else (1, 2), keepdim=True)


class DynamicOperator(nn.Module):
    """Attention on pooled tokens: each branch gets its share of the channels."""

    def __init__(self, dims: dict[str, int], heads: dict[str, int]) -> None:
        super().__init__()
        self.dims, total = dims, sum(dims.values())
        for name, dim in dims.items():
            self.add_module(f"{name}_attention", ATTENTIONS[name](dim, heads[name]))
        self.fuse = nn.Linear(total, total)
        self.output = Tap()

    def forward(self, x: Tensor) -> Tensor:
        grid, parts = (x.shape[1], x.shape[2]), []
        for name, part in zip(self.dims, x.split(list(self.dims.values()), -1), strict=True):
            branch = getattr(self, f"{name}_attention")
            parts.append(branch(pool_cells(part, branch.period, largest=False), grid))
        return apply_nchw(self.output, linear(self.fuse, torch.cat(parts, -1)))


ATTENTIONS: dict[str, Callable[[int, int], PooledBranch]] = {"local": LocalAttention, "global": GlobalAttention}


class MultiScaleMixer(nn.Module):
    """Multi-scale spatial interaction: the static operator on the first channels, the dynamic one on the rest."""

    def __init__(self, dim: int, heads: dict[str, int], settings: MixerSettings) -> None:
        super().__init__()
        dims = branch_channels(dim, settings)
        self.static_dim = dims.pop("static")
        self.before = nn.Linear(dim, dim, bias=False)
        self.static = StaticOperator(self.static_dim, settings) if self.static_dim else None
        self.dynamic = DynamicOperator(dims, heads) if dims else None
        self.after = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = linear(self.before, x, gelu=True)
        parts = [] if self.static is None else [self.static(x[..., : self.static_dim])]
        if self.dynamic is not None:
            parts.append(self.dynamic(x[..., self.static_dim :]))
        return linear(self.after, torch.cat(parts, -1) if parts else x)


class EMSNetBlock(nn.Module):
    """Mixer and feed-forward layer, each on a residual branch."""

    def __init__(
        self, dim: int, heads: dict[str, int], mlp_ratio: float, settings: MixerSettings, drop_rate: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(dim)
        self.mixer = MultiScaleMixer(dim, heads, settings)
        self.norm2 = nn.BatchNorm2d(dim)
        self.mlp = ConvMlp(dim, int(dim * mlp_ratio), depthwise=False, bias=False)
        self.drop_path = drop_path(drop_rate)
        self.output = Tap()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.mixer(apply_nchw(self.norm1, x)))
        x = x + self.drop_path(self.mlp(apply_nchw(self.norm2, x)))
        return apply_nchw(self.output, x)


class BatchNormStage(Stage):
    """A stage whose norm takes maps (B, C, H, W) instead of tokens."""

    def map(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 3, 1, 2))


class EMSNet(Backbone):
    """The trunk.

    Args:
        local_heads: Heads per stage of the attention in windows; by default one per 2 of its channels.
        global_heads: Heads per stage of the attention among all positions; by default one per 4 of its channels.
        stem_stride: Stride of the stem: 4, or 2 or 1 for small images.
        options: Fields of `MixerSettings` that differ from the paper's.
    """

    settings = MixerSettings()
    growth = "Linear but for the attention among all cells of 6x6 positions, in an eighth of the channels."

    def __init__(
        self,
        dims: Sequence[int],
        depths: Sequence[int],
        *,
        mlp_ratios: Sequence[float] = (8, 8, 4, 4),
        local_heads: Sequence[int] | None = None,
        global_heads: Sequence[int] | None = None,
        stem_stride: int = 4,
        drop_path_rate: float = 0.0,
        **options: Any,
    ) -> None:
        settings, common = split_options(MixerSettings, options, {})
        check_mixer_settings(settings)
        check_rows(dims, depths=depths, mlp_ratios=mlp_ratios)
        check_stem_stride(stem_stride)
        heads = {
            "local": stage_heads("local", dims, local_heads, settings),
            "global": stage_heads("global", dims, global_heads, settings),
        }
        super().__init__(dims, [stem_stride * 2**i for i in range(len(dims))], **common)
        self.settings = settings
        first, second = HALVINGS[stem_stride]
        self.stem = nn.Sequential(
            ConvNorm(self.in_chans, dims[0], stride=first), nn.GELU(), ConvNorm(dims[0], dims[0], stride=second)
        )
        self.first_conv = "stem.0.conv"
        rates = drop_path_rates(drop_path_rate, depths)
        self.stages = nn.ModuleList()
        for i, dim in enumerate(dims):
            downsample = ConvNorm(dims[i - 1], dim, stride=2) if i else nn.Identity()
            here = {kind: row[i] for kind, row in heads.items()}
            blocks = [EMSNetBlock(dim, here, mlp_ratios[i], settings, rate) for rate in rates[i]]
            self.stages.append(BatchNormStage(downsample, blocks, nn.BatchNorm2d(dim, affine=i == len(dims) - 1)))
        self.apply(self._init_weights)


def check_mixer_settings(settings: MixerSettings) -> None:
    check_flags(gate=settings.gate)
    if settings.whitening not in WHITENINGS:
        raise InputError(f"whitening={settings.whitening!r} given; accepted: {', '.join(WHITENINGS)}")
    if isinstance(settings.branches, str) or not set(settings.branches) <= set(BRANCHES):
        raise InputError(f"branches={settings.branches!r} given; accepted: any of {BRANCHES}, or () for none")
    for name, count in (("share", 2), ("split", 3)):
        given = getattr(settings, name)
        if len(given) != count or min(given) < 1:
            raise InputError(f"{name}={tuple(given)} given; give {count} positive whole numbers")
    if settings.kernel_size < 1 or settings.kernel_size % 2 == 0:
        raise InputError(f"kernel_size={settings.kernel_size} given; it must be odd to keep the size of a map")


def branch_channels(dim: int, settings: MixerSettings) -> dict[str, int]:
    """Channels of each branch of a block with `dim` channels."""
    static, dynamic = settings.share
    attentions = [name for name in ATTENTIONS if name in settings.branches]
    if "static" not in settings.branches:
        static, dynamic = 0, 1
    elif not attentions:
        static, dynamic = 1, 0
    whole, count = static + dynamic, max(1, len(attentions))
    dims = {"static": dim * static // whole, **dict.fromkeys(attentions, dim * dynamic // whole // count)}
    used = settings.branches and (dims["static"] % sum(settings.split) or sum(dims.values()) != dim)
    if used or dim * static % whole:
        raise InputError(
            f"{dim} channels cannot be divided evenly with share={tuple(settings.share)}, "
            f"split={tuple(settings.split)}, branches={tuple(settings.branches)}; "
            f"a multiple of {whole * sum(settings.split) * count} can"
        )
    return dims


def stage_heads(kind: str, dims: Sequence[int], given: Sequence[int] | None, settings: MixerSettings) -> list[int]:
    """Heads of one kind of attention per stage: the given ones, or the paper's, which depend on the width."""
    per_head = CHANNELS_PER_HEAD[kind] * max(1, len(set(ATTENTIONS) & set(settings.branches)))
    heads = [max(1, dim // per_head) for dim in dims] if given is None else given
    check_rows(dims, **{f"{kind}_heads": heads})
    for dim, head in zip(dims, heads, strict=True):
        part = branch_channels(dim, settings).get(kind, head)
        if head < 1 or part % head:
            raise InputError(
                f"{head} {kind} heads cannot divide {part} of the {dim} channels evenly; choose a divisor of {part}"
            )
    return list(heads)


# Variants -----------------------------------------------------------------------------------------

VARIANTS: dict[str, dict[str, Any]] = {  # table 3.1
    "emsnet_xxtiny": dict(dims=(32, 64, 128, 192), depths=(2, 2, 4, 2)),
    "emsnet_xtiny": dict(dims=(32, 64, 96, 192), depths=(3, 3, 10, 2)),
    "emsnet_xtiny_128": dict(dims=(32, 64, 96, 128), depths=(3, 3, 10, 2)),  # as printed
    "emsnet_tiny": dict(dims=(64, 96, 128, 256), depths=(3, 3, 10, 2)),
}
register(
    EMSNet,
    VARIANTS,
    paper="https://oak.ulsan.ac.kr/handle/2021.oak/13173",
    published={
        "emsnet_xxtiny": Published(2.56, 0.54, 73.1),
        "emsnet_xtiny": Published(3.0, 0.7, 77.1),
        "emsnet_tiny": Published(5.4, 1.9, 79.3),
    },
)
