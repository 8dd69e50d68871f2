"""An atlas as a folder: the page, a picture with the regions of each cluster, and all numbers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from vitreous.clusters.atlas import KEPT, Atlas
from vitreous.clusters.atlas_figures import (
    OfClass,
    OfCluster,
    Whole,
    as_json,
    behind_mistakes,
    of_classes,
    of_clusters,
    whole,
)
from vitreous.clusters.masking import Layer
from vitreous.data.image_set import ImageSet
from vitreous.explanations.atlas_like import UNKNOWN, Wish
from vitreous.files.storage import write_json
from vitreous.files.writing import write_text
from vitreous.reports.atlas_page import Section, Tile, render_atlas
from vitreous.reports.atlas_regions import Region, alike, draw_region, regions_of, strip
from vitreous.reports.page import percent
from vitreous.runs.model_folder import TrainedModel
from vitreous.runtime.progress import track

RESULT, PAGE, LIKE = "atlas.json", "index.html", "like.jpg"
QUALITY = 88  # of JPEG
NAMED = 3  # clusters and classes on the screen


class About(NamedTuple):
    model: str
    trained: TrainedModel
    classes: tuple[str, ...]  # of answers and labels
    data: str
    split: str
    layer: Layer
    measure: str
    left_out: str = ""  # images that are no part of it, in words


def write_folder(
    folder: Path,
    atlas: Atlas,
    picture: Callable[[int], Image.Image],
    images: ImageSet,
    about: About,
    wish: Wish | None,
) -> str:
    """Write everything; what stands out comes back, in words. `picture` gives an image as the model sees it."""
    classes = about.classes
    summary, by_class, clusters = whole(atlas), of_classes(atlas, classes), of_clusters(atlas, classes)
    regions = [region for one in clusters for region in kept_regions(atlas, one.number)]
    asked = [] if wish is None else [wish.region, *wish.found()]
    near = alike([*regions, *asked])

    def seen(region: Region) -> Image.Image:
        if wish is not None and region is wish.region:
            return wish.picture
        return picture(region.image)

    def draw(own: Sequence[Region], file: str, first: int) -> dict[int, Tile]:
        """One picture of these regions, and the tiles that show its parts, numbered from `first`."""
        strip([draw_region(seen(region), region.map) for region in own]).save(folder / file, "JPEG", quality=QUALITY)
        return {
            first + place: Tile(
                region,
                images.name(region.image) if wish is None or region is not wish.region else wish.name,
                classes[region.label] if region.label != UNKNOWN else None,
                classes[region.answer],
                file,
                place,
                len(own),
                tuple(near[first + place]),
            )
            for place, region in enumerate(own)
        }

    sections, number = [], 0
    for one in track(clusters, total=len(clusters), label="draw", unit="clusters"):
        own = [region for region in regions if region.cluster == one.number]
        sections.append(Section(one, draw(own, f"cluster_{one.number:03d}.jpg", number)))
        number += len(own)
    like = draw(asked, LIKE, number) if asked else {}
    page = render_atlas(
        title=f"Clusters of {about.trained.name} over {about.data}",
        facts=facts(about, summary, len(clusters), atlas),
        summary=summary,
        classes=by_class,
        sections=sections,
        like=like,
    )
    write_text(folder / PAGE, page)
    write_json(folder / RESULT, content(about, summary, by_class, sections, like))
    return in_words(summary, by_class, clusters)


def kept_regions(atlas: Atlas, cluster: int) -> list[Region]:
    return [region for kind in KEPT for region in regions_of(atlas.kept[kind], cluster, cluster, kind)]


def facts(about: About, summary: Whole, clusters: int, atlas: Atlas) -> dict[str, str]:
    sizes = sorted(atlas.grids)
    (rows, columns), (most_rows, most_columns) = sizes[0], sizes[-1]
    maps = f"{columns} × {rows}" + ("" if len(sizes) == 1 else f" to {most_columns} × {most_rows}")
    block = f", block {about.layer.block}" if about.layer.block else ""
    found = {
        "model": about.trained.name,
        "data": f"{about.data} ({about.split})",
        "images": f"{summary.images}, {percent(summary.right / summary.images)} right",
        "clusters": f"{clusters} of stage {about.layer.stage}{block}, maps of {maps}",
        "importance by": about.measure.replace("_", " "),
    }
    if about.trained.task != "classify":
        found["explained"] = "the best finding of each image"
    if about.left_out:
        found["left out"] = about.left_out
    if summary.background is not None:
        found["importance on background"] = f"{percent(summary.background)} (chance {percent(summary.area)})"
    return found


def content(
    about: About, summary: Whole, classes: Sequence[OfClass], sections: Sequence[Section], like: dict[int, Tile]
) -> dict[str, Any]:
    files = [PAGE, *dict.fromkeys(tile.picture for section in sections for tile in section.tiles.values())]
    return {
        "model": about.model,
        "data": about.data,
        "split": about.split,
        "layer": about.layer._asdict(),
        "importance_by": about.measure,
        "left_out": about.left_out,
        "summary": as_json(summary),
        "classes": [as_json(one) for one in classes],
        "clusters": [
            as_json(section.figures) | {"regions": [as_row(number, tile) for number, tile in section.tiles.items()]}
            for section in sections
        ],
        **({"like": [as_row(number, tile) for number, tile in like.items()]} if like else {}),
        "files": [*files, LIKE] if like else files,
    }


def as_row(number: int, tile: Tile) -> dict[str, Any]:
    region = tile.region
    return {
        "number": number,
        "cluster": region.cluster,
        "kind": region.kind,
        "image": tile.name,
        "label": tile.label,
        "answer": tile.answer,
        "peak": round(region.strength, 4),
        "importance": round(region.importance, 6),
        "picture": tile.picture,
        "place": tile.place,
        "alike": [[other, round(cosine, 4)] for other, cosine in tile.alike],
    }


def in_words(summary: Whole, classes: Sequence[OfClass], clusters: Sequence[OfCluster]) -> str:
    lines = [
        f"{summary.images} images, {percent(summary.right / summary.images)} right; even maps in this stage cost "
        f"{summary.lost:+.2f} log-odds and change {percent(summary.changed)} of the answers"
    ]
    if not summary.carries:
        lines.append("the clusters of this stage carry nothing: try another --stage")
    most = ", ".join(f"{one.number} ({percent(one.share)})" for one in clusters[:NAMED])
    lines.append(f"clusters with the largest share of importance: {most}")
    if summary.background is not None:
        lines.append(f"importance on the background: {percent(summary.background)}, chance {percent(summary.area)}")
        doubtful = [one.name for one in classes if one.shortcut]
        if doubtful:
            lines.append(f"no less than chance for: {', '.join(doubtful)}; look for a shortcut")
    behind = behind_mistakes(clusters, NAMED)
    if behind:
        told = ", ".join(f"{one.number} ({percent(one.share_of_wrong)} against {percent(one.share)})" for one in behind)
        lines.append(f"clusters with more weight in wrong answers than in all: {told}")
    return "\n".join(lines)
