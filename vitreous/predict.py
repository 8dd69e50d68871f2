"""Class probabilities of images: a table on the screen, JSON and labelled drawings in a folder.

vitreous predict runs/demo photo.jpg
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vitreous.data.image import ImageError
from vitreous.data.pictures import Picture, find_pictures
from vitreous.errors import InputError
from vitreous.maps.clusters import class_probabilities
from vitreous.maps.draw import labelled
from vitreous.training.device import choose_device
from vitreous.training.model_folder import TrainedModel, load_model
from vitreous.training.progress import track

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
    if out is not None:
        refuse_foreign_folder(out, RESULT)
    trained = load_classifier(model, size=size, device=device)
    pictures = find_pictures(images, size=trained.preprocess.size)
    if out is not None:
        clear_folder(out, RESULT)
    results: list[dict[str, Any]] = []
    progress = track(pictures, total=len(pictures), label="predict")
    for names, loaded in batches(readable(progress), batch_size):
        for name, picture, ranked in zip(names, loaded, rank_classes(trained, loaded, top_k), strict=True):
            results.append({"image": name, "predictions": [{"class": c, "probability": p} for c, p in ranked]})
            if out is not None:
                results[-1]["drawing"] = file_name(len(results), name)
                labelled(picture, describe(ranked[:1])).save(out / results[-1]["drawing"])
    report_skipped(len(pictures) - len(results), len(pictures))
    print_results(results)
    if out is not None:
        files = [result["drawing"] for result in results]
        write_json(out / RESULT, {"model": model, "images": results, "files": files})
        print(f"\nwritten: {out / RESULT} and {len(results)} drawings beside it")
    return results


def load_classifier(source: str, *, size: int | None, device: str) -> TrainedModel:
    """The model on its device, with the preprocessing for the wanted size."""
    trained = load_model(source)
    if trained.task != "classify":
        raise InputError(f"model {source!r} was trained for the task {trained.task!r}; this verb needs a classifier")
    if size is not None:
        require_positive(size=size)
        trained = trained._replace(preprocess=replace(trained.preprocess, size=(size, size)))
    trained.model.to(choose_device(device)).eval()
    return trained


def readable(pictures: Iterable[Picture]) -> Iterator[tuple[Picture, Image.Image]]:
    """Each picture with its pixels; those that cannot be read are named and passed over."""
    for picture in pictures:
        try:
            yield picture, picture.load()
        except ImageError as error:
            print(f"skipped: {error}", file=sys.stderr)


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
    best = class_probabilities(trained.model, inputs).cpu().topk(min(top_k, len(trained.classes)))
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


def report_skipped(skipped: int, total: int) -> None:
    if total and skipped == total:
        raise InputError(f"none of the {total} images could be read; the reasons are above")
    if skipped:
        print(f"{skipped} of {total} images could not be read and were skipped", file=sys.stderr)


def require_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise InputError(f"--{name.replace('_', '-')} {value} cannot be used; give a whole number from 1 up")


def file_name(index: int, name: str) -> str:
    """A file for the picture that no other picture claims and every file system accepts."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(name).stem)[:60]
    return f"{index:03d}_{stem}.png"


def refuse_foreign_folder(folder: Path, marker: str) -> None:
    """Only an empty place or an earlier result of the same verb, known by its marker file, may be written to."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file; give a new folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / marker).is_file():
        raise InputError(f"folder {folder} is not empty and holds no earlier {marker}; give a new folder with --out")


def clear_folder(folder: Path, marker: str) -> None:
    """Make the folder ready; an earlier result in it is removed, its own files only, and that is said."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / marker).is_file():
        return
    print(f"replacing the earlier result in {folder}")
    try:
        written = json.loads((folder / marker).read_text(encoding="utf-8"))["files"]
    except (ValueError, KeyError, TypeError):
        written = []
    for name in [*written, marker]:
        if Path(name).name == name:  # a listed path that leads elsewhere was not written by us
            (folder / name).unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
