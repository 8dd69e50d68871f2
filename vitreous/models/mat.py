"""MAT: window attention, made global by an abstract token per window.

Chapter 4 of "Efficient Vision Transformers with Multi-Scale and Partial Attentions for Object Recognition",
dissertation, University of Ulsan, https://oak.ulsan.ac.kr/handle/2021.oak/13173. No code or weights are public.

Attention within windows of 7x7 tokens is cheap but limited to the window. Here every window gets an extra token, which
takes part in the window's attention and so summarises it; these abstract tokens then attend to each other, and finally
every image token attends to all of them with the query it already has.

Where the text is silent the printed sizes decide: the depth-wise convolution in the feed-forward layers, the position
convolution before each attention, one abstract token for all windows of a block, the wide layer before the
classifier. The maps of the first three stages pass a norm without weights, so that classifiers carry nothing unused.

What can be seen besides the maps, in every block of a MAT stage under `attention`: `window_attn` (B, h, t, H, W), what
every position reads of the t tokens of its window, the abstract one first; `abstract_attn` (B, h, H, W), how much each
window's abstract token takes from every position; `mix_attn` (B, h, n, nh, nw) and `fusion_attn` (B, h, n, H, W), for
each abstract token how much the windows or the positions read it; `before_fusion` and `after_fusion` (B, C, H, W), and
`fusion_gain` (B, 1, H, W), the length of what is added over the length of what was there. In bilinear sampling, under
`downsample`: `reference`, `offsets` and `points` (B, 2, H, W), rows then columns in pixels of the image.

Shapes: B batch, H W grid, N = HW, w window, nh nw grid of windows, n = nh nw, C channels, h heads, d = C / h.
"""

from collections.abc import Sequence
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import InputError
from vitreous.layers.attention import attend, attention_weights, dot_product_attention, split_heads
from vitreous.layers.conv_norm import ConvNorm, ConvStem, PositionConv
from vitreous.layers.inference import linear
from vitreous.layers.mlp import ConvMlp, drop_path, drop_path_rates
from vitreous.layers.patch import apply_nchw
from vitreous.layers.tap import Tap
from vitreous.layers.windows import Windows, make_windows
from vitreous.models.arguments import (
    BackboneOptions,
    check_flags,
    check_heads,
    check_positive_ints,
    check_rows,
    check_stem_stride,
)
from vitreous.models.base import Backbone, Stage
from vitreous.registry import Published, register


class WindowAttention(nn.Module):
    """Multi-head attention among the tokens of each window."""

    extra = 0  # tokens a window has besides its share of the map

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.window_attn = Tap()

    def forward(self, x: Tensor, windows: Windows) -> Tensor:
        q, k, v = (
            split_heads(y, self.heads) for y in linear(self.qkv, windows.split(x)).chunk(3, -1)
        )  # (B n, h, t, d)
        if not self.window_attn.listening:
            return linear(self.proj, windows.join(merged_attention(q, k, v, windows.keys)))
        weights = attention_weights(q, k, windows.keys)
        self.show_windows(weights, windows)
        return self.proj(windows.join(merged_heads(weights.to(v.dtype) @ v)))

    def show_windows(self, weights: Tensor, windows: Windows) -> None:
        """What every position reads of its window's tokens, from (B n, h, t queries, t)."""
        rows = weights.transpose(1, 2).flatten(2)  # (B n, t queries, h t)
        self.window_attn(windows.join(rows).permute(0, 3, 1, 2).unflatten(1, (self.heads, -1)))  # (B, h, t, H, W)


def merged_attention(q: Tensor, k: Tensor, v: Tensor, keys: Tensor | None) -> Tensor:
    return merged_heads(dot_product_attention(q, k, v, keys))


def merged_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)  # (B, h, N, d) -> (B, N, C)


