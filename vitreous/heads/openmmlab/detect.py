"""Detection checkpoints with the names of mmdetection, such as those of PaCa and XCiT.

    release = describe_detector("mask_rcnn_….pth")     # which head, how many classes, how wide, how many clusters
    backbone = create_model("paca_small", features_only=True, clusters=release.clusters)
    model = build_detector(backbone, release.head, release.classes, **release.head_args)
    print(load_detector(model, "mask_rcnn_….pth"))     # what became of every tensor

Equal there and here: the order of anchors (ratios first, then sizes, around the cells' first corners), that of a
box's four codes, their scales (10, 10, 5, 5 in the second stage and ATSS, else 1), one logit for an object in the first
stage, regions aligned to half pixels. Different, and changed on the way: the background is their last class and our
first (in version 1 it was first, and boxes had codes for it too), codes that all classes share are repeated for each,
convolutions before a norm have a bias of 0 here. Their regions are averaged over as many samples as they have pixels:
`align_samples=0`. Their RetinaNet has no ReLU before its coarsest level; ours has, as in the paper.
"""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import InputError
from vitreous.heads.boxes import Detector
from vitreous.heads.one_stage import ATSS, RetinaNet
from vitreous.heads.openmmlab.conversion import Conversion, Rules, load_release
from vitreous.heads.openmmlab.segment import Release, clusters_of, first_match
from vitreous.heads.pyramid import Pyramid
from vitreous.heads.two_stage import RCNN
from vitreous.models.weights import read_tensors

ROI_PREFIX = r"^(?:roi_head\.)?"  # version 1 had no such part
RCNN_RULES: Rules = [
    (r"^rpn_head\.rpn_conv\.", "proposals.head.conv.0.0."),
    (r"^rpn_head\.rpn_cls\.", "proposals.head.cls_logits."),
    (r"^rpn_head\.rpn_reg\.", "proposals.head.bbox_pred."),
    (ROI_PREFIX + r"bbox_head\.shared_fcs\.0\.", "box_head.fc6."),
    (ROI_PREFIX + r"bbox_head\.shared_fcs\.1\.", "box_head.fc7."),
    (ROI_PREFIX + r"bbox_head\.fc_cls\.", "box_predictor.cls_score."),
    (ROI_PREFIX + r"bbox_head\.fc_reg\.", "box_predictor.bbox_pred."),
    (ROI_PREFIX + r"mask_head\.convs\.(\d+)\.conv\.", r"mask_head.\1.0."),
    (ROI_PREFIX + r"mask_head\.convs\.(\d+)\.(?:bn|gn)\.", r"mask_head.\1.1."),
    (ROI_PREFIX + r"mask_head\.upsample\.", "mask_predictor.conv5_mask."),
    (ROI_PREFIX + r"mask_head\.conv_logits\.", "mask_predictor.mask_fcn_logits."),
]
RETINANET_RULES: Rules = [
    (r"^bbox_head\.cls_convs\.(\d+)\.conv\.", r"classifier.conv.\1.0."),
    (r"^bbox_head\.cls_convs\.(\d+)\.(?:bn|gn)\.", r"classifier.conv.\1.1."),
    (r"^bbox_head\.reg_convs\.(\d+)\.conv\.", r"regressor.conv.\1.0."),
    (r"^bbox_head\.reg_convs\.(\d+)\.(?:bn|gn)\.", r"regressor.conv.\1.1."),
    (r"^bbox_head\.retina_cls\.", "classifier.cls_logits."),
    (r"^bbox_head\.retina_reg\.", "regressor.bbox_reg."),
]
MAX_CONVS = 8  # of a tower, for which there are rules
ATSS_RULES: Rules = [
    *(
        (rf"^bbox_head\.{theirs}_convs\.{i}\.{layer}\.", f"{ours}.{3 * i + place}.")
        for theirs, ours in (("cls", "classifier.conv"), ("reg", "regressor.tower"))
        for i in range(MAX_CONVS)
        for place, layer in enumerate(("conv", "(?:bn|gn)"))
    ),
    (r"^bbox_head\.atss_cls\.", "classifier.cls_logits."),
    (r"^bbox_head\.atss_reg\.", "regressor.codes."),
    (r"^bbox_head\.atss_centerness\.", "regressor.centredness."),
    (r"^bbox_head\.scales$", "regressor.scales"),
]
DETECTOR_RULES: dict[type, Rules] = {RCNN: RCNN_RULES, RetinaNet: RETINANET_RULES, ATSS: ATSS_RULES}
# What depends on the classes.
DETECTOR_CLASSIFIERS = r"box_predictor\.|mask_predictor\.mask_fcn_logits\.|classifier\.cls_logits\."


def load_detector(model: Detector, source: str | Path | dict[str, Any], *, strict: bool = True) -> Conversion:
    """Load a detection checkpoint. With other classes, the classification layers are re-initialised."""
    rules = DETECTOR_RULES.get(type(model))
    if rules is None or not isinstance(model.backbone, Pyramid):
        raise InputError(
            f"a {type(model).__name__} given; checkpoints of mmdetection can be loaded into maskrcnn, fasterrcnn, "
            "retinanet and atss"
        )
    state = read_tensors(source)
    reasons = rearrange(state)
    pyramid = pyramid_rules(model.backbone)
    trunk = getattr(model.backbone.body, "model", model.backbone.body)
    try:
        report = load_release(model, trunk, state, [*pyramid, *rules], may_differ=DETECTOR_CLASSIFIERS, strict=strict)
    except InputError as error:
        where = "" if isinstance(source, dict) else f"{source}: "
        raise InputError(f"{where}{error}") from error
    return Conversion([d._replace(reason=d.reason or reasons.get(d.theirs or "", "")) for d in report.decisions])


