"""All methods, and those that fit a model."""

from torch import nn

from vitreous.attribution.controls import CentreBlob, RandomMap, RandomWeights
from vitreous.attribution.gradient import GradCam, InputGradient, IntegratedGradients
from vitreous.attribution.method import Method, clustered_stages, find_trunk
from vitreous.attribution.occlusion import Occlusion, Rise
from vitreous.attribution.rollout import Rollout
from vitreous.attribution.views import Look
from vitreous.clusters.cluster_map import ClusterMap, TopGroup
from vitreous.clusters.token_gradient import TokenGradient
from vitreous.errors import InputError, nearest

ALL: tuple[Method, ...] = (
    GradCam(),
    InputGradient(),
    IntegratedGradients(),
    Occlusion(),
    Rise(),
    Rollout(),
    TokenGradient(),
    ClusterMap("attention_mass"),
    ClusterMap("attention_mass", top=1),
    ClusterMap("logit_gate"),
    ClusterMap("value_gate"),
    ClusterMap("integrated"),
    ClusterMap("ablation", top=1),
    ClusterMap("masking", top=1),
    TopGroup(),
    Look("class_attention"),
    Look("abstract_attention"),
    Look("abstract_mixing"),
    Look("abstract_fusion"),
    Look("fusion_gain"),
    Look("context_score"),
    Look("foreground"),
    Look("foreground_query"),
    Look("background_query"),
    Look("local_attention"),
    Look("global_attention"),
    Look("gate"),
    Look("features"),
)
CONTROLS: tuple[Method, ...] = (
    RandomMap(),
    CentreBlob(),
    ClusterMap("random", top=1),
    RandomWeights(GradCam()),
    RandomWeights(ClusterMap("attention_mass")),
)


def methods_for(model: nn.Module) -> list[Method]:
    """The methods that can explain this model. Grad-CAM also at the grid of the clusters, or it would be coarser."""
    backbone = find_trunk(model)
    stages = clustered_stages(backbone) if backbone is not None else []
    finer = [GradCam(stage=stages[-1])] if stages and backbone is not None and stages[-1] < len(backbone.stages) else []
    return [method for method in (*ALL, *finer) if method.missing(model) is None]


def controls_for(model: nn.Module) -> list[Method]:
    return [method for method in CONTROLS if method.missing(model) is None]


def find_method(name: str, model: nn.Module) -> Method:
    """A method of this model by its name."""
    known = {method.name: method for method in (*methods_for(model), *controls_for(model))}
    if name not in known:
        elsewhere = {method.name: method for method in ALL}
        reason = elsewhere[name].missing(model) if name in elsewhere else None
        why = f"method {name!r} cannot be used here: {reason}" if reason else f"unknown method {name!r}"
        raise InputError(f"{why}; nearest: {nearest(name, list(known))}; all: {', '.join(known)}")
    return known[name]
