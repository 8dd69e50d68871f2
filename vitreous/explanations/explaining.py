"""Explaining one image with a model: every part of an `Explanation`, computed.

Shapes: M clusters, G groups, H W grid, K classes.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from PIL import Image
from torch import Tensor, nn

from vitreous.attribution.catalogue import controls_for, find_method, methods_for
from vitreous.attribution.fill import Fill
from vitreous.attribution.method import Method, cluster_layers, find_trunk
from vitreous.attribution.occlusion import Occlusion, Rise
from vitreous.attribution.spatial import is_differentiable, unwrapped
from vitreous.attribution.target import ClassTarget, Target, as_target
from vitreous.attribution.views import ViewMethod, kinds_inside
from vitreous.clusters.contributions import contributions
from vitreous.clusters.gates import PartialForward, cluster_layer
from vitreous.clusters.groups import ablate_groups, group_maps
from vitreous.clusters.importance import RANKINGS, patch_attention, removal_curve
from vitreous.clusters.layer import Layer, MapSource, as_distributions, choose_layer, layer_maps, spatial_entropy
from vitreous.clusters.load import causal_load
from vitreous.clusters.masking import Masking
from vitreous.clusters.ranks import order_clusters
from vitreous.data.transforms import Preprocess, to_unit_tensor
from vitreous.errors import InputError, printable
from vitreous.faithfulness.curves import CurveEnds, curve_ends, curves
from vitreous.faithfulness.scoring import DECIDES, below_every_method
from vitreous.reports.explanation import Clusters, Explanation, LogitParts, MethodMap, StageLoad
from vitreous.runtime.console import format_duration, track

_SHOWN_CLASSES = 5
FILLS: tuple[Fill, ...] = ("blur", "mean")
IMAGE_PORTIONS = 8  # of the curves of one image; a data set is scored with more
FEWER_PASSES = {"portions": 6, "cells": 5, "masks": 64}  # of the curves, occlusion and RISE, where a pass takes long
SPARING_PORTIONS = 2  # of the curves of an image that barely fits into memory
SPARING_METHODS = ("contributions", "learned", "clusters attention_mass", "exported_clusters")  # of it; else features
REMOVED_COUNTS = (1, 2, 4, 8, 16, 32, 64)  # clusters removed together
COMPARED_RANKINGS = ("logit_gate", "integrated", "attention_mass", "random")  # rankings that are always compared
ALL_METHODS = "all"
SAME_EVERYWHERE = "Here it is the same everywhere and says nothing: take another method, or explain another class."
ON_THIS_IMAGE = "It is the most faithful of those compared, on this image alone."


@dataclass(frozen=True)
class Plan:
    """What to compute."""

    methods: tuple[str, ...] = ()  # names, or "all"; none: a few that suit the model
    ranking: str = "ablation"  # of the clusters, a name of `RANKINGS`
    stage: int | None = None  # from one; the last with clusters
    block: int | None = None
    source: MapSource = "clusters"
    head: int | None = None
    masking: Masking = field(default_factory=Masking)
    budget: int | None = None  # most passes a map may take
    light: bool = False  # fewer passes, for models whose passes take long
    sparing: bool = False  # no gradients and as few passes as can be, for images that barely fit into memory
    default: str | None = None  # the method a data set has shown to be the most faithful ...
    reason: str = ""  # ... in words
    verdicts: dict[str, bool] = field(default_factory=dict)  # whether a method beat its controls there

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 1:
            raise InputError(f"a budget of {self.budget} passes was given; a map takes 1 or more")
        if self.ranking not in RANKINGS:
            raise InputError(f"ranking {self.ranking!r} is unknown; clusters can be ranked by {', '.join(RANKINGS)}")
        if self.head is not None and self.source != "attention":
            raise InputError(
                f"head {self.head} was asked for, but cluster maps have no heads; take the source 'attention' or "
                "leave the head out"
            )
        if self.source == "attention" and self.ranking != "masking":
            raise InputError(
                f"attention maps were to be ranked by {self.ranking}, which removes clusters; "
                "the ranking 'masking' hides what a map shows, and fits both"
            )


def explain_image(
    model: nn.Module,
    picture: Image.Image,
    *,
    preprocess: Preprocess,
    classes: Sequence[str],
    name: str = "image",
    true: str | None = None,
    target: Target | int | None = None,
    watched: str = "the given target",
    plan: Plan | None = None,
) -> Explanation:
    """Explain a picture, given as the model sees it before normalisation.

    Args:
        model: In eval mode.
        picture: Of the model's size.
        preprocess: How the model wants pictures.
        classes: Names of the outputs.
        name: Of the picture.
        true: Its class, where known; it is explained unless `target` is given.
        target: What to explain: a class by number, or any `Target`; default: the true class, else the predicted one.
        watched: That in words, where it is no class.
        plan: What to compute.
    """
    plan = plan or Plan()
    pixels = to_unit_tensor(picture).to(next(model.parameters()).device)
    images = preprocess.normalise(pixels)[None]
    begun = time.perf_counter()
    with torch.no_grad():
        output = model(images)
    pass_seconds = time.perf_counter() - begun
    if target is None and true is not None:
        target = list(classes).index(true)
    resolved = as_target(target, output, 1)
    asked = chosen_methods(model, plan)
    # Of an image that barely fits, a single map may take minutes.
    if plan.sparing:
        print(told_passes(name, sparing_passes(asked, model), pass_seconds))
    shown = track(asked, total=len(asked), label=f"maps of {name}", unit="maps") if plan.sparing else asked
    ends = {fill: curve_ends(model, images, resolved, fill, output=output) for fill in fills_of(plan)}
    methods = tuple(explain_by(model, images, resolved, method, plan, ends) for method in shown)
    default, reason = leading(methods, plan)
    layer = cluster_layer_of(model, plan)
    return Explanation(
        name=name,
        picture=picture,
        probabilities=likeliest(output, classes) if isinstance(resolved, ClassTarget) else (),
        watched=classes[int(resolved.labels[0])] if isinstance(resolved, ClassTarget) else watched,
        true=true,
        parts=explain_logit(model, images, resolved, layer),
        clusters=None if layer is None else explain_clusters(model, pixels, preprocess, resolved, layer, plan),
        load=() if layer is None or plan.sparing else explain_load(model, images, resolved),
        methods=methods,
        default=default,
        reason=reason,
    )


def look_only(
    model: nn.Module, picture: Image.Image, *, preprocess: Preprocess, name: str, watched: str, plan: Plan
) -> Explanation:
    """A picture with nothing to explain: its clusters, by the attention they receive."""
    pixels = to_unit_tensor(picture).to(next(model.parameters()).device)
    layer, clusters = cluster_layer_of(model, plan), None
    if layer is not None:
        images = preprocess.normalise(pixels)[None]
        looks = patch_attention(model, images, layer)[0].cpu()
        maps, mass = as_distributions(layer_maps(model, images, layer, plan.head)[0]).cpu(), looks.mean((1, 2))
        clusters = Clusters(
            layer=layer,
            head=plan.head,
            maps=maps,
            entropy=spatial_entropy(maps),
            ranking="attention_mass",
            importance={"attention_mass": mass},
            order=order_clusters(mass, spatial_entropy(maps)),
            attention=looks,
        )
    return Explanation(name=name, picture=picture, probabilities=(), watched=watched, clusters=clusters)


def likeliest(output: Tensor, classes: Sequence[str]) -> tuple[tuple[str, float], ...]:
    probabilities = output[0].float().softmax(-1)
    if not probabilities.isfinite().all():
        raise InputError(
            "the model answers with values that are no numbers (NaN); its weights or the image are damaged"
        )
    best = probabilities.topk(min(_SHOWN_CLASSES, len(probabilities)))
    return tuple((classes[k], p) for k, p in zip(best.indices.tolist(), best.values.tolist(), strict=True))


# ---- methods -----------------------------------------------------------------------------------------------------


def chosen_methods(model: nn.Module, plan: Plan) -> list[Method]:
    """The named ones; or, if none is, the run's default, what fits best, and a control to hold them against."""
    if ALL_METHODS in plan.methods:
        known = (*methods_for(model), *controls_for(model))
        names = [method.name for method in known if not (plan.sparing and method.needs.gradient)]
    else:
        names = list(plan.methods) or default_methods(model, plan)
    first = [plan.default] if plan.default is not None and not (plan.methods or plan.sparing) else []
    methods = [find_method(name, model) for name in dict.fromkeys([*first, *names])]
    methods = [lighter(method) for method in methods] if plan.light else methods
    if plan.sparing:
        require_no_gradients(methods)
    return methods if plan.budget is None else within_budget(model, methods, plan)


