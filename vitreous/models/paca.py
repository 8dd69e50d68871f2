"""PaCa-ViT: patch-to-cluster attention, both generations.

Grainger, Paniagua, Song, Cuntoor, Lee, Wu: "PaCa-ViT: Learning Patch-to-Cluster Attention in Vision Transformers",
arXiv 2203.11987. Generation 1 is version 1 of the paper (B0-B2, no public code), generation 2 the CVPR 2023 version
(Tiny, Small, Base; public weights by iVMCL, MIT licence).

Every patch keeps its query, but keys and values come from M clusters. A small network gives each cluster a map over
all positions that sums to one: the tap `stages.<i>.clusters`, or `stages.<i>.clusters.<j>` where several blocks j of a
stage make their own. The cluster token is the mean of the patches under that map, and the attention of a patch over the
M tokens is `stages.<i>.blocks.<j>.attention.map`.

Beyond the original: any image size with every option, any number of clusters in any stage beside a teacher, position
embeddings that follow the image size, stems of stride 1 and 2 for small images; and `readout="clusters"`, by which the
classifier reads cluster tokens in place of the mean of all positions (`layers/readout.py`), so that its decision is a
sum over clusters: the taps `readout.<i>.clusters` and `readout.<i>.attention.map` of stage i.

Shapes: B batch, H W grid, N = HW, M clusters, C channels, h heads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import register_notrace_module
from torch import Tensor, nn
from typing_extensions import Doc

from vitreous.errors import InputError
from vitreous.layers.attention import Gates, attend, split_heads
from vitreous.layers.cluster_tiles import assign_in_tiles, means_in_tiles
from vitreous.layers.cluster_training import ClusterTraining
from vitreous.layers.clustering import CLUSTERINGS, ClusteringTeacher, ConvClustering, assign
from vitreous.layers.inference import linear
from vitreous.layers.mlp import ConvMlp, drop_path, drop_path_rates
from vitreous.layers.opaque import OpaquePart, as_one_operation, worth_hiding
from vitreous.layers.patch import DoubleConvStem, PatchEmbed, apply_nchw
from vitreous.layers.plain import is_divisible
from vitreous.layers.readout import ClusterReadout, ReadoutAttention
from vitreous.layers.tap import Tap
from vitreous.layers.tiles import GridTile, each_tile, tiles
from vitreous.models.arguments import (
    check_flags,
    check_heads,
    check_positive_ints,
    check_rows,
    check_stem_stride,
    split_options,
)
from vitreous.models.base import Backbone, Stage, run_block
from vitreous.models.paca_release import ORIGINAL_NAMES, PACA_PUBLISHED, PACA_WEIGHTS, translate_entry
from vitreous.registry import register

register_notrace_module(ClusteringTeacher)  # like a stage
register_notrace_module(ClusterReadout)


@dataclass(frozen=True)
class BlockSettings:
    """Settings that the parts of a model share. The defaults are generation 2's."""

    clustering: Annotated[str, Doc("What makes the assignment: conv, mlp, linear; bottleneck is generation 1's.")] = (
        "conv"
    )
    kernel_size: Annotated[int | Sequence[int], Doc("Kernel of conv clustering, for all stages or per stage.")] = 7
    cluster_temperature: Annotated[
        float, Doc("Divides the logits of the assignment: below 1 maps are sharper, above 1 more even.")
    ] = 1.0
    cluster_eps: Annotated[float, Doc("Epsilon of the norm of cluster tokens.")] = 1e-6
    cluster_position: Annotated[bool, Doc("A learned vector per cluster, added before that norm.")] = False
    mlp_depthwise: Annotated[bool, Doc("Depth-wise convolution in the feed-forward layers.")] = True
    mlp_shortcut: Annotated[bool, Doc("A shortcut around that convolution.")] = True
    norm: Annotated[str, Doc("Norms of a branch: pre, post, or sub for both.")] = "pre"
    layer_scale: Annotated[float | None, Doc("First value of a learned scale of each branch; None for no scale.")] = (
        None
    )
    attention_dropout: Annotated[float, Doc("Dropout of attention weights.")] = 0.0
    dropout: Annotated[float, Doc("Dropout after attention and in the feed-forward layers.")] = 0.0
    readout: Annotated[
        str,
        Doc("What the classifier reads: mean, of all positions; or clusters, whose contributions add up to a logit."),
    ] = "mean"
    readout_clusters: Annotated[int, Doc("Clusters of that readout, in each stage that is read.")] = 8
    readout_stages: Annotated[
        int | Sequence[int] | None, Doc("The stages it reads, from 1; None for the last. Later ones are left out.")
    ] = None
    readout_temperature: Annotated[float, Doc("As cluster_temperature, for the maps of the readout.")] = 1.0
    closed_clusters: Annotated[
        dict[str, Sequence[int]] | None,
        Doc("Clusters, from 0, that are never attended to, by the path of the attention; `vitreous mend` writes it."),
    ] = None


