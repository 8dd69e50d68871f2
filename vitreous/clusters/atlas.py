"""What every cluster of a stage does over a data set, gathered batch by batch in memory that does not grow.

    atlas = Atlas(clusters=cluster_count(model, layer), classes=10)
    for numbers, images, labels, objects in batches:
        atlas.add(measure_clusters(model, images, layer), numbers, labels, objects)

It keeps running sums and, for every cluster, a few regions: where it fires most, a random few, and those of wrong
answers it supports. What is explained is the answer the model gave, right or wrong: its class, or a target that says
more, such as a box. Images may differ in size.

Importance is the log-odds a cluster adds to the answer, by one of `ATLAS_RANKINGS`. Its share is its part of all
positive importance within an image, so that every image counts the same. A cluster fires to the degree that its map has
a peak: its highest value over that of a flat map.

Shapes: B images, M clusters, K classes, H W grid, C channels; objects (B, height, width), True on the object.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.frame import of_picture
from vitreous.attribution.method import checked, trunk
from vitreous.attribution.target import ClassTarget, Target
from vitreous.clusters.gates import PartialForward, attentions
from vitreous.clusters.importance import RANKINGS
from vitreous.clusters.layer import Layer, as_distributions
from vitreous.clusters.load import uniform
from vitreous.layers.tap import record

ATLAS_RANKINGS = ("logit_gate", "value_gate", "integrated", "ablation", "contribution")  # the last is of a logit
# Not the quickest, but right with few clusters: where one holds nearly all attention its logit gate is flat. In a model
# with 4 clusters, one had 88 % of the importance by ablation, 90 % by this, and 30 % by the logit gate.
ATLAS_RANKING = "integrated"
# What is kept of a region -> axes, of which the first two are clusters and regions; see `region_fields`.
REGION_FIELDS = {"image": 2, "label": 2, "answer": 2, "strength": 2, "importance": 2, "map": 4, "token": 3}
REGIONS_PER_CLUSTER = {"top": 8, "typical": 6, "mistakes": 4}  # regions of each cluster


class ClusterMeasurements(NamedTuple):
    """What a batch shows, on the processor."""

    answers: Tensor  # (B,) classes
    maps: Tensor  # (B, M, H, W), each sums to one
    tokens: Tensor  # (B, M, C), what the attention reads of each cluster
    importance: Tensor  # (B, M), for the answer
    lost: Tensor  # (B,) log-odds of the answer, when the stage's clusters are spread evenly
    moved: Tensor  # (B,) whether it then is another answer


def measure_clusters(
    model: nn.Module,
    images: Tensor,
    layer: Layer,
    ranking: str = ATLAS_RANKING,
    given: tuple[Target, Tensor] | None = None,
) -> ClusterMeasurements:
    """Normalised images (B, 3, height, width); `given` are the answers to explain and their classes (B,)."""
    tokens: list[Tensor] = []
    norm = next(iter(attentions(model, layer).values())).cluster_norm
    handle = norm.register_forward_hook(lambda _norm, _inputs, output: tokens.append(output))
    try:
        with record(trunk(model), layer.tap) as recorded:
            rest = PartialForward(model, images, layer)
    finally:
        handle.remove()
    maps = as_distributions(of_picture(recorded[layer.tap].detach().float(), model))
    checked("the clusters", maps.sum(1), len(images))
    target, answers = given or predicted(rest.output)
    importance = RANKINGS[ranking](model, images, target, layer, rest=rest)
    checked(ranking, importance[:, :, None], len(images))
    with torch.no_grad(), uniform(model, layer.stage):
        evenly = model(images)
    lost, moved = target(rest.output) - target(evenly), target.holds(rest.output) & ~target.holds(evenly)
    seen = [x.detach().float().cpu() for x in (maps, tokens[0], importance, lost)]
    return ClusterMeasurements(answers.cpu(), seen[0], seen[1], seen[2], seen[3], moved.cpu())


def predicted(output: Tensor) -> tuple[Target, Tensor]:
    answers = output.argmax(1)
    return ClassTarget(labels=answers), answers


class TopK:
    """The best few of a stream, for many rows at once, in memory that does not grow with the stream.

    Shapes: R rows, S places of a row, B offered at a time.
    """

    def __init__(self, rows: int, size: int) -> None:
        self.score = torch.full((rows, size), -torch.inf, dtype=torch.float64)
        self.fields: dict[str, Tensor] = {}

    def offer(self, score: Tensor, fields: dict[str, Tensor]) -> None:
        """Scores (R, B), fields (R, B, ...). A score of -inf is never kept; of equal ones the first offered stays."""
        rows, size = self.score.shape
        if not self.fields:
            self.fields = {name: value.new_zeros((rows, size, *value.shape[2:])) for name, value in fields.items()}
        scores = torch.cat([self.score, score.double()], 1)  # (R, S + B)
        order = scores.argsort(dim=1, descending=True, stable=True)[:, :size]  # (R, S)
        if bool((order < size).all()):
            return  # nobody new is better
        self.score = scores.gather(1, order)
        row = torch.arange(rows)[:, None]
        for name, value in fields.items():
            self.fields[name] = torch.cat([self.fields[name], value], 1)[row, order]

    def join(self, other: "TopK") -> None:
        """Take what another one kept of what came later; its maps on the grid of those that are here."""
        if other.fields:
            fields = dict(other.fields)
            if self.fields:
                fields["map"] = resized_maps(fields["map"], self.fields["map"].shape[2:])
            self.offer(other.score, fields)

    def stored(self) -> dict[str, Tensor]:
        return {"score": self.score, **self.fields}

    @classmethod
    def restored(cls, rows: int, size: int, stored: Mapping[str, Tensor]) -> "TopK":
        """The same again from what `stored` gave; a ValueError if it cannot be."""
        kept = cls(rows, size)
        fields = {name: value for name, value in stored.items() if name != "score"}
        known = not fields or {name: value.ndim for name, value in fields.items()} == REGION_FIELDS
        fitting = stored["score"].ndim == 2 and all(value.shape[:2] == (rows, size) for value in stored.values())
        if not known or not fitting:
            raise ValueError(f"what was kept is not {size} regions of {rows} clusters")
        kept.score, kept.fields = stored["score"].double(), fields
        return kept

    def count(self, row: int) -> int:
        """Places of a row that are taken."""
        return int((self.score[row] > -torch.inf).sum())


class Atlas:
    """All sums are over images and in double precision; they are read by `atlas_figures`."""

    def __init__(self, clusters: int, classes: int) -> None:
        M, K = clusters, classes
        self.labelled, self.answered, self.right = zeros(K), zeros(K), zeros(K)  # images, the last by label
        self.importance = zeros(K, M)  # by answer
        self.strength = zeros(M)
        self.share = zeros(K, M)  # by label
        self.share_of_wrong = zeros(M)  # in wrong answers only
        self.likeness = zeros(M, M)  # correlation of maps
        self.load = zeros(2)  # log-odds lost with even maps; answers lost
        self.masked, self.background, self.area = zeros(K), zeros(K), zeros(K)  # where the object is known, by answer
        self.on_object = zeros(M)  # share of the map
        self.share_masked, self.share_background = zeros(M), zeros(M)
        self.kept = {name: TopK(M, size) for name, size in REGIONS_PER_CLUSTER.items()}
        self.grids: set[tuple[int, int]] = set()  # of the maps that were seen

    def add(self, measured: ClusterMeasurements, numbers: Tensor, labels: Tensor, objects: Tensor) -> None:
        """One batch; `numbers` identify the images; an empty object is an unknown one."""
        answers, right = measured.answers, measured.answers == labels
        share = importance_shares(measured.importance)
        self.labelled.index_add_(0, labels, torch.ones_like(labels, dtype=torch.float64))
        self.answered.index_add_(0, answers, torch.ones_like(labels, dtype=torch.float64))
        self.right.index_add_(0, labels, right.double())
        self.importance.index_add_(0, answers, measured.importance.double())
        self.share.index_add_(0, labels, share)
        self.share_of_wrong += share[~right].sum(0)
        self.likeness += correlations(measured.maps)
        self.load += torch.stack([measured.lost.double().sum(), measured.moved.double().sum()])
        self.add_objects(measured, share, objects)
        self.keep(measured, numbers, labels)

    def join(self, other: "Atlas") -> None:
        """Add what another one gathered from later images."""
        for name, own in vars(self).items():
            if isinstance(own, Tensor):
                own += getattr(other, name)
        for name, kept in self.kept.items():
            kept.join(other.kept[name])
        self.grids |= other.grids

    def stored(self) -> dict[str, Tensor]:
        """All that was gathered, by name."""
        found = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        for name, kept in self.kept.items():
            found |= {f"{name}/{field}": value for field, value in kept.stored().items()}
        return found | {"grids": torch.tensor(sorted(self.grids), dtype=torch.int64).view(-1, 2)}

    @classmethod
    def restored(cls, clusters: int, classes: int, stored: Mapping[str, Tensor]) -> "Atlas":
        """The same again from what `stored` gave; a ValueError if it cannot be."""
        atlas = cls(clusters, classes)
        for name, own in vars(atlas).items():
            if isinstance(own, Tensor):
                if stored[name].shape != own.shape:
                    raise ValueError(f"{name} is not of {clusters} clusters and {classes} classes")
                own.copy_(stored[name])
        for name, size in REGIONS_PER_CLUSTER.items():
            start = f"{name}/"
            kept = {key.removeprefix(start): value for key, value in stored.items() if key.startswith(start)}
            atlas.kept[name] = TopK.restored(clusters, size, kept)
        atlas.grids = {(rows, columns) for rows, columns in stored["grids"].tolist()}
        return atlas

    def add_objects(self, measured: ClusterMeasurements, share: Tensor, objects: Tensor) -> None:
        known = objects.flatten(1).any(1)
        if not known.any():
            return
        maps, share, answers = measured.maps[known].double(), share[known], measured.answers[known]
        inside = F.adaptive_avg_pool2d(objects[known, None].double(), (maps.shape[2], maps.shape[3]))
        on_object = (maps * inside).sum((2, 3))  # (B, M)
        self.on_object += on_object.sum(0)
        self.share_masked += share.sum(0)
        self.share_background += (share * (1 - on_object)).sum(0)
        self.masked.index_add_(0, answers, torch.ones(len(maps), dtype=torch.float64))
        self.background.index_add_(0, answers, (share * (1 - on_object)).sum(1))
        self.area.index_add_(0, answers, 1 - inside.mean((1, 2, 3)))

    def keep(self, measured: ClusterMeasurements, numbers: Tensor, labels: Tensor) -> None:
        self.grids.add((measured.maps.shape[2], measured.maps.shape[3]))
        fields = region_fields(measured, numbers, labels, self.kept["top"])
        strength, importance = fields["strength"], fields["importance"]
        self.strength += strength.double().sum(1)
        scores = {
            "top": strength,
            "typical": torch.stack([lots(number, len(strength)) for number in numbers.tolist()], 1),
            "mistakes": importance.masked_fill((measured.answers == labels) | (importance <= 0), -torch.inf),
        }
        for name, score in scores.items():
            self.kept[name].offer(score, fields)


def region_fields(measured: ClusterMeasurements, numbers: Tensor, labels: Tensor, among: TopK) -> dict[str, Tensor]:
    """What is kept of the region of every cluster in every image, each (M, B, ...), maps on the grid of the others."""
    _, clusters, rows, columns = measured.maps.shape
    grid = among.fields["map"].shape[2:] if among.fields else torch.Size((rows, columns))
    return {
        "image": numbers.expand(clusters, -1),
        "label": labels.expand(clusters, -1),
        "answer": measured.answers.expand(clusters, -1),
        "strength": measured.maps.flatten(2).amax(2).T * (rows * columns),
        "importance": measured.importance.T,
        "map": resized_maps(measured.maps, grid).transpose(0, 1),
        "token": measured.tokens.transpose(0, 1),
    }


def resized_maps(maps: Tensor, grid: torch.Size) -> Tensor:
    """Maps, whose last two of four axes are H and W, on another grid."""
    return maps if maps.shape[2:] == grid else F.interpolate(maps, list(grid), mode="bilinear", antialias=True)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def importance_shares(importance: Tensor) -> Tensor:
    """Of the positive importance in each image, (B, M); all zero where there is none."""
    positive = importance.double().clamp_min(0)
    return positive / positive.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)


def correlations(maps: Tensor) -> Tensor:
    """Between the maps of an image, summed over images: (M, M). A flat map is like no other."""
    flat = maps.flatten(2).double()
    unit = F.normalize(flat - flat.mean(2, keepdim=True), dim=2)
    return (unit @ unit.transpose(1, 2)).sum(0)


def lots(number: int, clusters: int) -> Tensor:
    """Random numbers of an image, one for each cluster; the same whatever came before."""
    return torch.rand(clusters, generator=torch.Generator().manual_seed(number))