def require_no_gradients(methods: Sequence[Method]) -> None:
    for method in methods:
        if method.needs.gradient:
            raise InputError(
                f"{method.name} needs gradients, for which the maps of all layers are kept, and those do not fit into "
                "what --max-memory allows; allow more, give a smaller --size, or name methods without gradients by "
                "--method"
            )


def within_budget(model: nn.Module, methods: Sequence[Method], plan: Plan) -> list[Method]:
    """Those whose map takes at most so many passes; if none that knows something does, all others that fit."""
    budget, controls = plan.budget or 0, [control.name for control in controls_for(model)]
    dear = [method for method in methods if method.needs.passes > budget and method.name in plan.methods]
    if dear:
        raise InputError(
            f"{dear[0].name} takes {dear[0].needs.passes} passes and the budget is {budget}; raise it, or name others"
        )
    fitting = [method for method in methods if method.needs.passes <= budget]
    if any(method.name not in controls for method in fitting):
        return fitting
    known = [lighter(method) if plan.light else method for method in methods_for(model)]
    others = [method for method in known if method.needs.passes <= budget]
    if not others:
        cheapest = min(known, key=lambda method: method.needs.passes)
        raise InputError(below_every_method(budget, cheapest.name, cheapest.needs.passes))
    return [*others, *fitting]