class Context(NamedTuple):
    """What patches read from: keys and values (B, h, M, d), and what is added to the keys' scores, if anything."""

    k: Tensor
    v: Tensor
    keys: Tensor | None

    def of(self, images: slice) -> "Context":
        keys = self.keys if self.keys is None or len(self.keys) == 1 else self.keys[images]
        return Context(self.k[images], self.v[images], keys)


class ClusterAttention(nn.Module):
    """Multi-head attention of all patches over M cluster tokens, or over all patches if there are no clusters."""

    gates: Gates | None = None  # `vitreous.clusters.gates.gated` sets it on the instance, to remove clusters
    closed: tuple[int, ...] = ()  # clusters that are removed for good, whatever the gates are
    note_clusters: bool = False  # training sets it on the instance, to learn where decisions look
    noted: tuple[Tensor, Tensor] | None = None  # assignment and values of the latest pass, until the loss takes them

    def __init__(self, dim: int, heads: int, clusters: int, settings: BlockSettings) -> None:
        super().__init__()
        self.heads = heads
        self.cluster_norm = nn.LayerNorm(dim, settings.cluster_eps) if clusters else None
        with_position = settings.cluster_position and clusters
        self.cluster_position = nn.Parameter(torch.zeros(1, clusters, dim)) if with_position else None
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.map = Tap()
        self.dropout = settings.attention_dropout
        self.proj = nn.Linear(dim, dim)
        self.proj_dropout = nn.Dropout(settings.dropout)

    def forward(self, x: Tensor, assignment: Tensor | None, *, kept: Tensor | None = None) -> Tensor:
        """`kept` (B, M) is 0 for clusters that training drops from an image, else 1."""
        patches = x.flatten(1, 2)  # (B, N, C)
        means = None if assignment is None else assignment.flatten(2) @ patches  # (B, M, N) @ (B, N, C)
        context = self.context(patches, means, kept)
        if self.note_clusters and assignment is not None:
            self.noted = assignment, context.v
        return self.read(x, context)

    def context(self, patches: Tensor, means: Tensor | None, kept: Tensor | None = None) -> Context:
        """Keys and values: of clusters, given the means (B, M, C) of patches under their maps, or of all patches."""
        tokens = patches if means is None else self.cluster_tokens(means)
        k, v = (split_heads(y, self.heads) for y in (linear(layer, tokens) for layer in (self.k, self.v)))
        gates = self.gates if kept is None else Gates(logit=kept)
        if self.closed and means is not None:
            gates = (gates or Gates()).closing(self.closed, means.shape[1], means.device)
        return Context(k, *((v, None) if gates is None else gates.applied(v)))

    def cluster_tokens(self, means: Tensor) -> Tensor:
        assert self.cluster_norm is not None
        return self.cluster_norm(means if self.cluster_position is None else means + self.cluster_position)

    def read(self, x: Tensor, context: Context) -> Tensor:
        """What the patches (B, H, W, C) read of it."""
        _, H, W, _ = x.shape
        q = split_heads(linear(self.q, x.flatten(1, 2)), self.heads)
        dropout = self.dropout if self.training else 0.0
        out = attend(q, context.k, context.v, self.map, (H, W), dropout=dropout, keys=context.keys)  # (B, N, C)
        return self.proj_dropout(linear(self.proj, out)).unflatten(1, (H, W))


