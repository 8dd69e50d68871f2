"""What the clusters of a detector, a segmenter or a keypoint model look at, beside what it found."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from torch import nn

from vitreous.data.pictures import Picture
from vitreous.explanations.folder import RESULT
from vitreous.maps.cluster_sheet import Clusters
from vitreous.maps.clusters import Layer, as_distributions, choose_layer, layer_maps
from vitreous.maps.explaining import Plan
from vitreous.models.base import Backbone
from vitreous.predict import ask, drawn
from vitreous.tasks.base import WithHead
from vitreous.training.model_folder import TrainedModel
from vitreous.training.progress import track
from vitreous.training.results import file_name, readable, report_skipped
from vitreous.training.storage import write_json

SURE = 0.3  # score of a finding that is drawn
SHEET_WIDTH = 256  # pixels of one panel


def explain_dense(
    out: Path, model: str, trained: TrainedModel, pictures: Sequence[Picture], plan: Plan, top_k: int
) -> None:
    """One sheet for each picture, and all numbers."""
    task = trained.build_task()
    assert isinstance(task, WithHead)  # every task but classification has a head over a pyramid
    layer = choose_layer(clustered_part(trained), source=plan.source, stage=plan.stage, block=plan.block)
    seen = [
        look_into(trained, task, picture, image, layer, plan.head)
        for picture, image in readable(track(pictures, total=len(pictures), label="explain"))
    ]
    report_skipped(len(pictures) - len(seen), len(pictures))
    sheets, numbers = [], []
    for index, item in enumerate(seen, 1):
        sheets.append(file_name(index, item.name))
        place = f"stage {layer.stage} ({layer.tap})"
        item.sheet(f"Clusters of {trained.name}", place, top_k, SHEET_WIDTH).save(out / sheets[-1])
        spread = item.entropy().tolist()
        clusters = [{"number": number, "entropy": spread[number]} for number in item.order()]
        numbers.append({"image": item.name, "sheet": sheets[-1], "clusters": clusters})
    content = {"model": model, "layer": {**layer._asdict(), "head": plan.head}, "images": numbers, "files": sheets}
    write_json(out / RESULT, content)


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
