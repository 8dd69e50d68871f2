"""Backbone: one trunk, from which everything a user or timm asks for is derived.

A family sets `channels`, `strides`, `stem` and `stages`. It writes `maps` if its stages do not simply run one after the
other, and `final` and `pool` if it has a class token. Classification, pyramids for dense heads, `features_only`,
intermediates, layer groups and weight loading all follow from that.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from timm.layers import register_notrace_function, register_notrace_module
from timm.models._features import feature_take_indices
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import _IncompatibleKeys
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from vitreous.errors import InputError
from vitreous.layers.conv_norm import Projection
from vitreous.layers.inference import eager_inference
from vitreous.layers.mlp import ConvMlp
from vitreous.layers.patch import apply_nchw
from vitreous.layers.plain import is_divisible
from vitreous.layers.tap import Tap
from vitreous.layers.tiles import in_row_strips
from vitreous.models.arguments import unknown_argument
from vitreous.models.weights import LoadReport, apply_state, check_finite, read_state
from vitreous.runtime.bf16_convolution import defined_again
from vitreous.runtime.threads import concurrent_pieces, in_threads, threads_allowed

RECOMPUTABLE_PARTS = ("blocks", "mlp")  # in the backward pass
PIXELS_TOGETHER = 4 * 224 * 224  # of the images that one thread computes together: fewer leave matrices too small
MOST_PIXELS_APART = 1024 * 1024  # of an image: the threads hold one each
Computed = TypeVar("Computed")


class Features(NamedTuple):
    maps: list[Tensor]  # NCHW, fine to coarse; one per entry of `channels` and `strides`
    pooled: Tensor  # (B, C); what the classifier, DINO and k-NN see


@register_notrace_module  # one node to timm's symbolic tracer: its branches depend on the image size
class Stage(nn.Module):
    """Down-sampling (from the second stage on), blocks, and a norm beside the trunk for the stage's map.

    The tap `output` (B, C, H, W) is what the next stage gets: the layer to use for Grad-CAM and similar methods.
    """

    grad_checkpointing = False

    def __init__(self, downsample: nn.Module, blocks: Sequence[nn.Module], norm: nn.Module, **taps: nn.Module) -> None:
        """`taps`: taps of blocks under the stage's name for them; a module's first path is its name."""
        super().__init__()
        self.downsample = downsample
        for name, tap in taps.items():
            self.add_module(name, tap)
        self.blocks = nn.ModuleList(blocks)
        self.output = Tap()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.downsample(x))

    def run(self, x: Tensor, *shared: Any) -> Tensor:
        """Tokens (B, H, W, C) through the blocks; every block also gets what they share."""
        for block in self.blocks:
            x = run_block(block, x, *shared, recompute=self.grad_checkpointing)
        return apply_nchw(self.output, x)

    def map(self, x: Tensor) -> Tensor:
        return self.norm(x).permute(0, 3, 1, 2)  # (B, C, H, W)


class Backbone(nn.Module):
    """Base of all families. Subclasses assign `self.stem` and `self.stages`."""

    channels: tuple[int, ...]
    strides: tuple[int, ...]
    global_pool: str
    stem: nn.Module
    stages: nn.ModuleList
    first_conv: str  # path of the first convolution, adapted to the number of input channels
    pooling: tuple[str, ...] = ("avg", "")  # what `global_pool` may be; the first is the default
    dense_arguments: Mapping[str, Any] = {}  # constructor arguments for `features_only` that differ from the defaults
    reset_when_resized: str = r"$^"  # regular expression of parameters that may change shape between tasks
    reset_when_missing: str = r"$^"  # of parameters that weights for another task lack
    growth: str | None = None  # for `vitreous info --scaling`: how the work grows with the image, and why
    settings: Any = None  # a dataclass whose fields are further constructor arguments, if any
    for_small_images: str | None = "stem_stride"  # the argument to lower for them

    def __init__(
        self,
        channels: Sequence[int],
        strides: Sequence[int],
        *,
        num_classes: int = 1000,
        in_chans: int = 3,
        global_pool: str | None = None,
        drop_rate: float = 0.0,
        head_width: int = 0,
        **unknown: Any,
    ) -> None:
        """`head_width`: channels of a layer between the last map and the classifier; 0 for none."""
        super().__init__()
        for name in unknown:
            raise unknown_argument(type(self), self.settings, name)
        if head_width < 0:
            raise InputError(f"head_width={head_width} given; it is a number of channels, or 0 for none")
        self.channels, self.strides = tuple(channels), tuple(strides)
        self.in_chans = in_chans
        self.num_features = self.head_hidden_size = head_width or self.channels[-1]
        self.feature_info = [
            dict(num_chs=channel, reduction=stride, module=f"stages.{i}")
            for i, (channel, stride) in enumerate(zip(self.channels, self.strides, strict=True))
        ]
        self.projection: nn.Module = Projection(self.channels[-1], head_width) if head_width else nn.Identity()
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, self.pooling[0] if global_pool is None else global_pool)

    def maps(self, x: Tensor, depth: int | None = None) -> list[Tensor]:
        """Feature maps (B, C, H, W) of the first `depth` stages (all by default), fine to coarse."""
        x = self.embed(x)
        outputs = []
        for stage in self.stages[:depth]:
            assert isinstance(stage, Stage)
            x = stage(x)
            outputs.append(stage.map(x))
        return outputs

    def embed(self, images: Tensor) -> Tensor:
        return in_row_strips(self.stem, self.tokens(images))  # (B, C, H, W) -> tokens (B, H, W, C)

    def final(self, maps: Sequence[Tensor]) -> Tensor:
        """The input of the head, from the stages' maps: by default from the last."""
        return self.projection(maps[-1])

    def pool(self, final: Tensor) -> Tensor:
        return final.mean((2, 3))  # (B, C, H, W) -> (B, C)

    def features(self, x: Tensor) -> Features:
        maps, final = self.apart(self.maps_and_final, x)
        return Features(maps, self.pool(final))

    def maps_and_final(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        maps = self.maps(x)
        return maps, self.final(maps)

    def apart(self, work: Callable[[Tensor], Computed], x: Tensor) -> Computed:
        """The work on all images; at inference on the CPU every thread has images of its own, if there are several."""
        if not self.worth_threads(x):
            return work(x)
        together = min(-(-len(x) // concurrent_pieces()), max(1, PIXELS_TOGETHER // x[0, 0].numel()))
        done = in_threads(work, x.split(together))
        return tree_map(lambda *parts: torch.cat(parts), *done)

    def worth_threads(self, x: Tensor) -> bool:
        """Large images are divided into tiles instead. What watches a module must see the whole batch."""
        if not eager_inference(x) or not threads_allowed(x) or x.ndim != 4 or len(x) < 2:
            return False
        pixels = x[0, 0].numel()
        enough = len(x) * pixels >= PIXELS_TOGETHER // 4 and pixels <= MOST_PIXELS_APART
        return enough and is_divisible(self, foreign=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def tokens(self, images: Tensor) -> Tensor:
        """Checked images as a channels-last (B, H, W, C) view, which every family starts from."""
        return images_to_tokens(images, self.in_chans, self.strides[-1], self.for_small_images)

    # What timm expects of a model ------------------------------------------------------------------

    def forward_features(self, x: Tensor) -> Tensor:
        return self.apart(lambda some: self.final(self.maps(some)), x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        pooled = self.head_drop(self.pool(x) if self.global_pool else x)
        return pooled if pre_logits else self.head(pooled)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Feature maps by index, optionally with the final one. Our maps are always normalised, whatever `norm`."""
        if output_fmt not in ("NCHW", "NHWC"):
            raise InputError(f"output_fmt={output_fmt!r} given; maps come as NCHW or NHWC")
        taken, last = self.take_indices(indices)
        depth = last + 1 if stop_early else None
        maps = self.apart(lambda some: self.maps(some, depth), x)
        chosen = [maps[i] if output_fmt == "NCHW" else maps[i].permute(0, 2, 3, 1) for i in taken]
        if intermediates_only:
            return chosen
        whole = len(maps) == len(self.stages)  # a pass that stopped early gives no input for the classifier
        return self.final(maps) if whole else maps[-1], chosen

    def take_indices(self, indices: int | list[int] | None) -> tuple[list[int], int]:
        """The indices of the requested maps, and the largest. A single number means that many of the last maps."""
        try:
            return feature_take_indices(len(self.stages), indices)
        except AssertionError as error:
            raise InputError(
                f"maps {indices} asked for; this model has {len(self.stages)}: give numbers from 0 or, counting from "
                "the end, from -1, or how many of the last"
            ) from error

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop the stages after the last requested one. Stage norms stay: they are part of the maps."""
        taken, last = self.take_indices(indices)
        self.stages = self.stages[: last + 1]
        self.channels, self.strides = self.channels[: last + 1], self.strides[: last + 1]
        if prune_head:
            self.projection = nn.Identity()
            self.num_features = self.head_hidden_size = self.channels[last]
            self.reset_classifier(0, "")
        return taken

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        global_pool = self.global_pool if global_pool is None else global_pool
        if global_pool not in self.pooling:
            accepted = ", ".join(repr(name) for name in self.pooling)
            raise InputError(f"global_pool={global_pool!r} given; accepted: {accepted} ('' is no pooling)")
        if global_pool == "" and num_classes > 0:
            raise InputError(
                f"num_classes={num_classes} needs global_pool={self.pooling[0]!r}: the classifier takes one vector"
            )
        self.num_classes, self.global_pool = num_classes, global_pool
        # A later reset must put the new layer on the model's device.
        like = next(self.parameters(), torch.empty(0))
        head = nn.Linear(self.num_features, num_classes) if num_classes > 0 else nn.Identity()
        self.head = head.to(like.device, like.dtype)
        self._init_weights(self.head)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, nn.Conv2d):
            fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels // module.groups
            nn.init.normal_(module.weight, std=(2.0 / fan_out) ** 0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def set_grad_checkpointing(self, enable: bool = True, part: str = "blocks") -> None:
        """Recompute activations in the backward pass instead of keeping them.

        This applies to every block or, with `part="mlp"`, only to the feed-forward layers: their hidden maps are most
        of what a block keeps, and attention is not computed twice.
        """
        if part not in RECOMPUTABLE_PARTS:
            raise InputError(f"part={part!r} given; accepted: {', '.join(map(repr, RECOMPUTABLE_PARTS))}")
        for stage in self.stages:  # mypy takes attributes of modules for tensors, hence setattr
            setattr(stage, "grad_checkpointing", enable and part == "blocks")  # noqa: B010
        for module in self.modules():
            if isinstance(module, ConvMlp):
                module.recompute = enable and part == "mlp"

    def group_matcher(self, coarse: bool = False) -> dict:
        """Layer groups for layer-wise learning-rate decay: the stem, then each stage or each block."""
        if coarse:
            return dict(stem=r"^(?:stem|teacher)", blocks=r"^stages\.(\d+)")
        return dict(
            stem=r"^(?:stem|teacher)",
            blocks=[
                (r"^stages\.(\d+)\.(?:downsample|position)", (0,)),
                (r"^stages\.(\d+)\.blocks\.(\d+)", None),
                (r"^stages\.(\d+)\.norm", (99999,)),
            ],
        )

    def no_weight_decay(self) -> set[str]:
        """Learned positions, tokens and temperatures: decay would pull a temperature to 0 and flatten its attention.

        The optimiser exempts one-dimensional tensors itself.
        """
        exempt = ("position", "token", "temperature")
        return {name for name, _ in self.named_parameters() if name.endswith(exempt)}

    # Weights ---------------------------------------------------------------------------------------

    def translate(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Translate keys of the original release to ours; ours stay. Families with public weights override this."""
        return state

    def load_weights(self, source: str | Path | dict[str, Tensor], *, strict: bool = True) -> LoadReport:
        """Load a file, a URL or a state dict in our layout or the original one, whatever it is wrapped in.

        The classifier and the layers that depend on the number of clusters keep their initial values if their shapes
        differ; the report names them. Any other misfit is an error unless `strict` is False.
        """
        original = read_state(source)
        name = source if isinstance(source, (str, Path)) else "the given state dict"
        return apply_state(self, self.translate(original), str(name), strict=strict, original=original)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As in torch for our layout; any other layout, e.g. from timm's `checkpoint_path`, goes to `load_weights`.

        Values that are not finite are refused in every layout.
        """
        if assign or state_dict.keys() <= self.state_dict().keys():
            check_finite(state_dict, "the given state dict")
            return super().load_state_dict(state_dict, strict, assign)
        report = self.load_weights(dict(state_dict), strict=strict)
        return _IncompatibleKeys(report.missing, report.unexpected)


@register_notrace_function
def images_to_tokens(images: Tensor, channels: int, smallest: int, smaller_by: str | None) -> Tensor:
    if images.ndim != 4 or images.shape[1] != channels:
        raise InputError(
            f"images of shape {tuple(images.shape)} given; this model takes (batch, {channels}, height, width). "
            "For another number of channels build it with in_chans=…"
        )
    if images.shape[2] < smallest or images.shape[3] < smallest:
        otherwise = f", or build the model with a smaller {smaller_by}" if smaller_by else ""
        raise InputError(
            f"images of {images.shape[2]}x{images.shape[3]} pixels given; the smallest this model can take is "
            f"{smallest}x{smallest}. Enlarge them{otherwise}"
        )
    return images.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)


def run_block(block: nn.Module, *inputs, recompute: bool):
    """Call a block; with `recompute`, keep only its inputs for the backward pass."""
    if not (recompute and torch.is_grad_enabled()):
        return block(*inputs)
    if torch.compiler.is_compiling():  # a compiled program recomputes without updating statistics twice
        return checkpoint(block, *inputs, use_reentrant=False)
    return checkpoint(block, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), Recomputing(block)))


class Recomputing:
    """Compute a block again like the first time, as often as it is, but keep batch norms from counting images twice."""

    def __init__(self, block: nn.Module) -> None:
        self.block, self.convolutions = block, defined_again()
        self.kept: list[tuple[_BatchNorm, dict[str, Any]]] = []

    def __enter__(self) -> None:
        self.convolutions.__enter__()
        norms = [norm for norm in self.block.modules() if isinstance(norm, _BatchNorm) and norm.training]
        self.kept = [(norm, dict(norm._buffers)) for norm in norms]
        for norm, buffers in self.kept:
            norm._buffers.update({name: value if value is None else value.clone() for name, value in buffers.items()})

    def __exit__(self, *_failure: object) -> None:
        for norm, buffers in self.kept:
            norm._buffers.update(buffers)
        self.kept = []
        self.convolutions.__exit__(None, None, None)
