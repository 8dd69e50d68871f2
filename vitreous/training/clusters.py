"""Training for explanations: dropout and loss terms of the clusters of a PaCa model.

Every stage with clusters, and a readout through them, is configured once. In each forward pass it stores the loss terms
of its assignments, which the training loop takes. There is no second pass, and inference is unaffected.
"""

from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import InputError
from vitreous.layers.cluster_training import READ_TERM, ClusterTraining
from vitreous.layers.readout import ClusterReadout
from vitreous.models.paca import ClusterStage

# settings of `vitreous train`
DROPOUT_SETTINGS = ("cluster_dropout", "cluster_group_dropout")
TERM_OF_SETTING = {
    "cluster_overlap": "overlap",
    "cluster_map_entropy": "map_entropy",
    "cluster_place_entropy": "place_entropy",
    "cluster_read_entropy": READ_TERM,
}


class ClusterLoss:
    """The cluster terms of a run's loss, by the names of their settings; none if all are off."""

    def __init__(self, model: nn.Module, settings: Any) -> None:
        self.weights = {name: getattr(settings, name) for name in TERM_OF_SETTING if getattr(settings, name)}
        self.stages: list[ClusterStage | ClusterReadout] = []
        rates = {name: getattr(settings, name) for name in DROPOUT_SETTINGS}
        asked = {name: value for name, value in (rates | self.weights).items() if value}
        if not asked:
            return
        stages = [m for m in model.modules() if isinstance(m, ClusterStage | ClusterReadout) and m.clustered]
        if not stages:
            name, value = next(iter(asked.items()))
            raise InputError(
                f"model '{settings.model}' has no clusters, but {name} {value} is about clusters; leave it out, or "
                "train a PaCa model with clusters, for example paca_b0 or paca_tiny"
            )
        if settings.cluster_read_entropy and not any(isinstance(stage, ClusterReadout) for stage in stages):
            raise InputError(
                f"the classifier of model '{settings.model}' does not read clusters, but cluster_read_entropy "
                f"{settings.cluster_read_entropy} is about how it reads them; leave it out, or add --model-args "
                "readout=clusters"
            )
        if settings.cluster_terms_on == "readout":
            stages = [stage for stage in stages if isinstance(stage, ClusterReadout)]
            if not stages:
                raise InputError(
                    f"cluster_terms_on readout given, but the classifier of model '{settings.model}' does not read "
                    "clusters; leave it out, or add --model-args readout=clusters"
                )
        noted = tuple(TERM_OF_SETTING[name] for name in self.weights)
        learning = ClusterTraining(settings.cluster_dropout, settings.cluster_group_dropout, noted)
        for stage in stages:
            stage.cluster_training = learning
        self.stages = stages if self.weights else []

    def take(self) -> dict[str, Tensor]:
        """The unweighted terms of the latest forward pass: the mean over the stages that have them, in float32.

        They are removed from the model, which would otherwise keep the whole graph alive.
        """
        found: dict[str, list[Tensor]] = {}
        for stage in self.stages:
            assert stage.cluster_terms is not None, "no forward pass in training mode came before"
            for name, term in stage.cluster_terms.items():
                found.setdefault(name, []).append(term)
            stage.cluster_terms = None
        return {name: torch.stack(found[TERM_OF_SETTING[name]]).mean() for name in self.weights}
