"""Which clusters of a PaCa model carried the decision, as pictures, numbers and one HTML report.

vitreous explain runs/demo photo.jpg
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from vitreous.data.pictures import Picture, find_pictures
from vitreous.data.transforms import to_unit_tensor
from vitreous.errors import InputError, nearest
from vitreous.maps.cluster_sheet import Clusters
from vitreous.maps.clusters import (
    Interpolation,
    Layer,
    Masking,
    MaskSpace,
    Ranking,
    Source,
    as_distributions,
    choose_layer,
    layer_maps,
    likeness,
    rank_clusters,
    stretch,
)
from vitreous.maps.draw import Panel, contact_sheet, enlarge, overlay
from vitreous.maps.report import Cluster, Explanation, render
from vitreous.models.base import Backbone
from vitreous.predict import ask, drawn
from vitreous.tasks.base import WithHead
from vitreous.training.device import choose_device
from vitreous.training.model_folder import TrainedModel, load_model
from vitreous.training.progress import track
from vitreous.training.results import (
    file_name,
    readable,
    report_skipped,
    require_numbers,
    require_positive,
    result_folder,
)
from vitreous.training.storage import write_json

RESULT, REPORT = "explanation.json", "report.html"
SHOWN_CLASSES = 5
SURE = 0.3  # score of a finding that is drawn
SHEET_WIDTH = 256  # pixels of one panel
HIDDEN_WITH = {"pixels": "black", "normalised": "grey"}


def explain(
    model: str,
    images: tuple[str, ...],
    *,
    out: Path = Path("explanation"),
    stage: int | None = None,
    block: int | None = None,
    source: Source = "clusters",
    head: int | None = None,
    top_k: int = 6,
    limit: int = 50,
    label: str | None = None,
    mask_space: MaskSpace = "normalised",
    interpolation: Interpolation = "bilinear",
    tie_tolerance: float = 1e-3,
    batch_size: int = 64,
    size: int | None = None,
    device: str = "auto",
) -> Path:
    """Show which clusters of a PaCa model carried its decision on images.

    Every cluster of one layer is scored as in the PaCa paper: hide what it looks at, run the model again, and see
    how much probability the class loses. The class is the true one where it is known (--label, or the image lies in
    a folder named like one of the model's classes), otherwise the predicted one.

    A model for another task has no single decision to lose: of each image its clusters are drawn, the most
    concentrated first, beside what the model found.

    Written to --out: report.html (one file, opens anywhere, needs no network), one contact sheet per image, and
    explanation.json with all numbers; of other tasks the sheets and the numbers only. An earlier explanation there is
    replaced; any other content is left alone and refused.

    Examples:
        vitreous explain runs/demo photo.jpg
        vitreous explain runs/demo shapes:val:0-7 --out explanation
        vitreous explain runs/mine photos/ --stage 2 --top-k 4 --label cat
        vitreous explain runs/mine photo.jpg --source attention --head 1

    Args:
        model: Run folder, model folder or model name (see: vitreous info).
        images: Files, folders, patterns such as 'photos/*.jpg', or samples of the embedded data: shapes:val:0-7.
        out: Folder to write to.
        stage: Stage to look into, counted from 1 as in the paper; default: the last one with clusters.
        block: Block of the stage, counted from 1; default: the last one that has maps of its own.
        source: Rank the cluster maps, or the attention each position pays to the clusters.
        head: Attention head, counted from 1; default: the mean of all heads.
        top_k: Number of clusters to draw.
        limit: Most images to explain; of more, a selection evenly spread over them is taken.
        label: True class of the images.
        mask_space: Hide with black (pixels) or with the mean colour of the training data (normalised).
        interpolation: How maps are enlarged to the image when masking.
        tie_tolerance: Scores closer than this are ordered by entropy.
        batch_size: Masked images per forward pass; the result does not depend on it.
        size: Height and width the images are brought to; default: what the model was trained with.
        device: cpu, cuda, cuda:1, mps, or auto.

    Returns:
        The path of the report, or of the numbers where there is none.
    """
    require_positive(top_k=top_k, batch_size=batch_size, limit=limit)
    if head is not None and source != "attention":
        raise InputError(f"--head {head} given, but cluster maps have no heads; add --source attention or leave it out")
    if not tie_tolerance >= 0:  # NaN is refused too
        raise InputError(f"--tie-tolerance {tie_tolerance} cannot be used; it is a difference of scores, 0 or more")
    with result_folder(out, RESULT) as aside:
        trained = load_model(model, size=size)
        trained.model.to(choose_device(device))
        task = trained.build_task()
        if isinstance(task, WithHead):
            if label is not None:
                raise InputError(f"--label {label} given, but this model gives images no label; leave it out")
            layer = choose_layer(clustered_part(trained), source=source, stage=stage, block=block)
            pictures = select(find_pictures(images, size=trained.preprocess.size), limit)
            seen = [
                look_into(trained, task, picture, image, layer, head)
                for picture, image in readable(track(pictures, total=len(pictures), label="explain"))
            ]
            report_skipped(len(pictures) - len(seen), len(pictures))
            write_clusters(aside, model, trained, seen, layer, head, top_k)
            return out / RESULT
        if label is not None and label not in trained.classes:
            raise InputError(f"unknown class {label!r}; nearest: {nearest(label, list(trained.classes))}")
        layer = choose_layer(trained.model, source=source, stage=stage, block=block)
        masking = Masking(mask_space, interpolation, tie_tolerance, batch_size)
        pictures = select(find_pictures(images, size=trained.preprocess.size), limit)
        explanations = [
            explain_picture(trained, picture, image, layer=layer, head=head, masking=masking, label=label)
            for picture, image in readable(track(pictures, total=len(pictures), label="explain"))
        ]
        report_skipped(len(pictures) - len(explanations), len(pictures))
        facts = describe_run(trained, layer, head, masking, explanations)
        sheets = [write_sheet(aside, index, item, facts, top_k) for index, item in enumerate(explanations, 1)]
        page = render(
            explanations,
            title=f"What {trained.name} looked at",
            facts=facts,
            hidden_with=HIDDEN_WITH[mask_space],
            top_k=top_k,
        )
        (aside / REPORT).write_text(page, encoding="utf-8")
        settings = {"layer": {**layer._asdict(), "head": head}, "masking": asdict(masking)}
        numbers = [as_json(item, sheet) for item, sheet in zip(explanations, sheets, strict=True)]
        write_json(aside / RESULT, {"model": model, **settings, "images": numbers, "files": [*sheets, REPORT]})
    print_summary(explanations, out)
    return out / REPORT


def select(pictures: Sequence[Picture], limit: int) -> list[Picture]:
    """At most `limit` pictures, evenly spread, so that a folder of classes is not represented by its first class."""
    if len(pictures) > limit:
        print(f"{limit} of {len(pictures)} images are explained; --limit {len(pictures)} explains all")
    step = max(1.0, len(pictures) / limit)
    return [pictures[int(index * step)] for index in range(min(limit, len(pictures)))]


def clustered_part(trained: TrainedModel) -> nn.Module:
    """The backbone below the head."""
    inside = [module for module in trained.model.modules() if isinstance(module, Backbone)]
    return inside[0] if inside else trained.model


def look_into(
    trained: TrainedModel, task: WithHead, source: Picture, image: Image.Image, layer: Layer, head: int | None
) -> Clusters:
    """The clusters of a picture whose answer is not a single class."""
    question = task.questions(image, [])[0]
    answer = drawn(task, image, ask(trained, task, [(image, question)]), SURE)
    pixels, _ = task.evaluation_view(trained.preprocess)(image, question)
    device = next(trained.model.parameters()).device
    inputs = trained.preprocess.normalise_bytes(pixels.to(device))[None]
    maps = as_distributions(layer_maps(clustered_part(trained), inputs, layer, head)[0]).cpu()
    return Clusters(source.name, Image.fromarray(pixels.permute(1, 2, 0).numpy()), answer, maps)


def write_clusters(
    out: Path, model: str, trained: TrainedModel, seen: Sequence[Clusters], layer: Layer, head: int | None, top_k: int
) -> None:
    """One sheet for each picture, and all numbers."""
    sheets, numbers = [], []
    for index, item in enumerate(seen, 1):
        sheets.append(file_name(index, item.name))
        place = f"stage {layer.stage} ({layer.tap})"
        item.sheet(f"Clusters of {trained.name}", place, top_k, SHEET_WIDTH).save(out / sheets[-1])
        spread = item.entropy().tolist()
        clusters = [{"number": number, "entropy": spread[number]} for number in item.order()]
        numbers.append({"image": item.name, "sheet": sheets[-1], "clusters": clusters})
    content = {"model": model, "layer": {**layer._asdict(), "head": head}, "images": numbers, "files": sheets}
    write_json(out / RESULT, content)


def explain_picture(
    trained: TrainedModel,
    source: Picture,
    image: Image.Image,
    *,
    layer: Layer,
    head: int | None = None,
    masking: Masking | None = None,
    label: str | None = None,
) -> Explanation:
    """One picture explained; its true class is `label`, or what its name says if that is a class of the model."""
    device = next(trained.model.parameters()).device
    seen = trained.preprocess.picture(image)
    pixels = to_unit_tensor(seen).to(device)
    true = label or (source.label if source.label in trained.classes else None)
    maps = layer_maps(trained.model, trained.preprocess.normalise(pixels)[None], layer, head)[0]
    ranking = rank_clusters(
        trained.model,
        pixels,
        maps,
        normalise=trained.preprocess.normalise,
        target=None if true is None else trained.classes.index(true),
        masking=masking,
    )
    require_numbers(trained.name, ranking.probabilities)
    return as_explanation(source.name, seen, true, trained.classes, ranking)


def as_explanation(
    name: str, picture: Image.Image, true: str | None, classes: Sequence[str], ranking: Ranking
) -> Explanation:
    best = ranking.probabilities.topk(min(SHOWN_CLASSES, len(classes)))
    probabilities = [(classes[i], p) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    scores, spread = ranking.importance.tolist(), ranking.entropy.tolist()
    return Explanation(
        name=name,
        picture=picture,
        predicted=probabilities[0][0],
        true=true,
        watched=classes[ranking.target],
        probabilities=tuple(probabilities),
        clusters=tuple(Cluster(m, scores[m], spread[m]) for m in ranking.order.tolist()),
        heat=np.asarray(stretch(ranking.maps).cpu()),
    )


def describe_run(
    trained: TrainedModel, layer: Layer, head: int | None, masking: Masking, explanations: Sequence[Explanation]
) -> dict[str, str]:
    """What the reader must know to repeat it, and to judge it."""
    example = explanations[0]
    clusters, rows, columns = example.heat.shape
    alike = sum(likeness(torch.from_numpy(item.heat)) for item in explanations) / len(explanations)
    where = f"stage {layer.stage}" + (f", block {layer.block}" if layer.block else "")
    kind = "cluster" if layer.source == "clusters" else "attention"
    heads = "" if layer.source == "clusters" else f", {'mean of heads' if head is None else f'head {head}'}"
    return {
        "model": trained.name,
        "layer": f"{where} ({layer.tap})",
        "maps": f"{clusters} {kind} maps of {columns} x {rows}{heads}",
        "picture": f"{example.picture.width} x {example.picture.height} pixels",
        "hidden with": f"{HIDDEN_WITH[masking.space]}, {masking.interpolation}",
        "entropy of a flat map": f"{math.log(rows * columns):.2f} nats",
        "likeness of the maps": f"{alike:.2f}",
    }


def write_sheet(out: Path, index: int, item: Explanation, facts: dict[str, str], top_k: int) -> str:
    """The picture and its most important clusters in one row."""
    others = tuple(f"{name} {probability:.1%}" for name, probability in item.probabilities[1:3])
    panels = [Panel(enlarge(item.picture, SHEET_WIDTH), f"{item.predicted} {item.probabilities[0][1]:.1%}", others)]
    for cluster in item.clusters[:top_k]:
        heat = overlay(item.picture, item.heat[cluster.number], width=SHEET_WIDTH)
        details = (f"score {cluster.importance:+.3f}", f"entropy {cluster.entropy:.2f} nats")
        panels.append(Panel(heat, f"cluster {cluster.number}", details))
    verdict = "" if item.true is None else ", right" if item.true == item.predicted else f", but it is {item.true}"
    sheet = contact_sheet(
        panels,
        heading=f"Predicted {item.predicted}{verdict}",
        subheading=f"{item.name} · {facts['model']} · {facts['layer']} · {facts['maps']}",
        footnote=f"score: probability of “{item.watched}” lost when the bright area is hidden; "
        f"entropy of a flat map: {facts['entropy of a flat map']}",
    )
    name = file_name(index, item.name)
    sheet.save(out / name)
    return name


def as_json(item: Explanation, sheet: str) -> dict[str, Any]:
    return {
        "image": item.name,
        "sheet": sheet,
        "predicted": item.predicted,
        "true": item.true,
        "watched": item.watched,
        "probabilities": dict(item.probabilities),
        "clusters": [{"rank": rank, **cluster._asdict()} for rank, cluster in enumerate(item.clusters, 1)],
    }


def print_summary(explanations: Sequence[Explanation], out: Path) -> None:
    width = max(len(item.name) for item in explanations)
    for item in explanations:
        best = item.clusters[0]
        verdict = "" if item.true is None else " (right)" if item.true == item.predicted else f" (it is {item.true})"
        predicted = f"{item.predicted} {item.probabilities[0][1]:.1%}{verdict}"
        print(f"{item.name:<{width}}  {predicted:<28}  top cluster {best.number}, score {best.importance:+.3f}")
    print(f"\nreport: {out / REPORT}")
