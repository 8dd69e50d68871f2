"""Semantic FPN: the levels of a feature pyramid, resized to one size and added.

Kirillov, Girshick, He, Dollár: "Panoptic Feature Networks", arXiv 1901.02446. The paper's group norm is batch norm
here by default, as in the segmentation results of the backbones' papers.

Shapes: B batch, K classes, H W the finest map.
"""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork

from vitreous.heads.semantic import Decoder, DecoderOutput, check_decoder, conv_norm_relu, initialise_decoder
from vitreous.layers.patch import resize


class SemanticFPN(Decoder):
    """Each level is convolved once for every doubling up to the finest map's size, all are added and classified.

    Args:
        pyramid: Channels of the feature pyramid.
        width: Channels of the layers after it.
        dropout: Probability of dropping a channel before the classifier.
        norm: Norm of the layers after the pyramid: "bn" or "gn".
    """

    def __init__(
        self,
        channels: Sequence[int],
        classes: int,
        *,
        pyramid: int = 256,
        width: int = 128,
        dropout: float = 0.1,
        norm: str = "bn",
    ) -> None:
        super().__init__()
        check_decoder(channels, classes, norm, pyramid=pyramid, width=width)
        self.scales = nn.ModuleList(
            nn.ModuleList(conv_norm_relu(width if step else pyramid, width, 3, norm=norm) for step in range(max(1, i)))
            for i in range(len(channels))
        )
        self.dropout = nn.Dropout2d(dropout)
        self.classifier = nn.Conv2d(width, classes, 1)
        initialise_decoder(self, self.classifier)
        self.fpn = FeaturePyramidNetwork(list(channels), pyramid)  # starts its convolutions itself

    def forward(self, maps: Sequence[Tensor], *, auxiliary: bool = True) -> DecoderOutput:
        levels = list(self.fpn(OrderedDict(enumerate(maps))).values())
        return DecoderOutput(self.classifier(self.dropout(self.gather(levels))))

    def gather(self, levels: list[Tensor]) -> Tensor:
        """Level i is enlarged i times, through the sizes of the finer levels, so that any image size works."""
        total = self.scales[0][0](levels[0])  # type: ignore[index]
        for i, steps in enumerate(self.scales[1:], 1):
            x = levels[i]
            for finer, convolve in zip(reversed(levels[:i]), steps, strict=True):  # type: ignore[call-overload]
                x = resize(convolve(x), finer.shape[2:])
            total = total + x
        return total  # (B, width, H, W)


HEADS = {"segment": {"fpn": SemanticFPN}}
