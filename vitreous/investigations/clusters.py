"""What the clusters of a PaCa are like: how many are used, how spread out and how alike they are, how they drift.

Shapes: B images, M clusters, H W grid.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.method import trunk
from vitreous.clusters.layer import CLUSTER_TAP, READOUT_TAP, mean_correlation, spatial_entropy
from vitreous.errors import InputError
from vitreous.investigations.base import Inquiry, Investigated, Investigation, coloured, rows_or_reasons, whole_places
from vitreous.layers.tap import record, tap_names
from vitreous.reports.chart import COLOURS, Chart, LegendEntry, Series
from vitreous.reports.investigation import Findings
from vitreous.runs.trained_model import TrainedModel

FIGURES = {"share of the clusters in use": "used_per_picture", "entropy": "entropy", "overlap": "overlap"}
KEPT = ("best", "final")  # weights in a run folder that differ by training


class ClusterFigures:
    """Sums over pictures of one set of maps."""

    def __init__(self) -> None:
        self.pictures, self.sums = 0, torch.zeros(3)
        self.used: Tensor | None = None  # (M,), in any picture

    def add(self, maps: Tensor) -> None:
        """Maps (B, M, H, W). A cluster is in use in a picture if some position belongs to it more than to others."""
        B, M, H, W = maps.shape
        here = F.one_hot((maps * H * W).flatten(2).argmax(1), M).any(1)  # (B, M)
        even = math.log(H * W) if H * W > 1 else 1.0
        entropy = torch.stack([spatial_entropy(one).mean() for one in maps]) / even
        overlap = torch.tensor([mean_correlation(one) for one in maps])
        self.sums += torch.stack([here.sum(1).float().sum(), entropy.sum().cpu(), overlap.sum()])
        self.used = here.any(0) if self.used is None else self.used | here.any(0)
        self.pictures += B

    def row(self) -> dict:
        in_use, entropy, overlap = (self.sums / self.pictures).tolist()
        assert self.used is not None
        return {
            "clusters": len(self.used),
            "used_ever": int(self.used.sum()),
            "used_per_picture": round(in_use, 2),
            "entropy": round(entropy, 4),
            "overlap": round(overlap, 4),
        }


def cluster_taps(model: nn.Module) -> list[str]:
    names = tap_names(trunk(model))
    found = [name for name in names if CLUSTER_TAP.fullmatch(name) or READOUT_TAP.fullmatch(name)]
    if not found:
        raise InputError(f"{type(trunk(model)).__name__} has no clusters; give a PaCa")
    return found


@torch.no_grad()
def cluster_maps(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    with record(trunk(model), *cluster_taps(model)) as seen:
        model(images)
    return {name: maps.float().cpu() for name, maps in seen.items()}


def drift_between(first: Tensor, second: Tensor) -> Tensor:
    """1 minus the cosine similarity of each cluster's map (B, M, H, W) with itself elsewhere, mean over clusters."""
    alike = F.cosine_similarity(first.flatten(2), second.flatten(2), dim=2)
    return (1 - alike).clamp_min(0).mean(1)  # (B,)


class ClusterUse(Investigation):
    name = "clusters"
    order = 40
    any_task, answers = True, False
    asks = "how many clusters of a PaCa are used, how spread out and alike they are, and how they drift"
    reading = (
        "A cluster is in use in a picture if some position belongs to it more than to any other. Entropy is how evenly "
        "a cluster's map covers the picture: 1 is everywhere alike, 0 a single position. Overlap is the mean "
        "correlation of different maps: 1 means copies, 0 unrelated. Drift is 1 minus the likeness of the same "
        "cluster's map in the best and the final weights of a run: 0 means that it has settled. Models with other "
        "numbers of clusters beside each other (--beside) make a table over M, by which rows are ordered."
    )

    def run(self, inquiry: Inquiry) -> Findings:
        rows, undefined = rows_or_reasons(inquiry, cluster_rows)
        most = {row["model"]: 0 for row in rows}
        for row in rows:
            most[row["model"]] = max(most[row["model"]], row["clusters"])
        rows = sorted(rows, key=lambda row: most[row["model"]])
        colours, legend = coloured([row["model"] for row in rows])
        charts = [by_depth(title, key, rows, colours) for title, key in FIGURES.items()]
        if any(row["drift"] for row in rows):
            charts.append(by_depth("drift from the best to the final weights", "drift", rows, colours))
        counts = {row["clusters"] for row in rows}
        if len(counts) > 1:
            charts += [by_count(f"{title}, over M", key, rows) for title, key in FIGURES.items()]
            legend = (*legend, *(LegendEntry(layer, colour, True) for layer, colour in layer_colours(rows).items()))
        columns = ("model", "layer", "clusters", "used_ever", "used_per_picture", "entropy", "overlap", "drift")
        return Findings(tuple(rows), tuple(charts), legend, undefined=undefined, columns=columns)


def by_depth(title: str, key: str, rows: list[dict], colours: Mapping[str, str]) -> Chart:
    series = []
    for name, colour in colours.items():
        own = [height_of(row, key) for row in rows if row["model"] == name]
        series.append(Series(name, tuple(enumerate(own)), colour, name))
    axis = "clustering, from the first stage to the last"
    return Chart(title, axis, tuple(series), marked=whole_places(series))


def by_count(title: str, key: str, rows: list[dict]) -> Chart:
    """Dashed, each clustering of the models over its number of clusters."""
    series = []
    for layer, colour in layer_colours(rows).items():
        points = sorted((float(row["clusters"]), height_of(row, key)) for row in rows if row["layer"] == layer)
        series.append(Series(layer, tuple(points), colour, layer, True))
    return Chart(title, "number of clusters M", tuple(series))


def layer_colours(rows: list[dict]) -> dict[str, str]:
    layers = sorted({row["layer"] for row in rows})
    return {layer: COLOURS[::-1][place % len(COLOURS)] for place, layer in enumerate(layers)}


def height_of(row: Mapping[str, Any], key: str) -> float:
    """Clusters in use as a share of all; what is not known is a gap."""
    value = math.nan if row[key] is None else row[key]
    return value / row["clusters"] if key == "used_per_picture" else value


def cluster_rows(subject: Investigated, inquiry: Inquiry) -> list[dict]:
    model, other = subject.trained.model, other_weights(subject, inquiry)
    figures = {name: ClusterFigures() for name in cluster_taps(model)}
    drifts = dict.fromkeys(figures, 0.0)
    for batch in inquiry.batches(subject.trained, f"clusters of {subject.label}"):
        maps = cluster_maps(model, batch.inputs)
        later = None if other is None else cluster_maps(other.model, batch.inputs)
        for name, here in maps.items():
            figures[name].add(here)
            drifts[name] += 0.0 if later is None else float(drift_between(here, later[name]).sum())
    return [
        {
            "model": subject.label,
            "layer": name,
            **found.row(),
            "drift": None if other is None else round(drifts[name] / found.pictures, 4),
        }
        for name, found in figures.items()
    ]


def other_weights(subject: Investigated, inquiry: Inquiry) -> TrainedModel | None:
    """The final weights of a run folder, whose best ones are looked into; None if there is one set only."""
    folder = Path(subject.given)
    if not all((folder / name).is_dir() for name in KEPT):
        return None
    return subject.at(folder / KEPT[-1])


INVESTIGATION = ClusterUse()
