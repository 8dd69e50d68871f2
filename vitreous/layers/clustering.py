"""Networks that assign positions to clusters, and the softmax that turns their logits into maps.

Every clustering maps tokens (B, H, W, C) to logits (B, H, W, M); `assign` turns them into M maps that each sum to one
over all positions. In each of them the layer whose shape depends on M is called `logits`. `halo` is how far it looks:
given a tile of the tokens with as many neighbours, it gives the logits of the tile.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.layers.inference import linear
from vitreous.layers.mlp import drop_path, drop_path_rates
from vitreous.layers.patch import apply_nchw, resize
from vitreous.layers.tiles import GridTile


def assign(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Softmax over positions: (B, H, W, M) -> (B, M, H, W). Each cluster spreads a weight of one over the image."""
    _, H, W, _ = logits.shape
    logits = logits if temperature == 1 else logits / temperature
    return logits.flatten(1, 2).softmax(1).transpose(1, 2).unflatten(2, (H, W))


def of_tile(x: Tensor, tile: GridTile | None) -> Tensor:
    return x if tile is None else tile.cropped(x)


class ConvClustering(nn.Module):
    """Depth-wise convolution, GELU, Linear C→C, GELU, Linear C→M without bias."""

    def __init__(self, dim: int, clusters: int, kernel_size: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim)
        self.pointwise = nn.Linear(dim, dim)
        self.logits = nn.Linear(dim, clusters, bias=False)

    @property
    def halo(self) -> int:
        return self.depthwise.kernel_size[0] // 2

    def forward(self, x: Tensor, tile: GridTile | None = None) -> Tensor:
        y = of_tile(apply_nchw(self.depthwise, x), tile)
        return linear(self.logits, linear(self.pointwise, F.gelu(y), gelu=True))


