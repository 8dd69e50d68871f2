"""PartialFormer: full attention for the few most important tokens, one shared query for all others.

Vo, Nguyen, Priadana, Jo: "Efficient Vision Transformers with Partial Attention", ECCV 2024, and chapter 5 of the first
author's dissertation. Built from a description of the text; the layers reproduce the published sizes and costs.

Choices of ours: the maps of the first three stages are normalised without scale and shift. Classification never reads
them, so these would be parameters without a gradient, and the linear layer that opens any dense head absorbs them.

What can be seen in `stages.<i>.blocks.<j>.attention`, with F foreground tokens and m = F + 1, the abstract token first:
`score`, `rank` and `foreground` (B, H, W), who is chosen and why; `abstract` and `background` (B, h, H, W), what the
abstract token reads of either set; `unmixed` and `mixed` (B, h, m, m), the foreground's scores and weights before and
after its heads are mixed, whose rows and columns from 1 on stand at the `positions` (B, F) of the flattened grid.

Shapes: B batch, H W grid, C channels, h heads.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import InputError
from vitreous.layers.conv_norm import ConvNorm, ConvStem, PositionConv
from vitreous.layers.mlp import ConvMlp, drop_path, drop_path_rates
from vitreous.layers.partial_attention import AttentionSettings, PartialAttention
from vitreous.layers.patch import apply_nchw
from vitreous.models.arguments import (
    check_flags,
    check_heads,
    check_positive_ints,
    check_rows,
    check_stem_stride,
    split_options,
)
from vitreous.models.base import Backbone, Stage
from vitreous.registry import Published, register


class PartialFormerBlock(nn.Module):
    """Position, partial attention and feed-forward, each on a residual branch."""

    def __init__(
        self, dim: int, heads: int, fraction: Fraction, settings: AttentionSettings, *, mlp_dw: bool, drop_rate: float
    ) -> None:
        super().__init__()
        self.position = PositionConv(dim)
        self.norm1 = nn.LayerNorm(dim, 1e-6)
        self.attention = PartialAttention(dim, heads, fraction, settings)
        self.norm2 = nn.LayerNorm(dim, 1e-6)
        self.mlp = ConvMlp(dim, 4 * dim, depthwise=mlp_dw, shortcut=False)
        self.drop_path = drop_path(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        x = apply_nchw(self.position, x)
        # Before the norm, after which all means are equal. Never in half precision, in which many scores tie.
        score = x.mean(-1, dtype=torch.promote_types(x.dtype, torch.float32))  # (B, H, W)
        x = x + self.drop_path(self.attention(self.norm1(x), score))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class PartialFormer(Backbone):
    """The trunk and its wide head.

    Args:
        fractions: Share of the tokens that are foreground, per stage; at least one token always is.
        mlp_dw: Depth-wise convolution in the feed-forward layers.
        head_width: Channels of the layer before the classifier; 0 for none.
        stem_stride: Stride of the stem: 4, or 2 or 1 for small images.
        stem_depthwise: Make the middle convolution of the stem depth-wise, which the published costs speak against.
        options: Fields of `AttentionSettings` that differ from the published models'.
    """

    settings = AttentionSettings()
    growth = "Linear with max_foreground; without it the foreground, a share of the tokens, attends to itself."
    first_conv = "stem.conv1.conv"

    def __init__(
        self,
        dims: Sequence[int],
        depths: Sequence[int],
        heads: Sequence[int],
        *,
        fractions: Sequence[float] = (1 / 128, 1 / 32, 1 / 8, 1 / 2),
        mlp_dw: bool = True,
        head_width: int = 1280,
        stem_stride: int = 4,
        stem_depthwise: bool = False,
        drop_path_rate: float = 0.0,
        **options: Any,
    ) -> None:
        settings, common = split_options(AttentionSettings, options, {})
        check_rows(dims, depths=depths, heads=heads, fractions=fractions)
        check_heads(dims, heads)
        check_stem_stride(stem_stride)
        check_partialformer_choices(dims, fractions, settings)
        check_flags(mlp_dw=mlp_dw, stem_depthwise=stem_depthwise)
        super().__init__(dims, [stem_stride * 2**i for i in range(len(dims))], head_width=head_width, **common)
        self.settings = settings
        self.stem = ConvStem(self.in_chans, dims[0], stride=stem_stride, depthwise=stem_depthwise)
        rates = drop_path_rates(drop_path_rate, depths)
        self.stages = nn.ModuleList()
        for i, dim in enumerate(dims):
            fraction = Fraction(fractions[i]).limit_denominator(1_000_000)
            blocks = [
                PartialFormerBlock(dim, heads[i], fraction, settings, mlp_dw=mlp_dw, drop_rate=rate)
                for rate in rates[i]
            ]
            downsample = ConvNorm(dims[i - 1], dim, stride=2, bias=True) if i else nn.Identity()
            norm = nn.LayerNorm(dim, 1e-6, elementwise_affine=i == len(dims) - 1)
            self.stages.append(Stage(downsample, blocks, norm))
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, PartialAttention):
            nn.init.trunc_normal_(module.token, std=0.02)
            if module.mixer is not None:
                module.mixer.reset()


def check_partialformer_choices(dims: Sequence[int], fractions: Sequence[float], settings: AttentionSettings) -> None:
    for fraction in fractions:
        if not 0 < fraction <= 1:
            raise InputError(f"fractions={tuple(fractions)} given; {fraction} is not above 0 and at most 1")
    if dims[0] % 2:
        raise InputError(f"dims={tuple(dims)} given; the first must be even, as the stem begins with half of it")
    flags = ("sqa_residual", "head_mixing", "single_query")
    check_flags(**{name: getattr(settings, name) for name in flags})
    check_positive_ints(head_expansion=settings.head_expansion, bottleneck_ratio=settings.bottleneck_ratio)
    if settings.max_foreground is not None:
        check_positive_ints(max_foreground=settings.max_foreground)
    if settings.project not in ("all", "needed"):
        raise InputError(f"project={settings.project!r} given; accepted: 'all', 'needed'")


# Variants -----------------------------------------------------------------------------------------

VARIANTS: dict[str, dict[str, Any]] = {  # the drop-path rates are not published
    f"partialformer_{size}": dict(
        dims=tuple(width * 2**i for i in range(4)),
        depths=depths,
        heads=tuple(heads * 2**i for i in range(4)),
        drop_path_rate=rate,
    )
    for size, width, depths, heads, rate in (
        ("b0", 24, (2, 2, 6, 6), 2, 0.0),
        ("b1", 32, (2, 2, 6, 6), 2, 0.05),
        ("b2", 48, (2, 2, 8, 8), 3, 0.1),
        ("b3", 64, (2, 2, 8, 8), 4, 0.2),
        ("b4", 96, (2, 2, 8, 6), 6, 0.3),
    )
}

register(
    PartialFormer,
    VARIANTS,
    paper="https://ecva.net/papers/eccv_2024/papers_ECCV/html/11047_ECCV_2024_paper.php",
    published={
        "partialformer_b0": Published(5.3, 0.4, 76.7),
        "partialformer_b1": Published(8.2, 0.7, 79.3),
        "partialformer_b2": Published(21.1, 1.9, 82.0),
        "partialformer_b3": Published(36.1, 3.4, 83.0),
        "partialformer_b4": Published(64.5, 6.8, 83.9),
    },
)
