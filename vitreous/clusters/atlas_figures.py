"""What the sums of an `Atlas` say, as plain numbers: of the whole, of every class and of every cluster.

A share of importance on the background is taken on the grid of the maps, whose places have seen their surroundings: it
says where a cluster gathers, not which pixels decided. Chance is the background's part of the image.

Shapes: M clusters, K classes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from vitreous.clusters.atlas import Atlas
from vitreous.clusters.load import CARRIES

NEAREST = 3
MATTERING = 3  # clusters named for a class


class AtlasSummary(NamedTuple):
    images: int
    right: int
    lost: float  # mean log-odds lost when the stage's maps are made even
    changed: float  # share of answers that this changes
    carries: bool  # whether that is enough to call the maps more than decoration
    background: float | None  # share of importance on the background; None where no object is known
    area: float | None  # the background's part of those images


class AtlasClass(NamedTuple):
    name: str
    images: int
    right: int
    answered: int  # images the model gave this class
    background: float | None  # of those: share of importance on the background ...
    area: float | None  # ... and the background's part
    shortcut: bool  # importance lies on the background no less than chance
    clusters: list[int]  # those that support this answer most


class AtlasCluster(NamedTuple):
    number: int
    importance: float  # mean over all images
    by_class: list[float | None]  # mean over images with that answer; None where there is none
    strength: float  # mean peak over a flat map
    label: str | None  # the class of the images in which most of its importance lies ...
    purity: float  # ... the share of it that does ...
    chance: float  # ... and the class's share of the images
    on_object: float | None  # mean share of its map on the object
    background: float | None  # share of its importance on the background
    shortcut: bool
    share: float  # of all importance
    share_of_wrong: float  # the same within wrong answers
    nearest: list[tuple[int, float]]  # clusters with the most similar maps, and their mean correlation


def atlas_summary(atlas: Atlas) -> AtlasSummary:
    images, known = atlas.labelled.sum(), atlas.masked.sum()
    lost, changed = (atlas.load / images).tolist()
    return AtlasSummary(
        images=int(images),
        right=int(atlas.right.sum()),
        lost=lost,
        changed=changed,
        carries=abs(lost) >= CARRIES,
        background=ratio(atlas.background.sum(), known),
        area=ratio(atlas.area.sum(), known),
    )


def atlas_classes(atlas: Atlas, names: Sequence[str]) -> list[AtlasClass]:
    found = []
    for k, name in enumerate(names):
        background, area = ratio(atlas.background[k], atlas.masked[k]), ratio(atlas.area[k], atlas.masked[k])
        most = atlas.importance[k].argsort(descending=True, stable=True)[:MATTERING].tolist()
        found.append(
            AtlasClass(
                name=name,
                images=int(atlas.labelled[k]),
                right=int(atlas.right[k]),
                answered=int(atlas.answered[k]),
                background=background,
                area=area,
                shortcut=by_chance(background, area),
                clusters=[m for m in most if atlas.importance[k, m] > 0],
            )
        )
    return found


def atlas_clusters(atlas: Atlas, names: Sequence[str]) -> list[AtlasCluster]:
    """Those with the largest share of all importance first."""
    images, known, right = atlas.labelled.sum(), atlas.masked.sum(), atlas.right.sum()
    area = ratio(atlas.area.sum(), known)
    share = atlas.share.sum(0)
    found = []
    for m in share.argsort(descending=True, stable=True).tolist():
        best = int(atlas.share[:, m].argmax())
        background = ratio(atlas.share_background[m], atlas.share_masked[m])
        likeness = atlas.likeness[m] / images
        others = [n for n in likeness.argsort(descending=True, stable=True).tolist() if n != m][:NEAREST]
        found.append(
            AtlasCluster(
                number=m,
                importance=float(atlas.importance[:, m].sum() / images),
                by_class=[ratio(atlas.importance[k, m], atlas.answered[k]) for k in range(len(names))],
                strength=float(atlas.strength[m] / images),
                label=names[best] if share[m] > 0 else None,
                purity=ratio(atlas.share[best, m], share[m]) or 0.0,
                chance=float(atlas.labelled[best] / images),
                on_object=ratio(atlas.on_object[m], known),
                background=background,
                shortcut=by_chance(background, area),
                share=float(share[m] / images),
                share_of_wrong=ratio(atlas.share_of_wrong[m], images - right) or 0.0,
                nearest=[(n, float(likeness[n])) for n in others],
            )
        )
    return found


def behind_mistakes(clusters: Sequence[AtlasCluster], count: int) -> list[AtlasCluster]:
    """Clusters with a larger share in wrong answers than in all answers, the most striking first."""
    more = [one for one in clusters if one.share_of_wrong > one.share]
    return sorted(more, key=lambda one: one.share - one.share_of_wrong)[:count]


def ratio(part: Tensor, of: Tensor) -> float | None:
    return float(part / of) if of > 0 else None


def by_chance(background: float | None, area: float | None) -> bool:
    return background is not None and area is not None and background >= area


def as_rounded_dict(figures: NamedTuple) -> dict[str, Any]:
    """Six digits: what is beyond differs between processors."""
    return {name: rounded(value) for name, value in figures._asdict().items()}


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value