class MlpClustering(nn.Module):
    """Linear to the feed-forward layer's width, GELU, Linear to M with bias."""

    halo = 0

    def __init__(self, dim: int, clusters: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.logits = nn.Linear(hidden, clusters)

    def forward(self, x: Tensor, tile: GridTile | None = None) -> Tensor:
        return linear(self.logits, linear(self.fc1, of_tile(x, tile), gelu=True))


class LinearClustering(nn.Module):
    """One Linear C→M without bias."""

    halo = 0

    def __init__(self, dim: int, clusters: int) -> None:
        super().__init__()
        self.logits = nn.Linear(dim, clusters, bias=False)

    def forward(self, x: Tensor, tile: GridTile | None = None) -> Tensor:
        return linear(self.logits, of_tile(x, tile))


class BottleneckClustering(nn.Module):
    """Generation 1: full 3x3 convolution to a quarter of the channels, GELU, Linear to M."""

    halo = 1

    def __init__(self, dim: int, clusters: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(dim, dim // 4, 3, padding=1)
        self.logits = nn.Linear(dim // 4, clusters)

    def forward(self, x: Tensor, tile: GridTile | None = None) -> Tensor:
        return linear(self.logits, F.gelu(of_tile(apply_nchw(self.reduce, x), tile)))


# name -> (dim, clusters, hidden width of the block's feed-forward layer, kernel size) -> module
CLUSTERINGS: dict[str, Callable[[int, int, int, int], nn.Module]] = {
    "conv": lambda dim, clusters, hidden, kernel_size: ConvClustering(dim, clusters, kernel_size),
    "mlp": lambda dim, clusters, hidden, kernel_size: MlpClustering(dim, clusters, hidden),
    "linear": lambda dim, clusters, hidden, kernel_size: LinearClustering(dim, clusters),
    "bottleneck": lambda dim, clusters, hidden, kernel_size: BottleneckClustering(dim, clusters),
}


def gelu_batch_norm(dim: int) -> nn.Sequential:
    return nn.Sequential(nn.GELU(), nn.BatchNorm2d(dim))


class ConvMixerBlock(nn.Module):
    """ConvMixer block on (B, C, H, W): depth-wise convolution on a residual branch, then a 1x1 convolution."""

    def __init__(self, dim: int, kernel_size: int, drop_rate: float) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim)
        self.after_depthwise = gelu_batch_norm(dim)
        self.drop_path = drop_path(drop_rate)
        self.pointwise = nn.Conv2d(dim, dim, 1)
        self.after_pointwise = gelu_batch_norm(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.after_depthwise(self.depthwise(x)))
        return self.after_pointwise(self.pointwise(x))


class BlurDown(nn.Module):
    """Fixed 3x3 binomial blur against aliasing, then a strided convolution to the next level's channels."""

    def __init__(self, dim: int, next_dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, next_dim, 3, 2, 1)
        self.after = gelu_batch_norm(next_dim)

    def forward(self, x: Tensor) -> Tensor:
        row = F.pad(x.new_full((1,), 2.0), (1, 1), value=1.0) / 4  # 1/4, 1/2, 1/4; a buffer would not survive meta
        kernel = (row[:, None] * row).expand(x.shape[1], 1, 3, 3).contiguous()
        return self.after(self.conv(F.conv2d(x, kernel, padding=1, groups=x.shape[1])))


class ClusteringTeacher(nn.Module):
    """A ConvMixer pyramid that computes the cluster assignments of all stages from the trunk's stem output.

    Bottom-up levels, then top-down fusion, then one 1x1 convolution per level to that stage's clusters. With
    `add_features` the bottom-up maps also join the trunk, which needs the trunk's widths.
    """

    def __init__(
        self,
        dims: Sequence[int],
        clusters: Sequence[int],
        depths: Sequence[int],
        *,
        kernel_size: int = 7,
        add_features: bool = True,
        drop_path_rate: float = 0.0,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.add_features, self.temperature = add_features, temperature
        rates = drop_path_rates(drop_path_rate, depths)
        pairs = list(pairwise(dims))
        self.levels = nn.ModuleList(
            nn.Sequential(*(ConvMixerBlock(dim, kernel_size, rate) for rate in level))
            for dim, level in zip(dims, rates, strict=True)
        )
        self.down = nn.ModuleList(BlurDown(dim, coarser) for dim, coarser in pairs)
        self.lateral = nn.ModuleList(
            nn.Sequential(nn.Conv2d(coarser, dim, 1), *gelu_batch_norm(dim)) for dim, coarser in pairs
        )
        self.fuse = nn.ModuleList(
            ConvMixerBlock(dim, kernel_size, level[0]) for dim, level in zip(dims[:-1], rates, strict=False)
        )
        self.to_clusters = nn.ModuleList(
            nn.Conv2d(dim, count, 1) if count else nn.Identity() for dim, count in zip(dims, clusters, strict=True)
        )
        self.clusters = tuple(clusters)

    def limit(self, stages: int) -> None:
        """Make assignments for the first stages only. The coarser levels stay, as the finer ones take them in."""
        self.clusters = tuple(count if i < stages else 0 for i, count in enumerate(self.clusters))
        for i in range(stages, len(self.clusters)):
            self.to_clusters[i] = nn.Identity()

    def forward(self, stem: Tensor) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Stem output (B, H, W, C) -> per stage: assignment (B, M, H, W) and map to add (B, H, W, C), or None."""
        x = stem.permute(0, 3, 1, 2)
        maps = [self.levels[0](x)]
        for down, level in zip(self.down, self.levels[1:], strict=True):
            maps.append(level(down(maps[-1])))
        fused = [maps[-1]]
        for finer, lateral, fuse in zip(maps[-2::-1], reversed(self.lateral), reversed(self.fuse), strict=True):
            fused.insert(0, fuse(finer + lateral(resize(fused[0], finer.shape[2:]))))
        assignments = [
            assign(head(level).permute(0, 2, 3, 1), self.temperature) if count else None
            for head, level, count in zip(self.to_clusters, fused, self.clusters, strict=True)
        ]
        return assignments, [level.permute(0, 2, 3, 1) if self.add_features else None for level in maps]
