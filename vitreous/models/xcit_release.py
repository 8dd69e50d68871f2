"""The original XCiT release: files by tag, published figures, and a translation of its keys to ours.

Timm's port of the same weights uses nearly the same keys; both layouts are translated.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vitreous.registry import Published

RELEASE_PREFIX = "https://dl.fbaipublicfiles.com/xcit/xcit_"
RELEASED_SIZES = ("nano_12", "tiny_12", "tiny_24", "small_12", "small_24", "medium_24", "large_24")
DINO_SIZES = ("small_12", "medium_24")


def weights_of(size: str, patch: int) -> dict[str, str | dict[str, Any]]:
    file = f"{RELEASE_PREFIX}{size}_p{patch}"
    tags: dict[str, str | dict[str, Any]] = {
        "fb_in1k": f"{file}_224.pth",
        "fb_dist_in1k": f"{file}_224_dist.pth",
        "fb_dist_in1k_384": dict(url=f"{file}_384_dist.pth", input_size=(3, 384, 384)),
    }
    if size in DINO_SIZES:
        tags["fb_dino"] = dict(url=f"{RELEASE_PREFIX}{size}_cp{patch}_dino.pth", num_classes=0)
    return tags


XCIT_WEIGHTS = {f"xcit_{size}_p{patch}": weights_of(size, patch) for size in RELEASED_SIZES for patch in (16, 8)}
XCIT_PUBLISHED = {  # tables 1 and 2 of the paper's README: 224 pixels, without distillation
    "xcit_nano_12_p16": Published(3, 0.5, 69.9),
    "xcit_nano_12_p8": Published(3, None, 73.8),
    "xcit_tiny_12_p16": Published(7, 1.2, 77.1),
    "xcit_tiny_12_p8": Published(7, None, 79.7),
    "xcit_tiny_24_p16": Published(12, 2.3, 79.4),
    "xcit_tiny_24_p8": Published(12, None, 81.9),
    "xcit_small_12_p16": Published(26, 4.8, 82.0),
    "xcit_small_12_p8": Published(26, None, 83.4),
    "xcit_small_24_p16": Published(48, 9.1, 82.6),
    "xcit_small_24_p8": Published(48, None, 83.9),
    "xcit_medium_24_p16": Published(84, 16.2, 82.7),
    "xcit_medium_24_p8": Published(84, None, 83.7),
    "xcit_large_24_p16": Published(189, 36.1, 82.9),
    "xcit_large_24_p8": Published(189, None, 84.4),
}

XCIT_KEYS: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r"^patch_embed\.proj\.(\d)\.0\.", lambda m: f"stem.convs.{int(m[1]) // 2}.conv."),
    (r"^patch_embed\.proj\.(\d)\.1\.", lambda m: f"stem.convs.{int(m[1]) // 2}.norm."),
    (r"^pos_embed(?:er)?\.token_projection\.", "position.projection."),
    (r"^cls_token$", "class_token"),
    (r"^cls_attn_blocks\.", "class_blocks."),
    (r"^(class_blocks|blocks)\.(\d+)\.attn\.", r"\1.\2.attention."),
    (r"\.local_mp\.bn\.", ".local.norm."),
    (r"\.local_mp\.", ".local."),
    (r"^fpn(\d)\.(\d)\.", lambda m: f"stages.{int(m[1]) - 1}.rescale.{m[2]}."),
]


def translate_state(state: dict[str, Tensor], starts: Sequence[int]) -> dict[str, Tensor]:
    """Translate a state dict with the original's or timm's keys to ours; one with our keys stays.

    `starts` are the indices of the blocks with which our stages begin.
    """
    renamed: dict[str, Tensor] = {}
    for key, value in state.items():
        for pattern, ours in XCIT_KEYS:
            key = re.sub(pattern, ours, key)
        key = re.sub(r"^blocks\.(\d+)\.", lambda match: block_path(int(match[1]), starts), key)
        if key == "position.projection.weight":
            value = value.flatten(1)  # a 1x1 convolution in the original
        if re.match(r"class_blocks\.\d+\.attention\.qkv\.", key):
            for name, part in zip("qkv", torch.chunk(value, 3), strict=True):
                renamed[key.replace("qkv", name)] = part
        else:
            renamed[key] = value
    return renamed


def block_path(number: int, starts: Sequence[int]) -> str:
    """Path of block `number` of the column: its stage, and its index within the stage."""
    stage = max(i for i, start in enumerate(starts) if number >= start)
    return f"stages.{stage}.blocks.{number - starts[stage]}."
