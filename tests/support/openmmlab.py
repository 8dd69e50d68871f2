"""The heads of mmsegmentation and mmpose in miniature: their module names and their order of operations.

Written from their public configurations and the names in their checkpoints, so that a state dict of these modules has
the names, shapes and meaning of a released one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.families import awake
from tests.support.original_weights import paca_original
from vitreous.models.paca import PaCa


def resize(x: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(x, like.shape[2:], mode="bilinear", align_corners=False)


class ConvModule(nn.Module):
    def __init__(self, in_dim: int, dim: int, kernel: int, norm: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_dim, dim, kernel, padding=kernel // 2, bias=not norm)
        if norm:
            self.bn = nn.BatchNorm2d(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return F.relu(self.bn(x)) if hasattr(self, "bn") else x


class Neck(nn.Module):
    def __init__(self, channels: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.lateral_convs = nn.ModuleList(ConvModule(channel, width, 1, norm=False) for channel in channels)
        self.fpn_convs = nn.ModuleList(ConvModule(width, width, 3, norm=False) for _ in channels)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        laterals = [conv(x) for conv, x in zip(self.lateral_convs, maps, strict=True)]
        for i in range(len(laterals) - 1, 0, -1):
            laterals[i - 1] = laterals[i - 1] + F.interpolate(laterals[i], laterals[i - 1].shape[2:], mode="nearest")
        return [conv(x) for conv, x in zip(self.fpn_convs, laterals, strict=True)]


class FPNHead(nn.Module):
    def __init__(self, in_dim: int, width: int, classes: int) -> None:
        super().__init__()
        self.scale_heads = nn.ModuleList()
        for i in range(4):
            layers: list[nn.Module] = []
            for step in range(max(1, i)):
                layers.append(ConvModule(width if step else in_dim, width, 3))
                layers += [nn.Upsample(scale_factor=2, mode="bilinear")] if i else []
            self.scale_heads.append(nn.Sequential(*layers))
        self.conv_seg = nn.Conv2d(width, classes, 1)

    def forward(self, maps: list[Tensor]) -> Tensor:
        total = self.scale_heads[0](maps[0])
        for head, x in zip(self.scale_heads[1:], maps[1:], strict=True):
            total = total + resize(head(x), total)
        return self.conv_seg(total)


class UPerHead(nn.Module):
    def __init__(self, channels: tuple[int, ...], width: int, classes: int) -> None:
        super().__init__()
        pools = (1, 2, 3, 6)
        self.psp_modules = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(pool), ConvModule(channels[-1], width, 1)) for pool in pools
        )
        self.bottleneck = ConvModule(channels[-1] + len(pools) * width, width, 3)
        self.lateral_convs = nn.ModuleList(ConvModule(channel, width, 1) for channel in channels[:-1])
        self.fpn_convs = nn.ModuleList(ConvModule(width, width, 3) for _ in channels[:-1])
        self.fpn_bottleneck = ConvModule(len(channels) * width, width, 3)
        self.conv_seg = nn.Conv2d(width, classes, 1)

    def forward(self, maps: list[Tensor]) -> Tensor:
        laterals = [conv(x) for conv, x in zip(self.lateral_convs, maps[:-1], strict=True)]
        pooled = [resize(pool(maps[-1]), maps[-1]) for pool in self.psp_modules]
        laterals.append(self.bottleneck(torch.cat([maps[-1], *pooled], 1)))
        for i in range(len(laterals) - 1, 0, -1):
            laterals[i - 1] = laterals[i - 1] + resize(laterals[i], laterals[i - 1])
        out = [conv(x) for conv, x in zip(self.fpn_convs, laterals[:-1], strict=True)]
        out.append(laterals[-1])
        return self.conv_seg(self.fpn_bottleneck(torch.cat([resize(x, out[0]) for x in out], 1)))


class FCNHead(nn.Module):
    def __init__(self, in_dim: int, width: int, classes: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(ConvModule(in_dim, width, 3))
        self.conv_seg = nn.Conv2d(width, classes, 1)

    def forward(self, maps: list[Tensor]) -> Tensor:
        return self.conv_seg(self.convs(maps[2]))


class SimpleHead(nn.Module):
    def __init__(self, in_dim: int, width: int, joints: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for step in range(3):
            up = nn.ConvTranspose2d(width if step else in_dim, width, 4, stride=2, padding=1, bias=False)
            layers += [up, nn.BatchNorm2d(width), nn.ReLU()]
        self.deconv_layers = nn.Sequential(*layers)
        self.final_layer = nn.Conv2d(width, joints, 1)

    def forward(self, maps: list[Tensor]) -> Tensor:
        return self.final_layer(self.deconv_layers(maps[-1]))


CHANNELS, CLASSES = (8, 16, 24, 32), 5
PACA = dict(dims=CHANNELS, depths=(1, 1, 2, 1), heads=(1, 2, 3, 4), clusters=(6, 7, 6, 0))
IMAGES = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))


def paca() -> PaCa:
    torch.manual_seed(1)
    return awake(PaCa(**PACA, num_classes=0)).eval()


def whole(names: dict[str, Tensor], parts: dict[str, nn.Module]) -> dict[str, Tensor]:
    """The state dict of a model of the toolbox with these parts."""
    state = {f"backbone.{key}": value for key, value in names.items()}
    for name, part in parts.items():
        state |= {f"{name}.{key}": value for key, value in part.state_dict().items()}
    return state


def semantic_fpn() -> tuple[dict[str, Tensor], Tensor]:
    backbone = paca()
    neck, head = awake(Neck(CHANNELS, 12)).eval(), awake(FPNHead(12, 10, CLASSES)).eval()
    with torch.no_grad():
        expected = head(neck(backbone.features(IMAGES).maps))
    return whole(paca_original(backbone.state_dict()), {"neck": neck, "decode_head": head}), expected