def default_methods(model: nn.Module, plan: Plan) -> list[str]:
    """What is compared unless methods are named: two quick ones and the model's views; of findings, those that know it.

    Grad-CAM is taken at the grid of the clusters, where there is one.
    """
    known = methods_for(model)
    names = [method.name for method in known]
    finer = [name for name in names if name.startswith("grad_cam stage")]
    if plan.sparing:
        sparing = [name for name in SPARING_METHODS if name in names]
        return [*(sparing or [name for name in names if name == "features"]), "centre_blob"]
    if plan.light:
        usual = ["token_gradient", *finer, "grad_cam", "input_gradient", "exported_clusters", "occlusion"]
        usual.append("clusters logit_gate")
        return [*(name for name in usual if name in names), "centre_blob"]
    exact = [name for name in ("contributions",) if name in names]
    first = ["learned", "token_gradient", *(finer or ["grad_cam"]), "input_gradient"]
    if not is_differentiable(model):  # its explainer, if it has one, knows the likeliest class only: to be asked for
        first = ["exported_clusters", "occlusion"]
    quick = [name for name in first if name in names]
    own = [method.name for method in known if isinstance(method, ViewMethod) and method.kind != "features"]
    return [*exact, *quick[:2], *own, "centre_blob"]


def lighter(method: Method) -> Method:
    """The same with fewer changed copies of the image, where it makes any."""
    if isinstance(method, Occlusion):
        return replace(method, cells=FEWER_PASSES["cells"])
    return replace(method, masks=FEWER_PASSES["masks"]) if isinstance(method, Rise) else method


def sparing_passes(methods: Sequence[Method], model: nn.Module) -> int:
    """Passes that explaining an image sparingly still takes after the first."""
    trunk = find_trunk(model)
    clusters = 2 if trunk is not None and cluster_layers(trunk) else 0  # their maps, and who looks at them
    return 1 + clusters + sum(method.needs.passes + 2 * (SPARING_PORTIONS - 1) for method in methods)


def told_passes(name: str, passes: int, seconds: float) -> str:
    whole = format_duration(passes * seconds)
    return printable(f"plan: {name}: {passes} more passes of {format_duration(seconds)}, about {whole}")


def fills_of(plan: Plan) -> tuple[Fill, ...]:
    return FILLS[:1] if plan.sparing else FILLS


def explain_by(
    model: nn.Module, images: Tensor, target: Target, method: Method, plan: Plan, ends: Mapping[Fill, CurveEnds]
) -> MethodMap:
    heat, portions = method(model, images, target), FEWER_PASSES["portions"] if plan.light else IMAGE_PORTIONS
    portions = SPARING_PORTIONS if plan.sparing else portions
    both = {
        fill: curves(model, images, heat, target, fill=fill, portions=portions, ends=end) for fill, end in ends.items()
    }
    scores: dict[str, float] = {DECIDES: both["blur"].difference.item()}
    for fill, curve in both.items():
        scores |= {f"insertion_{fill}": curve.insertion_area.item(), f"deletion_{fill}": curve.deletion_area.item()}
    flat = bool((heat == heat.flatten()[0]).all())
    return MethodMap(
        name=method.name,
        summary=f"{method.summary} {SAME_EVERYWHERE}" if flat else method.summary,
        heat=heat[0].cpu(),
        scores=scores,
        insertion=tuple(both["blur"].insertion[0].tolist()),
        deletion=tuple(both["blur"].deletion[0].tolist()),
        control=method.name in [control.name for control in controls_for(model)],
        beats_controls=plan.verdicts.get(method.name),
    )


def leading(methods: Sequence[MethodMap], plan: Plan) -> tuple[str, str]:
    """The method to look at first, and why: what a data set has shown to be the best, else the best on this image."""
    if plan.default in [method.name for method in methods]:
        assert plan.default is not None
        return plan.default, plan.reason
    able = [method for method in methods if not method.control] or list(methods)
    unscored = plan.reason if plan.default is None else ""
    return max(able, key=lambda method: method.difference).name, f"{ON_THIS_IMAGE} {unscored}".rstrip()


