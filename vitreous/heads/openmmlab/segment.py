"""Segmentation and keypoint checkpoints with the names of mmsegmentation and mmpose, such as those of PaCa and XCiT.

    release = describe("pacahead_….pth")              # which head, how many classes, how wide, how many clusters
    backbone = create_model("paca_small", features_only=True, clusters=release.clusters)
    model = build_segmenter(backbone, release.head, release.classes, **release.head_args)
    print(load_segmenter(model, "pacahead_….pth"))    # what became of every tensor

What these heads have in common with ours: maps are resized with half-pixel centres
(`align_corners=False`), convolutions before a batch norm have no bias, those of Semantic FPN's pyramid have one and no
norm, PaCa's clusters are classes in the order of its answer, and ADE20K's class 0 is "wall": its models were trained
with the label 0 ("other") of the data ignored and all others counted down by one (`reduce_zero_label`).
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from vitreous.errors import InputError
from vitreous.heads.keypoints import SimpleBaseline
from vitreous.heads.openmmlab.conversion import Conversion, Rules, load_release
from vitreous.heads.segment import Segmenter
from vitreous.heads.semantic import PACA_HEAD_KEYS, PaCaHead, SemanticFPN, UperNet
from vitreous.models.weights import read_tensors


def conv_and_norm(theirs: str, ours: str) -> list[tuple[str, str]]:
    """Their convolution modules call their two layers `conv` and `bn`."""
    return [(rf"^{theirs}\.conv\.", f"{ours}.0."), (rf"^{theirs}\.bn\.", f"{ours}.1.")]


SEGMENTER_RULES: dict[type, Rules] = {
    SemanticFPN: [
        *conv_and_norm(r"neck\.lateral_convs\.(\d+)", r"decoder.fpn.inner_blocks.\1"),
        *conv_and_norm(r"neck\.fpn_convs\.(\d+)", r"decoder.fpn.layer_blocks.\1"),
        *conv_and_norm(r"decode_head\.scale_heads\.(\d+)\.(\d+)", r"decoder.scales.\1.{\2/2}"),
        (r"^decode_head\.conv_seg\.", "decoder.classifier."),
    ],
    UperNet: [
        *conv_and_norm(r"decode_head\.psp_modules\.(\d+)\.1", r"decoder.context.branches.\1"),
        *conv_and_norm(r"decode_head\.bottleneck", "decoder.context.merge"),
        *conv_and_norm(r"decode_head\.lateral_convs\.(\d+)", r"decoder.lateral.\1"),
        *conv_and_norm(r"decode_head\.fpn_convs\.(\d+)", r"decoder.smooth.\1"),
        *conv_and_norm(r"decode_head\.fpn_bottleneck", "decoder.fuse"),
        (r"^decode_head\.conv_seg\.", "decoder.classifier."),
        *conv_and_norm(r"auxiliary_head\.convs\.0", "decoder.auxiliary"),
        (r"^auxiliary_head\.conv_seg\.", "decoder.auxiliary_classifier."),
    ],
    PaCaHead: [
        *((rf"^decode_head\.{theirs.removeprefix('^')}", f"decoder.{ours}") for theirs, ours in PACA_HEAD_KEYS),
        (r"^decode_head\.clustering\.1\.", "decoder.clustering.1."),
    ],
    SimpleBaseline: [
        (r"^(?:keypoint_head|head)\.deconv_layers\.", "deconvolutions."),
        (r"^(?:keypoint_head|head)\.final_layer\.", "heatmaps."),
    ],
}
SEGMENTER_CLASSIFIERS = r"decoder\.(?:auxiliary_)?classifier\.|decoder\.clustering\.1\.|heatmaps\."


class Release(NamedTuple):
    """What a checkpoint says about its model."""

    head: str  # "fpn", "upernet", "paca" or "keypoints"
    classes: int  # joints of "keypoints"
    head_args: dict[str, int]
    clusters: tuple[int, ...] | None  # of PaCa's stages; None for other backbones, and with a teacher's


def load_segmenter(model: Segmenter, source: str | Path | dict[str, Any], *, strict: bool = True) -> Conversion:
    """Load a segmentation checkpoint. Layers that depend on other classes or clusters are re-initialised."""
    rules = SEGMENTER_RULES[type(model.decoder)]
    return load_release(model, model.levels.backbone, source, rules, may_differ=SEGMENTER_CLASSIFIERS, strict=strict)


def load_keypoints(model: SimpleBaseline, source: str | Path | dict[str, Any], *, strict: bool = True) -> Conversion:
    """Load a keypoint checkpoint. With other joints, the last layer is re-initialised."""
    rules = SEGMENTER_RULES[SimpleBaseline]
    return load_release(model, model.levels.backbone, source, rules, may_differ=SEGMENTER_CLASSIFIERS, strict=strict)


HEAD_KEYS = {  # a key that only one head has
    "fpn": r"^decode_head\.scale_heads\.",
    "upernet": r"^decode_head\.psp_modules\.",
    "paca": r"^decode_head\.clustering\.",
    "keypoints": r"^(?:keypoint_head|head)\.deconv_layers\.",
}
WIDTH_KEYS = {  # argument of a head -> the tensor whose first axis tells it
    "fpn": {"pyramid": r"^neck\.fpn_convs\.0\.conv\.weight", "width": r"^decode_head\.scale_heads\.0\.0\.conv\.weight"},
    "upernet": {
        "width": r"^decode_head\.bottleneck\.conv\.weight",
        "auxiliary_width": r"^auxiliary_head\.convs\.0\.conv\.weight",
    },
    "paca": {"width": r"^decode_head\.convs\.0\.conv\.weight"},
    "keypoints": {"width": r"^(?:keypoint_head|head)\.deconv_layers\.1\.weight"},
}


def describe_segmenter(source: str | Path | dict[str, Any]) -> Release:
    """What to build for a checkpoint, from its keys and shapes."""
    state = read_tensors(source)
    head = next((head for head, sign in HEAD_KEYS.items() if first_match(state, sign) is not None), None)
    if head is None:
        parts = ", ".join(sorted({key.partition(".")[0] for key in state})[:8])
        raise InputError(
            f"no known head among the parts of this checkpoint ({parts}); known: Semantic FPN, UperNet, PaCa's, "
            "SimpleBaseline, as mmsegmentation and mmpose store them"
        )
    found = {name: first_match(state, pattern) for name, pattern in WIDTH_KEYS[head].items()}
    widths = {name: int(value.shape[0]) for name, value in found.items() if value is not None}
    last = first_match(state, r"^decode_head\.conv_seg\.weight|^(?:keypoint_head|head)\.final_layer\.weight")
    if last is None:
        raise InputError("this checkpoint lacks the classification layer; it is incomplete")
    return Release(head, int(last.shape[0]), widths, clusters_of(state))


def clusters_of(state: dict[str, Tensor]) -> tuple[int, ...] | None:
    """Clusters of each stage, from the last layer of the clustering of its first block; a stage without has none."""
    layer = re.compile(r"^backbone\.stage(\d)\.0\.attn\.clustering\.clustering\.(\d)\.weight$")
    last: dict[int, tuple[int, int]] = {}  # stage -> (position of its last layer so far, clusters)
    for key, value in state.items():
        if match := layer.match(key):
            stage, position = int(match[1]), int(match[2])
            last[stage] = max(last.get(stage, (-1, 0)), (position, int(value.shape[0])))
    stages = max((int(match[1]) for key in state if (match := re.match(r"^backbone\.stage(\d)\.", key))), default=0)
    return tuple(last.get(stage, (0, 0))[1] for stage in range(1, stages + 1)) if last else None


def first_match(state: dict[str, Tensor], pattern: str) -> Tensor | None:
    return next((value for key, value in state.items() if re.match(pattern, key)), None)
