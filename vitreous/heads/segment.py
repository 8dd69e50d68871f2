"""Models that classify every pixel: a backbone's maps, a decoder, its losses.

    model = build_segmenter(create_model("paca_tiny"), "upernet", classes=150)
    losses = model(images, {"semantic": labels})     # labels (B, H, W), 255 for pixels to ignore
    logits = model(images)                           # (B, K, H, W), at the size of the images
    logits = slide(model, images, crop=(512, 512), stride=(341, 341))
    probabilities = multi_scale(model, images)

Shapes: B batch, K classes, H W image size.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from vitreous.errors import InputError
from vitreous.heads import check_arguments, heads_of
from vitreous.heads.pyramid import Levels
from vitreous.heads.semantic import Decoder, DecoderOutput, pixel_loss
from vitreous.layers.patch import resize

SEGMENTERS = tuple(heads_of("segment"))
IGNORE_LABEL = 255
SegmentFunction = Callable[[Tensor], Tensor]  # images (B, C, H, W) -> logits (B, K, H, W)


class Segmenter(nn.Module):
    """Images (B, 3, H, W) of any size -> logits of the same size, or losses when there are targets.

    Args:
        auxiliary_weight: Weight of the loss of the auxiliary output.
    """

    def __init__(self, levels: Levels, decoder: Decoder, *, auxiliary_weight: float) -> None:
        super().__init__()
        self.levels, self.decoder, self.auxiliary_weight = levels, decoder, auxiliary_weight

    def forward(self, images: Tensor, targets: Mapping[str, Tensor] | None = None, sizes: Tensor | None = None) -> Any:
        """Logits cover the whole images, so `sizes`, which tell the padding, are not used."""
        if targets is not None:
            return self.losses(self.output(images), targets["semantic"])
        return resize(self.output(images, auxiliary=False).logits, images.shape[2:])

    def output(self, images: Tensor, *, auxiliary: bool = True) -> DecoderOutput:
        """The decoder's output at its own size; without `auxiliary`, nothing that only losses need."""
        return self.decoder(self.levels(images), auxiliary=auxiliary)

    def losses(self, output: DecoderOutput, labels: Tensor) -> dict[str, Tensor]:
        check_pixel_labels(labels, output.logits.shape[1])
        losses = {"segment": pixel_loss(output.logits, labels, ignore=IGNORE_LABEL)}
        name = self.decoder.auxiliary_loss
        if name is not None and output.auxiliary is not None:
            losses[name] = self.auxiliary_weight * pixel_loss(output.auxiliary, labels, ignore=IGNORE_LABEL)
        return losses


def build_segmenter(backbone: nn.Module, head: str, classes: int, **head_args: Any) -> Segmenter:
    """A segmenter on a backbone, which becomes a part of it.

    Args:
        backbone: One of our models, or one that timm made with `features_only=True`.
        head: One of SEGMENTERS: "fpn" (Semantic FPN), "upernet", "paca".
        classes: How many, the background included.
        head_args: Arguments of the decoder, such as width=64, and `auxiliary_weight` (0.4) of decoders with an
            auxiliary output.
    """
    decoders = heads_of("segment")
    if head not in decoders:
        raise InputError(f"unknown segmentation head {head!r}; accepted: {', '.join(decoders)}")
    make = decoders[head]
    accepted = [name for name in inspect.signature(make).parameters if name not in ("channels", "classes")]
    accepted += ["auxiliary_weight"] if getattr(make, "auxiliary_loss", None) else []
    check_arguments(head, head_args, accepted)
    weight = head_args.pop("auxiliary_weight", 0.4)
    levels = Levels(backbone)
    return Segmenter(levels, make(levels.channels, classes, **head_args), auxiliary_weight=weight)


def check_pixel_labels(labels: Tensor, classes: int) -> None:
    """On a GPU a label out of range would abort without an explanation."""
    if isinstance(labels, FakeTensor):  # it has no values: only its memory is counted
        return
    wrong = (labels != IGNORE_LABEL) & ((labels < 0) | (labels >= classes))
    if wrong.any():
        raise InputError(
            f"label {int(labels[wrong][0])} given; this model has classes 0 to {classes - 1}, and {IGNORE_LABEL} for "
            "pixels to ignore. Give the model as many classes as the data, or mark other values to be ignored"
        )


