"""Class probabilities of images: a table on the screen, JSON and labelled drawings in a folder.

vitreous predict runs/demo photo.jpg
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vitreous.data.pictures import Picture, find_pictures
from vitreous.maps.clusters import class_probabilities
from vitreous.maps.draw import labelled
from vitreous.training.model_folder import TrainedModel, load_classifier
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

RESULT = "predictions.json"


def predict(
    model: str,
    images: tuple[str, ...],
    *,
    out: Path | None = None,
    top_k: int = 5,
    batch_size: int = 32,
    size: int | None = None,
    device: str = "auto",
) -> list[dict[str, Any]]:
    """Class probabilities of images.

    Files that cannot be read are named and skipped; only when none can be read is that an error.

    Examples:
        vitreous predict runs/demo photo.jpg
        vitreous predict runs/demo photos/ more/*.png --top-k 3
        vitreous predict runs/demo shapes:val:0-7 --out predictions

    Args:
        model: Run folder, model folder or model name (see: vitreous info).
        images: Files, folders, patterns such as 'photos/*.jpg', or samples of the embedded data: shapes:val:0-7.
        out: Folder for predictions.json and one labelled drawing per image.
        top_k: Number of classes to show for each image.
        batch_size: Images per forward pass.
        size: Height and width the images are brought to; default: what the model was trained with.
        device: cpu, cuda, cuda:1, mps, or auto.

    Returns:
        For each readable image a dict with "image" and "predictions", most probable class first.
    """
    require_positive(top_k=top_k, batch_size=batch_size)
    with nullcontext() if out is None else result_folder(out, RESULT) as aside:
        trained = load_classifier(model, size=size, device=device)
        pictures = find_pictures(images, size=trained.preprocess.size)
        results: list[dict[str, Any]] = []
        progress = track(pictures, total=len(pictures), label="predict")
        for names, loaded in batches(readable(progress), batch_size):
            for name, picture, ranked in zip(names, loaded, rank_classes(trained, loaded, top_k), strict=True):
                results.append({"image": name, "predictions": [{"class": c, "probability": p} for c, p in ranked]})
                if aside is not None:
                    results[-1]["drawing"] = file_name(len(results), name)
                    labelled(picture, describe(ranked[:1])).save(aside / results[-1]["drawing"])
        report_skipped(len(pictures) - len(results), len(pictures))
        if aside is not None:
            files = [result["drawing"] for result in results]
            write_json(aside / RESULT, {"model": model, "images": results, "files": files})
    print_results(results)
    if out is not None:
        print(f"\nwritten: {out / RESULT} and {len(results)} drawings beside it")
    return results


def batches(
    pictures: Iterable[tuple[Picture, Image.Image]], batch_size: int
) -> Iterator[tuple[list[str], list[Image.Image]]]:
    iterator = iter(pictures)
    while batch := list(islice(iterator, batch_size)):
        yield [picture.name for picture, _ in batch], [image for _, image in batch]


def rank_classes(trained: TrainedModel, images: Sequence[Image.Image], top_k: int) -> list[list[tuple[str, float]]]:
    """For each image its most probable classes with their probabilities."""
    device = next(trained.model.parameters()).device
    inputs = torch.stack([trained.preprocess(image) for image in images]).to(device)
    probabilities = class_probabilities(trained.model, inputs).cpu()
    require_numbers(trained.name, probabilities)
    best = probabilities.topk(min(top_k, len(trained.classes)))
    return [
        [(trained.classes[index], probability) for index, probability in zip(row, values, strict=True)]
        for row, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def describe(ranked: Iterable[tuple[str, float]]) -> str:
    return "   ".join(f"{name} {probability:.1%}" for name, probability in ranked)


def print_results(results: Sequence[dict[str, Any]]) -> None:
    width = max(len(result["image"]) for result in results)
    for result in results:
        ranked = [(entry["class"], entry["probability"]) for entry in result["predictions"]]
        print(f"{result['image']:<{width}}  {describe(ranked)}")