# ---- clusters ----------------------------------------------------------------------------------------------------


def cluster_layer_of(model: nn.Module, plan: Plan) -> Layer | None:
    """Where the clusters come from; None for a model that has none and was not asked for any."""
    backbone = find_trunk(model)
    if backbone is not None and cluster_layers(backbone):
        return choose_layer(backbone, source=plan.source, stage=plan.stage, block=plan.block)
    if plan.stage is not None or plan.block is not None or plan.source != "clusters" or plan.head is not None:
        raise InputError(without_clusters(model))
    return None


def without_clusters(model: nn.Module) -> str:
    kinds = kinds_inside(model)
    inside = f"Inside it has {', '.join(kinds)}. " if kinds else ""
    methods = ", ".join(method.name for method in methods_for(model))
    return (
        f"this model ({type(unwrapped(model)).__name__}) has no clusters. {inside}"
        f"It can be explained by these methods: {methods}"
    )


def explain_logit(model: nn.Module, images: Tensor, target: Target, layer: Layer | None) -> LogitParts | None:
    """What the logit is made of, where the clusters that are shown are those that the classifier reads."""
    if layer is None or not layer.is_readout or not isinstance(target, ClassTarget):
        return None
    found, label = contributions(model, images, layer), target.labels
    logit, bias, others = found.logits[0, label], found.bias[label], found.others[0, label]
    values, maps = found.of(label)[0].tolist(), found.maps(label)[0].float().cpu()
    return LogitParts(logit.item(), bias.item(), others.item(), tuple(values), maps)


def explain_load(model: nn.Module, images: Tensor, target: Target) -> tuple[StageLoad, ...]:
    return tuple(
        StageLoad(
            load.stage,
            {name: load.drop(name)[0].item() for name in load.scores},
            {name: bool(load.flips(name)[0]) for name in load.scores},
            bool(load.carries[0]),
            cluster_layer(model, load.stage).name,
        )
        for load in causal_load(model, images, target)
    )


def explain_clusters(
    model: nn.Module, pixels: Tensor, preprocess: Preprocess, target: Target, layer: Layer, plan: Plan
) -> Clusters:
    images = preprocess.normalise(pixels)[None]
    maps = as_distributions(layer_maps(model, images, layer, plan.head)[0])
    importance, order = ranked(model, pixels, maps, preprocess, target, layer, plan)
    alone = Clusters(
        layer=layer,
        head=plan.head,
        maps=maps.cpu(),
        entropy=spatial_entropy(maps).cpu(),
        ranking=plan.ranking,
        hole=plan.masking.hole,
        importance={plan.ranking: importance},
        order=order,
    )
    if plan.sparing or layer.source == "attention" or (len(maps) < 2 and not layer.is_readout):
        return alone  # removing takes too long, there is nothing to remove, or nothing would be left
    rest = PartialForward(model, images, layer)
    rankings = {plan.ranking: importance} | {
        name: RANKINGS[name](model, images, target, layer)[0].cpu()
        for name in (*(["contribution"] if layer.is_readout else []), *COMPARED_RANKINGS)
        if name != plan.ranking
    }
    label = group_maps(maps.cpu())
    single = importance[None].to(images.device) if plan.ranking == "ablation" else None
    lost = ablate_groups(rest, target, label, alone=single)[0].cpu()
    first = lost.argsort(descending=True, stable=True).tolist()
    counts = tuple(count for count in REMOVED_COUNTS if count < rest.count)
    return replace(
        alone,
        importance=rankings,
        attention=patch_attention(model, images, layer)[0].cpu(),
        groups=tuple(tuple((label == group).nonzero().flatten().tolist()) for group in first),
        group_drop=tuple(lost[group].item() for group in first),
        counts=counts,
        left={
            name: tuple(removal_curve(rest, target, values[None].to(images.device), counts)[0].tolist())
            for name, values in rankings.items()
        },
        before=rest.score(target.on("log_odds")).item(),
    )


def ranked(
    model: nn.Module,
    pixels: Tensor,
    maps: Tensor,
    preprocess: Preprocess,
    target: Target,
    layer: Layer,
    plan: Plan,
) -> tuple[Tensor, tuple[int, ...]]:
    """Importance of the clusters by the chosen ranking, and their order."""
    images, settings, tolerance = preprocess.normalise(pixels)[None], {}, 0.0
    if plan.ranking == "masking":
        black = preprocess.normalise(torch.zeros_like(pixels))[None]
        settings, tolerance = {"masking": plan.masking, "black": black, "maps": maps[None]}, plan.masking.tie_tolerance
    values = RANKINGS[plan.ranking](model, images, target, layer, **settings)[0].cpu()
    return values, order_clusters(values, spatial_entropy(maps).cpu(), tolerance)