class AbstractAttention(WindowAttention):
    """Window attention with an abstract token per window, through which windows exchange information."""

    extra = 1

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.mix_qkv = nn.Linear(dim, 3 * dim)
        self.mix_proj = nn.Linear(dim, dim)
        self.abs_kv = nn.Linear(dim, 2 * dim)
        self.abstract_attn, self.mix_attn, self.fusion_attn = Tap(), Tap(), Tap()
        self.before_fusion, self.after_fusion, self.fusion_gain = Tap(), Tap(), Tap()

    def forward(self, x: Tensor, windows: Windows) -> Tensor:
        grid, some = x.shape[1:3], windows.summary_keys
        q, k, v = linear(self.qkv, windows.split(x, self.token)).chunk(3, -1)  # (B n, t, C)
        local = self.within(q, k, v, windows)  # (B n, t, C)
        mix_q, mix_k, mix_v = self.mix_qkv(windows.summaries(local)).chunk(3, -1)  # (B, n, C)
        mixed = self.mix_proj(self.across(mix_q, mix_k, mix_v, self.mix_attn, windows.grid, some))
        abs_k, abs_v = self.abs_kv(mixed).chunk(2, -1)  # (B, n, C)
        read = self.across(windows.join(q).flatten(1, 2), abs_k, abs_v, self.fusion_attn, grid, some)  # (B, N, C)
        own, gained = windows.join(local), read.unflatten(1, grid)  # (B, H, W, C)
        if self.fusion_gain.listening:
            self.fusion_gain((gained.norm(dim=-1) / own.norm(dim=-1))[:, None])
        return linear(self.proj, apply_nchw(self.after_fusion, apply_nchw(self.before_fusion, own) + gained))

    def within(self, q: Tensor, k: Tensor, v: Tensor, windows: Windows) -> Tensor:
        """Attention within the windows; the abstract token's row of it passes a listening tap."""
        q, k, v = (split_heads(y, self.heads) for y in (q, k, v))  # (B n, h, t, d)
        if not (self.abstract_attn.listening or self.window_attn.listening):
            return merged_attention(q, k, v, windows.keys)
        weights = attention_weights(q, k, windows.keys)  # (B n, h, t, t)
        if self.window_attn.listening:
            self.show_windows(weights, windows)
        if self.abstract_attn.listening:
            weights = torch.cat([self.shown(weights[:, :, :1], windows), weights[:, :, 1:]], 2)
        return merged_heads(weights.to(v.dtype) @ v)

    def shown(self, weights: Tensor, windows: Windows) -> Tensor:
        """The abstract token's row (B n, h, 1, t), as it comes out of its tap."""
        whole = apply_nchw(self.abstract_attn, windows.join(weights[:, :, 0].transpose(1, 2)))  # (B, H, W, h)
        seen = windows.split(whole, whole.new_zeros(1, 1, self.heads))[:, 1:].transpose(1, 2)  # (B n, h, w w)
        return torch.cat([weights[..., :1], seen[:, :, None]], -1)

    def across(self, q: Tensor, k: Tensor, v: Tensor, tap: Tap, grid: Sequence[int], keys: Tensor | None) -> Tensor:
        """Attention of (B, N, C) over the abstract tokens (B, n, C) of the image."""
        q, k, v = (split_heads(y, self.heads) for y in (q, k, v))
        return attend(q, k, v, tap, (grid[0], grid[1]), keys=keys)


MIXERS = {"none": None, "window": WindowAttention, "mat": AbstractAttention}


