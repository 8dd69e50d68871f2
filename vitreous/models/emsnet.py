"""EMSNet: every block mixes tokens at several scales at once.

Chapter 3 of a dissertation on efficient hybrid backbones; no code or weights are public. Three quarters of a block's
channels pass a static operator, a gate computed by depth-wise convolutions at strides 1, 2 and 4. The rest pass a
dynamic one: attention in 3x3 windows at stride 4 (C-MHSA) and among all positions at stride 6 (G-MHSA).

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
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import InputError, nearest
from vitreous.layers.conv_norm import ConvNorm
from vitreous.layers.drop import drop_path, drop_path_rates
from vitreous.layers.mlp import worth_strips
from vitreous.layers.patch import convolve
from vitreous.layers.pooled import Coordinates, GlobalAttention, LocalAttention, PooledBranch, picture, pool
from vitreous.layers.tap import Tap
from vitreous.models.base import Backbone, run_block
from vitreous.registry import Published, register

WHITENINGS = ("channel", "pixel")
BRANCHES = ("static", "local", "global")
CHANNELS_PER_HEAD = {"local": 8, "global": 16}  # channels of the block, if there is no other kind of attention
# What a piece of the feed-forward layer's hidden map may take: about the second-level cache of two cores. Measured on
# one of them (AMD EPYC, torch 2.15, emsnet_xtiny, 8 x 224 x 224, best of 8): 4 MB 0.52 s, 1 MB 0.42 s.
PIECE_BYTES = 1 << 20
STEM_STRIDES = {4: (2, 2), 2: (2, 1), 1: (1, 1)}


@dataclass(frozen=True)
class MixerSettings:
    """What the mixers of a model have in common."""

    branches: Sequence[str] = BRANCHES  # which operators there are; none leaves the two linear layers
    share: Sequence[int] = (3, 1)  # of the channels, static : dynamic
    split: Sequence[int] = (1, 2, 1)  # of the static channels, at stride 2 : 1 : 4
    whitening: str = "channel"
    kernel_size: int = 3  # of the static operator's depth-wise convolutions


class Static(nn.Module):
    """Tokens times a gate that depth-wise convolutions compute from them at strides 1, 2 and 4."""

    def __init__(self, dim: int, settings: MixerSettings) -> None:
        super().__init__()
        part = dim // sum(settings.split)
        self.at2, self.at1, self.at4 = (part * share for share in settings.split)
        self.over_channels = settings.whitening == "channel"
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
        y = convolve(self.depthwise, picture(self.whitened, self.whitening(x)))  # (B, H, W, C)
        # Pooling all channels of one layout is faster than rearranging the few that need it, and 4 is twice 2.
        by2 = pool(y, 2, largest=True)
        by4 = pool(by2[..., self.at2 + self.at1 :], 2, largest=True)
        kept = picture(self.kept, y[..., self.at2 : self.at2 + self.at1])
        y = torch.cat((self.branch2(by2[..., : self.at2], grid), kept, self.branch4(by4, grid)), -1)
        gate = picture(self.gate, self.fuse(y).sigmoid())
        return picture(self.output, self.value(x) * gate)

    def whitening(self, x: Tensor) -> Tensor:
        """A linear layer minus its mean. Over channels that is another linear layer, which costs nothing per token."""
        weight, bias = self.whiten.weight, self.whiten.bias
        if self.over_channels:
            return F.linear(x, weight - weight.mean(0), bias - bias.mean())
        y = self.whiten(x)
        return y - y.mean((1, 2), keepdim=True)


class Dynamic(nn.Module):
    """Attention on pooled tokens: each branch takes its part of the channels."""

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
            parts.append(branch(pool(part, branch.period, largest=False), grid))
        return picture(self.output, self.fuse(torch.cat(parts, -1)))


ATTENTIONS: dict[str, Callable[[int, int], PooledBranch]] = {"local": LocalAttention, "global": GlobalAttention}


class Mixer(nn.Module):
    """Multi-scale spatial interaction: the static operator on the first channels, the dynamic one on the rest."""

    def __init__(self, dim: int, heads: dict[str, int], settings: MixerSettings) -> None:
        super().__init__()
        dims = branch_channels(dim, settings)
        self.static_dim = dims.pop("static")
        self.before = nn.Linear(dim, dim, bias=False)
        self.static = Static(self.static_dim, settings) if self.static_dim else None
        self.dynamic = Dynamic(dims, heads) if dims else None
        self.after = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.before(x))
        parts = [] if self.static is None else [self.static(x[..., : self.static_dim])]
        if self.dynamic is not None:
            parts.append(self.dynamic(x[..., self.static_dim :]))
        return self.after(torch.cat(parts, -1) if parts else x)


class Mlp(nn.Module):
    """Linear, GELU, Linear, without biases; large maps in pieces that stay in cache."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden, bias=False)
        self.fc2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc1.out_features
        if not worth_strips(x, x.numel() // x.shape[-1] * hidden):
            return self.fc2(F.gelu(self.fc1(x)))
        pieces = x.flatten(0, 2).split(PIECE_BYTES // (hidden * x.element_size()))
        return torch.cat([self.fc2(F.gelu(self.fc1(piece))) for piece in pieces]).view_as(x)


class Block(nn.Module):
    """Mixer and feed-forward layer, each on a residual branch."""

    def __init__(
        self, dim: int, heads: dict[str, int], mlp_ratio: float, settings: MixerSettings, drop_rate: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(dim)
        self.mixer = Mixer(dim, heads, settings)
        self.norm2 = nn.BatchNorm2d(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))
        self.drop_path = drop_path(drop_rate)
        self.output = Tap()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.mixer(picture(self.norm1, x)))
        x = x + self.drop_path(self.mlp(picture(self.norm2, x)))
        return picture(self.output, x)


class Stage(nn.Module):
    """Down-sampling (from the second stage on) and blocks. The norm is for the stage's map, not for the next stage."""

    grad_checkpointing = False

    def __init__(self, downsample: nn.Module, blocks: list[Block], norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.downsample = downsample
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        x = self.downsample(x)
        for block in self.blocks:
            x = run_block(block, x, recompute=self.grad_checkpointing)
        return x


class EMSNet(Backbone):
    """The trunk.

    Args:
        local_heads: Heads per stage of the attention in windows; by default one per 2 of its channels.
        global_heads: Heads per stage of the attention among all positions; by default one per 4 of its channels.
        stem_stride: 4; or 2 or 1 for small images.
        options: Fields of `MixerSettings` that differ from the paper's.
    """

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
        num_classes: int = 1000,
        in_chans: int = 3,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        **options: Any,
    ) -> None:
        settings = mixer_settings(options)
        check_length("depths", depths, dims)
        check_length("mlp_ratios", mlp_ratios, dims)
        if stem_stride not in STEM_STRIDES:
            raise InputError(f"stem_stride={stem_stride!r} given; accepted: 1, 2, 4")
        heads = {
            "local": stage_heads("local", dims, local_heads, settings),
            "global": stage_heads("global", dims, global_heads, settings),
        }
        super().__init__(
            dims,
            [stem_stride * 2**i for i in range(len(dims))],
            num_classes=num_classes,
            in_chans=in_chans,
            global_pool=global_pool,
            drop_rate=drop_rate,
        )
        first, second = STEM_STRIDES[stem_stride]
        self.stem = nn.Sequential(
            ConvNorm(in_chans, dims[0], stride=first), nn.GELU(), ConvNorm(dims[0], dims[0], stride=second)
        )
        self.first_conv = "stem.0.conv"
        rates = drop_path_rates(drop_path_rate, depths)
        self.stages = nn.ModuleList()
        for i, dim in enumerate(dims):
            downsample = ConvNorm(dims[i - 1], dim, stride=2) if i else nn.Identity()
            here = {kind: row[i] for kind, row in heads.items()}
            blocks = [Block(dim, here, mlp_ratios[i], settings, rate) for rate in rates[i]]
            self.stages.append(Stage(downsample, blocks, nn.BatchNorm2d(dim, affine=i == len(dims) - 1)))
        self.apply(self._init_weights)

    def maps(self, x: Tensor, depth: int | None = None) -> list[Tensor]:
        x = self.stem(self.tokens(x))
        outputs = []
        for stage in self.stages[:depth]:
            assert isinstance(stage, Stage)
            x = stage(x)
            outputs.append(stage.norm(x.permute(0, 3, 1, 2)))
        return outputs

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, nn.Conv2d):
            fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels // module.groups
            nn.init.normal_(module.weight, std=(2.0 / fan_out) ** 0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def mixer_settings(options: dict[str, Any]) -> MixerSettings:
    """The paper's settings with the user's options, or an error that names what is wrong with them."""
    known = list(MixerSettings.__dataclass_fields__)
    for name in options:
        if name not in known:
            raise InputError(
                f"unknown EMSNet option {name!r}; nearest: {nearest(name, known)}; all: {', '.join(known)}"
            )
    settings = MixerSettings(**options)
    if settings.whitening not in WHITENINGS:
        raise InputError(f"whitening={settings.whitening!r} given; accepted: {', '.join(WHITENINGS)}")
    if isinstance(settings.branches, str) or not set(settings.branches) <= set(BRANCHES):
        raise InputError(f"branches={settings.branches!r} given; accepted: any of {BRANCHES}, or () for none")
    for name, count in (("share", 2), ("split", 3)):
        given = getattr(settings, name)
        if len(given) != count or min(given) < 1:
            raise InputError(f"{name}={tuple(given)} given; it takes {count} positive whole numbers")
    if settings.kernel_size < 1 or settings.kernel_size % 2 == 0:
        raise InputError(f"kernel_size={settings.kernel_size} given; it must be odd to keep the size of a map")
    return settings


def branch_channels(dim: int, settings: MixerSettings) -> dict[str, int]:
    """Channels of each branch that a block of `dim` channels has."""
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
    """Heads of one kind of attention in every stage: the given ones, or the paper's, which depend on the width."""
    per_head = CHANNELS_PER_HEAD[kind] * max(1, len(set(ATTENTIONS) & set(settings.branches)))
    heads = [max(1, dim // per_head) for dim in dims] if given is None else list(given)
    check_length(f"{kind}_heads", heads, dims)
    for dim, head in zip(dims, heads, strict=True):
        part = branch_channels(dim, settings).get(kind, head)
        if head < 1 or part % head:
            raise InputError(
                f"{head} {kind} heads cannot divide {part} of the {dim} channels evenly; choose a divisor of {part}"
            )
    return heads


def check_length(name: str, row: Sequence[Any], dims: Sequence[int]) -> None:
    if len(row) != len(dims):
        raise InputError(f"{name}={tuple(row)} has {len(row)} entries; dims={tuple(dims)} asks for {len(dims)}")


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
    paper="dissertation, chapter 3",
    published={
        "emsnet_xxtiny": Published(2.56, 0.54, 73.1),
        "emsnet_xtiny": Published(3.0, 0.7, 77.1),
        "emsnet_tiny": Published(5.4, 1.9, 79.3),
    },
)
