"""The original PaCa-ViT release: model names, files, published figures, and a translation of its keys to ours."""

import re

from torch import Tensor

from vitreous.registry import Published

ORIGINAL_NAMES = {  # names of the original repository
    "pacavit_tiny_p2cconv_100_0": "paca_tiny",
    "pacavit_small_p2cconv_100_0": "paca_small",
    "pacavit_small_p2cmlp_100_0": "paca_small_mlp",
    "pacavit_base_p2cconv_100_0": "paca_base",
    "pacavit_convmixer_tiny_100": "paca_tiny_teacher",
    "pacavit_convmixer_small_100": "paca_small_teacher",
    "pacavit_convmixer_base_100": "paca_base_teacher",
    "pacavit_small_p2cconv_2_0": "paca_small_c2",
    "pacavit_small_p2cconv_49_0": "paca_small_c49",
    "pacavit_small_p2cconv_49_100": "paca_small_c49_100",
    "pacavit_small_p2cconv_100_49": "paca_small_c100_49",
    "pacavit_small_p2cconv_100": "paca_small_c100",
    "pacavit_small_p2cconv_100_blockwise": "paca_small_blockwise",
}
RELEASE_URL = "https://github.com/iVMCL/PaCaViT/releases/download/pacavit/IMNET_224_{}.pth"
PACA_WEIGHTS = {  # all ImageNet models were released except the tiny teacher
    ours: {"ivmcl_in1k": RELEASE_URL.format(original)}
    for original, ours in ORIGINAL_NAMES.items()
    if ours != "paca_tiny_teacher"
}

PACA_PUBLISHED = {  # README of the release; tables 1 and 4 of the arXiv version for generation 1
    "paca_tiny": Published(12.2, 3.2, 80.9),
    "paca_small": Published(22.0, 5.5, 83.08),
    "paca_small_mlp": Published(22.6, 5.9, 83.13),
    "paca_base": Published(46.9, 9.5, 83.96),
    "paca_small_teacher": Published(21.1, 5.4, 83.17),
    "paca_base_teacher": Published(46.7, 9.7, 84.22),
    "paca_small_c2": Published(22.0, 4.7, 82.28),
    "paca_small_c49": Published(22.0, 5.0, 82.95),
    "paca_small_c49_100": Published(22.2, 5.3, 82.98),
    "paca_small_c100_49": Published(22.2, 5.3, 82.87),
    "paca_small_c100": Published(22.3, 5.6, 83.05),
    "paca_small_blockwise": Published(24.1, 6.1, 82.93),
    "paca_b0": Published(3.4, None, 71.85),
    "paca_b1": Published(12.7, None, 79.47),
    "paca_b2": Published(22.7, None, 82.28),
    "paca_b0_cifar": Published(3.0, None, 79.58, "CIFAR-100"),
    "paca_b1_cifar": Published(11.8, None, 82.96, "CIFAR-100"),
    "paca_b2_cifar": Published(20.8, None, 84.18, "CIFAR-100"),
    "paca_b0_cifar_pure": Published(3.0, None, 79.52, "CIFAR-100"),
    "paca_b1_cifar_pure": Published(11.7, None, 82.26, "CIFAR-100"),
    "paca_b2_cifar_pure": Published(20.6, None, 83.64, "CIFAR-100"),
}

# In order; \1 is a stage number from 1 and becomes our number from 0.
PACA_KEYS = [
    (r"^patch_embed\.proj\.0\.", "stem.conv1."),
    (r"^patch_embed\.proj\.1\.", "stem.conv2."),
    (r"^patch_embed\.norm\.", "stem.norm."),
    (r"^transition(\d)\.proj\.", "stages.{next}.downsample.conv."),
    (r"^transition(\d)\.norm\.", "stages.{next}.downsample.norm."),
    (r"^norm(\d)\.", "stages.{this}.norm."),
    (r"^stage(\d)\.0\.pos_embed$", "stages.{this}.position"),
    (r"^stage(\d)\.", "stages.{this}.blocks."),
    (r"\.norm([12])_before\.", r".norm\1."),
    (r"\.attn\.clustering\.", ".clustering."),
    (r"\.attn\.cluster_pos_enc$", ".attention.cluster_position"),
    (r"\.attn\.", ".attention."),
    (r"\.mlp\.dwconv\.dwconv\.", ".mlp.depthwise."),
    (r"^paca_teacher\.block(\d)\.", "teacher.levels.{this}."),
    (r"^paca_teacher\.transition(\d)\.0\.conv\.", "teacher.down.{this}.conv."),
    (r"^paca_teacher\.transition(\d)\.2\.", "teacher.down.{this}.after.1."),
    (r"^paca_teacher\.lateral(\d)\.", "teacher.lateral.{this}."),
    (r"^paca_teacher\.fpn(\d)\.", "teacher.fuse.{this}."),
    (r"^paca_teacher\.to_clusters(\d)\.", "teacher.to_clusters.{this}."),
    (r"^(teacher\.(?:levels\.\d+|fuse)\.\d+)\.0\.fn\.0\.", r"\1.depthwise."),
    (r"^(teacher\.(?:levels\.\d+|fuse)\.\d+)\.0\.fn\.2\.", r"\1.after_depthwise.1."),
    (r"^(teacher\.(?:levels\.\d+|fuse)\.\d+)\.1\.", r"\1.pointwise."),
    (r"^(teacher\.(?:levels\.\d+|fuse)\.\d+)\.3\.", r"\1.after_pointwise.1."),
]

CLUSTERING_KEY = re.compile(r"(.*\.clustering)\.clustering\.(\d)\.(weight|bias)$")


def translate_entry(key: str, value: Tensor, state: dict[str, Tensor]) -> tuple[str, Tensor]:
    """Translate one entry of an original checkpoint to our keys and shapes; our own entries stay."""
    clustering = CLUSTERING_KEY.match(key)
    if clustering:  # positions mean different layers in each kind; the number of layers tells the kind
        path, position, kind = clustering.groups()
        count = sum(f"{path}.clustering.{i}.weight" in state for i in (0, 2, 4))
        layers = {3: ("depthwise", "pointwise", "logits"), 2: ("fc1", "logits"), 1: ("logits",)}[count]
        key = f"{path}.{layers[int(position) // 2]}.{kind}"
        if position != "0" and value.ndim == 4:
            value = value.flatten(1)  # 1x1 convolutions are linear layers here
    if key.endswith(".pos_embed"):
        side = round(value.shape[1] ** 0.5)
        value = value.transpose(1, 2).unflatten(2, (side, side))
    for pattern, ours in PACA_KEYS:
        match = re.search(pattern, key)
        if match and "{" in ours:
            stage = int(match[1])
            key = re.sub(pattern, ours.format(this=stage - 1, next=stage), key)
        elif match:
            key = re.sub(pattern, ours, key)
    return key, value
