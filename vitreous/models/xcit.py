"""XCiT: attention between channels instead of between positions.

El-Nouby et al.: "XCiT: Cross-Covariance Image Transformers", arXiv 2106.09681; weights released by Meta (Apache-2.0).

A column of equal blocks at one stride. In each, every head lets its d channels attend to one another over all
positions (the tap `attention.channel_attention`, d x d), a depth-wise module exchanges neighbours, and a feed-forward
layer follows. Two class-attention blocks collect the result in a class token; `class_blocks.<i>.attention.map` shows
where from.

The column is cut into four stages after the blocks that the paper's dense models read. A classification model's maps
all have the stride of the patches; with `dense=True` (and under timm's `features_only`) each stage has the layers that
bring its map to stride 4, 8, 16 or 32, and there is no class token.

Beyond the original: any image size in both forms, maps cropped to the image, positions in the weights' own precision.

Shapes: B batch, H W grid, N = HW, C channels, h heads, d = C / h.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from timm.layers import register_notrace_module
from torch import Tensor, nn
from typing_extensions import Doc

from vitreous.errors import InputError
from vitreous.layers.attention import dot_product_attention, split_heads
from vitreous.layers.channel_attention import ChannelAttention
from vitreous.layers.conv_norm import ConvNorm
from vitreous.layers.inference import depthwise_gelu, onednn_is_for
from vitreous.layers.mlp import ConvMlp, drop_path
from vitreous.layers.patch import apply_nchw
from vitreous.layers.plain import is_plain
from vitreous.layers.tap import Tap
from vitreous.models.arguments import check_flags, check_heads, check_positive_ints, split_options
from vitreous.models.base import Backbone, Stage
from vitreous.models.xcit_release import XCIT_PUBLISHED, XCIT_WEIGHTS, translate_state
from vitreous.registry import register

LAYER_NORM_EPS = 1e-6


class PatchStem(nn.Module):
    """Strided 3x3 convolutions with BatchNorm, GELU in between, from the image to patches of 8 or 16 pixels."""

    chain = True  # its convolutions follow one another

    def __init__(self, in_chans: int, dim: int, patch: int) -> None:
        super().__init__()
        steps = {16: 4, 8: 3, 4: 2}[patch]
        widths = [in_chans, *(dim >> shift for shift in range(steps - 1, -1, -1))]
        self.convs = nn.ModuleList(ConvNorm(a, b, stride=2) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        for i, conv in enumerate(self.convs):
            x = conv(F.gelu(x) if i else x)
        return x


class LinearStem(nn.Module):
    """One linear layer on the pixels of each patch, as in the first vision transformers; edges get zeros."""

    def __init__(self, in_chans: int, dim: int, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.conv = nn.Conv2d(in_chans, dim, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        _, H, W, _ = x.shape
        return apply_nchw(self.conv, F.pad(x, (0, 0, 0, -W % self.patch, 0, -H % self.patch)))


@dataclass(frozen=True)
class ColumnSettings:
    """What the paper's ablations leave out, all of it there by default."""

    local: Annotated[bool, Doc("Local patch interaction in every block.")] = True
    attention: Annotated[bool, Doc("Channel attention in every block.")] = True
    normalise: Annotated[bool, Doc("Correlations of channels in that attention; False: plain products.")] = True
    learned_temperature: Annotated[bool, Doc("A learned scale of each head's correlations; False: one.")] = True
    linear_stem: Annotated[bool, Doc("A single linear layer on each patch in place of strided convolutions.")] = False


@register_notrace_module  # symbolic tracing cannot follow a size into torch.arange
class FourierPosition(nn.Module):
    """Sines and cosines of a position's place relative to the grid, projected to the model's width."""

    def __init__(self, dim: int, bands: int = 32) -> None:
        super().__init__()
        self.bands = bands
        self.projection = nn.Linear(2 * bands, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, H, W, C), of which only the sizes count -> (H, W, C)."""
        _, H, W, _ = x.shape
        down, across = self.waves(H, x.device)[:, None], self.waves(W, x.device)[None]
        waves = torch.cat([down.expand(-1, W, -1), across.expand(H, -1, -1)], -1)  # (H, W, 2 bands)
        return self.projection(waves.to(x.dtype))

    def waves(self, length: int, device: torch.device) -> Tensor:
        """(length, bands): sine in even and cosine in odd channels, of angles that fill one turn."""
        place = torch.arange(1, length + 1, device=device, dtype=torch.float32)
        place = place * (2 * torch.pi / (place[-1:] + 1e-6))  # a size as a number has no translation to OpenVINO
        pairs = torch.arange(self.bands // 2, device=device, dtype=torch.float32)
        angles = place[:, None] / 10000.0 ** (2 * pairs / self.bands)
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


class LocalInteraction(nn.Module):
    """Two depth-wise 3x3 convolutions with GELU, then BatchNorm, in between."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.norm = nn.BatchNorm2d(dim)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor) -> Tensor:
        x, first = x.permute(0, 3, 1, 2), self.conv1
        x = depthwise_gelu(x, first.weight, first.bias) if onednn_is_for(x) and is_plain(first) else F.gelu(first(x))
        return self.conv2(self.norm(x)).permute(0, 2, 3, 1)