def pyramid_rules(backbone: Pyramid) -> Rules:
    """Their extra levels continue the numbering; ours are called p6 and p7."""
    last = backbone.own_levels
    return [
        (rf"^neck\.fpn_convs\.{last}\.conv\.", "backbone.fpn.extra_blocks.p6."),
        (rf"^neck\.fpn_convs\.{last + 1}\.conv\.", "backbone.fpn.extra_blocks.p7."),
        (r"^neck\.lateral_convs\.(\d+)\.conv\.", r"backbone.fpn.inner_blocks.\1.0."),
        (r"^neck\.lateral_convs\.(\d+)\.(?:bn|gn)\.", r"backbone.fpn.inner_blocks.\1.1."),
        (r"^neck\.fpn_convs\.(\d+)\.conv\.", r"backbone.fpn.layer_blocks.\1.0."),
        (r"^neck\.fpn_convs\.(\d+)\.(?:bn|gn)\.", r"backbone.fpn.layer_blocks.\1.1."),
    ]


def rearrange(state: dict[str, Tensor]) -> dict[str, str]:
    """Rearrange tensors whose order or number differs, in place; returns what was done, by their keys."""
    reasons: dict[str, str] = {}
    for key in [key for key in state if re.search(r"bbox_head\.fc_cls\.(?:weight|bias)$", key)]:
        codes, mask = key.replace("fc_cls", "fc_reg"), key.replace("bbox_head.fc_cls", "mask_head.conv_logits")
        logits = len(state[key])
        if codes in state and len(state[codes]) == 4 * logits:  # version 1: everything has an entry for it, the first
            state[codes], reasons[codes] = state[codes][4:], "without the background's, which came first"
            reasons[key] = "background first there too"
            if mask in state and len(state[mask]) == logits:
                state[mask], reasons[mask] = state[mask][1:], "without the background's, which came first"
            continue
        state[key], reasons[key] = state[key].roll(1, 0), "background moved from the last place to the first"
        if codes in state and len(state[codes]) == 4 < 4 * (logits - 1):
            times = (logits - 1,) + (1,) * (state[codes].ndim - 1)
            state[codes], reasons[codes] = state[codes].repeat(times), "shared by all classes: repeated for each"
    scales = sorted(key for key in state if re.match(r"^bbox_head\.scales\.\d+\.scale$", key))
    if scales:
        state["bbox_head.scales"] = torch.stack([state.pop(key).reshape(()) for key in scales])
        reasons["bbox_head.scales"] = f"made of {', '.join(scales)}"
    if any(key.startswith("bbox_head.atss_cls.") for key in state):
        for key in [key for key in state if re.search(r"_convs\.\d+\.conv\.weight$", key) and "bbox_head" in key]:
            bias = key.replace("weight", "bias")
            if bias not in state:
                state[bias], reasons[bias] = torch.zeros(len(state[key])), "not there: 0, which changes nothing"
    return reasons


def describe_detector(source: str | Path | dict[str, Any]) -> Release:
    """What to build for a checkpoint, from its keys and shapes."""
    state = read_tensors(source)
    lateral = first_match(state, r"^neck\.lateral_convs\.0\.conv\.weight$")
    arguments = {} if lateral is None else {"channels": int(lateral.shape[0])}
    logits = first_match(state, ROI_PREFIX + r"bbox_head\.fc_cls\.weight$")
    if logits is not None:
        hidden = first_match(state, ROI_PREFIX + r"bbox_head\.shared_fcs\.0\.weight$")
        arguments |= {"align_samples": 0} | ({} if hidden is None else {"hidden": int(hidden.shape[0])})
        masked = first_match(state, ROI_PREFIX + r"mask_head\.conv_logits\.weight$") is not None
        convs = {"convs": count_keys(state, ROI_PREFIX + r"mask_head\.convs\.(\d+)\.conv\.weight$")} if masked else {}
        return Release("maskrcnn" if masked else "fasterrcnn", len(logits) - 1, arguments | convs, clusters_of(state))
    arguments |= {"convs": count_keys(state, r"^bbox_head\.cls_convs\.(\d+)\.conv\.weight$")}
    for head, name, boxes in (("retinanet", "retina_cls", "retina_reg"), ("atss", "atss_cls", "atss_reg")):
        logits, codes = (first_match(state, rf"^bbox_head\.{part}\.weight$") for part in (name, boxes))
        if logits is not None and codes is not None:
            return Release(head, len(logits) // (len(codes) // 4), arguments, clusters_of(state))
    parts = ", ".join(sorted({key.partition(".")[0] for key in state})[:8])
    raise InputError(
        f"no known detector among the parts of this checkpoint ({parts}); known: Mask R-CNN, Faster R-CNN, RetinaNet "
        "and ATSS, as mmdetection stores them"
    )


def count_keys(state: dict[str, Tensor], pattern: str) -> int:
    return sum(re.search(pattern, key) is not None for key in state)