class MATBlock(nn.Module):
    """Position and attention if the stage mixes tokens, then feed-forward, on residual branches."""

    def __init__(
        self, dim: int, heads: int, mixer: str, *, position: bool = True, mlp_depthwise: bool, drop_rate: float
    ) -> None:
        super().__init__()
        make = MIXERS[mixer]
        if make is not None:
            self.position = PositionConv(dim) if position else nn.Identity()
            self.norm1 = nn.LayerNorm(dim, 1e-6)
        self.attention = make(dim, heads) if make is not None else None
        self.norm2 = nn.LayerNorm(dim, 1e-6)
        self.mlp = ConvMlp(dim, 4 * dim, depthwise=mlp_depthwise, shortcut=False)
        self.drop_path = drop_path(drop_rate)

    def forward(self, x: Tensor, windows: Windows | None) -> Tensor:
        if self.attention is not None:
            x = apply_nchw(self.position, x)
            x = x + self.drop_path(self.attention(self.norm1(x), windows))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class BilinearEmbed(nn.Module):
    """Halve a map by sampling it bilinearly at learned offsets from the centres of its 2x2 cells."""

    def __init__(self, in_dim: int, dim: int, stride: int, limit: float | None) -> None:
        super().__init__()
        self.stride, self.limit = stride, limit
        self.depthwise = nn.Conv2d(in_dim, in_dim, 3, 2, 1, groups=in_dim)
        self.norm = nn.LayerNorm(in_dim, 1e-6)
        self.offset = nn.Linear(in_dim, 2)
        self.project = ConvNorm(in_dim, dim, 1, bias=True)
        self.reference, self.offsets, self.points = Tap(), Tap(), Tap()

    def forward(self, x: Tensor) -> Tensor:
        _, H, W, _ = x.shape
        offset = self.offset(F.gelu(self.norm(apply_nchw(self.depthwise, x)))).permute(0, 3, 1, 2)  # (B, 2, H', W')
        # Half precision cannot resolve single pixels.
        offset = offset.to(torch.promote_types(offset.dtype, torch.float32))
        if self.limit is not None:
            offset = offset.clamp(-self.limit, self.limit)
        centres = (torch.arange(side, device=x.device, dtype=offset.dtype) * 2 + 1 for side in offset.shape[2:])
        reference = torch.stack(torch.meshgrid(*centres, indexing="ij")) * self.stride  # (2, H', W')
        points = self.reference(reference.expand_as(offset)) + self.offsets(offset * self.stride)
        y, x_ = self.points(points).unbind(1)
        where = torch.stack([x_ / (W * self.stride), y / (H * self.stride)], -1) * 2 - 1  # (B, H', W', 2)
        image = x.permute(0, 3, 1, 2).to(where.dtype)
        sampled = F.grid_sample(image, where, padding_mode="border", align_corners=False)
        return self.project(sampled.permute(0, 2, 3, 1).to(x.dtype).contiguous())


class MergeEmbed(nn.Module):
    """Halve a map by joining the channels of its 2x2 cells; an odd last row or column is taken twice."""

    def __init__(self, in_dim: int, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * in_dim, 1e-6)
        self.reduce = nn.Linear(4 * in_dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        _, H, W, _ = x.shape
        rows, columns = (torch.arange(0, side, 2, device=x.device) for side in (H, W))
        lines = [x.index_select(1, index) for index in (rows, (rows + 1).clamp(max=H - 1))]
        cells = [line.index_select(2, index) for line in lines for index in (columns, (columns + 1).clamp(max=W - 1))]
        return self.reduce(self.norm(torch.cat(cells, -1)))  # (B, H', W', 4 C) -> (B, H', W', C')


EMBEDS = {
    "bilinear": BilinearEmbed,
    "conv": lambda in_dim, dim, stride, limit: ConvNorm(in_dim, dim, stride=2, bias=True),
    "merge": lambda in_dim, dim, stride, limit: MergeEmbed(in_dim, dim),
}


class WindowStage(Stage):
    """A stage whose blocks share one division into windows."""

    def __init__(self, downsample: nn.Module, blocks: list[MATBlock], norm: nn.Module, window: int) -> None:
        super().__init__(downsample, blocks, norm)
        self.window = window
        attention = blocks[0].attention
        self.extra = None if attention is None else attention.extra

    def forward(self, x: Tensor) -> Tensor:
        x = self.downsample(x)
        return self.run(x, None if self.extra is None else make_windows(x, self.window, self.extra))


class MAT(Backbone):
    """The trunk and its wide head.

    Args:
        mixers: Per stage: "mat"; "window" for window attention without abstract tokens; "none" for feed-forward only.
        window: Side of a window in tokens.
        embed: Between stages: "bilinear" sampling, a strided "conv", or patch "merge".
        offset_limit: Largest distance in pixels of the sampled map that bilinear sampling may move; None for any.
        position: Positions by a depth-wise convolution before attention.
        mlp_depthwise: Depth-wise convolution in the feed-forward layers.
        head_width: Channels of the layer before the classifier; 0 for none.
        stem_stride: Stride of the stem: 4, or 2 or 1 for small images.
    """

    growth = (
        "Linear within windows, which small images fill badly; what all positions read of all windows grows with the "
        "square, divided by window²."
    )
    first_conv = "stem.conv1.conv"

    def __init__(
        self,
        dims: Sequence[int],
        depths: Sequence[int],
        heads: Sequence[int],
        *,
        mixers: Sequence[str] = ("none", "none", "mat", "mat"),
        window: int = 7,
        embed: str = "bilinear",
        offset_limit: float | None = None,
        position: bool = True,
        mlp_depthwise: bool = True,
        head_width: int = 1280,
        stem_stride: int = 4,
        drop_path_rate: float = 0.0,
        **common: Unpack[BackboneOptions],
    ) -> None:
        check_rows(dims, depths=depths, heads=heads, mixers=mixers)
        check_heads(dims, heads)
        check_stem_stride(stem_stride)
        check_positive_ints(window=window)
        check_flags(position=position, mlp_depthwise=mlp_depthwise)
        check_mat_choices(depths, mixers, embed, offset_limit)
        strides = [stem_stride * 2**i for i in range(len(dims))]
        super().__init__(dims, strides, head_width=head_width, **common)
        self.stem = ConvStem(self.in_chans, dims[0], stride=stem_stride, depthwise=True)
        rates = drop_path_rates(drop_path_rate, depths)
        self.stages = nn.ModuleList()
        for i, (dim, mixer) in enumerate(zip(dims, mixers, strict=True)):
            downsample = EMBEDS[embed](dims[i - 1], dim, strides[i - 1], offset_limit) if i else nn.Identity()
            blocks = [
                MATBlock(dim, heads[i], mixer, position=position, mlp_depthwise=mlp_depthwise, drop_rate=rate)
                for rate in rates[i]
            ]
            norm = nn.LayerNorm(dim, 1e-6, elementwise_affine=i == len(dims) - 1)
            self.stages.append(WindowStage(downsample, blocks, norm, window))
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1):
            nn.init.trunc_normal_(module.weight, std=0.02)  # equivalent to a linear layer
        if isinstance(module, AbstractAttention):
            nn.init.trunc_normal_(module.token, std=0.02)
        if isinstance(module, BilinearEmbed):
            nn.init.zeros_(module.offset.weight)  # sampling starts at the centres of the cells