class PaCaBlock(nn.Module):
    """Attention and feed-forward, each on a residual branch. Blocks with `owns_clusters` compute a new assignment."""

    def __init__(
        self,
        dim: int,
        heads: int,
        clusters: int,
        mlp_ratio: float,
        settings: BlockSettings,
        *,
        owns_clusters: bool,
        drop_rate: float,
    ) -> None:
        super().__init__()
        hidden = int(dim * mlp_ratio)
        before, after = settings.norm in ("pre", "sub"), settings.norm in ("post", "sub")
        self.norm1 = nn.LayerNorm(dim, 1e-6) if before else nn.Identity()
        self.clustering = None
        if owns_clusters:
            assert isinstance(settings.kernel_size, int)
            self.clustering = CLUSTERINGS[settings.clustering](dim, clusters, hidden, settings.kernel_size)
            self.temperature = settings.cluster_temperature
            self.clusters = Tap()  # named by the stage
        self.attention = ClusterAttention(dim, heads, clusters, settings)
        self.norm1_after = nn.LayerNorm(dim, 1e-6) if after else nn.Identity()
        self.norm2 = nn.LayerNorm(dim, 1e-6) if before else nn.Identity()
        self.mlp = ConvMlp(
            dim, hidden, depthwise=settings.mlp_depthwise, shortcut=settings.mlp_shortcut, dropout=settings.dropout
        )
        self.norm2_after = nn.LayerNorm(dim, 1e-6) if after else nn.Identity()
        self.drop_path = drop_path(drop_rate)
        scale = settings.layer_scale
        self.gamma1 = nn.Parameter(torch.full((dim,), float(scale))) if scale is not None else None
        self.gamma2 = nn.Parameter(torch.full((dim,), float(scale))) if scale is not None else None

    def forward(
        self,
        x: Tensor,
        assignment: Tensor | None,
        kept: Tensor | None,
        learning: ClusterTraining | None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Tokens, and what later blocks share: the assignment and which clusters are kept."""
        if kept is None and learning is None and self.worth_tiles(x):
            return *self.in_tiles(x, assignment), None
        y = self.norm1(x)
        if self.clustering is not None:
            assignment = self.clusters(assign(self.clustering(y), self.temperature))  # (B, M, H, W)
            kept = None if learning is None else learning.kept(assignment)
        x = self.add(x, self.norm1_after(self.attention(y, assignment, kept=kept)), self.gamma1)
        x = self.add(x, self.norm2_after(self.mlp(self.norm2(x))), self.gamma2)
        return x, assignment, kept

    def add(self, x: Tensor, branch: Tensor, gamma: Tensor | None) -> Tensor:
        return x + self.drop_path(branch if gamma is None else gamma * branch)

    def worth_tiles(self, x: Tensor) -> bool:
        """As in its feed-forward layer. Sums over positions would lose too much in half precision."""
        if not self.mlp.worth_tiles(x) or self.attention.note_clusters or not is_divisible(self):
            return False
        return x.dtype.itemsize >= 4 and not torch.is_autocast_enabled("cpu")

    def in_tiles(self, x: Tensor, assignment: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The same; but for the tokens and the assignment, no map is ever whole."""
        means = None
        if self.clustering is not None:
            assignment, means = assign_in_tiles(self.clustering, self.norm1, x, self.temperature)
        elif assignment is not None:
            means = means_in_tiles(assignment, self.norm1, x)
        context = self.attention.context(self.norm1(x).flatten(1, 2) if means is None else x[:0], means)
        out, kernel = torch.empty_like(x), self.mlp.kernel()

        def place(tile: GridTile) -> None:
            y = tile.outer(x)
            y = self.add(y, self.norm1_after(self.attention.read(self.norm1(y), context.of(tile.images))), self.gamma1)
            branch = self.norm2_after(self.mlp.branch(self.norm2(y), kernel, tile))
            tile.inner(out).copy_(self.add(tile.cropped(y), branch, self.gamma2))

        each_tile(place, tiles(x.shape, self.mlp.hidden, halo=self.mlp.halo, item_bytes=x.element_size()), x)
        return out, assignment


class ClusterStage(Stage, OpaquePart):
    """A stage whose blocks share cluster assignments. Its norm is part of the trunk."""

    clusters: nn.Module
    cluster_training: ClusterTraining | None = None  # `train_clusters` sets it on the instance; no effect on inference
    cluster_terms: dict[str, Tensor] | None = None  # of the latest forward pass in training, until the loss takes them

    def __init__(
        self, downsample: nn.Module, blocks: list[PaCaBlock], dim: int, *, clustered: bool, position_grid: int | None
    ) -> None:
        makers = {str(j): block.clusters for j, block in enumerate(blocks) if block.clustering is not None}
        # One assignment per stage is tapped as `clusters`, several as `clusters.<j>` after the blocks that make them.
        if len(makers) > 1:
            taps: nn.Module = nn.ModuleDict(makers)
        else:
            taps = next(iter(makers.values()), Tap() if clustered else nn.Identity())
        super().__init__(downsample, blocks, nn.LayerNorm(dim, 1e-6), clusters=taps)
        grid = (1, dim, position_grid, position_grid) if position_grid else None
        self.position = nn.Parameter(torch.zeros(grid)) if grid else None
        self.clustered = clustered

    def forward(self, x: Tensor, given: Tensor | None = None, extra: Tensor | None = None) -> Tensor:
        """`given`: the teacher's assignment (B, M, H, W); `extra`: the teacher's map, added before the norm."""
        x = self.downsample(x)
        if self.position is not None:
            position = F.interpolate(self.position, x.shape[1:3], mode="bilinear", align_corners=True)
            x = x + position.permute(0, 2, 3, 1)
        learning = self.cluster_training if self.training else None
        assignment = given if given is None else self.clusters(given)
        if worth_hiding(self, x):
            x = as_one_operation(self, x, assignment)
            return apply_nchw(self.output, self.norm(x if extra is None else x + extra))
        kept = None if learning is None or assignment is None else learning.kept(assignment)
        made = [] if assignment is None else [assignment]
        for block in self.blocks:
            x, assignment, kept = run_block(block, x, assignment, kept, learning, recompute=self.grad_checkpointing)
            made += [assignment] if block.clustering is not None else []
        if learning is not None:  # outside the blocks, which may be recomputed
            self.cluster_terms = learning.terms(made)
        return apply_nchw(self.output, self.norm(x if extra is None else x + extra))

    def inferred(self, x: Tensor, assignment: Tensor | None) -> Tensor:
        """The blocks, as a compiler calls them."""
        for block in self.blocks:
            x, assignment, _ = block(x, assignment, None, None)
        return x


class PaCa(Backbone):
    """The trunk of both generations.

    Args:
        clusters: Clusters, for all stages or per stage; 0 is plain attention.
        recluster: For all stages or per stage: 0 makes the assignment in the first block, 1 in every block, i in
            every i-th; the other blocks reuse the latest one.
        generation: Version of the paper, 1 or 2: its stem, and its `clustering`, `cluster_eps` and `mlp_shortcut`.
        teacher: Arguments of a `ClusteringTeacher` that makes all assignments, e.g. dict(depths=(2, 2, 2, 2)).
        stem_stride: Stride of the stem: 4, or 2 or 1 for small images.
        last_stride: Stride between the last two stages; 1 in the CIFAR models.
        position_size: Image size for which learned position embeddings are made; None for none.
        options: Fields of `BlockSettings` that differ from the generation's.
    """

    settings = BlockSettings()
    growth = "Linear where patches attend to a fixed number of clusters, quadratic in stages whose clusters are 0."
    reset_when_resized = r"clustering\.logits\.|cluster_position$|^teacher\.to_clusters\."
    reset_when_missing = r"^readout\."  # published weights have none; the classifier's fit, as both read a mean

    def __init__(
        self,
        dims: Sequence[int],
        depths: Sequence[int],
        heads: Sequence[int],
        clusters: int | Sequence[int],
        *,
        mlp_ratios: Sequence[float] = (4, 4, 4, 4),
        generation: int = 2,
        recluster: int | Sequence[int] = 0,
        teacher: dict[str, Any] | None = None,
        stem_stride: int = 4,
        last_stride: int = 2,
        position_size: int | None = None,
        drop_path_rate: float = 0.0,
        **options: Any,
    ) -> None:
        if generation not in GENERATIONS:
            raise InputError(f"generation={generation!r} given; PaCa has generations 1 and 2")
        settings, common = split_options(BlockSettings, options, GENERATIONS[generation])
        check_block_settings(settings)
        check_positive_ints(last_stride=last_stride)
        clusters = per_stage(clusters, len(dims))
        every, kernels = per_stage(recluster, len(dims)), per_stage(settings.kernel_size, len(dims))
        check_paca_rows(dims, depths, heads, clusters, mlp_ratios, every, kernels, stem_stride)
        steps = [1] + [2] * (len(dims) - 2) + [last_stride]
        strides = [stem_stride * math.prod(steps[: i + 1]) for i in range(len(dims))]
        if settings.readout == "clusters":
            self.pooling = ("clusters", "")
        super().__init__(dims, strides, **common)
        self.settings = settings
        self.readout: nn.ModuleDict | None = None  # of the stages that are read, by number from zero
        if generation == 2:
            self.stem = DoubleConvStem(self.in_chans, dims[0], stride=stem_stride, eps=1e-6)
            self.first_conv = "stem.conv1"
        else:
            kernel = {4: 7, 2: 5, 1: 3}[stem_stride]
            self.stem = PatchEmbed(self.in_chans, dims[0], kernel_size=kernel, stride=stem_stride, eps=1e-5)
            self.first_conv = "stem.conv"
        self.teacher = build_teacher(teacher, dims, clusters, settings) if teacher else None
        rates = drop_path_rates(drop_path_rate, depths)
        self.stages = nn.ModuleList()
        for i, dim in enumerate(dims):
            taught = self.teacher is not None and clusters[i] > 0
            of_stage = replace(settings, kernel_size=kernels[i])
            blocks = [
                PaCaBlock(
                    dim,
                    heads[i],
                    clusters[i],
                    mlp_ratios[i],
                    of_stage,
                    owns_clusters=clusters[i] > 0 and not taught and (j == 0 or (every[i] > 0 and j % every[i] == 0)),
                    drop_rate=rates[i][j],
                )
                for j in range(depths[i])
            ]
            eps = 1e-6 if generation == 2 else 1e-5
            downsample = PatchEmbed(dims[i - 1], dim, kernel_size=3, stride=steps[i], eps=eps) if i else nn.Identity()
            grid = position_size // stem_stride // 2**i if position_size else None
            self.stages.append(ClusterStage(downsample, blocks, dim, clustered=clusters[i] > 0, position_grid=grid))
        if settings.readout == "clusters":
            self.read_clusters(read_stages(settings.readout_stages, len(dims)))
        self.close_clusters(clusters)
        self.apply(self._init_weights)

    def read_clusters(self, stages: Sequence[int]) -> None:
        """Let the classifier read the clusters of these stages, from zero. Later stages would be of no use."""
        if not isinstance(self.projection, nn.Identity):
            raise InputError("head_width and readout='clusters' given; clusters are read without a layer in between")
        depth, settings = stages[-1] + 1, self.settings
        self.stages, self.feature_info = self.stages[:depth], self.feature_info[:depth]
        self.channels, self.strides = self.channels[:depth], self.strides[:depth]
        if self.teacher is not None:
            self.teacher.limit(depth)
        self.readout = nn.ModuleDict(
            {
                str(i): ClusterReadout(self.channels[i], settings.readout_clusters, settings.readout_temperature)
                for i in stages
            }
        )
        self.num_features = self.head_hidden_size = sum(self.channels[i] for i in stages)
        self.reset_classifier(self.num_classes)

    def close_clusters(self, clusters: Sequence[int]) -> None:
        """Close those of the settings for good; `clusters` are counts per stage."""
        attentions = {
            path: self.settings.readout_clusters if path.startswith("readout.") else clusters[int(path.split(".")[1])]
            for path, module in self.named_modules()
            if isinstance(module, ClusterAttention | ReadoutAttention)
        }
        closed = self.settings.closed_clusters or {}
        known = [path for path, count in attentions.items() if count]
        if not isinstance(closed, dict) or not set(closed) <= set(known):
            raise InputError(
                f"closed_clusters={closed!r} given; accepted: numbers by path, of {', '.join(known) or 'nothing here'}"
            )
        for path, numbers in closed.items():
            count, given = attentions[path], tuple(numbers) if isinstance(numbers, list | tuple) else ()
            whole = all(type(number) is int and 0 <= number < count for number in given)
            if not given or not whole or len(set(given)) >= count:
                raise InputError(
                    f"closed_clusters of {path} are {numbers!r}; accepted: some, but not all, of 0 to {count - 1}"
                )
            self.get_submodule(path).closed = given  # type: ignore[assignment]

    def maps(self, x: Tensor, depth: int | None = None) -> list[Tensor]:
        x = self.embed(x)
        none: list[Tensor | None] = [None] * len(self.stages)
        assignments, extras = self.teacher(x) if self.teacher is not None else (none, none)
        outputs = []
        for i, stage in enumerate(self.stages[:depth]):
            x = stage(x, assignments[i], extras[i])
            outputs.append(x.permute(0, 3, 1, 2))
        return outputs

    def final(self, maps: Sequence[Tensor]) -> Tensor:
        """The last map; or the weighted tokens (B, M, C) of all clusters that are read.

        Each stage that is read has channels of its own, so that the classifier has weights of their own for it.
        """
        if self.readout is None:
            return super().final(maps)
        read, before = [], 0
        for i, readout in self.readout.items():
            tokens = readout(maps[int(i)].permute(0, 2, 3, 1))  # (B, M, C of the stage)
            after = self.num_features - before - tokens.shape[2]
            read.append(F.pad(tokens, (before, after)))
            before = self.num_features - after
        return torch.cat(read, 1) if len(read) > 1 else read[0]

    def pool(self, final: Tensor) -> Tensor:
        return super().pool(final) if self.readout is None else final.sum(1)  # (B, M, C) -> (B, C)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        taken = super().prune_intermediate_layers(indices, prune_norm, prune_head)
        self.readout = None if prune_head else self.readout
        return taken

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, ConvClustering):
            # 1x1 convolutions in the original, with larger initial values than linear layers: clusters that start
            # equal receive the same gradient and stay equal.
            for layer in (module.pointwise, module.logits):
                nn.init.normal_(layer.weight, std=(2.0 / layer.out_features) ** 0.5)
        for name in ("position", "cluster_position"):
            parameter = getattr(module, name, None)
            if isinstance(parameter, nn.Parameter):
                nn.init.trunc_normal_(parameter, std=0.02)

    def translate(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return dict(translate_entry(key, value, state) for key, value in state.items())


def check_block_settings(settings: BlockSettings) -> None:
    for name, value, accepted in (
        ("clustering", settings.clustering, list(CLUSTERINGS)),
        ("norm", settings.norm, ["pre", "post", "sub"]),
        ("readout", settings.readout, ["mean", "clusters"]),
    ):
        if value not in accepted:
            raise InputError(f"{name}={value!r} given; accepted: {', '.join(accepted)}")
    for name in ("cluster_temperature", "readout_temperature"):
        if not getattr(settings, name) > 0:
            raise InputError(f"{name}={getattr(settings, name)} given; give a number above 0")
    check_positive_ints(readout_clusters=settings.readout_clusters)
    if settings.readout == "mean":
        for name in ("readout_clusters", "readout_stages", "readout_temperature"):
            if getattr(settings, name) != getattr(PaCa.settings, name):
                raise InputError(
                    f"{name}={getattr(settings, name)} given, but the readout is the mean; add readout=clusters"
                )
    flags = ("cluster_position", "mlp_depthwise", "mlp_shortcut")
    check_flags(**{name: getattr(settings, name) for name in flags})


def per_stage(value: int | Sequence[int], stages: int) -> list[int]:
    return [value] * stages if isinstance(value, int) else list(value)


def read_stages(given: int | Sequence[int] | None, stages: int) -> list[int]:
    """The stages that are read, from zero."""
    numbers = [stages] if given is None else [given] if isinstance(given, int) else list(given)
    if not numbers or len(set(numbers)) < len(numbers) or not set(numbers) <= set(range(1, stages + 1)):
        raise InputError(f"readout_stages={given!r} given; give one or several different stages from 1 to {stages}")
    return sorted(number - 1 for number in numbers)


def check_paca_rows(dims, depths, heads, clusters, mlp_ratios, every, kernels, stem_stride) -> None:
    check_rows(dims, depths=depths, heads=heads, clusters=clusters, mlp_ratios=mlp_ratios)
    check_rows(dims, recluster=every, kernel_size=kernels)
    check_heads(dims, heads)
    check_stem_stride(stem_stride)
    for kernel in kernels:
        if kernel < 1 or kernel % 2 == 0:
            raise InputError(f"kernel_size={kernel} given; an odd number keeps the grid as it is")
    if min(clusters) < 0 or min(every) < 0:
        raise InputError(f"clusters={tuple(clusters)}, recluster={tuple(every)} given; neither can be negative")


TEACHER_ARGUMENTS = ("dims", "depths", "kernel_size", "add_features", "drop_path_rate")


def build_teacher(
    arguments: dict[str, Any], dims: Sequence[int], clusters: Sequence[int], settings: BlockSettings
) -> ClusteringTeacher:
    if not isinstance(arguments, dict) or "depths" not in arguments:
        raise InputError(f"teacher={arguments!r} given; give a dict such as dict(depths=(2, 2, 2, 2))")
    own = arguments.get("dims", dims)
    check_rows(dims, **{"dims of the teacher": own, "depths of the teacher": arguments["depths"]})
    for name in arguments:
        if name not in TEACHER_ARGUMENTS:
            raise InputError(f"teacher has no argument {name!r}; accepted: {', '.join(TEACHER_ARGUMENTS)}")
    joins = arguments.get("add_features", True) and tuple(own) == tuple(dims)
    rest = {name: value for name, value in arguments.items() if name not in ("dims", "add_features")}
    return ClusteringTeacher(own, clusters, **rest, add_features=joins, temperature=settings.cluster_temperature)


# Variants -----------------------------------------------------------------------------------------

GENERATIONS: dict[int, dict[str, Any]] = {
    1: dict(clustering="bottleneck", cluster_eps=1e-5, mlp_shortcut=False),
    2: {},
}
ATTENTION_HEADS = (2, 4, 8, 16)
PACA_SIZES: dict[str, dict[str, Any]] = {  # table 1 of the CVPR version
    "tiny": dict(dims=(96, 192, 320, 384), depths=(2, 2, 4, 2), heads=ATTENTION_HEADS, drop_path_rate=0.1),
    "small": dict(dims=(96, 192, 320, 384), depths=(3, 3, 10, 3), heads=ATTENTION_HEADS, drop_path_rate=0.1),
    "base": dict(dims=(96, 192, 384, 512), depths=(3, 3, 18, 3), heads=ATTENTION_HEADS, drop_path_rate=0.5),
}
TEACHER_SIZES: dict[str, dict[str, Any]] = {  # the trunk gives up blocks for the teacher
    "tiny": dict(depths=(2, 2, 2, 2), teacher=dict(depths=(2, 2, 2, 2))),
    "small": dict(depths=(3, 3, 7, 3), teacher=dict(depths=(2, 2, 2, 2))),
    "base": dict(depths=(3, 3, 16, 3), teacher=dict(depths=(2, 2, 4, 2)), drop_path_rate=0.1),
}
ALL_STAGES = (100, 100, 100, 100)
CLUSTER_COUNTS = {  # the ablation on Small, named by the counts of the first and last clustered stage
    "c2": (2, 2, 2, 0),
    "c49": (49, 49, 49, 0),
    "c49_100": (49, 64, 81, 100),
    "c100_49": (100, 81, 64, 49),
    "c100": ALL_STAGES,
}
GENERATION_1_SIZES: dict[str, dict[str, Any]] = {  # generation 1
    "b0": dict(dims=(32, 64, 160, 256), depths=(2, 2, 2, 2)),
    "b1": dict(dims=(64, 128, 320, 512), depths=(2, 2, 2, 2)),
    "b2": dict(dims=(64, 128, 320, 512), depths=(3, 4, 6, 3)),
}
GENERATION_1: dict[str, Any] = dict(
    generation=1, heads=(1, 2, 5, 8), mlp_ratios=(8, 8, 4, 4), recluster=1, drop_path_rate=0.1
)
CIFAR_STRIDES = dict(stem_stride=1, last_stride=1)

VARIANTS: dict[str, dict[str, Any]] = {}
for size, row in PACA_SIZES.items():
    for kind in ("conv", "mlp", "linear"):
        name = f"paca_{size}" if kind == "conv" else f"paca_{size}_{kind}"
        VARIANTS[name] = dict(row, clustering=kind, clusters=(100, 100, 100, 0))
        VARIANTS[f"{name}_blockwise"] = dict(row, clustering=kind, clusters=ALL_STAGES, recluster=1)
    VARIANTS[f"paca_{size}_teacher"] = {**row, **TEACHER_SIZES[size], "clusters": ALL_STAGES}
for name, counts in CLUSTER_COUNTS.items():
    VARIANTS[f"paca_small_{name}"] = dict(PACA_SIZES["small"], clusters=counts)
for size, row in GENERATION_1_SIZES.items():
    VARIANTS[f"paca_{size}"] = {**GENERATION_1, **row, "clusters": (49, 49, 49, 0)}
    VARIANTS[f"paca_{size}_pure"] = {**GENERATION_1, **row, "clusters": (0, 0, 0, 0)}
    VARIANTS[f"paca_{size}_cifar"] = {**GENERATION_1, **row, **CIFAR_STRIDES, "clusters": (64, 64, 0, 0)}
    VARIANTS[f"paca_{size}_cifar_pure"] = {**GENERATION_1, **row, **CIFAR_STRIDES, "clusters": (0, 0, 0, 0)}

READOUT = ("paca_tiny", "paca_small", "paca_base")  # and all of generation 1 that have clusters
for name in [*READOUT, *(f"paca_{size}{kind}" for size in GENERATION_1_SIZES for kind in ("", "_cifar"))]:
    VARIANTS[f"{name}_readout"] = dict(VARIANTS[name], readout="clusters")

CIFAR_INPUT = dict(
    input_size=(3, 32, 32),
    crop_pct=1.0,
    mean=(0.5071, 0.4867, 0.4408),
    std=(0.2675, 0.2565, 0.2761),
    num_classes=100,
)
register(
    PaCa,
    VARIANTS,
    paper="https://arxiv.org/abs/2203.11987",
    aliases=ORIGINAL_NAMES,
    weights=PACA_WEIGHTS,
    published=PACA_PUBLISHED,
    inputs={
        name: CIFAR_INPUT if "cifar" in name else dict(crop_pct=0.875 if "generation" in row else 0.9)
        for name, row in VARIANTS.items()
    },
)
