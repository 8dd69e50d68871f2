"""One heat map from the clusters of an exported model, which cannot be asked what each of them is worth.

A graph that was exported with its maps gives those of the clusters and how much every position looks at each. That is
the map that `ClusterMap("attention_mass")` makes of the model itself.

Shapes: B images, M clusters, H W grid, h heads.
"""

import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitreous.attribution.method import Method, Needs
from vitreous.attribution.spatial import is_differentiable
from vitreous.attribution.target import Target
from vitreous.clusters.layer import CLUSTER_TAP
from vitreous.layers.tap import record, tap_names


@dataclass(frozen=True)
class ExportedClusters(Method):
    """The cluster maps of the last stage that has them, each times the attention that it gets."""

    order = 50
    name = "exported_clusters"
    summary = "All clusters of a stage, weighted by the attention they get, as an exported model shows them."
    needs = Needs(passes=1, target=False)

    def missing(self, model: nn.Module) -> str | None:
        if is_differentiable(model):
            return "it is for exported models; 'clusters attention_mass' is the same for others"
        if self.clustered(model) is None:
            return "this model was exported without maps of clusters; vitreous export --maps keeps them"
        return None

    @staticmethod
    def clustered(model: nn.Module) -> str | None:
        """The last tap of clusters."""
        return next((name for name in reversed(tap_names(model)) if CLUSTER_TAP.fullmatch(name)), None)

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        clusters = self.clustered(model)
        assert clusters is not None
        stage = re.escape(".".join(clusters.split(".")[:2]))
        looks = [name for name in tap_names(model) if re.fullmatch(stage + r"\.blocks\.\d+\.attention\.map", name)]
        with record(model, clusters, *looks) as recorded:
            model(images)
        mass = torch.stack([recorded[name].mean((1, 3, 4)) for name in looks]).mean(0)  # (B, h, M, H, W) -> (B, M)
        return torch.einsum("bm,bmhw->bhw", mass, recorded[clusters])


METHODS = (ExportedClusters(),)