def check_mat_choices(depths: Sequence[int], mixers: Sequence[str], embed: str, offset_limit: float | None) -> None:
    if min(depths) < 1:
        raise InputError(f"depths={tuple(depths)} given; every stage needs at least 1 block")
    if not set(mixers) <= set(MIXERS):
        raise InputError(f"mixers={tuple(mixers)} given; accepted for each stage: {', '.join(MIXERS)}")
    if embed not in EMBEDS:
        raise InputError(f"embed={embed!r} given; accepted: {', '.join(EMBEDS)}")
    if offset_limit is not None and offset_limit <= 0:
        raise InputError(f"offset_limit={offset_limit} given; give a distance in pixels above 0, or None for no limit")


VARIANTS: dict[str, dict[str, Any]] = {  # table 4.2
    "mat_1": dict(dims=(24, 48, 96, 192), depths=(2, 2, 6, 6), heads=(3, 6, 12, 24)),
    "mat_2": dict(dims=(32, 64, 128, 256), depths=(2, 2, 6, 6), heads=(2, 4, 8, 16)),
    "mat_3": dict(dims=(36, 72, 144, 288), depths=(2, 2, 8, 8), heads=(2, 4, 8, 16)),
    "mat_4": dict(dims=(48, 96, 192, 384), depths=(3, 3, 8, 8), heads=(3, 6, 12, 24)),
    "mat_5": dict(dims=(64, 128, 256, 512), depths=(2, 2, 8, 8), heads=(4, 8, 16, 32)),
}
MAT_PUBLISHED = {
    "mat_1": Published(6.714, 0.389, 76.3),
    "mat_2": Published(10.767, 0.666, 79.0),
    "mat_3": Published(17.008, 1.042, 80.2),
    "mat_4": Published(29.057, 1.933, 81.0),
    "mat_5": Published(50.108, 3.156, 81.9),
}
register(MAT, VARIANTS, paper="https://oak.ulsan.ac.kr/handle/2021.oak/13173", published=MAT_PUBLISHED)