def best_classes(logits: Tensor, size: Sequence[int]) -> Tensor:
    """The best class (H, W) of every pixel of logits (K, h, w), resized to `size`.

    That is `resize` and `argmax`, but a few rows at a time, and with the classes contiguous in memory: a large picture
    with many classes would otherwise take gigabytes, and more time than the network.
    """
    (_, h, _), (H, W) = logits.shape, size
    beside = logits.float().permute(1, 2, 0).contiguous()[None].permute(0, 3, 1, 2)  # channels-last, whatever it was
    wide = resize(beside, (h, W))[0].permute(1, 2, 0)  # (h, W, K)
    place = ((torch.arange(H, dtype=torch.float64) + 0.5) * h / H - 0.5).clamp(0, h - 1)
    above = place.floor()
    share = (place - above).to(wide)[:, None, None]
    labels = torch.empty(H, W, dtype=torch.uint8 if len(logits) <= 256 else torch.int64, device=logits.device)
    rows, counts = above.unique_consecutive(return_counts=True)
    for row, part, weights in zip(
        rows.int().tolist(), labels.split(counts.tolist()), share.split(counts.tolist()), strict=True
    ):
        upper, lower = wide[row], wide[min(row + 1, h - 1)]  # (W, K)
        part.copy_(torch.addcmul(upper, weights, lower - upper).argmax(2))
    return labels


# Predictions averaged over several views of the images -----------------------------------------------


def sliding_window(
    model: SegmentFunction, images: Tensor, crop: tuple[int, int], stride: tuple[int, int], *, batch: int = 8
) -> Tensor:
    """Logits (B, K, H, W): the mean over all windows that cover a pixel.

    Args:
        crop: Height and width of a window; where an image is smaller, it is the window.
        stride: Distance between windows; the last window of a row or column is moved back into the image.
        batch: How many windows the model gets at once.
    """
    if min(crop) < 1 or min(stride) < 1 or stride[0] > crop[0] or stride[1] > crop[1]:
        raise InputError(f"crop={crop}, stride={stride} given; strides must be from 1 to the size of the window")
    B, _, H, W = images.shape
    tall, wide = min(crop[0], H), min(crop[1], W)
    corners = list(product(window_starts(H, tall, stride[0]), window_starts(W, wide, stride[1])))
    windows = torch.cat([images[:, :, y : y + tall, x : x + wide] for y, x in corners])  # (windows B, C, tall, wide)
    logits = torch.cat([model(part) for part in windows.split(batch)])
    total = logits.new_zeros(B, logits.shape[1], H, W)
    counted = logits.new_zeros(H, W)
    for (y, x), part in zip(corners, logits.split(B), strict=True):
        total[:, :, y : y + tall, x : x + wide] += part
        counted[y : y + tall, x : x + wide] += 1
    return total / counted


def window_starts(length: int, window: int, stride: int) -> list[int]:
    """First pixels of the windows along a side: they cover all of it, and none exceeds it."""
    return [*range(0, length - window, stride), length - window]


def multi_scale(
    model: SegmentFunction,
    images: Tensor,
    scales: Sequence[float] = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75),
    *,
    flip: bool = True,
) -> Tensor:
    """Probabilities (B, K, H, W): the mean over sizes of the images and, with `flip`, over their mirror images."""
    if not scales or min(scales) <= 0:
        raise InputError(f"scales={tuple(scales)} given; factors above 0 are needed, such as (0.75, 1.0, 1.25)")
    size = images.shape[2:]
    total: Tensor | None = None
    for scale in scales:
        scaled = [max(1, round(side * scale)) for side in size]
        view = images if scaled == list(size) else resize(images, scaled)
        for mirrored in (False, True) if flip else (False,):
            logits = model(view.flip(3)).flip(3) if mirrored else model(view)
            probabilities = resize(logits, size).softmax(1)
            total = probabilities if total is None else total + probabilities
    assert total is not None
    return total / (len(scales) * (2 if flip else 1))