class XCiTBlock(nn.Module):
    """Channel attention, local interaction, feed-forward: each normalised before and scaled after its branch."""

    gamma1: Tensor
    gamma2: Tensor
    gamma3: Tensor

    def __init__(self, dim: int, heads: int, scale: float, settings: ColumnSettings, drop_rate: float) -> None:
        super().__init__()
        if settings.attention:
            self.norm1 = nn.LayerNorm(dim, LAYER_NORM_EPS)
            self.attention = ChannelAttention(
                dim, heads, normalise=settings.normalise, learned_temperature=settings.learned_temperature
            )
        self.norm2, self.mlp = nn.LayerNorm(dim, LAYER_NORM_EPS), ConvMlp(dim, 4 * dim, depthwise=False)
        if settings.local:
            self.norm3, self.local = nn.LayerNorm(dim, LAYER_NORM_EPS), LocalInteraction(dim)
        for name, there in (("gamma1", settings.attention), ("gamma2", True), ("gamma3", settings.local)):
            if there:
                self.register_parameter(name, nn.Parameter(torch.full((dim,), scale)))
        self.settings = settings
        self.drop_path = drop_path(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        if self.settings.attention:
            x = torch.addcmul(x, self.gamma1, self.drop_path(self.attention(self.norm1(x))))
        if self.settings.local:
            x = torch.addcmul(x, self.gamma3, self.drop_path(self.local(self.norm3(x))))
        return torch.addcmul(x, self.gamma2, self.drop_path(self.mlp(self.norm2(x))))


class ClassAttention(nn.Module):
    """The class token attends to itself and all patches."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.map = Tap()
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """Tokens (B, 1 + N, C), the class token first -> what it gathered (B, 1, C)."""
        parts = self.q(tokens[:, :1]), self.k(tokens), self.v(tokens)
        q, k, v = (split_heads(y, self.heads) for y in parts)  # (B, h, 1 or 1 + N, d)
        if not self.map.listening:
            out = dot_product_attention(q, k, v)
        else:
            weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)  # (B, h, 1, 1 + N)
            patches = self.map(weights[:, :, 0, 1:].unflatten(-1, grid))  # (B, h, H, W)
            weights = torch.cat([weights[..., :1], patches.flatten(2)[:, :, None]], -1)
            out = weights @ v
        return self.proj(out.transpose(1, 2).flatten(2))


class ClassBlock(nn.Module):
    """Class attention and a feed-forward layer for the class token.

    Two oddities are part of the released weights: patches receive their own normalised values scaled by gamma1, and
    the feed-forward layer's residual is the normalised token. The original also doubles the patches here, which the
    next block's norm undoes; it is kept so that exported patch tokens are equal.
    """

    def __init__(self, dim: int, heads: int, scale: float, tokens_norm: bool) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(dim, LAYER_NORM_EPS), ClassAttention(dim, heads)
        self.norm2, self.mlp = nn.LayerNorm(dim, LAYER_NORM_EPS), ConvMlp(dim, 4 * dim, depthwise=False)
        self.gamma1, self.gamma2 = (nn.Parameter(torch.full((dim,), scale)) for _ in range(2))
        self.tokens_norm = tokens_norm

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        u = self.norm1(x)
        x = x + self.gamma1 * torch.cat([self.attention(u, grid), u[:, 1:]], 1)
        if self.tokens_norm:
            x = self.norm2(x)
            token, patches = x[:, :1], x[:, 1:]
        else:
            token, patches = self.norm2(x[:, :1]), x[:, 1:]
        token = token + self.gamma2 * self.mlp(token[:, None])[:, 0]
        return torch.cat([token, 2 * patches], 1)


class ColumnStage(Stage):
    """Some blocks of the column, and in the dense form the layers that bring their map to the level's stride."""

    def __init__(self, blocks: list[XCiTBlock], rescale: nn.Module) -> None:
        super().__init__(nn.Identity(), blocks, nn.Identity())
        self.rescale = rescale

    def map(self, x: Tensor) -> Tensor:
        return self.rescale(x.permute(0, 3, 1, 2))  # (B, C, H, W)


def rescale_layers(dim: int, patch: int, stride: int) -> nn.Module:
    """Layers from the patches' stride to a level's: learned when finer, max-pooling when coarser."""
    if stride > patch:
        # With partial windows at the edge, no level vanishes at any size.
        return nn.MaxPool2d(stride // patch, stride // patch, ceil_mode=True)
    layers: list[nn.Module] = []
    while stride < patch:
        layers += [nn.BatchNorm2d(dim), nn.GELU()] if layers else []
        layers.append(nn.ConvTranspose2d(dim, dim, 2, 2))
        patch //= 2
    return nn.Sequential(*layers)


def crop(x: Tensor, height: int, width: int) -> Tensor:
    """The upper left part, as a copy: strides of a view would tie an exported program to sizes like its example's."""
    return F.pad(x, (0, width - x.shape[3], 0, height - x.shape[2]))


class XCiT(Backbone):
    """The column of both forms.

    Args:
        dim: Channels.
        depth: Blocks.
        heads: Attention heads.
        ends: Index of the block after which each of the four stages ends; None for the proportions in which the paper's
            dense models take their maps.
        patch: Side of a patch in pixels: 16 or 8; 4 for small images.
        scale: Initial value of the LayerScale vectors.
        tokens_norm: Whether class-attention blocks normalise all tokens or the class token alone.
        dense: Give a pyramid of strides 4, 8, 16, 32 instead of a class token.
        options: Fields of `ColumnSettings` that differ from the paper's model.
    """

    settings = ColumnSettings()
    growth = "Linear: channels attend to channels, and their number does not depend on the image."
    pooling = ("token", "avg", "")
    dense_arguments: Mapping[str, Any] = {"dense": True}
    first_conv = "stem.convs.0.conv"
    reset_when_missing = r"\.rescale\."  # a classifier's weights start a dense model

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        *,
        patch: int = 16,
        scale: float = 1.0,
        tokens_norm: bool = True,
        ends: tuple[int, ...] | None = None,
        dense: bool = False,
        drop_path_rate: float = 0.0,
        **options: Any,
    ) -> None:
        settings, common = split_options(ColumnSettings, options, {})
        check_flags(**asdict(settings))
        check_positive_ints(dim=dim, depth=depth, heads=heads)
        ends = ends or tuple(depth * part // 12 - 1 for part in (4, 6, 8, 12))
        check_xcit_shape(dim, depth, heads, patch, ends)
        check_flags(tokens_norm=tokens_norm, dense=dense)
        strides = (4, 8, 16, 32) if dense else (patch,) * len(ends)
        if dense:
            common["num_classes"] = 0
        super().__init__((dim,) * len(ends), strides, **common)
        self.for_small_images = None if dense else "patch"  # the dense form's strides do not depend on it
        self.patch = patch
        self.settings = settings
        self.stem = (LinearStem if settings.linear_stem else PatchStem)(self.in_chans, dim, patch)
        self.first_conv = "stem.conv" if settings.linear_stem else type(self).first_conv
        self.position = FourierPosition(dim)
        self.starts = (0, *(end + 1 for end in ends))
        self.stages = nn.ModuleList(
            ColumnStage(
                # The same rate in every block: the paper does not let it rise.
                [XCiTBlock(dim, heads, scale, settings, drop_path_rate) for _ in range(first, last)],
                rescale_layers(dim, patch, stride) if dense else nn.Identity(),
            )
            for (first, last), stride in zip(pairwise(self.starts), strides, strict=True)
        )
        self.class_token = None if dense else nn.Parameter(torch.zeros(1, 1, dim))
        self.class_blocks = nn.ModuleList(ClassBlock(dim, heads, scale, tokens_norm) for _ in range(0 if dense else 2))
        self.norm = nn.Identity() if dense else nn.LayerNorm(dim, LAYER_NORM_EPS)
        self.apply(self._init_weights)
        if self.class_token is not None:
            nn.init.trunc_normal_(self.class_token, std=0.02)

    def embed(self, images: Tensor) -> Tensor:
        x = super().embed(images)  # (B, H, W, C)
        return x + self.position(x)

    def maps(self, x: Tensor, depth: int | None = None) -> list[Tensor]:
        """Crop levels to the image: enlarging the last, partly empty patches gives too many rows."""
        levels = zip(super().maps(x, depth), self.strides, strict=False)
        H, W = x.shape[2:]
        return [
            crop(level, -(-H // stride), -(-W // stride)) if stride < self.patch else level for level, stride in levels
        ]

    def final(self, maps: Sequence[Tensor]) -> Tensor:
        """Class token and patches (B, 1 + N, C), normalised; the map itself in the dense form."""
        last = maps[-1]
        if self.class_token is None:
            return last
        grid = (last.shape[2], last.shape[3])
        x = torch.cat([self.class_token.expand(last.shape[0], -1, -1), last.flatten(2).transpose(1, 2)], 1)
        for block in self.class_blocks:
            x = block(x, grid)
        return self.norm(x)

    def pool(self, final: Tensor) -> Tensor:
        if self.class_token is None:
            return super().pool(final)
        return final[:, 1:].mean(1) if self.global_pool == "avg" else final[:, 0]

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        taken = super().prune_intermediate_layers(indices, prune_norm, prune_head)
        self.class_token, self.class_blocks, self.norm = None, nn.ModuleList(), nn.Identity()
        for i, stage in enumerate(self.stages):
            if i not in taken:  # this map is unused, so its layers would never get a gradient
                stage.rescale = nn.Identity()
        return taken

    def group_matcher(self, coarse: bool = False) -> dict:
        matcher = super().group_matcher(coarse)
        matcher["stem"] = r"^(?:stem|position|class_token)"
        blocks = [(matcher["blocks"], None)] if coarse else matcher["blocks"]
        return {
            **matcher,
            "blocks": [*blocks, (r"^stages\.(\d+)\.rescale", (99999,))],
            "class_blocks": [(r"^class_blocks\.(\d+)", None), (r"^norm", (99999,))],
        }

    def _init_weights(self, module: nn.Module) -> None:
        if not isinstance(module, nn.Conv2d):  # the release leaves convolutions as torch makes them
            super()._init_weights(module)

    def translate(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        state = translate_state(state, self.starts)
        if self.class_token is not None:
            return state
        return {key: value for key, value in state.items() if not key.startswith(("class_", "norm."))}


def check_xcit_shape(dim: int, depth: int, heads: int, patch: int, ends: tuple[int, ...]) -> None:
    if patch not in (16, 8, 4):
        raise InputError(f"patch={patch!r} given; accepted: 16, 8, or 4 for small images")
    check_heads([dim], [heads])
    if len(ends) != 4 or list(ends) != sorted(ends) or ends[0] < -1 or ends[-1] != depth - 1:
        raise InputError(f"ends={ends} given; four rising block numbers are needed, the last {depth - 1}")


XCIT_SIZES = {  # table of the paper's supplement: width, heads; 24 layers need a small LayerScale to train
    "nano_12": dict(dim=128, depth=12, heads=4, scale=1.0, tokens_norm=False),
    "tiny_12": dict(dim=192, depth=12, heads=4, scale=1.0),
    "tiny_24": dict(dim=192, depth=24, heads=4, scale=1e-5),
    "small_12": dict(dim=384, depth=12, heads=8, scale=1.0, drop_path_rate=0.05),
    "small_24": dict(dim=384, depth=24, heads=8, scale=1e-5, drop_path_rate=0.1),
    "medium_24": dict(dim=512, depth=24, heads=8, scale=1e-5, drop_path_rate=0.15),
    "large_24": dict(dim=768, depth=24, heads=16, scale=1e-5),
}
VARIANTS = {f"xcit_{size}_p{patch}": dict(row, patch=patch) for size, row in XCIT_SIZES.items() for patch in (16, 8)}
register(
    XCiT,
    VARIANTS,
    paper="https://arxiv.org/abs/2106.09681",
    weights=XCIT_WEIGHTS,
    published=XCIT_PUBLISHED,
    inputs={name: dict(crop_pct=1.0) for name in VARIANTS},
)
