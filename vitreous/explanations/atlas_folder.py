"""An atlas as a folder: the page, a picture with the regions of each cluster, and all numbers."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from vitreous.clusters.atlas import ATLAS_RANKINGS, REGIONS_PER_CLUSTER, Atlas
from vitreous.clusters.atlas_figures import (
    AtlasClass,
    AtlasCluster,
    AtlasSummary,
    as_rounded_dict,
    atlas_classes,
    atlas_clusters,
    atlas_summary,
    behind_mistakes,
)
from vitreous.clusters.layer import Layer
from vitreous.data.image_set import ImageSet
from vitreous.errors import InputError, printable
from vitreous.explanations.atlas import (
    UNKNOWN_LABEL,
    Gathered,
    SimilarityQuery,
    classes_of,
    gather,
    left_out,
    seen_picture,
    similarity_query,
)
from vitreous.explanations.explaining import Plan, cluster_layer_of, without_clusters
from vitreous.files.storage import write_json
from vitreous.files.writing import write_text
from vitreous.reports.atlas_page import (
    AtlasRegion,
    Section,
    Tile,
    draw_region,
    region_strip,
    regions_of,
    render_atlas,
    similar_regions,
)
from vitreous.reports.page import percent
from vitreous.runs.result_parts import remove_parts
from vitreous.runs.results import result_folder
from vitreous.runs.trained_model import TrainedModel, labelled_for
from vitreous.runtime.console import track
from vitreous.runtime.distributed import SINGLE_PROCESS, World

ATLAS_JSON, ATLAS_PAGE, SIMILAR_REGIONS = "atlas.json", "index.html", "like.jpg"
JPEG_QUALITY = 88
PRINTED = 3  # clusters and classes named in the console


class About(NamedTuple):
    model: str
    trained: TrainedModel
    classes: tuple[str, ...]  # of answers and labels
    data: str
    split: str
    layer: Layer
    ranking: str
    left_out: str = ""  # images that are no part of it, in words


def write_atlas(
    model: str,
    trained: TrainedModel,
    data: str,
    images: ImageSet,
    *,
    split: str,
    limit: int | None,
    ranking: str,
    plan: Plan,
    like: str | None,
    cluster: int | None,
    batch_size: int,
    out: Path,
    world: World = SINGLE_PROCESS,
) -> Path:
    """Gather the atlas of a stage, write it and name what stands out."""
    if ranking not in ATLAS_RANKINGS:
        raise InputError(
            f"--ranking {ranking} cannot be gathered over a data set; the atlas takes {', '.join(ATLAS_RANKINGS)}"
        )
    layer = cluster_layer_of(trained.model, plan)
    if layer is None:
        raise InputError(f"an atlas shows clusters, and {without_clusters(trained.model)}")
    query = None if like is None else similarity_query(trained, like, cluster, layer, ranking)
    with result_folder(out, ATLAS_JSON) if world.main else nullcontext() as staging:
        images = labelled_for(trained, images)
        chosen: dict[str, Any] = dict(ranking=ranking, limit=limit, batch_size=batch_size, query=query)
        gathered = gather(trained, images, layer, **chosen, out=out, world=world)
        if staging is None or gathered is None:
            return out / ATLAS_PAGE
        missing = left_out(gathered.tally)
        about = About(model, trained, classes_of(trained), data, split, layer, ranking, missing)
        findings = write_atlas_folder(staging, gathered, images, about, query)
    remove_parts(out)
    print(printable(f"\n{findings}", keep="\n"))
    if missing:
        print(printable(f"left out: {missing}"))
    print(printable(f"atlas: {out / ATLAS_PAGE}"))
    return out / ATLAS_PAGE


def write_atlas_folder(
    folder: Path, gathered: Gathered, images: ImageSet, about: About, query: SimilarityQuery | None
) -> str:
    """Write everything; what stands out comes back, in words."""
    classes, atlas = about.classes, gathered.atlas
    summary, by_class, clusters = atlas_summary(atlas), atlas_classes(atlas, classes), atlas_clusters(atlas, classes)
    regions = [
        region
        for one in clusters
        for kind in REGIONS_PER_CLUSTER
        for region in regions_of(atlas.kept[kind], one.number, one.number, kind)
    ]
    asked = [] if query is None else [query.region, *query.found(gathered.like)]
    near = similar_regions([*regions, *asked])

    def seen(region: AtlasRegion) -> Image.Image:
        if query is not None and region is query.region:
            return query.picture
        return seen_picture(about.trained, images, region.image)

    def draw(own: Sequence[AtlasRegion], file: str, first: int) -> dict[int, Tile]:
        """One picture of these regions, and the tiles that show its parts, numbered from `first`."""
        drawn = [draw_region(seen(region), region.map) for region in own]
        region_strip(drawn).save(folder / file, "JPEG", quality=JPEG_QUALITY)
        return {
            first + place: Tile(
                region,
                images.name(region.image) if query is None or region is not query.region else query.name,
                classes[region.label] if region.label != UNKNOWN_LABEL else None,
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
    like = draw(asked, SIMILAR_REGIONS, number) if asked else {}
    page = render_atlas(
        title=f"Clusters of {about.trained.name} over {about.data}",
        facts=facts(about, summary, len(clusters), atlas),
        summary=summary,
        classes=by_class,
        sections=sections,
        like=like,
    )
    write_text(folder / ATLAS_PAGE, page)
    write_json(folder / ATLAS_JSON, content(about, summary, by_class, sections, like))
    return in_words(summary, by_class, clusters)


def facts(about: About, summary: AtlasSummary, clusters: int, atlas: Atlas) -> dict[str, str]:
    sizes = sorted(atlas.grids)
    (rows, columns), (most_rows, most_columns) = sizes[0], sizes[-1]
    maps = f"{columns} × {rows}" + ("" if len(sizes) == 1 else f" to {most_columns} × {most_rows}")
    found = {
        "model": about.trained.name,
        "data": f"{about.data} ({about.split})",
        "images": f"{summary.images}, {percent(summary.right / summary.images)} right",
        "clusters": f"{clusters} of {about.layer.name}, maps of {maps}",
        "importance by": about.ranking.replace("_", " "),
    }
    if about.trained.task != "classify":
        found["explained"] = "the best finding of each image"
    if about.left_out:
        found["left out"] = about.left_out
    if summary.background is not None:
        found["importance on background"] = f"{percent(summary.background)} (chance {percent(summary.area)})"
    return found


def content(
    about: About,
    summary: AtlasSummary,
    classes: Sequence[AtlasClass],
    sections: Sequence[Section],
    like: dict[int, Tile],
) -> dict[str, Any]:
    files = [ATLAS_PAGE, *dict.fromkeys(tile.picture for section in sections for tile in section.tiles.values())]
    return {
        "model": about.model,
        "data": about.data,
        "split": about.split,
        "layer": about.layer._asdict(),
        "importance_by": about.ranking,
        "left_out": about.left_out,
        "summary": as_rounded_dict(summary),
        "classes": [as_rounded_dict(one) for one in classes],
        "clusters": [
            as_rounded_dict(section.figures)
            | {"regions": [as_row(number, tile) for number, tile in section.tiles.items()]}
            for section in sections
        ],
        **({"like": [as_row(number, tile) for number, tile in like.items()]} if like else {}),
        "files": [*files, SIMILAR_REGIONS] if like else files,
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


def in_words(summary: AtlasSummary, classes: Sequence[AtlasClass], clusters: Sequence[AtlasCluster]) -> str:
    lines = [
        f"{summary.images} images, {percent(summary.right / summary.images)} right; even maps in this stage cost "
        f"{summary.lost:+.2f} log-odds and change {percent(summary.changed)} of the answers"
    ]
    if not summary.carries:
        lines.append("the clusters of this stage carry nothing: try another --stage")
    most = ", ".join(f"{one.number} ({percent(one.share)})" for one in clusters[:PRINTED])
    lines.append(f"clusters with the largest share of importance: {most}")
    if summary.background is not None:
        lines.append(f"importance on the background: {percent(summary.background)}, chance {percent(summary.area)}")
        doubtful = [one.name for one in classes if one.shortcut]
        if doubtful:
            lines.append(f"no less than chance for: {', '.join(doubtful)}; look for a shortcut")
    behind = behind_mistakes(clusters, PRINTED)
    if behind:
        named = ", ".join(
            f"{one.number} ({percent(one.share_of_wrong)} against {percent(one.share)})" for one in behind
        )
        lines.append(f"clusters with more weight in wrong answers than in all: {named}")
    return "\n".join(lines)
