"""What a model says about images: a table on the screen, JSON and drawings in a folder.

vitreous predict runs/demo photo.jpg
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image

from vitreous.data.detector_boxes import DetectorBoxes, read_boxes
from vitreous.data.pictures import Picture, find_pictures
from vitreous.drawing.annotate import enlarged, with_legend
from vitreous.drawing.panels import labelled
from vitreous.errors import InputError, printable
from vitreous.explanations.answers import ask, drawn
from vitreous.files.storage import write_json
from vitreous.runs.model_folder import TrainedModel, load_model
from vitreous.runs.results import (
    file_name,
    load_readable,
    report_skipped,
    require_numbers,
    require_positive,
    result_folder,
)
from vitreous.runtime.device import choose_device
from vitreous.runtime.progress import track
from vitreous.tasks.base import Inference, Task, WithHead
from vitreous.tasks.keypoints import Keypoints
from vitreous.tasks.segment import Segment

RESULT, COCO = "predictions.json", "coco_results.json"


def predict(
    model: str,
    images: tuple[str, ...],
    *,
    out: Path | None = None,
    top_k: int = 5,
    least: float = 0.3,
    boxes: Path | None = None,
    flip: bool = False,
    scales: tuple[float, ...] = (),
    slide: bool = False,
    batch_size: int | None = None,
    size: int | None = None,
    device: str = "auto",
    architecture: str | None = None,
    model_args: tuple[str, ...] = (),
) -> list[dict[str, Any]]:
    """Class probabilities, objects, a class for every pixel, or keypoints, depending on what the model was trained for.

    With --out, what is found is drawn on the images, and written to predictions.json; of all models but classifiers
    also to coco_results.json, in COCO's format for results. There all answers are kept, whatever --least says.

    Files that cannot be read are named and skipped; only when none can be read is that an error.

    Examples:
        vitreous predict runs/demo photo.jpg
        vitreous predict runs/demo photos/ more/*.png --top-k 3
        vitreous predict runs/demo shapes:val:0-7 --out predictions
        vitreous predict runs/cells slides/ --least 0.5 --out found
        vitreous predict runs/poses photos/ --boxes found/predictions.json --flip --out poses

    Args:
        model: Run folder, model folder, file of weights (.pth, .safetensors) or model name (see: vitreous info). In
            Python also what `vitreous.load_model` gives.
        images: Files, folders, patterns such as 'photos/*.jpg', or samples of the embedded data: shapes:val:0-7. In
            Python also pictures in memory.
        out: Folder for predictions.json and one drawing per image.
        top_k: Classifiers: number of classes to show for each image.
        least: Detection and keypoints: smallest score of what is shown, and of what --boxes says.
        boxes: Keypoints: predictions.json of a detector, or a list of COCO's results, which says where objects are;
            scores are then the product with the detector's. Default: an image is one object.
        flip: Segmentation and keypoints: the mean with the answer about the mirrored picture.
        scales: Segmentation: the mean over the picture at these scales.
        slide: Segmentation: windows of the size of the training crops, instead of the whole picture at once.
        batch_size: Images per forward pass; default: 32, and 1 where images differ in size.
        size: Height and width the images are brought to, or the shorter side for detectors and segmenters; default:
            what the model was trained with.
        device: cpu, cuda, cuda:1, mps, or auto.
        architecture: Of a file: the name of its model, where it does not tell it itself.
        model_args: Of a file: what its model was built with, where that is not the default, e.g. stem_stride=2.

    Returns:
        For each readable image a dict with "image" and "predictions", the most probable or surest first.
    """
    require_positive(top_k=top_k, batch_size=1 if batch_size is None else batch_size)
    place = choose_device(device)
    with nullcontext() if out is None else result_folder(out, RESULT) as aside:
        if isinstance(model, TrainedModel):
            trained, model = held(model, architecture, model_args, size, device), model.name
        else:
            trained = load_model(model, architecture=architecture, model_args=model_args, size=size)
            trained.model.to(place)
        task = trained.build_task().using(Inference(flip, scales, slide))
        pictures = find_pictures(images, size=trained.preprocess.size)
        if isinstance(task, WithHead):
            known = None if boxes is None else boxes_for(task, boxes, least)
            results = predict_dense(trained, task, pictures, known, batch_size or 1, least, aside)
        else:
            if boxes is not None:
                raise InputError(f"--boxes {boxes} given; only a model for keypoints asks where objects are")
            results = predict_classes(trained, pictures, top_k, batch_size or 32, aside)
        if aside is not None:
            write_results(aside, model, task, results)
    print_results(results, least)
    if out is not None:
        print(f"\nwritten: {printable(str(out / RESULT))} and {len(results)} drawings beside it")
    return results


def held(
    trained: TrainedModel, architecture: str | None, model_args: tuple[str, ...], size: int | None, device: str
) -> TrainedModel:
    """A model in memory, which is used as it is and where it is."""
    given = {"architecture": architecture, "model_args": " ".join(model_args) or None, "size": size}
    given |= {"device": None if device == "auto" else device}
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name}={value} given with a model in memory; give it to vitreous.load_model instead")
    if trained.model.training:
        raise InputError("the model is in training mode, where its answers are random; call model.eval() first")
    return trained


def predict_classes(
    trained: TrainedModel, pictures: Sequence[Picture], top_k: int, batch_size: int, aside: Path | None
) -> list[dict[str, Any]]:
    """For each readable picture its most probable classes; drawings go to the folder, if there is one."""
    results: list[dict[str, Any]] = []
    progress = track(pictures, total=len(pictures), label="predict")
    for group in batches(load_readable(progress), batch_size):
        loaded = [image for _, image in group]
        for (picture, image), ranked in zip(group, rank_classes(trained, loaded, top_k), strict=True):
            results.append({"image": picture.name, "predictions": [{"class": c, "probability": p} for c, p in ranked]})
            if aside is not None:
                results[-1]["drawing"] = file_name(len(results), picture.name)
                labelled(image, describe(ranked[:1])).save(aside / results[-1]["drawing"])
    report_skipped(len(pictures) - len(results), len(pictures))
    return results


def predict_dense(
    trained: TrainedModel,
    task: WithHead,
    pictures: Sequence[Picture],
    known: DetectorBoxes | None,
    batch_size: int,
    least: float,
    aside: Path | None,
) -> list[dict[str, Any]]:
    """For each readable picture what is found in it, as COCO's result files say it, and with names of classes.

    `known`: where a detector found objects, for each picture; without it, each picture is asked about as a whole.
    """
    names = dict(zip(task.category_ids, task.classes, strict=True))
    numbers = picture_numbers(pictures)
    if known is not None and known.numbered and not numbered_by_name(pictures):
        raise InputError(
            "--boxes is a list of COCO's results, which know pictures by number, and these are not named by their "
            "numbers; give predictions.json of the detector"
        )
    results: list[dict[str, Any]] = []
    progress = track(pictures, total=len(pictures), label="predict")
    for group in batches(load_readable(progress), batch_size):
        asked = [questions_about(task, picture, image, known, numbers[picture.name]) for picture, image in group]
        samples = [
            (image, question) for (_, image), questions in zip(group, asked, strict=True) for question in questions
        ]
        answers = iter([each for part in batches(samples, batch_size) for each in ask(trained, task, part)])
        for (picture, image), questions in zip(group, asked, strict=True):
            found = [next(answers) for _ in questions]
            rows = [row for one, question in zip(found, questions, strict=True) for row in task.rows(one, question)]
            results.append(
                {
                    "image": picture.name,
                    "id": numbers[picture.name],
                    "width": image.width,
                    "height": image.height,
                    "predictions": [{"class": names[row["category_id"]], **row} for row in rows],
                }
            )
            if aside is not None:
                results[-1]["drawing"] = file_name(len(results), picture.name)
                drawing = drawn(task, image, found, least) if found else enlarged(image)[0]
                if isinstance(task, Segment):
                    semantic = found[0]["semantic"].numpy()
                    drawing = with_legend(drawing, semantic, task.classes)
                    results[-1]["labels"] = results[-1]["drawing"].replace(".png", "_labels.png")
                    Image.fromarray(semantic).save(aside / results[-1]["labels"])
                drawing.save(aside / results[-1]["drawing"])
    report_skipped(len(pictures) - len(results), len(pictures))
    return results


def picture_numbers(pictures: Sequence[Picture]) -> dict[str, int]:
    """The number of each picture in a result file: as in its name where all have one, as COCO's do; else its place."""
    if numbered_by_name(pictures):
        return {picture.name: int(Path(picture.name).stem) for picture in pictures}
    return {picture.name: number for number, picture in enumerate(pictures, 1)}


def numbered_by_name(pictures: Sequence[Picture]) -> bool:
    stems = [Path(picture.name).stem for picture in pictures]
    return all(stem.isdecimal() for stem in stems) and len({*map(int, stems)}) == len(stems)


def questions_about(
    task: WithHead, picture: Picture, image: Image.Image, known: DetectorBoxes | None, number: int
) -> list[dict[str, Any]]:
    if known is None:
        return task.questions(image, [])
    if not known.numbered and picture.name not in known.named:
        raise InputError(
            f"--boxes says nothing about {picture.name!r}, but about {len(known.named)} others such as "
            f"{next(iter(known.named), '')!r}; give the pictures as the detector was given them"
        )
    found = known.numbered.get(number, []) if known.numbered else known.named[picture.name]
    return task.questions(image, found) if found else []


def boxes_for(task: Task, file: Path, least: float) -> DetectorBoxes:
    """The objects that a detector found with a score from `least`, of classes that the task knows."""
    if not isinstance(task, Keypoints):
        raise InputError(f"--boxes {file} given; only a model for keypoints asks where objects are")
    return read_boxes(file, dict(zip(task.category_ids, task.classes, strict=True)), task.classes, least)


def write_results(aside: Path, model: str, task: Task, results: Sequence[dict[str, Any]]) -> None:
    files = [result[kind] for result in results for kind in ("drawing", "labels") if kind in result]
    content: dict[str, Any] = {"model": model, "images": results, "files": files}
    if isinstance(task, WithHead):
        rows = [
            {"image_id": result["id"], **{key: value for key, value in row.items() if key != "class"}}
            for result in results
            for row in result["predictions"]
        ]
        write_json(aside / COCO, rows)
        categories = zip(task.category_ids, task.classes, strict=True)
        content["categories"] = [{"id": number, "name": name} for number, name in categories]
        content["files"].append(COCO)
    write_json(aside / RESULT, content)


T = TypeVar("T")


def batches(items: Iterable[T], batch_size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, batch_size)):
        yield batch


def rank_classes(trained: TrainedModel, images: Sequence[Image.Image], top_k: int) -> list[list[tuple[str, float]]]:
    """For each image its most probable classes with their probabilities."""
    device = next(trained.model.parameters()).device
    inputs = torch.stack([trained.preprocess(image) for image in images]).to(device)
    with torch.inference_mode():
        probabilities = trained.model(inputs).float().softmax(-1).cpu()  # (B, K)
    require_numbers(trained.name, probabilities)
    best = probabilities.topk(min(top_k, len(trained.classes)))
    return [
        [(trained.classes[index], probability) for index, probability in zip(row, values, strict=True)]
        for row, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def describe(ranked: Iterable[tuple[str, float]]) -> str:
    return "   ".join(f"{name} {probability:.1%}" for name, probability in ranked)


def print_results(results: Sequence[dict[str, Any]], least: float) -> None:
    width = max(len(printable(result["image"])) for result in results)
    for result in results:
        print(f"{printable(result['image']):<{width}}  {printable(summary(result['predictions'], least))}")


def summary(predictions: Sequence[dict[str, Any]], least: float) -> str:
    """One line: probabilities of classes, how many objects of each class, or what covers how much of the picture."""
    if predictions and "probability" in predictions[0]:
        return describe((entry["class"], entry["probability"]) for entry in predictions)
    shown = [entry for entry in predictions if entry["score"] >= least]
    counts = Counter(entry["class"] for entry in shown)
    if shown and all("bbox" not in entry for entry in shown):
        return ", ".join(counts)
    return (
        ", ".join(f"{count} {name}" for name, count in counts.most_common()) or f"nothing with a score from {least:g}"
    )
