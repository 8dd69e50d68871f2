"""What a model says about images: a table on the screen, JSON and drawings in a folder.

vitreous predict photo.jpg
vitreous predict runs/demo photo.jpg
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vitreous.data.detector_boxes import DetectorBoxes, Found, read_boxes
from vitreous.data.many_pictures import gather_pictures, list_pictures
from vitreous.data.pictures import Picture
from vitreous.data.video import Video, frame_lines, open_video
from vitreous.errors import InputError, printable
from vitreous.files.storage import json_text, sha256, write_json
from vitreous.files.writing import write_output
from vitreous.measurements.plan import plan_memory, read_amount
from vitreous.runs.answer_shards import fill_shards, report_shards, write_rows
from vitreous.runs.default_model import model_and_pictures
from vitreous.runs.model_folder import load_model
from vitreous.runs.predict_settings import PredictSettings
from vitreous.runs.result_shards import Share, json_values, model_fingerprint, open_shards, own_share
from vitreous.runs.results import (
    file_name,
    report_skipped,
    report_unreadable,
    result_folder,
)
from vitreous.runs.streaming import PictureSource, Question, even_batch_size, stream_answers
from vitreous.runs.trained_model import TrainedModel, in_batches, require_evaluation_mode
from vitreous.runs.video_answers import VIDEO_DRAWN, VIDEO_LINES, answer_video, write_video_marker
from vitreous.runtime.calling import takes
from vitreous.runtime.console import track
from vitreous.runtime.device import choose_device
from vitreous.tasks.base import Task
from vitreous.tasks.results import MIN_SCORE, PictureResult

_RESULT, _COCO_RESULTS = "predictions.json", "coco_results.json"


class Predicted(NamedTuple):
    """What the verb tells about one picture."""

    row: dict[str, Any]  # of predictions.json
    summary: str
    files: tuple[str, ...]  # drawings


class Together(NamedTuple):
    """How many images are computed at once."""

    batch: int  # in a forward pass
    passes: int | None = None  # side by side; None: as many as there are threads


@takes(PredictSettings)
def predict(settings: PredictSettings) -> list[dict[str, Any]]:
    """Class probabilities, objects, a class for every pixel, or keypoints, depending on what the model was trained for.

    With --out, what is found is drawn on the images, and written to predictions.json; of all models but classifiers
    also to coco_results.json, in COCO's format for results. There all answers are kept, whatever --min-score says.
    Files that cannot be read are named and skipped; only when none can be read is that an error.
    With --jsonl, for millions of pictures (docs/many.md): nothing is drawn, --out gets shards of JSON lines, the same
    command continues after a kill, and torchrun divides the shards over processes and machines.

    A video is taken alone: --stride 5 looks at every fifth frame, and --out gets predictions.jsonl, a line for each,
    and overlay.mp4 with what was found drawn on the frames (needs the extra video).

    Examples:
        vitreous predict photo.jpg
        vitreous predict runs/demo photos/ more/*.png --top-k 3
        vitreous predict runs/cells slides/ --min-score 0.5 --out found
        vitreous predict runs/poses photos/ --boxes found/predictions.json --flip --out poses
        torchrun --nproc-per-node 2 -m vitreous predict runs/demo 'photos-{000..099}.tar' --jsonl --out answers
        vitreous predict runs/cells clip.mp4 --stride 5 --out found
        vitreous predict runs/demo panorama.jpg --size 4000x6000 --max-memory 4GB

    Returns:
        For each readable image a dict with "image" and "predictions", the surest first; none with jsonl.
    """
    model, images = model_and_pictures(settings.model, settings.images, "predict")
    settings = replace(settings, model=model, images=images)
    out, share = settings.out, own_share()
    allowed = None if settings.max_memory is None else read_amount(settings.max_memory)
    video = opened_video(settings.images, settings.stride, settings.jsonl)
    many = require_place(share, settings.jsonl, settings.shard_size, out)
    if many and settings.json is not None:
        raise InputError(f"--json {settings.json} given for answers that go to shards in --out; leave it out")
    place = choose_device(settings.device, local_rank=share.on_machine)
    with nullcontext() if out is None or many else result_folder(out, _RESULT) as staging:
        trained = opened_model(
            settings.model, settings.architecture, settings.model_args, settings.size, settings.device, place
        )
        task = trained.build_task().using(settings.inference())
        known, asked = known_boxes(task), settings.batch_size or task.batch_size
        if many and out is not None:
            together = images_together(trained, asked, allowed)
            predict_shards(trained, task, settings.images, known, together, out, share, settings.shard_size)
            return []
        if video is not None:
            rows = predict_video(trained, task, video, images_together(trained, asked, allowed), staging)
        else:
            pictures = list_pictures(settings.images, size=trained.preprocess.size)
            together = images_together(trained, min(asked, len(pictures)), allowed)
            predicted = predict_all(trained, task, pictures, known, together, staging)
            write_predictions(staging, getattr(settings.model, "name", settings.model), task, predicted)
            rows = [one.row for one in predicted]
    if video is None:
        print_table(predicted, out)
    elif out is not None:
        print(printable(f"written: {out / VIDEO_LINES} and {out / VIDEO_DRAWN}"))
    if settings.json is not None:
        write_output(settings.json, json_text(rows))
    return rows


def opened_video(images: Sequence[Any], stride: int, jsonl: bool) -> Video | None:
    """The video among what was given, if there is one."""
    video = open_video(images, stride)
    if video is None and stride != 1:
        raise InputError(f"--stride {stride} is for a video; leave it out, or give one")
    if video is not None and jsonl:
        raise InputError("--jsonl writes shards of many pictures; a video has its lines in --out anyway: leave it out")
    return video


def predict_video(
    trained: TrainedModel, task: Task, video: Video, together: Together, staging: Path | None
) -> list[dict[str, Any]]:
    question = Question(task, together.batch, drawn=staging is not None, side_by_side=together.passes)
    found = answer_video(trained, question, video, staging)
    if staging is not None:
        write_video_marker(staging, _RESULT, model=trained.name, video=video.path.name, stride=video.stride)
    for line in frame_lines([(row["seconds"], summary) for row, summary in found]):
        print(printable(line))
    return [row for row, _ in found]


def images_together(trained: TrainedModel, asked: int, allowed: int | None) -> Together:
    """As many as asked for, or as fit into the bytes that are allowed, one batch after the other, which is told."""
    if allowed is None:
        return Together(asked)
    plan = plan_memory(trained, batch_size=asked, max_memory=allowed)
    print(f"plan: {plan}")
    return Together(plan.batch, 1)


def print_table(predicted: Sequence[Predicted], out: Path | None) -> None:
    width = max(len(printable(one.row["image"])) for one in predicted)
    for one in predicted:
        print(f"{printable(one.row['image']):<{width}}  {printable(one.summary)}")
    if out is not None:
        print(f"\nwritten: {printable(str(out / _RESULT))} and {len(predicted)} drawings beside it")


def require_place(share: Share, jsonl: bool, shard_size: int | None, out: Path | None) -> bool:
    """Whether shards are to be written, for which there must be a folder."""
    several = share.processes > 1
    if (jsonl or several or shard_size is not None) and out is None:
        who = f"{share.processes} processes write" if several else "--jsonl writes"
        raise InputError(f"{who} shards of answers to a folder that all of them see; give --out FOLDER")
    return jsonl or several or shard_size is not None


def known_boxes(task: Task) -> DetectorBoxes | None:
    """Where a detector found objects, if a file of it was given."""
    given = task.inference
    if given.boxes is None:
        return None
    categories = dict(zip(task.category_ids, task.classes, strict=True))
    return read_boxes(given.boxes, categories, task.classes, MIN_SCORE if given.min_score is None else given.min_score)


def predict_shards(
    trained: TrainedModel,
    task: Task,
    names: Sequence[str],
    known: DetectorBoxes | None,
    together: Together,
    out: Path,
    share: Share,
    shard_size: int | None,
) -> list[dict[str, Any]]:
    """The answers of this process's share of the pictures, to its shards; none is left to tell."""
    images = gather_pictures(names, size=trained.preprocess.size)
    settings = asdict(task.inference) | {"boxes": None if known is None else sha256(task.inference.boxes)}
    about = {"model": trained.name, "fingerprint": model_fingerprint(trained), "settings": json_values(settings)}
    shards = open_shards(out, "predictions", ".jsonl", images, share, shard_size, about)

    def objects(name: str) -> list[Found] | None:
        return known_objects(known, name, number_in(name))

    question = Question(task, together.batch, objects, drawn=False, side_by_side=together.passes)
    streamed = partial(stream_answers, trained, question)
    report_shards(shards, fill_shards(shards, images, together.batch, streamed, write_rows, label="predict"))
    return []


def number_in(name: str) -> int:
    """The number by which COCO's results know a picture; -1 if it has none."""
    stem = Path(name).stem
    return int(stem) if stem.isdecimal() else -1


def opened_model(
    model: str | TrainedModel,
    architecture: str | None,
    model_args: tuple[str, ...],
    size: int | str | None,
    device: str,
    place: torch.device,
    *,
    features: bool = False,
) -> TrainedModel:
    """The model that a verb was given, where it is to be used; with `features`, one without a classifier will do."""
    if isinstance(model, TrainedModel):
        return usable_as_is(model, architecture, model_args, size, device)
    trained = load_model(model, architecture=architecture, model_args=model_args, size=size, features=features)
    trained.model.to(place)
    return trained


def usable_as_is(
    trained: TrainedModel, architecture: str | None, model_args: tuple[str, ...], size: int | str | None, device: str
) -> TrainedModel:
    """A model in memory, which is used as it is and where it is."""
    given = {"architecture": architecture, "model_args": " ".join(model_args) or None, "size": size}
    given |= {"device": None if device == "auto" else device}
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name}={value} given with a model in memory; give it to vitreous.load_model instead")
    require_evaluation_mode(trained.model)
    return trained


def predict_all(
    trained: TrainedModel,
    task: Task,
    pictures: Sequence[Picture],
    known: DetectorBoxes | None,
    together: Together,
    staging: Path | None,
) -> list[Predicted]:
    """Every picture that can be read; drawings go to the folder, if there is one."""
    numbers = picture_numbers(pictures)
    if known is not None and known.numbered and not numbered_by_name(pictures):
        raise InputError(
            "--boxes is a list of COCO's results, which know pictures by number, and these are not named by their "
            "numbers; give predictions.json of the detector"
        )
    predicted: list[Predicted] = []
    objects = lambda name: known_objects(known, name, numbers[name])  # noqa: E731
    question = Question(task, together.batch, objects, drawn=staging is not None, side_by_side=together.passes)
    sources = (PictureSource(number, picture.name, picture.load) for number, picture in enumerate(pictures))
    even = together.batch if together.passes else even_batch_size(len(pictures), together.batch)
    outcomes = chain.from_iterable(stream_answers(trained, question, in_batches(sources, even)))
    for source, result, error in track(outcomes, total=len(pictures), label="predict"):
        if error is not None:
            report_unreadable(error)
            continue
        number = {"id": numbers[source.name]} if task.category_ids else {}
        name = file_name(len(predicted) + 1, source.name)
        files = {} if staging is None else save_drawings(staging, name, result)
        row = {"image": source.name, **number, **result.to_dict(), **files}
        predicted.append(Predicted(row, result.summary(), tuple(files.values())))
    report_skipped(len(pictures) - len(predicted), len(pictures))
    return predicted


def save_drawings(folder: Path, name: str, result: PictureResult) -> dict[str, str]:
    """Kind -> file name of every picture that was written."""
    result.draw().save(folder / name)
    files = {"drawing": name}
    for kind, picture in result.more_pictures().items():
        files[kind] = name.replace(".png", f"_{kind}.png")
        picture.save(folder / files[kind])
    return files


def picture_numbers(pictures: Sequence[Picture]) -> dict[str, int]:
    """The number of each picture in a result file: as in its name where all have one, as COCO's do; else its place."""
    if numbered_by_name(pictures):
        return {picture.name: int(Path(picture.name).stem) for picture in pictures}
    return {picture.name: number for number, picture in enumerate(pictures, 1)}


def numbered_by_name(pictures: Sequence[Picture]) -> bool:
    stems = [Path(picture.name).stem for picture in pictures]
    return all(stem.isdecimal() for stem in stems) and len({*map(int, stems)}) == len(stems)


def known_objects(known: DetectorBoxes | None, name: str, number: int) -> list[Found] | None:
    """Where a detector found objects in a picture; None where none was asked."""
    if known is None:
        return None
    if known.numbered and number < 0:
        raise InputError(f"--boxes is a list of COCO's results, which know pictures by number, and {name!r} has none")
    if known.numbered:
        return known.numbered.get(number, [])
    if name not in known.named:
        raise InputError(
            f"--boxes says nothing about {name!r}, but about {len(known.named)} others such as "
            f"{next(iter(known.named), '')!r}; give the pictures as the detector was given them"
        )
    return known.named[name]


def write_predictions(staging: Path | None, model: str, task: Task, predicted: Sequence[Predicted]) -> None:
    """To the folder, if there is one."""
    if staging is None:
        return
    rows, files = [one.row for one in predicted], [file for one in predicted for file in one.files]
    content: dict[str, Any] = {"model": model, "images": rows, "files": files}
    if task.category_ids:
        entries = [
            {"image_id": row["id"], **{key: value for key, value in entry.items() if key != "class"}}
            for row in rows
            for entry in row["predictions"]
        ]
        write_json(staging / _COCO_RESULTS, entries)
        categories = zip(task.category_ids, task.classes, strict=True)
        content["categories"] = [{"id": number, "name": name} for number, name in categories]
        content["files"].append(_COCO_RESULTS)
    write_json(staging / _RESULT, content)
